"""What a write keeps: examples of the caps and the size guard. The model is in tests/property."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from ackgate.cursor import CursorGrowth, CursorSnapshot, Position
from ackgate.errors import NodeTooLargeError
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Packing
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import plan_delta, plan_node, plan_snapshot
from ackgate.persistence.records.values import DeltaRecord, SnapshotRecord

UNLIMITED = PersistLimits(10**9, 10**9)


def state(batches: int = 0) -> CursorSnapshot:
    """Ranges 3:[10,20) 3:[30,31) 5:[0,5) 5:[7,8); batches at 3:40, 3:41, ..."""
    return CursorSnapshot(
        version=9,
        mark_delete=Position(3, 4),
        acked={3: BitMap([*range(10, 20), 30]), 5: BitMap([*range(5), 7])},
        range_count=4,
        unacked_indexes={Position(3, 40 + i): 0b11 for i in range(batches)},
        properties={"p": 1},
    )


def cut_to(ranges_max: int, batches: int = 0, batch_indexes_max: int = 10**9) -> SnapshotRecord:
    plan = plan_snapshot(
        state(batches),
        limits=PersistLimits(ranges_max, batch_indexes_max),
        owner_epoch=2,
        now_ms=77,
    )
    record = plan.record
    assert isinstance(record, SnapshotRecord)
    assert plan.counts.ranges_in_memory == 4
    assert plan.counts.ranges_persisted == record.snapshot.range_count
    assert plan.counts.entries_dropped == 17 - sum(map(len, record.snapshot.acked.values()))
    assert plan.is_complete == record.is_complete
    return record


def test_within_the_cap_everything_is_kept_as_it_is() -> None:
    record = cut_to(4)
    assert record.snapshot == state()
    assert record.is_complete
    assert (record.owner_epoch, record.written_ms) == (2, 77)


@pytest.mark.parametrize(
    ("ranges_max", "kept"),
    [
        (3, {3: [*range(10, 20), 30], 5: [*range(5)]}),
        (2, {3: [*range(10, 20), 30]}),
        (1, {3: [*range(10, 20)]}),
        (0, {}),
    ],
)
def test_past_the_cap_the_lowest_ranges_are_kept(
    ranges_max: int, kept: dict[int, list[int]]
) -> None:
    record = cut_to(ranges_max)
    assert {k: list(v) for k, v in record.snapshot.acked.items()} == kept
    assert record.snapshot.range_count == ranges_max
    assert not record.is_complete


def test_one_range_of_many_entries_is_one_range() -> None:
    wide = CursorSnapshot(1, Position(3, -1), {3: BitMap(range(1, 10**6)), 9: BitMap([4])}, 2)
    plan = plan_snapshot(wide, limits=PersistLimits(2, 0), owner_epoch=1, now_ms=0)
    assert plan.is_complete


def test_batches_have_their_own_cap() -> None:
    record = cut_to(4, batches=5, batch_indexes_max=2)
    assert sorted(record.snapshot.unacked_indexes) == [(3, 40), (3, 41)]
    assert record.snapshot.range_count == 4
    assert record.batch_indexes_in_memory == 5
    assert not record.is_complete


def growth(range_count: int) -> CursorGrowth:
    return CursorGrowth(8, 9, Position(3, 4), {3: BitMap([10])}, range_count)


def test_a_delta_is_planned_only_when_nothing_needs_cutting() -> None:
    def plan(range_count: int, batches: int) -> object:
        return plan_delta(
            growth(range_count),
            partly_acked_count=batches,
            limits=PersistLimits(4, 2),
            owner_epoch=2,
            now_ms=0,
        )

    assert plan(5, 0) is None
    assert plan(4, 3) is None
    whole = plan_delta(
        growth(4), partly_acked_count=2, limits=PersistLimits(4, 2), owner_epoch=2, now_ms=0
    )
    assert whole is not None
    assert isinstance(whole.record, DeltaRecord)
    assert whole.is_complete
    assert (whole.counts.ranges_persisted, whole.counts.batch_indexes_persisted) == (4, 2)


def encoded_bytes(record: SnapshotRecord) -> int:
    return len(encode_record(record, Packing()))


def test_the_size_guard_cuts_ranges_and_batches_at_one_position() -> None:
    whole = state(batches=3)
    sizes = []
    kept = []
    for bytes_max in range(400, 0, -1):
        try:
            plan = plan_node(
                whole,
                limits=UNLIMITED,
                owner_epoch=2,
                now_ms=0,
                bytes_max=bytes_max,
                encoded_bytes=encoded_bytes,
            )
        except NodeTooLargeError:
            break
        assert isinstance(plan.record, SnapshotRecord)
        assert encoded_bytes(plan.record) <= bytes_max
        assert plan.counts.size_guard_hit == (not plan.is_complete)
        snapshot = plan.record.snapshot
        kept.append((snapshot.range_count, sorted(snapshot.unacked_indexes)))
        sizes.append(bytes_max)
    # In position order: 3:10, 3:30, 3:40, 3:41, 3:42, 5:0, 5:7.
    in_order = [
        (4, [(3, 40), (3, 41), (3, 42)]),
        (3, [(3, 40), (3, 41), (3, 42)]),
        (2, [(3, 40), (3, 41), (3, 42)]),
        (2, [(3, 40), (3, 41)]),
        (2, [(3, 40)]),
        (2, []),
        (1, []),
        (0, []),
    ]
    assert [step for i, step in enumerate(kept) if i == 0 or kept[i - 1] != step] == in_order
    assert 20 < sizes[-1] < 60


def test_what_cannot_fit_at_all_is_an_error_with_figures() -> None:
    with pytest.raises(NodeTooLargeError, match=r"3:4 and 1 properties.*10 bytes"):
        plan_node(
            state(),
            limits=UNLIMITED,
            owner_epoch=1,
            now_ms=0,
            bytes_max=10,
            encoded_bytes=encoded_bytes,
        )
