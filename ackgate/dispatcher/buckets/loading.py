"""Which segments are read back, and when. Pure.

Each stored bucket has one load at a time, so a slow or failing one holds back only what it has
itself. The next group of segments is fetched when two things hold: its first entry is due within
the lead time, and most of the group before it was taken. Nothing is fetched long before its time. ::

    bucket 1   [ taken ......... 15 % left ][ next group: first entry due in 8 s ]   fetch it
    bucket 2   [ taken ... 60 % left       ][ next group: due in 2 s ]               rest first
    bucket 3   [ all taken                 ][ next group: due in 3 h ]               not yet

When a great many entries are in memory (consumers are slow), only what is due before all of them
is fetched.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.dispatcher.buckets.plans import LoadSegments, SegmentsLoaded, Unreadable
from ackgate.dispatcher.buckets.sealed_bucket import BucketState, SealedBucket
from ackgate.dispatcher.buckets.segments import in_order, is_in_order, stacked
from ackgate.dispatcher.buckets.statistics import OperationType

LOADS_OVER_MAX: Final = 8
"""Loads under way at a time when there is enough in memory: some may hang."""

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.cursor import SnapshotSegment
    from ackgate.dispatcher.buckets.holdings import Holdings
    from ackgate.dispatcher.buckets.plans import Outcome, PlanBook
    from ackgate.dispatcher.delayed import DelayKeys


class Loading:
    """The next loads of all stored buckets."""

    __slots__ = (
        "_book",
        "_entries_coming",
        "_heap",
        "_holdings",
        "_is_full",
        "_keys",
        "_loads_coming",
        "_lose",
        "_resting",
        "_serial",
    )

    def __init__(
        self,
        holdings: Holdings,
        book: PlanBook,
        keys: DelayKeys,
        lose: Callable[[SealedBucket], None],
    ) -> None:
        """`lose`: a bucket's snapshot cannot be read, ever."""
        self._holdings = holdings
        self._book = book
        self._keys = keys
        self._lose = lose
        self._heap: list[tuple[int, int, SealedBucket]] = []
        self._serial = 0
        self._loads_coming = 0
        self._entries_coming = 0
        self._resting: set[SealedBucket] = set()
        self._is_full = False

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next load is to be asked for; None: nothing depends on time alone."""
        self._wake()
        self._drop_stale()
        if not self._heap or self._is_full:
            return None
        return self._keys.due_ms(self._heap[0][0]) - self._book.settings.load_lead_ms

    def offer(self, bucket: SealedBucket) -> None:
        """Add a bucket that is stored, or whose last load is done: it may have more to load."""
        key_ms = bucket.next_load_key_ms
        if key_ms is not None and not bucket.is_loading:
            self._serial += 1
            heappush(self._heap, (key_ms, self._serial, bucket))

    def advance(self, now_ms: int) -> None:
        """Ask for what is to be loaded now."""
        settings = self._book.settings
        self._wake()
        near_ms = self._keys.cutoff(now_ms + settings.load_lead_ms)
        self._is_full = False
        self._drop_stale()
        while self._heap and self._heap[0][0] <= near_ms:
            key_ms, _, bucket = self._heap[0]
            if not self._is_used(bucket):
                heappop(self._heap)
                self._resting.add(bucket)
            elif self._has_sooner(key_ms):
                self._is_full = True
                return
            else:
                heappop(self._heap)
                bucket.is_loading = True
                self._load(bucket, now_ms)
            self._drop_stale()

    def _wake(self) -> None:
        """Of those that wait for use of what they have, some may have been used."""
        touched = self._holdings.runs.touched
        if not touched:
            return
        # Whatever was taken may have made room.
        self._is_full = False
        for bucket in [bucket for bucket in self._resting if bucket in touched]:
            if self._is_used(bucket):
                self._resting.remove(bucket)
                self.offer(bucket)
        touched.clear()

    def _is_used(self, bucket: SealedBucket) -> bool:
        """Whether so little of what it has in memory is due before the next group."""
        key_ms = bucket.next_load_key_ms
        if key_ms is None or bucket.state is not BucketState.STORED:
            return True
        rest_max = self._book.settings.load_rest_percent * bucket.group_entries // 100
        if bucket.memory_entries <= rest_max:
            return True
        return sum(run.count_through(key_ms) for run in bucket.runs) <= rest_max

    def _has_sooner(self, key_ms: int) -> bool:
        """Whether there is enough in memory, or coming: something due before this key, or much."""
        entries = self._holdings.memory_entries + self._entries_coming
        if entries < self._book.settings.loaded_entries_max:
            return False
        next_key_ms = self._holdings.next_key_ms
        if next_key_ms is not None and next_key_ms < key_ms:
            return True
        return self._loads_coming >= LOADS_OVER_MAX

    def _drop_stale(self) -> None:
        heap = self._heap
        while heap:
            key_ms, _, bucket = heap[0]
            is_current = (
                bucket.state is BucketState.STORED
                and not bucket.is_loading
                and bucket.next_load_key_ms == key_ms
            )
            if is_current:
                return
            heappop(heap)

    def _load(self, bucket: SealedBucket, now_ms: int) -> None:
        if bucket.state is not BucketState.STORED:
            return
        assert bucket.groups is not None
        assert bucket.snapshot_id is not None
        snapshot_id = bucket.snapshot_id
        first, stop = bucket.groups.bounds[bucket.next_group : bucket.next_group + 2].tolist()
        entries = int(bucket.groups.entry_counts[bucket.next_group])
        self._loads_coming += 1
        self._entries_coming += entries
        self._book.ask(
            lambda number: LoadSegments(number, snapshot_id, first, stop),
            partial(self._on_loaded, bucket, stop - first, entries),
            now_ms,
            OperationType.LOAD,
        )

    def _on_loaded(
        self, bucket: SealedBucket, segments: int, entries: int, outcome: Outcome, now_ms: int
    ) -> None:
        self._loads_coming -= 1
        self._entries_coming -= entries
        columns = segments_in(outcome, segments, entries)
        if bucket.state is not BucketState.STORED:
            # Merged meanwhile: what was read is as good as what the new bucket would read.
            heir = bucket.merged_into
            if heir is not None and heir.state is BucketState.STORED and columns is not None:
                self._holdings.load(heir, columns)
        elif columns is not None:
            self._take_in(bucket, columns)
        elif isinstance(outcome, (Unreadable, SegmentsLoaded)):
            self._lose(bucket)
        else:
            bucket.attempts += 1
            self._book.retries.schedule(bucket.attempts, now_ms, partial(self._load, bucket))

    def _take_in(self, bucket: SealedBucket, columns: SnapshotSegment) -> None:
        assert bucket.groups is not None
        bucket.attempts = 0
        bucket.is_loading = False
        bucket.next_group += 1
        bucket.group_entries = self._holdings.load(bucket, columns)
        if bucket.next_group < len(bucket.groups):
            self.offer(bucket)
        elif bucket.unloaded.entry_count:
            # Its metadata named entries that its segments do not have.
            self._lose(bucket)

    def clear(self) -> None:
        self._heap.clear()
        self._resting.clear()

    def check(self) -> None:
        """Assert that every bucket with something unloaded will be asked for it."""
        waiting = {id(bucket) for _, _, bucket in self._heap} | set(map(id, self._resting))
        for bucket in self._holdings.buckets.values():
            if bucket.state is BucketState.STORED and bucket.unloaded.entry_count:
                assert bucket.is_loading or id(bucket) in waiting, (
                    f"bucket {bucket.number} is never loaded"
                )


def segments_in(outcome: Outcome, segments: int, entries: int) -> SnapshotSegment | None:
    """The rows of so many segments with so many entries, in order.

    None: these are not what was asked for.
    """
    if not isinstance(outcome, SegmentsLoaded) or len(outcome.segments) != segments:
        return None
    for segment in outcome.segments:
        if len({column.size for column in segment}) != 1:
            return None
    columns = stacked(
        [
            type(segment)(*(column.astype(np.int64, copy=False) for column in segment))
            for segment in outcome.segments
        ]
    )
    if columns.keys_ms.size != entries:
        return None
    return columns if is_in_order(columns) else in_order(*columns)
