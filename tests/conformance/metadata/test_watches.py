"""Watches: persistent and recursive."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.persistence import MetadataStore, WatchEvent, WatchKind
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
    await heard.expect((CREATED, "/t"))
    await store.create("/t/a/b", b"")
    await heard.expect((CREATED, "/t/a"), (CREATED, "/t/a/b"))
    await store.put("/t/a/b", b"1", expected_version=0)
    await heard.expect((CHANGED, "/t/a/b"))
    await store.put("/t/a/b", b"2", expected_version=None)
    await heard.expect((CHANGED, "/t/a/b"))
    await store.delete("/t/a/b")
    await heard.expect((DELETED, "/t/a/b"))
    await store.create("/t/a/b", b"again")
    await heard.expect((CREATED, "/t/a/b"))
    assert heard.queue.empty()


async def test_changes_in_quick_succession_are_told_at_least_as_one(store: MetadataStore) -> None:
    heard = Heard()
    await store.create("/t/kept", b"")
    await store.create("/t/gone", b"")
    store.watch("/t", heard)
    await asyncio.gather(
        store.create("/t/came/deep/below", b""),
        store.put("/t/kept", b"1", expected_version=0),
        store.put("/t/kept", b"2", expected_version=1),
        store.delete("/t/gone"),
        store.create("/t/went", b""),
        store.delete("/t/went"),
        store.create("/t/last", b""),
    )
    last: dict[str, WatchKind] = {}
    wanted = {
        "/t/came": CREATED,
        "/t/came/deep": CREATED,
        "/t/came/deep/below": CREATED,
        "/t/kept": CHANGED,
        "/t/gone": DELETED,
        "/t/last": CREATED,
    }
    while not wanted.items() <= last.items() or last.get("/t/went") is CREATED:
        event = await asyncio.wait_for(heard.queue.get(), 10)
        last[event.path] = event.kind
    assert last.keys() - wanted.keys() <= {"/t/went"}


async def test_what_a_read_after_watching_has_seen_is_told_when_it_goes(
    store: MetadataStore,
) -> None:
    heard = Heard()
    await store.create("/t/a/b/c", b"")
    store.watch("/t", heard)
    assert await store.children("/t/a/b") == ["c"]
    await store.delete("/t/a/b/c")
    await heard.expect((DELETED, "/t/a/b/c"))
    assert heard.queue.empty()


async def test_watches_of_one_subtree_are_apart(store: MetadataStore) -> None:
    upper, lower = Heard(), Heard()
    await store.create("/t/a/x", b"")
    cancel = store.watch("/t", upper)
    store.watch("/t/a", lower)
    await store.put("/t/a/x", b"1", expected_version=0)
    await upper.expect((CHANGED, "/t/a/x"))
    await lower.expect((CHANGED, "/t/a/x"))
    cancel()
    await store.create("/t/b", b"")
    await store.put("/t/a/x", b"2", expected_version=1)
    await store.delete("/t/a/x")
    await store.delete("/t/a")
    await store.create("/t/a", b"")
    seen = [await asyncio.wait_for(lower.queue.get(), 10)]
    while seen[-1] != (CREATED, "/t/a"):
        seen.append(await asyncio.wait_for(lower.queue.get(), 10))
    assert {event.path for event in seen} == {"/t/a", "/t/a/x"}
    assert upper.queue.empty()


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
    assert await second.get("/owner") is not None  # from here on it is watched
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
