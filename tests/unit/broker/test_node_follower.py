"""Nodes are read again when they change, and again when that fails."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.broker.cluster import node_follower
from ackgate.broker.cluster.node_follower import NodeFollower
from ackgate.errors import MetadataStoreError, SessionLostError
from ackgate.persistence import MemoryMetadataStore


class Reader:
    """Notes what is to be read, and fails as told."""

    def __init__(self) -> None:
        self.seen: list[set[str]] = []
        self.failures: list[Exception] = []

    async def read(self, paths: set[str]) -> None:
        self.seen.append(set(paths))
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_follower, "RETRY_SECONDS", 0)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_failed_is_read_again_with_what_came_meanwhile() -> None:
    store, reader = MemoryMetadataStore(), Reader()
    follower = NodeFollower(store, ["/a"], reader.read)
    follower.start()
    reader.failures = [MetadataStoreError("away"), MetadataStoreError("still away")]
    await store.put("/a/1", b"", expected_version=None)
    await store.put("/b/1", b"", expected_version=None)
    await turns()
    assert [paths & {"/a/1", "/b/1"} for paths in reader.seen] == [{"/a/1"}] * 3
    await store.put("/a/1", b"x", expected_version=None)
    await turns()
    assert reader.seen[-1] == {"/a/1"}
    follower.stop()
    await store.put("/a/1", b"y", expected_version=None)
    await turns()
    assert len(reader.seen) == 4


async def test_a_reader_with_a_bug_does_not_end_the_following(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, reader = MemoryMetadataStore(), Reader()
    follower = NodeFollower(store, ["/a"], reader.read)
    follower.start()
    reader.failures = [RuntimeError("a bug")]
    await store.put("/a/1", b"", expected_version=None)
    await turns()
    assert "a bug" in caplog.text
    await store.put("/a/1", b"x", expected_version=None)
    await turns()
    assert reader.seen[-1] == {"/a/1"}
    assert len(reader.seen) == 2
    follower.stop()


async def test_a_lost_session_ends_it_and_a_new_one_begins_anew() -> None:
    store, reader = MemoryMetadataStore(), Reader()
    follower = NodeFollower(store, ["/a"], reader.read)
    follower.start()
    reader.failures = [SessionLostError("over")]
    await store.put("/a", b"", expected_version=None)
    await turns()
    store.expire()
    await store.renew()
    await store.put("/a", b"x", expected_version=None)
    await turns()
    assert reader.seen == [{"/a"}]
    follower.start()
    await store.put("/a", b"y", expected_version=None)
    await turns()
    assert reader.seen == [{"/a"}, {"/a"}]
    follower.stop()
