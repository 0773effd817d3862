"""A session to ZooKeeper that owns nothing: its loss is waited out."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ackgate.errors import MetadataStoreError, StoreSuspendedError
from ackgate.persistence import MemoryMetadataStore, SessionState
from ackgate.persistence.bookkeeper.lasting_store import LastingStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore


class Losable(MemoryMetadataStore):
    """Renews once it may."""

    refusals = 0

    async def renew(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise MetadataStoreError("no server")
        await super().renew()


def lasting(store: Losable, **options: float) -> LastingStore:
    return LastingStore(cast("ZooKeeperMetadataStore", store), **options)


@pytest.mark.slow
async def test_calls_go_on_in_the_next_session() -> None:
    store = Losable(MemoryTree())
    nodes = lasting(store)
    await nodes.create("/a", b"1")
    store.refusals = 3
    store.expire()
    assert await nodes.put("/a", b"2", expected_version=0) == 1
    found = await nodes.get("/a")
    assert found is not None
    assert found.value == b"2"
    store.expire()
    while store.session_state is not SessionState.CONNECTED:  # without a call, too
        await asyncio.sleep(0)
    assert await store.children("/") == ["a"]
    await nodes.close()


@pytest.mark.slow
async def test_a_call_waits_no_longer_than_it_may() -> None:
    store = Losable(MemoryTree())
    nodes = lasting(store, wait_seconds=0.3)
    store.refusals = 1_000_000
    store.expire()
    with pytest.raises(StoreSuspendedError, match="no new one yet"):
        await nodes.get("/a")
    await nodes.close()
