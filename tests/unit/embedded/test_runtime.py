"""The runtime of a subscription for a transport of the host's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

import ackgate
from ackgate.cursor import MessageLedgers, Position, Span, run_of_positions
from ackgate.dispatcher.delayed import DelaySettings
from ackgate.errors import AckGateError, CursorClosedError, MetadataStoreError, StorageError
from ackgate.persistence import MemoryMetadataStore
from ackgate.subscription import EntryRead, Ready, Subscription
from ackgate.testing import MemoryLedgerClient

SECONDS_MAX = 10


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Host:
    """Three entries in ledger 7, one consumer, and a transport that remembers."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore()
        self.client = MemoryLedgerClient()
        self.times_ms: dict[Position, int] = {}
        self.reads_may_end = asyncio.Event()
        self.reads_may_end.set()
        self.is_owner = True
        self.sent: list[Position] = []
        self.answers: list[tuple[object, AckGateError | None]] = []
        self.news = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        ledgers = MessageLedgers()
        ledgers.open_ledger(7)
        ledgers.add_entries(7, 3)
        async with (
            asyncio.timeout(SECONDS_MAX),
            ackgate.open_embedded(metadata=self.metadata, ledger_client=self.client) as storage,
        ):
            start = ledgers.first_position
            store = await storage.open_cursor("log", "indexer", ledgers, create_at=start)
            settings = ackgate.SubscriptionSettings(delays=DelaySettings(is_strict=True))
            self.sub: Subscription[str, EntryRead] = Subscription(
                ledgers, settings=settings, cursor=store.cursor, now_ms=now_ms()
            )
            self.runtime = ackgate.SubscriptionRuntime(
                core=self.sub,
                store=store,
                reads=self,
                name="indexer",
                topic_name="log",
                now_ms=now_ms,
                carry_out=self.carry_out,
                may_deliver=lambda: self.is_owner,
            )
            self.sub.attach("alice", permits=10, now_ms=now_ms())
            self.runtime.ask_turn()
            yield

    def cached(self, _: Sequence[Span]) -> None:
        return None

    async def read(self, spans: Sequence[Span]) -> list[EntryRead]:
        await self.reads_may_end.wait()
        return [
            EntryRead(position, deliver_at_ms=self.times_ms.get(position, 0))
            for span in spans
            for position in run_of_positions(*span)
        ]

    def carry_out(self, ready: Ready[str, EntryRead]) -> None:
        self.sent += [entry.position for each in ready.deliveries for entry in each.entries]
        self.answers += [(receipt.token, receipt.error) for receipt in ready.receipts]
        self.news.set()

    async def until_sent(self, count: int) -> None:
        while len(self.sent) < count:
            self.news.clear()
            await self.news.wait()

    def ack(self, *positions: Position, receipt: str) -> None:
        self.sub.ack("alice", positions, receipt=receipt, now_ms=now_ms())
        self.runtime.ask_turn()


AT = [Position(7, entry_id) for entry_id in range(3)]


async def test_entries_are_delivered_and_acks_become_durable() -> None:
    host = Host()
    async with host.opened():
        await host.until_sent(3)
        host.ack(AT[0], AT[2], receipt="first")
        while not host.answers:
            host.news.clear()
            await host.news.wait()
        assert host.answers == [("first", None)]
        await host.runtime.close()
    assert host.sent == AT


async def test_a_delayed_entry_wakes_the_loop_by_itself() -> None:
    host = Host()
    host.times_ms = {AT[1]: now_ms() + 30}
    async with host.opened():
        await host.until_sent(3)
        assert host.sent == [AT[0], AT[2], AT[1]]
        await host.runtime.close()


async def test_what_was_read_by_one_who_is_no_owner_any_more_is_not_delivered() -> None:
    host = Host()
    host.reads_may_end.clear()
    async with host.opened():
        while not host.sub.is_reading:
            await asyncio.sleep(0)
        host.is_owner = False
        host.reads_may_end.set()
        await host.runtime.settle()
        assert not host.sent
        host.is_owner = True
        host.runtime.ask_turn()
        await host.until_sent(3)
        assert host.sent == AT
        await host.runtime.close()


async def test_a_receipt_that_waits_at_the_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> int:
        raise MetadataStoreError("the disk is full")

    host = Host()
    with pytest.raises(StorageError, match="not durable"):
        async with host.opened():
            await host.until_sent(3)
            host.client.create_error = StorageError("no room for a cursor ledger")
            monkeypatch.setattr(host.metadata, "put", fail)
            host.ack(*AT, receipt="last")
            await host.runtime.close()
    [(token, error)] = host.answers
    assert token == "last"
    assert isinstance(error, CursorClosedError)
