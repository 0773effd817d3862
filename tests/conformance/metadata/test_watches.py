"""Watches: persistent and recursive."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.persistence.ports import MetadataStore, WatchEvent, WatchKind
from tests.conformance.metadata.conftest import Backend

CREATED, CHANGED, DELETED = WatchKind.CREATED, WatchKind.CHANGED, WatchKind.DELETED


class Heard:
    """Collects events; `expect` waits for them without sleeping."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[WatchEvent] = asyncio.Queue()

    def __call__(self, event: WatchEvent) -> None:
        self.queue.put_nowait(event)

    async def expect(self, *events: tuple[WatchKind, str]) -> None:
        for event in events:
            assert await asyncio.wait_for(self.queue.get(), 10) == event


async def test_a_watch_hears_every_change_at_and_below_its_path(store: MetadataStore) -> None:
    heard = Heard()
    store.watch("/t", heard)
    await store.create("/t", b"")
    await store.create("/t/a/b", b"")
    await store.put("/t/a/b", b"1", expected_version=0)
    await store.put("/t/a/b", b"2", expected_version=None)
    await store.delete("/t/a/b")
    await heard.expect(
        (CREATED, "/t"),
        (CREATED, "/t/a"),
        (CREATED, "/t/a/b"),
        (CHANGED, "/t/a/b"),
        (CHANGED, "/t/a/b"),
        (DELETED, "/t/a/b"),
    )
    assert heard.queue.empty()


async def test_a_watch_hears_nothing_of_its_neighbours(store: MetadataStore) -> None:
    heard = Heard()
    store.watch("/t/a", heard)
    await store.create("/t/ab", b"")
    await store.create("/u", b"")
    await store.create("/t/a", b"")
    await heard.expect((CREATED, "/t/a"))
    assert heard.queue.empty()


async def test_a_watch_of_the_root_hears_all(store: MetadataStore) -> None:
    heard = Heard()
    store.watch("/", heard)
    await store.create("/x", b"")
    await heard.expect((CREATED, "/x"))


async def test_a_failed_operation_is_not_heard(store: MetadataStore) -> None:
    heard = Heard()
    await store.create("/t/a", b"")
    store.watch("/t", heard)
    await asyncio.gather(
        store.create("/t/a", b""),
        store.put("/t/a", b"", expected_version=9),
        store.delete("/t/b"),
        return_exceptions=True,
    )
    await store.create("/t/last", b"")
    await heard.expect((CREATED, "/t/last"))


async def test_a_cancelled_watch_is_silent(store: MetadataStore) -> None:
    heard, other = Heard(), Heard()
    cancel = store.watch("/t", heard)
    store.watch("/t", other)
    await store.create("/t", b"")
    await heard.expect((CREATED, "/t"))
    cancel()
    cancel()
    await store.create("/t/a", b"")
    await other.expect((CREATED, "/t"), (CREATED, "/t/a"))
    assert heard.queue.empty()


async def test_the_end_of_ephemeral_nodes_is_heard_by_others(backend: Backend) -> None:
    if not backend.is_shared:
        pytest.skip("one session at a time")
    first, second = await backend.session(), await backend.session()
    heard = Heard()
    await first.create("/owner", b"", ephemeral=True)
    second.watch("/owner", heard)
    await first.close()
    await heard.expect((DELETED, "/owner"))


async def test_a_failing_watcher_disturbs_nobody(store: MetadataStore) -> None:
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def broken(_: WatchEvent) -> None:
        raise RuntimeError("broken watcher")

    heard = Heard()
    store.watch("/t", broken)
    store.watch("/t", heard)
    await store.create("/t", b"")
    await heard.expect((CREATED, "/t"))
    assert len(problems) == 1
