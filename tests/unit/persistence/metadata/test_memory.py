"""What the memory store offers to tests beyond the port: suspending and expiring a session."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.errors import SessionLostError, StoreSuspendedError
from ackgate.persistence import MemoryMetadataStore, SessionState


async def test_a_suspended_session_waits_and_comes_back() -> None:
    store = MemoryMetadataStore()
    await store.create("/e", b"", ephemeral=True)
    seen: list[SessionState] = []
    store.on_session_change(seen.append)
    store.suspend()
    with pytest.raises(StoreSuspendedError):
        await store.get("/e")
    store.resume()
    assert await store.get("/e") is not None
    await asyncio.sleep(0)
    assert seen == [SessionState.SUSPENDED, SessionState.CONNECTED]


async def test_an_expired_session_loses_its_ephemeral_nodes() -> None:
    store = MemoryMetadataStore()
    other = MemoryMetadataStore(store.tree)
    await store.create("/e", b"", ephemeral=True)
    cancelled: list[SessionState] = []
    store.on_session_change(cancelled.append)()
    store.expire()
    assert store.session_state is SessionState.LOST
    with pytest.raises(SessionLostError):
        await store.put("/x", b"", expected_version=None)
    assert await other.get("/e") is None
    await asyncio.sleep(0)
    assert cancelled == []
