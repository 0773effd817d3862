"""What a bucket tracker's plans are carried out on: the dumbest storage that could be right.

It watches what the tracker may never do: delete what the registry names, register what does not
exist, use a snapshot that it has deleted itself.
"""

from __future__ import annotations

import numpy as np

from ackgate.cursor import BucketRecord, SnapshotSegment, StoredSnapshot
from ackgate.dispatcher.buckets import (
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    Done,
    Failed,
    LoadMetadata,
    LoadSegments,
    MetadataLoaded,
    Outcome,
    Plan,
    SegmentsLoaded,
    Unreadable,
)

BYTES = 100


class Storage:
    """Snapshots and the registry."""

    def __init__(self) -> None:
        self.snapshots: dict[int, CreateSnapshot] = {}
        self.registry: dict[int, BucketRecord] = {}
        self.destroyed: set[int] = set()
        self.last_id = 1_000

    def carry_out(self, plan: Plan) -> Outcome:
        match plan:
            case CreateSnapshot():
                check_snapshot(plan)
                self.last_id += 1
                self.snapshots[self.last_id] = plan
                return StoredSnapshot(self.last_id, BYTES)
            case ChangeRegistry(_, add, remove):
                for snapshot_id in remove:
                    self.registry.pop(snapshot_id, None)
                for record in add:
                    known = record.snapshot_id in self.snapshots
                    assert known or record.snapshot_id in self.destroyed, f"{record} is nothing"
                    self.registry[record.snapshot_id] = record
                return Done()
            case LoadMetadata(_, snapshot_id):
                if snapshot_id not in self.snapshots:
                    return Unreadable("no such snapshot")
                return MetadataLoaded(self.snapshots[snapshot_id].metadata, BYTES)
            case LoadSegments(_, snapshot_id, first, stop):
                if snapshot_id not in self.snapshots:
                    return Unreadable("no such snapshot")
                segments = self.snapshots[snapshot_id].segments
                assert 0 <= first < stop <= len(segments), plan
                return SegmentsLoaded(segments[first:stop])
            case DeleteSnapshot(_, snapshot_id):
                assert snapshot_id not in self.registry, f"{snapshot_id} is registered"
                self.snapshots.pop(snapshot_id, None)
                return Done()

    def destroy(self, snapshot_id: int) -> None:
        """The disk lost it."""
        del self.snapshots[snapshot_id]
        self.destroyed.add(snapshot_id)

    def corrupt(self, snapshot_id: int, number: int, how: int) -> None:
        """A segment is not what was written: other rows, in another order, or one too few."""
        plan = self.snapshots[snapshot_id]
        number %= len(plan.segments)
        rows = slice(1, None) if how == 0 else slice(None, None, -1)
        changed = SnapshotSegment(*(column[rows].copy() for column in plan.segments[number]))
        if how == 1:
            changed.entry_ids[:1] += 1_000
        segments = (*plan.segments[:number], changed, *plan.segments[number + 1 :])
        self.snapshots[snapshot_id] = plan._replace(segments=segments)

    def sweep(self) -> None:
        """At a start: what the registry does not name goes."""
        for snapshot_id in self.snapshots.keys() - self.registry.keys():
            del self.snapshots[snapshot_id]


def failed_for_now(plan: Plan) -> Outcome:
    return Failed(f"{type(plan).__name__} does not work now")


def check_snapshot(plan: CreateSnapshot) -> None:
    """The metadata says what the segments hold, and they follow each other."""
    assert plan.segments
    assert len(plan.segments) == len(plan.metadata)
    rows: list[tuple[int, int, int]] = []
    for segment, metadata in zip(plan.segments, plan.metadata, strict=True):
        own = rows_of(segment)
        assert own, "an empty segment"
        assert metadata.first_key_ms == own[0][0]
        assert metadata.last_key_ms == own[-1][0]
        assert metadata.entry_count == len(own)
        named = {(ledger, e) for ledger, bitmap in metadata.positions.items() for e in bitmap}
        assert named == {row[1:] for row in own}
        rows += own
    assert rows == sorted(set(rows)), "out of order, or twice"
    positions = [row[1:] for row in rows]
    assert len(set(positions)) == len(positions), "a position twice"
    assert plan.first == min(positions)
    assert plan.last == max(positions)


def rows_of(segment: SnapshotSegment) -> list[tuple[int, int, int]]:
    assert all(column.dtype == np.int64 for column in segment)
    return list(zip(*(column.tolist() for column in segment), strict=True))
