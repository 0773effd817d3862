"""The planner against sorted lists of ranges and batches."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ackgate.cursor import CursorSnapshot, Position
from ackgate.errors import NodeTooLargeError
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import PersistPlan, plan_node, plan_snapshot
from ackgate.persistence.records.values import SnapshotRecord
from tests.property.persistence.states import content, snapshots

Range = tuple[int, int, int]


def ranges_of(snapshot: CursorSnapshot) -> list[Range]:
    """(ledger, first, last) of every range, in order."""
    found: list[Range] = []
    for ledger_id in sorted(snapshot.acked):
        for entry_id in snapshot.acked[ledger_id]:
            if found and found[-1][0] == ledger_id and found[-1][2] == entry_id - 1:
                found[-1] = (ledger_id, found[-1][1], entry_id)
            else:
                found.append((ledger_id, entry_id, entry_id))
    return found


def kept_of(plan: PersistPlan) -> CursorSnapshot:
    assert isinstance(plan.record, SnapshotRecord)
    return plan.record.snapshot


def check_figures(plan: PersistPlan, whole: CursorSnapshot) -> None:
    kept = kept_of(plan)
    entries = sum(map(len, whole.acked.values())) - sum(map(len, kept.acked.values()))
    assert plan.counts.entries_dropped == entries
    assert plan.counts.ranges_in_memory == whole.range_count
    assert plan.counts.ranges_persisted == kept.range_count == len(ranges_of(kept))
    assert plan.counts.batch_indexes_in_memory == len(whole.unacked_indexes)
    assert plan.counts.batch_indexes_persisted == len(kept.unacked_indexes)
    assert plan.is_complete == (content(kept) == content(whole))
    assert (kept.version, kept.mark_delete) == (whole.version, whole.mark_delete)
    assert kept.properties == whole.properties
    assert all(kept.acked.values()), "no empty bitmap"


@given(snapshots(), st.integers(0, 50), st.integers(0, 6))
def test_caps_keep_the_lowest(whole: CursorSnapshot, ranges_max: int, batches_max: int) -> None:
    before = content(whole)
    plan = plan_snapshot(
        whole, limits=PersistLimits(ranges_max, batches_max), owner_epoch=1, now_ms=0
    )
    assert ranges_of(kept_of(plan)) == ranges_of(whole)[:ranges_max]
    assert sorted(kept_of(plan).unacked_indexes) == sorted(whole.unacked_indexes)[:batches_max]
    check_figures(plan, whole)
    assert content(whole) == before, "the planner changes nothing"


@given(
    snapshots(),
    st.integers(0, 50),
    st.integers(20, 1200),
    st.sampled_from([Compression.NONE, Compression.ZSTD]),
)
def test_the_size_guard_keeps_what_lies_below_one_position(
    whole: CursorSnapshot, ranges_max: int, bytes_max: int, compression: Compression
) -> None:
    def size(record: SnapshotRecord) -> int:
        return len(encode_record(record, Packing(compression, 0)))

    limits = PersistLimits(ranges_max, 3)
    capped = kept_of(plan_snapshot(whole, limits=limits, owner_epoch=1, now_ms=0))
    try:
        plan = plan_node(
            whole, limits=limits, owner_epoch=1, now_ms=0, bytes_max=bytes_max, encoded_bytes=size
        )
    except NodeTooLargeError:
        bare = CursorSnapshot(whole.version, whole.mark_delete, {}, 0, {}, whole.properties)
        empty = plan_snapshot(bare, limits=limits, owner_epoch=1, now_ms=0).record
        assert isinstance(empty, SnapshotRecord)
        assert size(empty) > bytes_max - 12, "figures about what was dropped take a few bytes"
        return
    kept = kept_of(plan)
    assert isinstance(plan.record, SnapshotRecord)
    assert size(plan.record) <= bytes_max
    check_figures(plan, whole)
    items = sorted(
        [Position(ledger, first) for ledger, first, _ in ranges_of(capped)]
        + list(capped.unacked_indexes)
    )
    kept_items = sorted(
        [Position(ledger, first) for ledger, first, _ in ranges_of(kept)]
        + list(kept.unacked_indexes)
    )
    assert kept_items == items[: len(kept_items)]
    assert ranges_of(kept) == ranges_of(capped)[: kept.range_count]
    assert plan.counts.size_guard_hit == (len(kept_items) < len(items))
