"""Nodes: read, written, listed, removed, with their versions."""

from __future__ import annotations

import asyncio
import time

import pytest

from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    MetadataConflictError,
    NodeExistsError,
    NodeTooLargeError,
    NoSuchNodeError,
)
from ackgate.persistence import MetadataStore


async def test_a_node_that_is_not_there_is_none(store: MetadataStore) -> None:
    assert await store.get("/nowhere") is None
    assert await store.children("/nowhere") == []


async def test_a_created_node_reads_back_with_version_0(store: MetadataStore) -> None:
    before_ms = time.time_ns() // 1_000_000
    await store.create("/a", b"\x00one\xff")
    node = await store.get("/a")
    assert node is not None
    assert (node.value, node.version, node.is_ephemeral) == (b"\x00one\xff", 0, False)
    assert abs(node.created_ms - before_ms) < 60_000
    assert node.modified_ms == node.created_ms


async def test_create_refuses_a_node_that_is_there(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    with pytest.raises(NodeExistsError, match="/a"):
        await store.create("/a", b"2")
    node = await store.get("/a")
    assert node is not None
    assert node.value == b"1"


async def test_parents_are_made_empty(store: MetadataStore) -> None:
    await store.create("/a/b/c", b"leaf")
    for path, children in (("/", ["a"]), ("/a", ["b"]), ("/a/b", ["c"]), ("/a/b/c", [])):
        found = await store.children(path)
        assert [name for name in found if name != "zookeeper"] == children
    parent = await store.get("/a/b")
    assert parent is not None
    assert (parent.value, parent.version) == (b"", 0)


async def test_put_makes_and_overwrites(store: MetadataStore) -> None:
    assert await store.put("/x/y", b"1", expected_version=None) == 0
    assert await store.put("/x/y", b"2", expected_version=None) == 1
    node = await store.get("/x/y")
    assert node is not None
    assert (node.value, node.version) == (b"2", 1)


async def test_put_with_minus_1_only_makes(store: MetadataStore) -> None:
    assert await store.put("/x/y", b"1", expected_version=-1) == 0
    with pytest.raises(MetadataConflictError):
        await store.put("/x/y", b"2", expected_version=-1)
    node = await store.get("/x/y")
    assert node is not None
    assert node.value == b"1"


async def test_put_compares_the_version(store: MetadataStore) -> None:
    await store.create("/x", b"0")
    assert await store.put("/x", b"1", expected_version=0) == 1
    for wrong in (0, 2, 7):
        with pytest.raises(MetadataConflictError, match="/x"):
            await store.put("/x", b"wrong", expected_version=wrong)
    assert await store.put("/x", b"2", expected_version=1) == 2
    node = await store.get("/x")
    assert node is not None
    assert (node.value, node.version) == (b"2", 2)


async def test_put_expecting_a_version_of_a_missing_node_is_a_conflict(
    store: MetadataStore,
) -> None:
    with pytest.raises(MetadataConflictError):
        await store.put("/gone", b"", expected_version=0)
    assert await store.get("/gone") is None


async def test_delete(store: MetadataStore) -> None:
    await store.create("/x/y", b"0")
    with pytest.raises(CallerError, match="children"):
        await store.delete("/x")
    with pytest.raises(MetadataConflictError):
        await store.delete("/x/y", expected_version=1)
    await store.delete("/x/y", expected_version=0)
    assert await store.get("/x/y") is None
    assert await store.children("/x") == []
    await store.delete("/x")
    with pytest.raises(NoSuchNodeError, match="/x"):
        await store.delete("/x")
    with pytest.raises(NoSuchNodeError, match="/x"):
        await store.delete("/x", expected_version=3)


async def test_a_deleted_node_comes_back_with_version_0(store: MetadataStore) -> None:
    await store.create("/x", b"0")
    await store.put("/x", b"1", expected_version=0)
    await store.delete("/x")
    assert await store.put("/x", b"new", expected_version=-1) == 0


async def test_children_are_names_in_order_and_only_direct_ones(store: MetadataStore) -> None:
    for path in ("/p/b", "/p/a", "/p/a/deep", "/p/ab", "/pq/x", "/p/ä%2F"):
        await store.create(path, b"")
    assert await store.children("/p") == ["a", "ab", "b", "ä%2F"]


@pytest.mark.parametrize(
    "path",
    [
        *("", "a", "a/b", "/a/", "//a", "/a//b", "/", "/a/./b", "/a/..", "/a\0b", "/\ud800"),
        *("/a\nb", "/\x7f", "/\x85", "/\ue000", "/\uffff", "/\U0001f600", "/" + "a" * 8192),
    ],
    ids=lambda path: ascii(path[:8]),
)
async def test_impossible_paths_are_refused(store: MetadataStore, path: str) -> None:
    with pytest.raises(CallerError):
        await store.put(path, b"", expected_version=None)
    with pytest.raises(CallerError):
        await store.create(path, b"")
    with pytest.raises(CallerError):
        await store.get(path)
    with pytest.raises(CallerError):
        await store.delete(path)


async def test_the_size_guard_is_ours_and_exact(store: MetadataStore) -> None:
    fits = b"x" * store.node_bytes_max
    await store.create("/fits", fits)
    with pytest.raises(NodeTooLargeError, match="/large"):
        await store.create("/large", fits + b"x")
    with pytest.raises(NodeTooLargeError):
        await store.put("/fits", fits + b"x", expected_version=0)
    node = await store.get("/fits")
    assert node is not None
    assert (len(node.value), node.version) == (store.node_bytes_max, 0)
    assert await store.get("/large") is None


async def test_of_many_concurrent_compare_and_sets_one_wins(store: MetadataStore) -> None:
    await store.create("/x", b"")
    answers = await asyncio.gather(
        *(store.put("/x", str(i).encode(), expected_version=0) for i in range(50)),
        return_exceptions=True,
    )
    assert answers.count(1) == 1
    assert sum(isinstance(answer, MetadataConflictError) for answer in answers) == 49


async def test_a_failing_operation_does_not_disturb_its_neighbours(store: MetadataStore) -> None:
    answers = await asyncio.gather(
        store.create("/n/1", b"1"),
        store.create("/n/1", b"again"),
        store.put("/n/2", b"2", expected_version=5),
        store.put("/n/3", b"3", expected_version=-1),
        store.delete("/n/4"),
        store.children("/n"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [
        type(None),
        NodeExistsError,
        MetadataConflictError,
        int,
        NoSuchNodeError,
        list,
    ]
    assert await store.children("/n") == ["1", "3"]


async def test_a_cancelled_caller_leaves_the_store_working(store: MetadataStore) -> None:
    task = asyncio.ensure_future(store.create("/x", b""))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.put("/y", b"1", expected_version=None)
    assert await store.get("/y") is not None


async def test_a_closed_store_says_so(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(ClosedHandleError):
        await store.get("/x")
    with pytest.raises(ClosedHandleError):
        await store.put("/x", b"", expected_version=None)
