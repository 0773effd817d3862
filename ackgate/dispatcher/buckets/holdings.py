"""Which tracked entry is where. The bookkeeping of a bucket tracker, without its storage.

Pure. Every tracked position has one copy, in memory or in one bucket's snapshot::

    index      . # # # # # # . # #        decides what is tracked
    memory     . # . . # x # . . .        in the mutable bucket or a run
    bucket 1   . . # # . . . . . .        `SealedBucket.unloaded`: in its snapshot only
    bucket 2   . . . . . # . . # #
    dead       . . . . . . . x . .        a copy in memory, no longer tracked

A discard does not search for the copy in memory. It notes it as *dead*: `pop_due` skips it, and a
sweep removes it when half of the memory is dead (or all of it), or when the same position is added
again. Copies in snapshots are dead as soon as `unloaded` does not name them.

Invariant (`check`): index = memory without the dead + unloaded of all buckets, all of them disjoint;
no position is in memory twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.cursor import Position, PositionSet, bitmap_of, positions_of
from ackgate.dispatcher.buckets.memory import ENTRY_BYTES, LoadedRuns, MutableBucket
from ackgate.dispatcher.buckets.sealed_bucket import BUCKET_BYTES, BucketState, SealedBucket
from ackgate.dispatcher.buckets.segments import (
    add_rows,
    by_ledger,
    joined,
    picked,
    row_of,
    rows_in,
    span_of,
    stacked,
    take_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor import SnapshotSegment
    from ackgate.dispatcher.buckets.memory import LoadedRun
    from ackgate.dispatcher.buckets.segments import SegmentGroups

DEAD_MIN: Final = 1_024
"""Fewer dead copies than this are not worth a sweep."""

GROUP_BYTES: Final = 16
"""A group of segments in memory."""


class RunKeeper:
    """Owner of runs that belong to no bucket."""

    __slots__ = ("memory_entries", "runs")

    def __init__(self) -> None:
        self.runs: list[LoadedRun] = []
        self.memory_entries = 0


class Holdings:
    """Index, memory and buckets of one tracker."""

    __slots__ = (
        "_by_ledger",
        "_last_number",
        "_unloaded_bytes",
        "buckets",
        "dead",
        "group_bytes",
        "index",
        "lost",
        "mutable",
        "orphans",
        "runs",
        "shrunk",
    )

    index: PositionSet
    dead: PositionSet

    lost: PositionSet
    """What was in the index and is in no place that can be read; until the broker takes it."""

    orphans: RunKeeper
    """Has the runs of buckets that are gone: what was loaded last."""

    group_bytes: int
    """Of all buckets' groups."""

    buckets: dict[int, SealedBucket]
    """Sealed ones that are not gone, by number."""

    shrunk: set[SealedBucket]
    """Buckets that lost entries since the tracker last looked at this."""

    def __init__(self) -> None:
        self.index = PositionSet()
        self.dead = PositionSet()
        self.lost = PositionSet()
        self.runs = LoadedRuns()
        self.mutable = MutableBucket()
        self.orphans = RunKeeper()
        self.buckets = {}
        self.shrunk = set()
        self.group_bytes = 0
        self._by_ledger: dict[int, list[SealedBucket]] = {}
        self._unloaded_bytes = 0
        self._last_number = 0

    @property
    def memory_entries(self) -> int:
        """Copies in memory, the dead too. O(1)."""
        return self.runs.entry_count + self.mutable.column_entries

    @property
    def byte_estimate(self) -> int:
        return (
            self.index.byte_estimate
            + self.dead.byte_estimate
            + self.lost.byte_estimate
            + self._unloaded_bytes
            + self.memory_entries * ENTRY_BYTES
            + len(self.buckets) * BUCKET_BYTES
            + self.group_bytes
        )

    @property
    def next_key_ms(self) -> int | None:
        """The lowest key in memory."""
        keys = (self.runs.next_key_ms, self.mutable.next_key_ms)
        return min((key for key in keys if key is not None), default=None)

    # -- taking out what is due -----------------------------------------------------------------

    def take_due(self, last_key_ms: int, entries_max: int) -> list[Position]:
        """Take out the next tracked entries with keys up to this one."""
        positions: list[Position] = []
        while len(positions) < entries_max:
            rows = self._take_rows(last_key_ms, entries_max - len(positions))
            if rows is None:
                break
            if self.dead.entry_count:
                rows = picked(rows, ~take_rows(self.dead, rows))
            take_rows(self.index, rows)
            positions += positions_of(rows.ledger_ids, rows.entry_ids)
        self.mutable.note_empty()
        self._sweep_if_due()
        return positions

    def has_tracked_through(self, last_key_ms: int) -> bool:
        """Whether `take_due` would give anything. Dead copies that come before it go."""
        while True:
            low_key_ms = self.mutable.next_key_ms
            if low_key_ms is not None and low_key_ms <= last_key_ms:
                self.mutable.sort(self.runs)
            next_key_ms = self.runs.next_key_ms
            if next_key_ms is None or next_key_ms > last_key_ms:
                self.mutable.note_empty()
                return False
            if not self.runs.skip_one_of(self.dead):
                return True

    def _take_rows(self, last_key_ms: int, entries_max: int) -> SnapshotSegment | None:
        """The next copies in memory, in order."""
        parts: list[SnapshotSegment] = []
        while entries_max > 0:
            low_key_ms = self.mutable.next_key_ms
            if low_key_ms is not None and low_key_ms <= last_key_ms:
                self.mutable.sort(self.runs)
            rows = self.runs.take(last_key_ms, entries_max)
            if rows is None:
                break
            parts.append(rows)
            entries_max -= int(rows.keys_ms.size)
        if not parts:
            return None
        # They follow each other in order already.
        return stacked(parts)

    # -- forgetting -----------------------------------------------------------------------------

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Forget one entry. Was it tracked?"""
        if not self.index.discard(ledger_id, entry_id):
            return False
        for bucket in self._by_ledger.get(ledger_id, ()):
            if bucket.unloaded.discard(ledger_id, entry_id):
                self._weigh(bucket)
                return True
        self.dead.add(ledger_id, entry_id)
        self._sweep_if_due()
        return True

    def discard_many(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Forget entries of one ledger. Returns those that were tracked."""
        gone = self.index.discard_many(ledger_id, entries)
        self._forget_copies(ledger_id, gone)
        self._sweep_if_due()
        return gone

    def forget_through(self, mark_delete: Position) -> int:
        """Forget everything up to a position. Returns how many were tracked."""
        count = 0
        for ledger_id, gone in self.index.take_through(mark_delete):
            count += len(gone)
            self._forget_copies(ledger_id, gone)
        self._sweep_if_due()
        return count

    def _forget_copies(self, ledger_id: int, gone: BitMap) -> None:
        """Forget the copies of entries that are no longer in the index."""
        left = gone.copy()
        for bucket in self._by_ledger.get(ledger_id, ()):
            if not left:
                return
            left -= bucket.unloaded.discard_many(ledger_id, left)
            self._weigh(bucket)
        if left:
            self.dead.add_many(ledger_id, left)

    def _sweep_if_due(self) -> None:
        dead, copies = self.dead.entry_count, self.memory_entries
        if dead and (dead == copies or (dead >= DEAD_MIN and 2 * dead > copies)):
            self.sweep()

    def sweep(self) -> None:
        """Take the dead copies out of memory. O(memory)."""
        self.mutable.sort(self.runs)
        for run in list(self.runs):
            rest = run.rest
            is_dead = rows_in(self.dead, rest)
            if is_dead.any():
                self.runs.replace(run, picked(rest, ~is_dead))
                if isinstance(run.owner, SealedBucket):
                    self.shrunk.add(run.owner)
        self.runs.settle()
        self.mutable.note_empty()
        self.dead.clear()

    def clear(self) -> None:
        """Forget everything. The buckets are the caller's to end."""
        self.index.clear()
        self.dead.clear()
        self.lost.clear()
        self.runs.clear()
        self.mutable.clear()
        self.orphans = RunKeeper()
        for bucket in self.buckets.values():
            bucket.runs = []
            bucket.memory_entries = 0
            bucket.unloaded.clear()
            bucket.ledger_ids.clear()
        self.buckets.clear()
        self.shrunk.clear()
        self.group_bytes = 0
        self._by_ledger.clear()
        self._unloaded_bytes = 0

    # -- adding ---------------------------------------------------------------------------------

    def accept(self, key_ms: int, position: Position, now_ms: int) -> None:
        """Track an entry, if it is not yet: into the mutable bucket."""
        ledger_id, entry_id = position
        if not self.index.add(ledger_id, entry_id):
            return
        if self.dead.entry_count and position in self.dead:
            self.sweep()
        self.mutable.add(key_ms, ledger_id, entry_id, now_ms)

    def accept_many(
        self,
        keys_ms: NDArray[np.int64],
        ledger_id: int,
        entry_ids: NDArray[np.int64],
        now_ms: int,
    ) -> None:
        """Track new, distinct entries of one ledger, at least one."""
        entries = bitmap_of(entry_ids)
        dead = self.dead.bitmap(ledger_id)
        if dead is not None and dead.intersect(entries):
            self.sweep()
        self.index.add_many(ledger_id, entries)
        self.mutable.add_many(keys_ms, ledger_id, entry_ids, now_ms)

    # -- buckets --------------------------------------------------------------------------------

    def new_bucket(self, first: Position, last: Position, state: BucketState) -> SealedBucket:
        """A bucket with nothing in it yet."""
        self._last_number += 1
        bucket = SealedBucket(self._last_number, first, last, state)
        self.buckets[bucket.number] = bucket
        return bucket

    def seal(self) -> SealedBucket | None:
        """Make a sealed bucket of the mutable one, which is empty then. None: it had nothing."""
        columns = self.mutable.take_all(self.runs)
        if self.dead.entry_count:
            columns = picked(columns, ~take_rows(self.dead, columns))
        if not columns.keys_ms.size:
            return None
        bucket = self.new_bucket(*span_of(columns), BucketState.WAITING)
        self.runs.add(columns, bucket)
        return bucket

    def live_rows(self, columns: SnapshotSegment) -> SnapshotSegment:
        """Those rows (copies in memory) that are not dead."""
        if not self.dead.entry_count:
            return columns
        is_dead = rows_in(self.dead, columns)
        return picked(columns, ~is_dead) if is_dead.any() else columns

    def memory_of(self, bucket: SealedBucket) -> SnapshotSegment:
        """All of a bucket's tracked entries in memory, in order."""
        return self.live_rows(joined([run.rest for run in bucket.runs]))

    def load(self, bucket: SealedBucket, columns: SnapshotSegment) -> int:
        """Take rows that were read of a bucket's snapshot. Those still wanted are in memory now."""
        rows = picked(columns, take_rows(bucket.unloaded, columns))
        if rows.keys_ms.size:
            self.runs.add(rows, bucket)
        self._weigh(bucket)
        return int(rows.keys_ms.size)

    def unload_from(self, bucket: SealedBucket, first: tuple[int, int, int]) -> None:
        """Unload what a bucket has in memory from (key, ledger, entry) on.

        Its snapshot has that, too.
        """
        for run in list(bucket.runs):
            rest = run.rest
            row = row_of(rest, first)
            if row == rest.keys_ms.size:
                continue
            leaving = picked(rest, slice(row, None))
            # A copy: a view would keep all of it in memory.
            self.runs.replace(run, type(rest)(*(column[:row].copy() for column in rest)))
            leaving = picked(leaving, ~take_rows(self.dead, leaving))
            add_rows(bucket.unloaded, leaving)
            for ledger_id, _ in by_ledger(leaving):
                self._register(bucket, ledger_id)
        self._weigh(bucket)

    def restore(self, bucket: SealedBucket, ledger_id: int, entries: BitMap) -> None:
        """Track entries that a recovered snapshot names and that are tracked nowhere else."""
        new = self.index.add_many(ledger_id, entries).copy()
        if new:
            bucket.unloaded.add_many(ledger_id, new)
            self._register(bucket, ledger_id)
            self._weigh(bucket)

    def take_over(self, sources: Iterable[SealedBucket], target: SealedBucket) -> None:
        """Give all runs and unloaded entries of the sources to the target."""
        for source in sources:
            for run in list(source.runs):
                self.runs.move(run, target)
            for ledger_id, bitmap in source.unloaded.bitmaps():
                target.unloaded.add_many(ledger_id, bitmap.copy())
                self._register(target, ledger_id)
            source.unloaded.clear()
            self.drop(source)
        self._weigh(target)

    def lose(self, bucket: SealedBucket) -> int:
        """What a bucket has in its snapshot only cannot be read: it is tracked no more."""
        count = bucket.unloaded.entry_count
        for ledger_id, bitmap in bucket.unloaded.bitmaps():
            self.index.discard_many(ledger_id, bitmap)
            self.lost.add_many(ledger_id, bitmap.copy())
        bucket.unloaded.clear()
        self._weigh(bucket)
        return count

    def drop(self, bucket: SealedBucket) -> None:
        """A bucket is gone that has nothing unloaded. What it has in memory stays there."""
        assert not bucket.unloaded.entry_count
        for run in list(bucket.runs):
            self.runs.move(run, self.orphans)
        for ledger_id in bucket.ledger_ids:
            buckets = self._by_ledger[ledger_id]
            buckets.remove(bucket)
            if not buckets:
                del self._by_ledger[ledger_id]
        bucket.ledger_ids.clear()
        self._weigh(bucket)
        self.shrunk.discard(bucket)
        if bucket.groups is not None:
            self.group_bytes -= len(bucket.groups) * GROUP_BYTES
        del self.buckets[bucket.number]

    def set_groups(self, bucket: SealedBucket, groups: SegmentGroups, next_group: int) -> None:
        """Set how a bucket is loaded from now on."""
        bucket.groups = groups
        bucket.next_group = next_group
        self.group_bytes += len(groups) * GROUP_BYTES

    def _register(self, bucket: SealedBucket, ledger_id: int) -> None:
        buckets = self._by_ledger.setdefault(ledger_id, [])
        if bucket not in buckets:
            buckets.append(bucket)
            bucket.ledger_ids.append(ledger_id)

    def _weigh(self, bucket: SealedBucket) -> None:
        """Something changed in what a bucket has unloaded."""
        weight = bucket.unloaded.byte_estimate
        self._unloaded_bytes += weight - bucket.unloaded_bytes
        bucket.unloaded_bytes = weight
        self.shrunk.add(bucket)

    # -- checking -------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariant, whole. O(everything)."""
        for positions in (self.index, self.dead, self.lost):
            positions.check()
        self.mutable.check()
        owners = [self.mutable, self.orphans, *self.buckets.values()]
        self.runs.check(owners)
        for bucket in self.buckets.values():
            bucket.check()
        columns = [self.mutable.columns(), *(run.rest for run in self.runs)]
        in_memory = [positions_of(each.ledger_ids, each.entry_ids) for each in columns]
        copies = [position for positions in in_memory for position in positions]
        dead = set(self.dead)
        owned = set(copies)
        assert len(owned) == len(copies), "a position is in memory twice"
        assert dead <= owned, "a dead copy is nowhere"
        owned -= dead
        for bucket in self.buckets.values():
            unloaded = set(bucket.unloaded)
            assert not owned & unloaded, f"{owned & unloaded} are in bucket {bucket.number}, too"
            owned |= unloaded
        tracked = set(self.index)
        assert owned == tracked, (
            f"held but not tracked: {owned - tracked}; tracked but nowhere: {tracked - owned}"
        )
        self._check_sums()

    def _check_sums(self) -> None:
        buckets = list(self.buckets.values())
        assert self._unloaded_bytes == sum(bucket.unloaded_bytes for bucket in buckets)
        assert self.group_bytes == GROUP_BYTES * sum(
            len(bucket.groups) for bucket in buckets if bucket.groups is not None
        )
        registered = {
            (ledger_id, bucket.number)
            for ledger_id, registered in self._by_ledger.items()
            for bucket in registered
        }
        assert registered == {
            (ledger_id, bucket.number) for bucket in buckets for ledger_id in bucket.ledger_ids
        }
        for bucket in buckets:
            assert bucket.unloaded_bytes == bucket.unloaded.byte_estimate
            assert set(bucket.unloaded.ledger_ids) <= set(bucket.ledger_ids)
