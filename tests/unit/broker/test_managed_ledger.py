"""A topic's message store: roll-over, restart, failing ledgers, trimming.

The ledgers are the in-memory ones, wrapped so that a write can fail before or after its bytes have
been stored; the topic must not be able to tell the difference.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, cast

import pytest

from ackgate.broker.wire.entry import ENTRY_FORM
from ackgate.cursor import Position, Span
from ackgate.errors import (
    AckGateError,
    LedgerFencedError,
    LedgerWriteError,
    NoSuchNodeError,
    NotEnoughBookiesError,
)
from ackgate.persistence import AppendTicket, LedgerOptions, MemoryMetadataStore
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.messages.managed_ledger import ManagedLedger
from ackgate.persistence.messages.rules import Retention, RolloverLimits
from ackgate.persistence.nodes.topic_node import decode_topic_node
from ackgate.testing import MemoryLedgerClient, MemoryLedgers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.wire.entry import Entry
    from ackgate.persistence import LedgerClient, LedgerWriter

PATH = "/managed-ledgers/t/n/persistent/x"
NEVER = 10**12


def entry(number: int) -> bytes:
    """A stored entry without metadata that still tells which one it is."""
    return b"\x00\x00\x00\x00" + str(number).encode()


def number(payload: bytes) -> int:
    return int(payload[4:])


class Sink:
    """What the topic is told."""

    def __init__(self) -> None:
        self.confirmed: list[tuple[Position, int]] = []
        self.failed: list[int] = []
        self.fenced: list[AckGateError] = []
        self.returned = 0
        self.trimmed: list[int] = []

    def on_confirmed(self, entries: list[Entry], contexts: list[Any]) -> None:
        for stored, context in zip(entries, contexts, strict=True):
            assert number(stored.payload) == context
            self.confirmed.append((stored.position, context))

    def on_failed(self, contexts: list[Any], error: AckGateError) -> None:
        assert str(error)
        self.failed += contexts

    def on_returned(self, entry_count: int) -> None:
        self.returned += entry_count

    def on_trimmed(self, ledger_ids: Sequence[int]) -> None:
        self.trimmed += ledger_ids

    def on_fenced(self, error: AckGateError) -> None:
        self.fenced.append(error)


class FaultyWriter:
    """A writer whose next append fails, with or without its bytes stored."""

    def __init__(self, writer: LedgerWriter, faults: Faults) -> None:
        self._writer = writer
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        fault = self._faults.next_fault
        if fault is None:
            return self._writer.append(payloads)
        self._faults.next_fault = None
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        first = self._writer.last_add_confirmed + 1
        if fault in {"after", "fenced after"}:
            first = self._writer.append(payloads).first_entry_id
        elif fault == "half" and len(payloads) > 1:
            first = self._writer.append(payloads[: len(payloads) // 2]).first_entry_id
        error: AckGateError = LedgerWriteError("disk on fire")
        if "fenced" in fault:
            error = LedgerFencedError("another client opened it")
        asyncio.get_running_loop().call_later(0, durable.set_exception, error)
        return AppendTicket(first, durable)


class Faults:
    """What will go wrong next."""

    def __init__(self) -> None:
        self.next_fault: str | None = None
        self.creates_fail = False


class FaultyClient:
    """A ledger client with faults."""

    def __init__(self, client: MemoryLedgerClient, faults: Faults) -> None:
        self._client = client
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create(self, options: LedgerOptions) -> FaultyWriter:
        if self._faults.creates_fail:
            raise NotEnoughBookiesError("no bookie can be written")
        return FaultyWriter(await self._client.create(options), self._faults)


class World:
    """Storage that outlives a broker, and a clock."""

    def __init__(self) -> None:
        self.storage = MemoryLedgers()
        self.metadata = MemoryMetadataStore()
        self.faults = Faults()
        self.now_ms = 1_000
        self.limits = RolloverLimits(NEVER, NEVER, 0, NEVER)

    def broker(self, cache_bytes: int = 1 << 20) -> tuple[ManagedLedger, Sink]:
        sink = Sink()
        client = FaultyClient(MemoryLedgerClient(self.storage), self.faults)
        ledger = ManagedLedger(
            PATH,
            cast("LedgerClient", client),
            self.metadata,
            form=ENTRY_FORM,
            cache=EntryCache(cache_bytes),
            options=LedgerOptions(),
            limits=self.limits,
            clock_ms=lambda: self.now_ms,
            sink=sink,
        )
        return ledger, sink


async def settled(ledger: ManagedLedger, sink: Sink, count: int) -> None:
    """Wait until `count` adds have been answered."""
    async with asyncio.timeout(60):
        while len(sink.confirmed) + len(sink.failed) < count:
            await asyncio.sleep(0)
    assert ledger.pending_adds == 0


async def stored(ledger: ManagedLedger) -> list[int]:
    """Everything that the ledgers hold, in order."""
    spans = [
        Span(ledger_id, 0, count)
        for ledger_id in ledger.ledgers.ledger_ids
        if (count := ledger.ledgers.entry_count(ledger_id))
    ]
    return [number(found.payload) for found in await ledger.reads.read(spans)]


async def test_a_topic_that_does_not_exist_is_not_made_by_looking() -> None:
    world = World()
    ledger, _ = world.broker()
    with pytest.raises(NoSuchNodeError):
        await ledger.open(create=False)
    assert await world.metadata.get(PATH) is None


async def test_entries_roll_over_and_survive_a_crash_in_order() -> None:
    world = World()
    world.limits = RolloverLimits(10, NEVER, 0, NEVER)
    ledger, sink = world.broker()
    await ledger.open(create=True)
    for index in range(45):
        ledger.add(entry(index), 1, index)
        if index % 5 == 4:
            await settled(ledger, sink, index + 1)
    assert len(ledger.ledgers.ledger_ids) > 3
    again, _ = world.broker(cache_bytes=0)
    await again.open(create=False)
    assert await stored(again) == list(range(45))
    assert again.owner_epoch == ledger.owner_epoch + 1


@pytest.mark.parametrize("fault", ["before", "half", "after"])
async def test_a_failed_write_loses_nothing_and_stores_nothing_twice(fault: str) -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    for index in range(10):
        ledger.add(entry(index), 1, index)
    await settled(ledger, sink, 10)
    world.faults.next_fault = fault
    for index in range(10, 30):
        ledger.add(entry(index), 1, index)
    await settled(ledger, sink, 30)
    assert [context for _, context in sink.confirmed] == list(range(30))
    assert await stored(ledger) == list(range(30))
    assert len(ledger.ledgers.ledger_ids) == 2


async def test_a_write_that_fails_while_a_full_ledger_is_being_closed_holds_up_nothing() -> None:
    world = World()
    world.limits = RolloverLimits(1, NEVER, 0, NEVER)
    ledger, sink = world.broker()
    await ledger.open(create=True)
    world.faults.next_fault = "before"
    ledger.add(entry(0), 1, 0)
    await asyncio.sleep(0)
    assert ledger.pending_adds == 1
    ledger.add(entry(1), 1, 1)
    await settled(ledger, sink, 2)
    assert [context for _, context in sink.confirmed] == [0, 1]
    assert await stored(ledger) == [0, 1]


async def test_without_any_bookie_adds_fail_and_later_ones_go_on() -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    world.faults.next_fault = "before"
    world.faults.creates_fail = True
    ledger.add(entry(0), 1, 0)
    await settled(ledger, sink, 1)
    assert sink.failed == [0]
    world.faults.creates_fail = False
    ledger.add(entry(1), 1, 1)
    await settled(ledger, sink, 2)
    assert [context for _, context in sink.confirmed] == [1]
    assert await stored(ledger) == [1]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_fence_of_nobodys_costs_a_ledger_and_nothing_else(is_stored: bool) -> None:
    """BookKeeper's AutoRecovery recovers an open ledger, though a broker owns the topic."""
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    ledger.add(entry(0), 1, 0)
    await settled(ledger, sink, 1)
    first = ledger.ledger_records[-1].ledger_id
    world.faults.next_fault = "fenced after" if is_stored else "fenced"
    ledger.add(entry(1), 1, 1)
    await settled(ledger, sink, 2)
    ledger.add(entry(2), 1, 2)
    await settled(ledger, sink, 3)
    assert not sink.fenced
    assert [context for _, context in sink.confirmed] == [0, 1, 2]
    assert await stored(ledger) == [0, 1, 2]
    assert ledger.ledger_records[0].entry_count == 1 + is_stored
    assert ledger.ledger_records[-1].ledger_id > first


async def test_a_fenced_topic_lets_go() -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    successor, _ = world.broker()
    await successor.open(create=False)
    ledger.add(entry(0), 1, 0)
    await settled(ledger, sink, 1)
    assert sink.failed == [0]
    assert len(sink.fenced) == 1


@pytest.mark.parametrize("seed", range(20))
async def test_random_faults_rolls_and_restarts_keep_every_confirmed_entry(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    world = World()
    world.limits = RolloverLimits(dice.randrange(3, 12), NEVER, 0, NEVER)
    confirmed: list[int] = []
    ledger, sink = world.broker()
    await ledger.open(create=True)
    sent = 0
    for _ in range(40):
        match dice.randrange(6):
            case 0:
                world.faults.next_fault = dice.choice(["before", "half", "after"])
            case 1 if not sink.failed:
                await settled(ledger, sink, sent)
                confirmed += [context for _, context in sink.confirmed]
                ledger, sink = world.broker(cache_bytes=dice.choice([0, 1 << 20]))
                await ledger.open(create=False)
                sent = 0
            case _:
                for _ in range(dice.randrange(1, 8)):
                    ledger.add(entry(len(confirmed) + sent), 1, len(confirmed) + sent)
                    sent += 1
                if dice.random() < 0.5:
                    await settled(ledger, sink, sent)
    await settled(ledger, sink, sent)
    confirmed += [context for _, context in sink.confirmed]
    assert confirmed == list(range(len(confirmed)))
    assert await stored(ledger) == confirmed
    ledger.ledgers.check()


async def test_trimming_goes_oldest_first_and_honours_retention() -> None:
    world = World()
    world.limits = RolloverLimits(5, NEVER, 0, NEVER)
    ledger, sink = world.broker()
    await ledger.open(create=True)
    for index in range(20):
        ledger.add(entry(index), 1, index)
        await settled(ledger, sink, index + 1)
    first, second, *_ = ledger.ledgers.ledger_ids
    consumed = Position(second, 4)
    world.now_ms += 60_000
    assert await ledger.trim(consumed, Retention(time_ms=120_000, size_bytes=-1)) == []
    assert await ledger.trim(Position(first, 3), Retention()) == []
    trimming = asyncio.create_task(ledger.trim(consumed, Retention()))
    while ledger.ledgers.ledger_ids[0] == first:
        await asyncio.sleep(0)
    assert sink.trimmed == [first, second], "before their files are deleted"
    assert await trimming == [first, second]
    assert first not in world.storage.ledgers
    node = await world.metadata.get(PATH)
    assert node is not None
    kept = [record.ledger_id for record in decode_topic_node(node.value, path=PATH).ledgers]
    assert kept == list(ledger.ledgers.ledger_ids)
    assert await stored(ledger) == list(range(10, 20))


async def test_retention_by_size_keeps_what_fits() -> None:
    world = World()
    world.limits = RolloverLimits(5, NEVER, 0, NEVER)
    ledger, sink = world.broker()
    await ledger.open(create=True)
    for index in range(20):
        ledger.add(entry(index), 1, index)
        await settled(ledger, sink, index + 1)
    everything = ledger.ledgers.last_confirmed
    gone = await ledger.trim(everything, Retention(time_ms=-1, size_bytes=ledger.size_bytes // 2))
    assert 0 < len(gone) < 4


async def test_a_terminated_topic_takes_no_more_messages_even_after_a_restart() -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    ledger.add(entry(0), 1, 0)
    await settled(ledger, sink, 1)
    assert await ledger.terminate() == sink.confirmed[0][0]
    again, told = world.broker()
    await again.open(create=False)
    assert again.is_terminated
    again.add(entry(1), 1, 1)
    await settled(again, told, 1)
    assert told.failed == [1]


async def test_what_was_sent_before_a_termination_is_stored_and_what_comes_after_fails() -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    ledger.add(entry(0), 1, 0)
    await asyncio.sleep(0)
    assert ledger.pending_adds == 1
    terminating = asyncio.ensure_future(ledger.terminate())
    ledger.add(entry(1), 1, 1)
    assert await terminating == Position(ledger.ledgers.ledger_ids[-1], 0)
    await settled(ledger, sink, 2)
    assert [context for _, context in sink.confirmed] == [0]
    assert sink.failed == [1]
    assert await stored(ledger) == [0]


async def test_a_node_with_little_room_keeps_its_ledger_and_rolls_again_when_there_is_some() -> (
    None
):
    world = World()
    world.limits = RolloverLimits(1, NEVER, 0, NEVER)
    world.metadata = MemoryMetadataStore(node_bytes_max=2_000)
    ledger, sink = world.broker()
    await ledger.open(create=True)
    for index in range(60):
        ledger.add(entry(index), 1, index)
        await settled(ledger, sink, index + 1)
    assert sink.failed == []
    ledgers = len(ledger.ledgers.ledger_ids)
    assert 10 < ledgers < 30
    await ledger.close()
    again, told = world.broker()
    await again.open(create=False)
    assert await stored(again) == list(range(60))
    gone = await again.trim(again.ledgers.last_confirmed, Retention())
    assert len(gone) == ledgers
    for index in range(5):
        again.add(entry(index), 1, index)
        await settled(again, told, index + 1)
    assert len(again.ledgers.ledger_ids) == 5


async def test_a_topic_without_room_for_one_more_ledger_can_be_opened_and_consumed() -> None:
    world = World()
    world.limits = RolloverLimits(1, NEVER, 0, NEVER)
    ledger, sink = world.broker()
    await ledger.open(create=True)
    for index in range(20):
        ledger.add(entry(index), 1, index)
        await settled(ledger, sink, index + 1)
    await ledger.close()
    full = await world.metadata.get(PATH)
    assert full is not None
    world.metadata = MemoryMetadataStore(world.metadata.tree, node_bytes_max=len(full.value) + 20)
    again, told = world.broker()
    await again.open(create=False)
    assert await stored(again) == list(range(20))
    again.add(entry(20), 1, 20)
    await settled(again, told, 1)
    assert told.failed == [20]
    await again.trim(again.ledgers.last_confirmed, Retention())
    again.add(entry(21), 1, 21)
    await settled(again, told, 2)
    assert await stored(again) == [21]


async def test_closing_confirms_what_is_in_flight() -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    ledger.add(entry(0), 1, 0)
    await ledger.close()
    await ledger.close()
    assert [context for _, context in sink.confirmed] == [0]
    again, _ = world.broker()
    await again.open(create=False)
    assert await stored(again) == [0]


async def test_an_empty_ledger_leaves_nothing_behind_at_a_restart() -> None:
    world = World()
    for _ in range(3):
        ledger, _ = world.broker()
        await ledger.open(create=True)
    assert len(world.storage.ledgers) == 1


async def test_the_first_entry_at_a_time_is_found_by_halving() -> None:
    from ackgate.broker.wire.proto import pulsar_pb2 as pb

    world = World()
    world.limits = RolloverLimits(4, NEVER, 0, NEVER)
    ledger, sink = world.broker(cache_bytes=0)
    await ledger.open(create=True)

    def published_at(time_ms: int) -> bytes:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms)
        encoded = metadata.SerializeToString()
        return len(encoded).to_bytes(4, "big") + encoded

    sink_confirmed: list[Position] = []
    sink.on_confirmed = lambda entries, _: sink_confirmed.extend(  # type: ignore[method-assign, assignment]
        stored_entry.position for stored_entry in entries
    )
    for index in range(10):
        ledger.add(published_at(1000 + 10 * index), 1, index)
        async with asyncio.timeout(60):
            while len(sink_confirmed) <= index:
                await asyncio.sleep(0)
    assert await ledger.reads.first_published_at(0) == sink_confirmed[0]
    assert await ledger.reads.first_published_at(1031) == sink_confirmed[4]
    assert await ledger.reads.first_published_at(1090) == sink_confirmed[9]
    end = ledger.ledgers.next_valid(ledger.ledgers.last_confirmed)
    assert await ledger.reads.first_published_at(1091) == end


async def test_a_ledger_that_somebody_has_deleted_means_that_the_topic_is_lost() -> None:
    world = World()
    ledger, sink = world.broker()
    await ledger.open(create=True)
    await MemoryLedgerClient(world.storage).delete(ledger.ledger_records[-1].ledger_id)
    world.faults.next_fault = "before"
    ledger.add(entry(0), 1, 0)
    await settled(ledger, sink, 1)
    assert sink.failed == [0]
    assert len(sink.fenced) == 1
