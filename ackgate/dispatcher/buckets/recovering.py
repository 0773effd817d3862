"""What a new tracker learns of the buckets that are registered. In the background. Pure.

Nothing waits for it. Entries that are read and offered before their bucket is known go to the
mutable bucket, or are delivered; when the bucket's metadata comes, it gets of its positions what
nobody else has by then::

    named in the snapshot
      less  tracked already         in the mutable bucket, or of another bucket
      less  settled since the start offered and due, popped, discarded: they are on their way
      less  acked                   as the cursor says, and what mark-delete has passed
      = unloaded

Metadata that is missing or cannot be read ends its bucket: nothing of it is in the index, so the
cursor reads it all. What fails for now is tried again, in between the others.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pyroaring import BitMap

from ackgate.cursor import PositionSet
from ackgate.dispatcher.buckets.plans import LoadMetadata, MetadataLoaded, Unreadable
from ackgate.dispatcher.buckets.sealed_bucket import BucketState, SealedBucket
from ackgate.dispatcher.buckets.segments import groups_of
from ackgate.dispatcher.buckets.statistics import OperationType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ackgate.cursor import BucketRecord, Position, SegmentMetadata
    from ackgate.dispatcher.buckets.holdings import Holdings
    from ackgate.dispatcher.buckets.plans import Outcome, PlanBook


class Recovering:
    """Buckets whose metadata is not read yet."""

    __slots__ = (
        "_acked",
        "_book",
        "_holdings",
        "_lose",
        "_mark_delete",
        "_queue",
        "_reading",
        "_settled",
        "_stored",
        "_unread",
    )

    def __init__(
        self, holdings: Holdings, book: PlanBook, lose: Callable[[SealedBucket], None]
    ) -> None:
        self._holdings = holdings
        self._book = book
        self._lose = lose
        self._queue: deque[SealedBucket] = deque()
        self._stored: list[SealedBucket] = []
        self._reading = 0
        self._unread = 0
        self._settled = PositionSet()
        self._mark_delete: Position | None = None
        self._acked: Callable[[int], BitMap | None] = _nothing_acked

    @property
    def is_on(self) -> bool:
        """Whether the metadata of any bucket is still to be read."""
        return self._unread > 0

    @property
    def byte_estimate(self) -> int:
        """Memory of what is remembered during the recovery, in bytes."""
        return self._settled.byte_estimate

    def begin(
        self, records: Iterable[BucketRecord], acked: Callable[[int], BitMap | None] | None
    ) -> None:
        """Begin with these registered buckets, lowest positions first, as the cursor reads."""
        if acked is not None:
            self._acked = acked
        for record in sorted(records):
            bucket = self._holdings.new_bucket(record.first, record.last, BucketState.UNREAD)
            bucket.snapshot_id = record.snapshot_id
            self._queue.append(bucket)
            self._unread += 1

    def advance(self, now_ms: int) -> list[SealedBucket]:
        """Ask for what is to be read now. Returns buckets that are known from now on."""
        while self._queue and self._reading < self._book.settings.metadata_loads_max:
            bucket = self._queue.popleft()
            if bucket.state is BucketState.UNREAD:
                self._read(bucket, now_ms)
        stored, self._stored = self._stored, []
        return stored

    # -- what happens meanwhile -----------------------------------------------------------------

    def settle(self, positions: Iterable[Position]) -> None:
        for ledger_id, entry_id in positions:
            self._settled.add(ledger_id, entry_id)

    def settle_many(self, ledger_id: int, entries: BitMap) -> None:
        """Note entries that were refused or discarded."""
        self._settled.add_many(ledger_id, entries.copy())

    def forget_through(self, mark_delete: Position) -> list[SealedBucket]:
        """Apply a mark-delete. Returns unread buckets that lie below it."""
        if self._mark_delete is None or mark_delete > self._mark_delete:
            self._mark_delete = mark_delete
        self._settled.take_through(mark_delete)
        return [
            bucket
            for bucket in self._holdings.buckets.values()
            if bucket.state is BucketState.UNREAD and bucket.last <= mark_delete
        ]

    def gone(self) -> None:
        """Note that an unread bucket is gone."""
        self._unread -= 1
        if not self._unread:
            self._end()

    # -- reading --------------------------------------------------------------------------------

    def _read(self, bucket: SealedBucket, now_ms: int) -> None:
        assert bucket.snapshot_id is not None
        snapshot_id = bucket.snapshot_id
        self._reading += 1
        self._book.ask(
            lambda number: LoadMetadata(number, snapshot_id),
            partial(self._on_read, bucket),
            now_ms,
            OperationType.LOAD,
        )

    def _on_read(self, bucket: SealedBucket, outcome: Outcome, now_ms: int) -> None:
        self._reading -= 1
        if bucket.state is not BucketState.UNREAD:
            return
        if isinstance(outcome, MetadataLoaded) and _is_sound(outcome.segments):
            self._restore(bucket, outcome)
        elif isinstance(outcome, (Unreadable, MetadataLoaded)):
            self._lose(bucket)
        else:
            bucket.attempts += 1
            self._book.retries.schedule(bucket.attempts, now_ms, partial(self._retry, bucket))

    def _retry(self, bucket: SealedBucket, _now_ms: int) -> None:
        self._queue.append(bucket)

    def _restore(self, bucket: SealedBucket, known: MetadataLoaded) -> None:
        groups = groups_of(
            [segment.first_key_ms for segment in known.segments],
            [segment.entry_count for segment in known.segments],
            entries_min=self._book.settings.load_entries_min,
        )
        bucket.attempts = 0
        bucket.bytes_stored = known.bytes_stored
        self._holdings.set_groups(bucket, groups, 0)
        bucket.move_to(BucketState.STORED)
        named: dict[int, list[BitMap]] = {}
        for segment in known.segments:
            for ledger_id, bitmap in segment.positions.items():
                named.setdefault(ledger_id, []).append(bitmap)
        for ledger_id, bitmaps in named.items():
            self._holdings.restore(
                bucket, ledger_id, self._still_wanted(ledger_id, BitMap.union(*bitmaps))
            )
        self._holdings.shrunk.add(bucket)
        self._stored.append(bucket)
        self.gone()

    def _still_wanted(self, ledger_id: int, named: BitMap) -> BitMap:
        """The named entries that are not acked and not on their way."""
        for others in (
            self._acked(ledger_id),
            self._settled.bitmap(ledger_id),
            self._holdings.dead.bitmap(ledger_id),
        ):
            if others is not None:
                named -= others
        if self._mark_delete is not None:
            if ledger_id < self._mark_delete.ledger_id:
                return BitMap()
            if ledger_id == self._mark_delete.ledger_id:
                named.remove_range(0, self._mark_delete.entry_id + 1)
        return named

    def _end(self) -> None:
        """End the recovery: everything is known, and nothing needs to be remembered any more."""
        self._settled.clear()
        self._acked = _nothing_acked
        self._mark_delete = None

    def clear(self) -> None:
        self._queue.clear()
        self._stored.clear()
        self._unread = 0
        self._end()

    def check(self) -> None:
        unread = sum(
            bucket.state is BucketState.UNREAD for bucket in self._holdings.buckets.values()
        )
        assert self._unread == unread, (self._unread, unread)
        self._settled.check()
        assert self._unread or not self._settled.entry_count


def _nothing_acked(_ledger_id: int) -> BitMap | None:
    return None


def _is_sound(segments: Sequence[SegmentMetadata]) -> bool:
    """Whether segments follow each other in time; others are not ours."""
    keys = [key for segment in segments for key in (segment.first_key_ms, segment.last_key_ms)]
    return keys == sorted(keys) and all(segment.entry_count > 0 for segment in segments)
