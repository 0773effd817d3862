"""Pending nacks beside the acks: when they are written, what comes back, and what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from pyroaring import BitMap

from ackgate.cursor import (
    CursorGrowth,
    CursorSnapshot,
    NackedLedger,
    NackImage,
    PendingNacks,
    Position,
    earliest_nacks,
)
from ackgate.errors import CorruptRecordError, LedgerWriteError, UnknownFormatError
from ackgate.persistence import CursorStore, PersistWhere, read_cursor
from ackgate.persistence.records import codec
from ackgate.persistence.records.codec import decode_record, encode_record
from ackgate.persistence.records.envelope import Packing, format_of, seal, unseal
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import plan_node
from ackgate.persistence.records.values import DeltaRecord, SnapshotRecord
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.persistence.store_world import PATH, Heard, World, metadata_down

NACKS = PendingNacks({256: {3: BitMap([5, 6]), 4: BitMap([1])}, 512: {3: BitMap([9])}}, 8)
STATE = CursorSnapshot(7, Position(3, 1), {3: BitMap([4])}, 1)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


class Holder:
    """Holds nacks back."""

    def __init__(self) -> None:
        self.version = 0
        self.parts: list[NackedLedger] = []
        self.images = 0

    def hold(self, key_ms: int, ledger_id: int, *entry_ids: int) -> None:
        self.version += 1
        parts = {part[:2]: part.entry_ids for part in self.parts}
        parts.setdefault((key_ms, ledger_id), BitMap()).update(entry_ids)
        self.parts = [NackedLedger(*when, parts[when]) for when in sorted(parts)]

    def image(self, bytes_max: int) -> NackImage:
        self.images += 1
        kept = earliest_nacks(self.parts, bytes_max, precision_bits=8)
        return NackImage(self.version, kept, sum(len(part.entry_ids) for part in self.parts))


def is_clean(store: CursorStore) -> bool:
    return not store.is_dirty


async def held_of(world: World) -> PendingNacks:
    view = await read_cursor(PATH, ledger_client=world.ledgers, metadata=world.metadata)
    return view.nacks


async def with_holder(world: World) -> tuple[CursorStore, Holder]:
    store, holder = await world.open(), Holder()
    store.keep_nacks(holder)
    return store, holder


# ------------------------------------------------------------------------ as bytes


def snapshot_of(nacks: PendingNacks) -> SnapshotRecord:
    return SnapshotRecord(1, 0, STATE, 1, 0, 0, nacks)


def delta_of(nacks: PendingNacks | None) -> DeltaRecord:
    return DeltaRecord(1, 0, CursorGrowth(6, 7, Position(3, 1), {3: BitMap([4])}, 1), nacks)


def test_records_without_nacks_are_those_of_builds_before() -> None:
    for record in (snapshot_of(PendingNacks()), delta_of(None)):
        encoded = encode_record(record, Packing())
        assert format_of(encoded) == 1
        assert decode_record(encoded) == record


def test_records_with_nacks_are_refused_by_builds_before() -> None:
    for record in (snapshot_of(NACKS), delta_of(NACKS), delta_of(PendingNacks())):
        encoded = encode_record(record, Packing())
        assert format_of(encoded) == 2
        assert decode_record(encoded) == record
        with pytest.raises(UnknownFormatError, match="format 2, this build reads 1"):
            unseal(encoded)  # as they do


def bucket(key_ms: int, *ledgers: tuple[int, bytes]) -> dict[str, Any]:
    return {
        "key_ms": key_ms,
        "ledgers": [
            {"message_ledger_id": ledger_id, "entry_ids": entry_ids}
            for ledger_id, entry_ids in ledgers
        ],
    }


BITMAP = BitMap([1]).serialize()


@pytest.mark.parametrize(
    "buckets",
    [
        [bucket(5, (1, BITMAP)), bucket(5, (2, BITMAP))],
        [bucket(6, (1, BITMAP)), bucket(5, (2, BITMAP))],
        [bucket(-1, (1, BITMAP))],
        [bucket(5)],
        [bucket(5, (-1, BITMAP))],
        [bucket(5, (1, BITMAP), (1, BITMAP))],
        [bucket(5, (1, BITMAP[:-1]))],
        [bucket(5, (1, BitMap().serialize()))],
        [bucket(5, (1, b"nonsense"))],
    ],
)
def test_what_nobody_could_have_held_is_refused(buckets: list[dict[str, Any]]) -> None:
    fields = codec._snapshot_fields(snapshot_of(PendingNacks()))
    fields["pending_nacks"] = {"precision_bits": 8, "buckets": buckets}
    sealed = seal(1, codec._SNAPSHOTS[2].encode(fields), Packing(), format_version=2)
    with pytest.raises(CorruptRecordError):
        decode_record(sealed)


def test_a_small_node_drops_nacks_before_acks() -> None:
    def size(record: SnapshotRecord) -> int:
        return len(encode_record(record, Packing()))

    image = NackImage(1, NACKS, 4)
    bare = size(snapshot_of(PendingNacks()))
    for bytes_max, is_kept in ((1_000, True), (bare, False)):
        plan = plan_node(
            STATE,
            limits=PersistLimits(10, 10),
            owner_epoch=1,
            now_ms=0,
            bytes_max=bytes_max,
            encoded_bytes=size,
            nacks=image,
        )
        assert plan.record == snapshot_of(NACKS if is_kept else PendingNacks())
        outcome = plan.outcome(
            where=PersistWhere.METADATA_STORE, bytes_written=0, at_ms=0, duration_ms=0
        )
        assert outcome.is_complete, "it is acks that the gate looks at"
        assert not outcome.size_guard_hit
        assert (outcome.nacks_in_memory, outcome.nacks_persisted) == (4, 4 if is_kept else 0)


# ----------------------------------------------------------------------- in the store


@virtual
async def test_nacks_alone_are_written_as_soon_as_acks_are_and_come_back() -> None:
    world = World(ack_persist_linger_ms=2)
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, 5, 6)
    assert not is_clean(store)
    store.notify()
    await asyncio.sleep(0.003)
    assert is_clean(store)
    assert store.is_idle
    assert store.statistics().nacks_persisted == 2
    again = await world.crash_and_reopen(store)
    assert again.report.nacks == 2
    assert again.report.nacks_dropped == 0
    assert again.recovered_nacks == PendingNacks({60_000: {3: BitMap([5, 6])}}, 8)
    assert is_clean(again)


@virtual
async def test_a_delta_carries_them_only_if_there_are_new_ones() -> None:
    world = World()
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, 5, 6)
    store.notify()
    await asyncio.sleep(0.01)
    for entry in (5, 20, 30):
        store.cursor.ack(Position(3, entry))
        store.notify()
        await asyncio.sleep(0.01)
    assert holder.images == 1
    assert await held_of(world) == PendingNacks({60_000: {3: BitMap([6])}}, 8), "5 is acked"
    holder.hold(70_000, 3, 7)
    store.notify()
    await asyncio.sleep(0.01)
    assert store.outcome is not None
    assert store.outcome.is_delta
    assert store.outcome.nacks_persisted == 3


@virtual
async def test_large_images_follow_each_other_slowly_and_receipts_do_not_wait_for_them() -> None:
    world = World(pending_nacks_max_bytes_to_persist=2_000)
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, *range(0, 3_000, 2))
    store.notify()
    await asyncio.sleep(0.01)
    assert store.statistics().nacks_dropped == 1_500 - store.statistics().nacks_persisted > 0
    for entry in range(100, 110):
        holder.hold(50_000, 5, entry)
        store.cursor.ack(Position(3, 2 * entry + 1))
        heard = Heard()
        store.when_durable(store.cursor.version, heard)
        store.notify()
        await asyncio.sleep(0.01)
        assert heard.is_durable
    assert holder.images == 1
    assert not is_clean(store)
    await asyncio.sleep(1.2)
    assert holder.images == 2
    assert is_clean(store)
    assert store.is_idle
    # The earliest are kept, however late they were held back.
    assert (await held_of(world)).buckets[50_000] == {5: BitMap(range(100, 110))}


@virtual
async def test_a_flush_does_not_wait_for_the_pace() -> None:
    world = World(pending_nacks_max_bytes_to_persist=2_000)
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, *range(0, 3_000, 2))
    await store.flush()
    holder.hold(50_000, 5, 1)
    await store.flush()
    assert is_clean(store)
    assert 50_000 in (await held_of(world)).buckets


@virtual
async def test_closing_keeps_them_in_the_node() -> None:
    world = World()
    store, holder = await with_holder(world)
    store.cursor.ack(Position(3, 7))
    holder.hold(60_000, 3, 5, 6)
    await store.close()
    assert (await world.node()).cursor_ledger_id is None
    assert (await world.open()).recovered_nacks.entry_count == 2


@virtual
async def test_the_fallback_has_them_too() -> None:
    world = World()
    store, holder = await with_holder(world)
    world.ledgers.faults.create = LedgerWriteError("no")
    holder.hold(60_000, 3, 5, 6)
    store.notify()
    await asyncio.sleep(1)
    assert store.outcome is not None
    assert store.outcome.where is PersistWhere.METADATA_STORE
    assert store.outcome.nacks_persisted == 2
    assert (await world.crash_and_reopen(store)).recovered_nacks.entry_count == 2


@virtual
async def test_what_cannot_be_written_is_tried_again() -> None:
    world = World()
    store, holder = await with_holder(world)
    world.ledgers.faults.create = LedgerWriteError("no")
    world.metadata.failure = metadata_down()
    holder.hold(60_000, 3, 5, 6)
    store.notify()
    await asyncio.sleep(1)
    assert not is_clean(store)
    world.ledgers.faults.create = world.metadata.failure = None
    await asyncio.sleep(60)
    assert is_clean(store)
    assert store.failing_since_ms is None
    assert store.statistics().nacks_persisted == 2


@virtual
async def test_with_a_cap_of_nothing_nothing_is_written() -> None:
    world = World(pending_nacks_max_bytes_to_persist=0)
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, 5, 6)
    store.notify()
    await asyncio.sleep(1)
    assert is_clean(store)
    assert world.ledgers.appends == 0


@virtual
async def test_what_is_acked_or_gone_by_the_time_of_recovery_is_dropped_and_counted() -> None:
    world = World()
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, 5, 6)
    holder.hold(60_000, 4, 1)  # no such ledger
    holder.hold(70_000, 5, 9, 100_000)  # the ledger ends before the second
    await store.flush()
    store.cursor.ack(Position(3, 6))
    await store.flush()
    again = await world.crash_and_reopen(store)
    assert again.recovered_nacks == PendingNacks(
        {60_000: {3: BitMap([5])}, 70_000: {5: BitMap([9])}}, 8
    )
    assert (again.report.nacks, again.report.nacks_dropped) == (2, 2)


@virtual
async def test_a_reset_brings_its_own_image() -> None:
    world = World()
    store, holder = await with_holder(world)
    holder.hold(60_000, 3, 5, 6)
    await store.flush()
    store.cursor.ack(Position(3, 5))
    holder.parts = [NackedLedger(60_000, 3, BitMap([6]))]  # as the tracker does at an ack
    await store.flush()
    store.cursor.reset(Position(3, 0))
    await store.flush()
    assert await held_of(world) == PendingNacks({60_000: {3: BitMap([6])}}, 8)
