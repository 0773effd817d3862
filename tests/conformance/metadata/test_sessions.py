"""Sessions, and the ephemeral nodes that end with them."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.errors import CallerError, ClosedHandleError, SessionLostError
from ackgate.persistence import MetadataStore, SessionState, WatchEvent, WatchKind
from tests.conformance.metadata.conftest import Backend


async def test_what_was_put_outlives_the_session(backend: Backend) -> None:
    first = await backend.session()
    await first.create("/kept/a", b"1")
    await first.put("/kept/a", b"2", expected_version=0)
    await first.close()
    second = await backend.session()
    node = await second.get("/kept/a")
    assert node is not None
    assert (node.value, node.version) == (b"2", 1)


async def test_an_ephemeral_node_says_so_and_ends_with_its_session(backend: Backend) -> None:
    first = await backend.session()
    await first.create("/owners/topic", b"me", ephemeral=True)
    node = await first.get("/owners/topic")
    assert node is not None
    assert node.is_ephemeral
    await first.close()
    second = await backend.session()
    assert await second.get("/owners/topic") is None
    assert await second.children("/owners") == []


async def test_a_put_leaves_a_node_ephemeral(store: MetadataStore) -> None:
    await store.create("/e", b"1", ephemeral=True)
    await store.put("/e", b"2", expected_version=0)
    node = await store.get("/e")
    assert node is not None
    assert node.is_ephemeral
    await store.delete("/e", expected_version=1)


async def test_an_ephemeral_node_has_no_children(store: MetadataStore) -> None:
    await store.create("/e", b"", ephemeral=True)
    with pytest.raises(CallerError):
        await store.create("/e/child", b"")
    with pytest.raises(CallerError):
        await store.put("/e/some/child", b"", expected_version=None)
    assert await store.children("/e") == []


async def test_the_session_is_connected_until_it_is_closed(store: MetadataStore) -> None:
    states = [store.session_state]
    await store.close()
    states.append(store.session_state)
    assert states == [SessionState.CONNECTED, SessionState.LOST]


async def test_one_session_sees_what_another_wrote(backend: Backend) -> None:
    if not backend.is_shared:
        pytest.skip("one session at a time")
    first, second = await backend.session(), await backend.session()
    await first.create("/owner", b"first", ephemeral=True)
    node = await second.get("/owner")
    assert node is not None
    assert node.value == b"first"
    await first.close()
    assert await second.get("/owner") is None
    await second.create("/owner", b"second", ephemeral=True)


async def test_the_end_of_one_session_leaves_the_nodes_of_another(backend: Backend) -> None:
    if not backend.is_shared:
        pytest.skip("one session at a time")
    first, second = await backend.session(), await backend.session()
    await first.create("/owners/1", b"", ephemeral=True)
    await second.create("/owners/2", b"", ephemeral=True)
    await first.close()
    assert await second.children("/owners") == ["2"]


async def test_renewing_a_living_session_does_nothing(store: MetadataStore) -> None:
    await store.create("/mine", b"", ephemeral=True)
    states: list[SessionState] = []
    store.on_session_change(states.append)
    await store.renew()
    node = await store.get("/mine")
    assert node is not None
    assert node.is_ephemeral
    assert (store.session_state, states) == (SessionState.CONNECTED, [])


async def test_a_closed_session_cannot_be_renewed(store: MetadataStore) -> None:
    await store.close()
    with pytest.raises(ClosedHandleError):
        await store.renew()


async def test_a_connected_session_has_a_lease(store: MetadataStore) -> None:
    await store.get("/x")
    assert store.lease_until > asyncio.get_running_loop().time()


async def test_a_lost_session_is_renewed_and_owns_nothing(backend: Backend) -> None:
    if backend.lose is None:
        pytest.skip("its session ends with the process only")
    store, other = await backend.session(), await backend.session()
    states: asyncio.Queue[SessionState] = asyncio.Queue()
    store.on_session_change(states.put_nowait)
    heard: list[WatchEvent] = []
    await store.create("/mine", b"", ephemeral=True)
    await store.put("/kept", b"", expected_version=-1)
    store.watch("/kept", heard.append)
    await store.get("/kept")
    await backend.lose(store)
    async with asyncio.timeout(30):
        while await states.get() is not SessionState.LOST:
            pass
    for call in (
        store.get("/kept"),
        store.children("/"),
        store.put("/kept", b"1", expected_version=0),
        store.create("/new", b""),
        store.delete("/kept"),
    ):
        with pytest.raises(SessionLostError):
            await call
    assert store.lease_until <= asyncio.get_running_loop().time()
    assert await other.get("/mine") is None

    await store.renew()
    async with asyncio.timeout(30):
        assert await states.get() is SessionState.CONNECTED
    assert store.session_state is SessionState.CONNECTED
    await store.create("/mine", b"2", ephemeral=True)
    assert await store.put("/kept", b"1", expected_version=0) == 1
    again: asyncio.Queue[WatchEvent] = asyncio.Queue()
    store.watch("/kept", again.put_nowait)
    await store.get("/kept")
    await other.put("/kept", b"2", expected_version=1)
    assert await asyncio.wait_for(again.get(), 10) == WatchEvent(WatchKind.CHANGED, "/kept")
    assert heard == []
