"""A topic with its messages in an embedded storage: publish, deliver, ack, nack, delay, move, close."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ackgate
from ackgate.cursor import EARLIEST, MessageLedgers, Position, Span
from ackgate.dispatcher import DispatchLimits
from ackgate.errors import (
    ClosedHandleError,
    ConsumerBusyError,
    InternalError,
    MetadataStoreError,
    PersistTimeoutError,
    StorageError,
)
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.subscription import EntryRead
from ackgate.testing import MemoryLedgerClient, MemoryLedgers

SECONDS_MAX = 10


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Disk:
    """What survives one life."""

    def __init__(self) -> None:
        self.ledgers = MemoryLedgers()
        self.tree: MemoryTree | None = None
        self.metadata: MemoryMetadataStore
        self.client: MemoryLedgerClient

    @asynccontextmanager
    async def opened(
        self,
        settings: ackgate.PersistenceSettings | None = None,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> AsyncIterator[ackgate.EmbeddedStorage]:
        self.metadata = metadata = MemoryMetadataStore(self.tree)
        self.tree = metadata.tree
        self.client = client = MemoryLedgerClient(self.ledgers)
        async with (
            asyncio.timeout(SECONDS_MAX),
            ackgate.open_embedded(
                metadata=metadata, ledger_client=client, settings=settings, clock_ms=clock_ms
            ) as storage,
        ):
            yield storage


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def received(consumer: ackgate.EmbeddedConsumer, count: int) -> list[ackgate.Message]:
    return [await anext(consumer) for _ in range(count)]


async def whatever_comes(consumer: ackgate.EmbeddedConsumer) -> list[ackgate.Message]:
    """Until there is nothing more that time alone would not bring."""
    messages = []
    while True:
        task = asyncio.ensure_future(anext(consumer))
        for _ in range(50):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            return messages
        messages.append(task.result())


async def nothing_comes(consumer: ackgate.EmbeddedConsumer) -> bool:
    return await whatever_comes(consumer) == []


async def test_what_was_published_comes_in_order_with_key_and_time() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        before_ms = time.time_ns() // 1_000_000
        positions = await topic.publish([b"one", b"two"], key="Zürich")
        messages = await received(consumer, 2)
        assert [message.payload for message in messages] == [b"one", b"two"]
        assert [message.position for message in messages] == positions
        assert {message.key for message in messages} == {"Zürich"}
        assert {message.redelivery_count for message in messages} == {0}
        assert before_ms <= messages[0].published_ms <= time.time_ns() // 1_000_000
        assert sub.backlog == topic.message_count == 2


async def test_ack_is_durable_and_does_not_come_again() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        consumer = (await topic.subscribe("billing")).attach("alice")
        await topic.publish(numbered(10))
        messages = await received(consumer, 10)
        outcome = await consumer.ack(*messages[1::2])
        assert outcome.is_complete
        assert outcome.ranges_persisted == 5
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        assert topic.subscriptions == ("billing",)
        consumer = (await topic.subscribe("billing")).attach("bob")
        again = await received(consumer, 5)
        assert [message.payload for message in again] == [b"0", b"2", b"4", b"6", b"8"]
        await consumer.ack_cumulative(again[-1])
        assert consumer.subscription.backlog == 0
        assert await nothing_comes(consumer)


async def test_gate_pauses_iteration_and_it_goes_on() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        gate = ackgate.GateSettings(enabled=True, is_strict=True, ranges_max=4)
        sub = await topic.subscribe("billing", gate=gate)
        consumer = sub.attach("alice")
        await topic.publish(numbered(100))
        held: list[ackgate.Message] = []
        while messages := await whatever_comes(consumer):
            held += [message for message in messages if message.position.entry_id % 2 == 0]
            await consumer.ack(*[message for message in messages if message not in held])
        assert not sub.gate.is_open
        assert sub.statistics().cursor.range_count == 4
        await consumer.ack(*held)
        assert (await anext(consumer)).position > held[-1].position


async def test_nacked_message_comes_again_after_its_delay_with_a_count() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        consumer = (await topic.subscribe("billing")).attach("alice")
        await topic.publish(numbered(3))
        first, second, third = await received(consumer, 3)
        consumer.nack(second)
        again = await anext(consumer)
        assert (again.position, again.redelivery_count) == (second.position, 1)
        consumer.nack(first, third, delay_ms=30)
        late = await received(consumer, 2)
        assert [(m.payload, m.redelivery_count) for m in late] == [(b"0", 1), (b"2", 1)]


async def test_message_that_is_nacked_in_the_queue_comes_once() -> None:
    now_ms = [1_000]
    async with Disk().opened(clock_ms=lambda: now_ms[0]) as storage:
        topic = await storage.topic("orders")
        alice = (await topic.subscribe("billing")).attach("alice", permits=4)
        positions = await topic.publish(numbered(4))
        assert (await anext(alice)).position == positions[0]
        alice.nack(positions[2])
        alice.nack(positions[3], delay_ms=500)
        at_once = await whatever_comes(alice)
        assert [(m.payload, m.redelivery_count) for m in at_once] == [(b"1", 0), (b"2", 1)]
        now_ms[0] += 500
        topic.published()
        late = await anext(alice)
        assert (late.payload, late.redelivery_count) == (b"3", 1)
        await alice.ack(*positions)
        more = await topic.publish(numbered(4))  # all of its permits have come back
        assert [message.position for message in await received(alice, 4)] == more


async def test_delays_of_nacks_survive_a_restart() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        consumer = (await topic.subscribe("billing")).attach("alice")
        await topic.publish(numbered(2))
        first, second = await received(consumer, 2)
        consumer.nack(first, delay_ms=60_000)
        await consumer.ack(second)
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        assert await nothing_comes(sub.attach("bob"))
        assert sub.statistics().held.held_nacks == 1


async def test_acks_become_durable_after_a_nack_that_nobody_keeps() -> None:
    settings = ackgate.PersistenceSettings(pending_nacks_max_bytes_to_persist=0)
    async with Disk().opened(settings) as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe(
            "billing", settings=ackgate.SubscriptionSettings(receipt_timeout_ms=500)
        )
        consumer = sub.attach("alice")
        await topic.publish(numbered(2))
        first, second = await received(consumer, 2)
        consumer.nack(first, delay_ms=60_000)
        assert await nothing_comes(consumer)
        assert (await consumer.ack(second)).is_complete


async def test_delayed_message_waits_and_others_do_not() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        later_ms = time.time_ns() // 1_000_000 + 3_600_000
        await topic.publish([b"late"], deliver_at_ms=later_ms)
        await topic.publish([b"now"])
        assert (await anext(consumer)).payload == b"now"
        assert await nothing_comes(consumer)
    async with disk.opened() as storage:  # the same, read from the ledger
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        assert (await anext(consumer)).payload == b"now"
        assert await nothing_comes(consumer)
        assert sub.statistics().held.delayed_entries == 1


async def test_consumers_share_and_take_over_what_another_left() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        alice, bob = sub.attach("alice", permits=5), sub.attach("bob", permits=5)
        await topic.publish(numbered(10))
        hers = await received(alice, 2)
        await alice.ack(hers[0])
        alice.close()
        rest = await received(bob, 9)
        assert {message.payload for message in rest} == {*numbered(10)} - {hers[0].payload}


async def test_key_shared_gives_all_of_a_key_to_one() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing", kind=ackgate.KeyShared())
        consumers = [sub.attach(name) for name in ("alice", "bob", "carol")]
        for number in range(30):
            await topic.publish([b"%d" % number], key=f"customer {number % 7}")
        owners: dict[str, set[str]] = {}
        for consumer in consumers:
            for message in await whatever_comes(consumer):
                owners.setdefault(message.key, set()).add(consumer.name)
        assert len(owners) == 7
        assert all(len(names) == 1 for names in owners.values())


async def test_exclusive_has_one_consumer_and_goes_back_in_order() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing", kind=ackgate.Exclusive())
        consumer = sub.attach("alice", permits=4)
        with pytest.raises(ConsumerBusyError):
            sub.attach("bob")
        await topic.publish(numbered(10))
        messages = await received(consumer, 3)
        consumer.nack(messages[1])
        assert [m.payload for m in await received(consumer, 10)] == numbered(10)


async def test_failover_goes_to_the_next_consumer() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        settings = ackgate.SubscriptionSettings(limits=DispatchLimits(failover_delay_ms=0))
        sub = await topic.subscribe("billing", kind=ackgate.Failover(), settings=settings)
        both = {sub.attach("alice"), sub.attach("bob")}
        first = sub.active_consumer
        assert first is not None
        (second,) = both - {first}
        await topic.publish(numbered(3))
        await first.ack(await anext(first))
        assert await nothing_comes(second)
        first.close()
        assert sub.active_consumer is second
        assert [m.payload for m in await received(second, 2)] == [b"1", b"2"]


async def test_seek_back_and_forth_drops_what_was_queued() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        positions = await topic.publish(numbered(10))
        await received(consumer, 3)
        await sub.seek(positions[8])
        assert [m.payload for m in await received(consumer, 2)] == [b"8", b"9"]
        await sub.seek(EARLIEST)
        assert [m.payload for m in await received(consumer, 10)] == numbered(10)
        assert await sub.clear_backlog() == 10
        assert sub.backlog == 0


async def test_permits_bound_what_waits_for_a_consumer() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        slow, fast = sub.attach("slow", permits=2), sub.attach("fast", permits=1_000)
        await topic.publish(numbered(50))
        assert len(await received(fast, 48)) == 48
        assert await nothing_comes(fast)
        assert len(await received(slow, 2)) == 2


async def test_polls_that_are_given_up_leave_nothing_behind() -> None:
    def futures() -> int:
        gc.collect()
        return sum(type(each) is asyncio.Future for each in gc.get_objects())

    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        subscription = await topic.subscribe("billing")
        consumer = subscription.attach("alice")
        before = futures()
        for _ in range(100):
            polled = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            polled.cancel()
            await asyncio.wait([polled])
        assert futures() - before < 10
        await topic.publish(numbered(1))
        assert [message.payload for message in await received(consumer, 1)] == numbered(1)


async def test_iteration_ends_with_its_consumer_and_with_the_storage() -> None:
    async with Disk().opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        one, other = sub.attach("one"), sub.attach("other")
        waiting = [asyncio.ensure_future(_all_of(each)) for each in (one, other)]
        await asyncio.sleep(0)
        one.close()
        assert await waiting[0] == 0
        with pytest.raises(ClosedHandleError):
            await one.ack(Position(1, 0))
    assert await waiting[1] == 0


async def _all_of(consumer: ackgate.EmbeddedConsumer) -> int:
    return len([message async for message in consumer])


async def test_ledgers_that_all_have_acked_are_deleted() -> None:
    disk = Disk()
    for _ in range(3):  # each life begins a ledger
        async with disk.opened() as storage:
            topic = await storage.topic("orders")
            subs = [await topic.subscribe(name) for name in ("billing", "audit")]
            await topic.publish(numbered(5))
            await subs[0].clear_backlog()
    message_ledgers = [
        ledger
        for ledger in disk.ledgers.ledgers.values()
        if "ackgate/topic" in ledger.metadata.custom_metadata
    ]
    assert len(message_ledgers) == 3
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        first = await topic.subscribe("audit")
        await first.clear_backlog()
        assert topic.message_count == 15, "billing is not open: it may need them"
        sub = await topic.subscribe("billing")
        await topic.publish(numbered(1))
        await sub.clear_backlog()
        await first.clear_backlog()
        while topic.message_count > 1:
            await asyncio.sleep(0)


async def test_messages_that_a_seek_went_back_to_are_not_deleted() -> None:
    disk = Disk()
    for life in range(2):  # each life begins a ledger
        async with disk.opened() as storage:
            topic = await storage.topic("orders")
            billing, audit = [await topic.subscribe(name) for name in ("billing", "audit")]
            await topic.publish(numbered(5))
            if not life:
                continue
            await billing.clear_backlog()
            go_on = held_up_writes(disk, "billing")
            seeking = asyncio.ensure_future(billing.seek(EARLIEST))
            await asyncio.sleep(0)
            await audit.clear_backlog()
            for _ in range(50):
                await asyncio.sleep(0)
            go_on.set()
            await seeking
            assert topic.message_count == 10
            assert len(await received(billing.attach("alice"), 10)) == 10


def held_up_writes(disk: Disk, node: str) -> asyncio.Event:
    """The node is written only after this event."""
    go_on, put = asyncio.Event(), disk.metadata.put

    async def put_later(path: str, value: bytes, **expected: Any) -> int:
        if node in path:
            await go_on.wait()
        return await put(path, value, **expected)

    disk.metadata.put = put_later  # type: ignore[method-assign]
    return go_on


async def test_host_that_keeps_its_messages_gets_its_own_entries() -> None:
    log = {Position(7, number): f"line {number}" for number in range(5)}

    class Line(EntryRead):
        __slots__ = ()

        @property
        def text(self) -> str:
            return log[self.position]

    async def read(spans: object) -> list[EntryRead]:
        assert isinstance(spans, list)
        return [
            Line(Position(span.ledger_id, entry_id))
            for span in spans
            if isinstance(span, Span)
            for entry_id in range(span.start, span.stop)
        ]

    disk = Disk()
    ledgers = MessageLedgers()
    ledgers.open_ledger(7)
    async with disk.opened() as storage:
        topic = await storage.topic("log", ledgers=ledgers, read=read)
        consumer = (await topic.subscribe("indexer")).attach("alice")
        ledgers.add_entries(7, 5)
        topic.published()
        messages = await received(consumer, 5)
        assert [message.entry.text for message in messages] == list(log.values())
        await consumer.ack(messages[0], messages[2])
    async with disk.opened() as storage:
        topic = await storage.topic("log", ledgers=ledgers)
        consumer = (await topic.subscribe("indexer")).attach("alice")
        left = await received(consumer, 3)
        assert [message.position.entry_id for message in left] == [1, 3, 4]


class Unplaced(NamedTuple):
    message_count: int = 1
    deliver_at_ms: int = 0


WRONG_READS: dict[str, Callable[[list[EntryRead]], object]] = {
    "nothing": lambda _: None,
    "none of them": lambda _: [],
    "only some": lambda entries: entries[::2],
    "another": lambda entries: [*entries[:-1], EntryRead(Position(99, 0))],
    "one twice": lambda entries: [*entries, entries[0]],
    "out of order": lambda entries: entries[::-1],
    "text": lambda entries: [str(entry) for entry in entries],
    "without a place": lambda entries: [Unplaced() for _ in entries],
    "placed by a pair": lambda entries: [
        EntryRead(tuple(entry.position))  # type: ignore[arg-type]
        for entry in entries
    ],
    "without a message": lambda entries: [
        EntryRead(entry.position, message_count=0) for entry in entries
    ],
    "due never": lambda entries: [
        EntryRead(entry.position, deliver_at_ms=2**63) for entry in entries
    ],
}


@pytest.mark.parametrize("name", WRONG_READS)
async def test_host_that_reads_wrongly_is_told_and_asked_again(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [WRONG_READS[name]]

    async def read(spans: Sequence[Span]) -> Any:
        entries = [
            EntryRead(Position(span.ledger_id, entry_id))
            for span in spans
            for entry_id in range(span.start, span.stop)
        ]
        return answers.pop()(entries) if answers else entries

    now_ms = [1_000]
    ledgers = MessageLedgers()
    ledgers.open_ledger(7)
    ledgers.add_entries(7, 3)
    async with Disk().opened(clock_ms=lambda: now_ms[0]) as storage:
        topic = await storage.topic("log", ledgers=ledgers, read=read)
        consumer = (await topic.subscribe("indexer")).attach("alice")
        assert await nothing_comes(consumer)
        assert "read" in caplog.text
        now_ms[0] += 1_000
        topic.published()
        messages = await received(consumer, 3)
        assert [message.position.entry_id for message in messages] == [0, 1, 2]


async def test_entries_that_are_gone_may_be_missing_from_the_hosts_answer() -> None:
    ledgers = MessageLedgers()
    for ledger_id in (7, 8):
        ledgers.open_ledger(ledger_id)
        ledgers.add_entries(ledger_id, 2)

    async def read(spans: Sequence[Span]) -> list[EntryRead]:
        if 7 in ledgers.ledger_ids:
            ledgers.trim_ledger(7)
            topic.ledger_trimmed(7)
        return [
            EntryRead(Position(span.ledger_id, entry_id))
            for span in spans
            for entry_id in range(span.start, span.stop)
            if span.ledger_id == 8
        ]

    async with Disk().opened() as storage:
        topic = await storage.topic("log", ledgers=ledgers, read=read)
        consumer = (await topic.subscribe("indexer")).attach("alice")
        messages = await received(consumer, 2)
        assert [message.position for message in messages] == [Position(8, 0), Position(8, 1)]


async def test_ack_that_does_not_become_durable_raises_and_is_kept() -> None:
    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        settings = ackgate.SubscriptionSettings(receipt_timeout_ms=20)
        sub = await topic.subscribe("billing", settings=settings)
        consumer = sub.attach("alice")
        await topic.publish(numbered(1))
        message = await anext(consumer)
        disk.client.create_error = StorageError("no room for a cursor ledger")
        working, disk.metadata.put = disk.metadata.put, failing  # type: ignore[method-assign]
        with pytest.raises(PersistTimeoutError):
            await consumer.ack(message)
        assert sub.backlog == 0, "applied, and written when that works again"
        assert sub.store_statistics().last_failure is not None
        disk.client.create_error = None
        disk.metadata.put = working  # type: ignore[method-assign]
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        assert (await topic.subscribe("billing")).backlog == 0


async def failing(*_: object, **__: object) -> int:
    raise MetadataStoreError("the disk is full")


async def test_ack_raises_at_once_when_a_bug_has_ended_all_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def create(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    disk = Disk()
    async with disk.opened() as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        consumer = sub.attach("alice")
        positions = await topic.publish([b"order"])
        monkeypatch.setattr(disk.client, "create", create)
        with pytest.raises(InternalError, match="a bug"):
            await consumer.ack(*positions)


async def test_a_directory_keeps_all_of_it(tmp_path: Path) -> None:
    for life in range(2):
        async with ackgate.open_embedded(str(tmp_path / "data")) as storage:
            topic = await storage.topic("orders")
            consumer = (await topic.subscribe("billing")).attach("alice")
            if not life:
                await topic.publish(numbered(4))
                await consumer.ack(await anext(consumer))
            else:
                assert [m.payload for m in await received(consumer, 3)] == [b"1", b"2", b"3"]
