"""No delivery without the certainty that nobody else owns the topic."""

from __future__ import annotations

import asyncio
import math

from ackgate.broker.cluster.ownership import Lease
from ackgate.persistence import MemoryMetadataStore
from tests.support.virtual_time import run_in_virtual_time


class _AnsweringStore(MemoryMetadataStore):
    """Each answer proves that the session lives for ten seconds more."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def children(self, path: str) -> list[str]:
        self.asked += 1
        await asyncio.sleep(0.1)
        found = await super().children(path)
        self.lease_until = asyncio.get_running_loop().time() + 10
        return found


def test_a_session_that_cannot_expire_always_holds() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        assert store.lease_until == math.inf
        assert Lease(store).holds()

    run_in_virtual_time(main())


def test_who_waits_is_called_once_when_the_session_has_answered() -> None:
    async def main() -> None:
        store = _AnsweringStore()
        store.lease_until = -1.0
        lease = Lease(store)
        assert not lease.holds()
        calls: list[str] = []
        for waiter in ("a", "b", "a"):
            lease.when_held(waiter, lambda waiter=waiter: calls.append(waiter))
        await asyncio.sleep(1)
        assert calls == ["a", "b"]
        assert store.asked == 1
        assert lease.holds()
        await asyncio.sleep(10)
        assert not lease.holds()

    run_in_virtual_time(main())


def test_a_suspended_store_is_asked_until_it_answers() -> None:
    async def main() -> None:
        store = _AnsweringStore()
        store.lease_until = -1.0
        store.suspend()
        lease = Lease(store)
        held = asyncio.Event()
        lease.when_held("a", held.set)
        await asyncio.sleep(5)
        assert not held.is_set()
        store.resume()
        await asyncio.wait_for(held.wait(), 5)

    run_in_virtual_time(main())


def test_nobody_is_called_when_the_session_is_lost() -> None:
    async def main() -> None:
        store = _AnsweringStore()
        store.lease_until = -1.0
        store.expire()
        lease = Lease(store)
        calls: list[str] = []
        lease.when_held("a", lambda: calls.append("a"))
        await asyncio.sleep(5)
        assert not calls
        await store.renew()
        lease.when_held("b", lambda: calls.append("b"))  # a topic of the new session
        await asyncio.sleep(5)
        assert calls == ["b"]

    run_in_virtual_time(main())
