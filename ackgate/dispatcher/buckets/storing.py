"""From the mutable bucket to a stored one. Pure.

While its snapshot is written and registered, a bucket's entries are in memory and are delivered
when due. A create that fails is tried again, and after the last attempt again now and then: nothing
is lost by that but memory (`BucketStatistics.buckets_failing`). What was delivered or discarded
between two attempts is left out of the next one.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ackgate.cursor import StoredSnapshot
from ackgate.dispatcher.buckets.sealed_bucket import BucketState, SealedBucket
from ackgate.dispatcher.buckets.segments import Draft
from ackgate.dispatcher.buckets.statistics import OperationType

if TYPE_CHECKING:
    from ackgate.cursor import SnapshotSegment
    from ackgate.dispatcher.buckets.holdings import Holdings
    from ackgate.dispatcher.buckets.plans import Outcome, PlanBook
    from ackgate.dispatcher.buckets.registry import SnapshotKeeper
    from ackgate.dispatcher.buckets.segments import SegmentGroups
    from ackgate.dispatcher.delayed import DelayKeys


class Storing:
    """Buckets on their way into storage."""

    __slots__ = ("_book", "_holdings", "_keeper", "_keys", "_queue", "_registering", "_writing")

    def __init__(
        self, holdings: Holdings, book: PlanBook, keeper: SnapshotKeeper, keys: DelayKeys
    ) -> None:
        self._holdings = holdings
        self._book = book
        self._keeper = keeper
        self._keys = keys
        self._queue: deque[SealedBucket] = deque()
        self._registering: list[SealedBucket] = []
        self._writing = 0

    def store(self, bucket: SealedBucket) -> None:
        self._queue.append(bucket)

    def advance(self, now_ms: int) -> list[SealedBucket]:
        """Ask for what is to be written now. Returns buckets that are stored from now on."""
        while self._queue and self._writing < self._book.settings.creates_max:
            bucket = self._queue.popleft()
            if bucket.state is BucketState.WAITING:
                self._write(bucket, now_ms)
        stored = [bucket for bucket in self._registering if self._is_registered(bucket)]
        for bucket in stored:
            self._settle(bucket, now_ms)
        self._registering = [
            bucket for bucket in self._registering if bucket.state is BucketState.REGISTERING
        ]
        return stored

    def _is_registered(self, bucket: SealedBucket) -> bool:
        return (
            bucket.state is BucketState.REGISTERING
            and bucket.snapshot_id is not None
            and self._keeper.names(bucket.snapshot_id)
        )

    def _write(self, bucket: SealedBucket, now_ms: int) -> None:
        columns = self._holdings.memory_of(bucket)
        if not columns.keys_ms.size:
            bucket.move_to(BucketState.GONE)
            self._holdings.drop(bucket)
            return
        draft = Draft(columns, self._book.settings)
        bucket.move_to(BucketState.STORING)
        bucket.first, bucket.last = draft.first, draft.last
        self._writing += 1
        self._go_on(bucket, draft, now_ms)

    def _go_on(self, bucket: SealedBucket, draft: Draft, now_ms: int) -> None:
        """Describe a piece more of it; when that is all, ask for it."""
        if bucket.state is not BucketState.STORING:
            self._writing -= 1
        elif draft.go_on():
            self._book.ask(
                draft.plan,
                partial(self._on_written, bucket, draft.groups, draft.columns),
                now_ms,
                OperationType.CREATE,
            )
        else:
            self._book.retries.soon(now_ms, partial(self._go_on, bucket, draft))

    def _on_written(
        self,
        bucket: SealedBucket,
        groups: SegmentGroups,
        columns: SnapshotSegment,
        outcome: Outcome,
        now_ms: int,
    ) -> None:
        self._writing -= 1
        if isinstance(outcome, StoredSnapshot):
            if bucket.state is not BucketState.STORING:
                self._keeper.give_up(outcome.snapshot_id)
                return
            bucket.attempts = 0
            bucket.snapshot_id = outcome.snapshot_id
            bucket.bytes_stored = outcome.bytes_stored
            bucket.stored_columns = columns
            bucket.move_to(BucketState.REGISTERING)
            self._holdings.set_groups(bucket, groups, 0)
            self._registering.append(bucket)
            self._keeper.keep(bucket.record)
        elif bucket.state is BucketState.STORING:
            bucket.attempts += 1
            bucket.move_to(BucketState.WAITING)
            self._book.retries.schedule(bucket.attempts, now_ms, partial(self._retry, bucket))

    def _retry(self, bucket: SealedBucket, _now_ms: int) -> None:
        if bucket.state is BucketState.WAITING:
            self._queue.append(bucket)

    def _settle(self, bucket: SealedBucket, now_ms: int) -> None:
        """Unload a bucket that is registered now, except what is due soon."""
        groups, columns = bucket.groups, bucket.stored_columns
        assert groups is not None
        assert columns is not None
        near_ms = self._keys.cutoff(now_ms + self._book.settings.load_lead_ms)
        kept = int(groups.first_keys_ms.searchsorted(near_ms, "right"))
        bucket.move_to(BucketState.STORED)
        bucket.stored_columns = None
        bucket.next_group = kept
        if kept < len(groups):
            row = int(groups.entry_counts[:kept].sum(dtype="int64"))
            first = columns.keys_ms[row], columns.ledger_ids[row], columns.entry_ids[row]
            self._holdings.unload_from(bucket, (int(first[0]), int(first[1]), int(first[2])))
        bucket.group_entries = bucket.memory_entries
        self._holdings.shrunk.add(bucket)

    def clear(self) -> None:
        self._queue.clear()
        self._registering.clear()
