"""Replays delayed entries under other settings, with the broker's own tracker and ideal storage.

Pure. An entry is added to the tracker when it is published, as if consumers kept up, and popped
when it is due. Entries acked earlier leave the tracker at the end of the tape. Buckets that the
tracker seals are encoded as a broker would store them, and decoded again when it loads them. One
tracker serves the whole recording: restarts, at which a broker recovers its buckets, are not
modelled.

    published --> tracker --> seal, merge --> encoded segments
                     |                             |
                  pop_due <-------- load ----------'
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.config.delayed import BUCKET_FACTORY
from ackgate.cursor import Position, SnapshotSegment, StoredSnapshot
from ackgate.dispatcher.buckets import (
    BucketTracker,
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    Done,
    LoadMetadata,
    LoadSegments,
    SegmentsLoaded,
    bucket_settings,
)
from ackgate.dispatcher.delayed import DelaySettings, TimeBucketTracker
from ackgate.persistence.buckets.codec import decode_segment, encode_segment
from ackgate.persistence.buckets.encoding import SnapshotEncoding
from ackgate.persistence.records.limits import packing
from ackgate.pipeline.jobs.what_if.gating import PAUSING_TYPES
from ackgate.pipeline.jobs.what_if.tape import MixedAck
from ackgate.pipeline.jobs.what_if.variants import DELAY_KEYS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ackgate.config.settings import Settings
    from ackgate.dispatcher.buckets import Outcome, Plan
    from ackgate.pipeline.jobs.what_if.tallies import Sums, Tallies
    from ackgate.pipeline.jobs.what_if.tape import Tape

SNAPSHOT_KEYS: Final = DELAY_KEYS | {
    "cursorRecordChunkBytes",
    "managedCursorInfoCompressionThresholdInBytes",
    "managedCursorInfoCompressionType",
}
"""Variants that change these alike delay the same entries and store the same buckets."""

OFFERED_MAX: Final = 1_000
DUE_TAKEN_MAX: Final = 1_000
"""Most entries added to, or popped from, the tracker at once, as in the broker."""

RETRY_MS: Final = 10
"""Time after which the replay asks again if due entries were not returned."""


class _Snapshots:
    """Storage of sealed buckets: snapshot id -> encoded segments."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.persistence
        self._packing = packing(settings.persistence)
        self._stored: dict[int, list[bytes]] = {}
        self._next_id = 1

    def carry_out(self, plan: Plan, sums: Sums) -> Outcome:
        """Carry out a plan at once and without failure; add what it wrote or loaded to `sums`."""
        match plan:
            case CreateSnapshot():
                return self._create(plan, sums)
            case LoadSegments():
                return self._load(plan, sums)
            case DeleteSnapshot():
                self._stored.pop(plan.snapshot_id, None)
                return Done()
            case ChangeRegistry():
                return Done()
            case LoadMetadata():
                raise AssertionError("nothing is recovered here")

    def _create(self, plan: CreateSnapshot, sums: Sums) -> StoredSnapshot:
        snapshot_id, self._next_id = self._next_id, self._next_id + 1
        encoding = SnapshotEncoding(snapshot_id, plan.first, plan.last, self._settings)
        for columns, metadata in zip(plan.segments, plan.metadata, strict=True):
            encoding.add(columns, metadata)
        while encoding.describe():
            pass
        size = sum(map(len, encoding.payloads))
        self._stored[snapshot_id] = [
            encode_segment(
                columns, snapshot_id=snapshot_id, segment_number=number, packing=self._packing
            )
            for number, columns in enumerate(plan.segments)
        ]
        sums.buckets_written += 1
        sums.segments_written += len(plan.segments)
        sums.delayed_bytes_written += size
        return StoredSnapshot(snapshot_id, size)

    def _load(self, plan: LoadSegments, sums: Sums) -> SegmentsLoaded:
        stored = self._stored[plan.snapshot_id]
        found = []
        for number in range(plan.first, plan.stop):
            columns = decode_segment(
                stored[number], snapshot_id=plan.snapshot_id, segment_number=number
            )
            assert isinstance(columns, SnapshotSegment)
            found.append(columns)
        sums.segments_loaded += len(found)
        return SegmentsLoaded(tuple(found))


class DelayReplay:
    """Replays the delayed entries of one subscription under some settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_bucket = (
            settings.delayed.delayed_delivery_tracker_factory_class_name == BUCKET_FACTORY
        )
        self._tracker: BucketTracker | TimeBucketTracker | None = None
        self._snapshots = _Snapshots(settings)
        self._is_holding = True
        self._now_ms = 0

    def configure(self, settings: Settings) -> None:
        """Apply changed settings, between two tapes. Sealed buckets stay as they are."""
        self._settings = settings
        if self._tracker is not None:
            self._tracker.configure(_delay_settings(settings))

    def run(self, tape: Tape, tallies: Tallies) -> None:
        for change in tape.type_changes:
            if change.type_name is not None:
                self._is_holding = change.type_name.lower().replace("_", "") in PAUSING_TYPES
        offers = tape.delayed
        if not self._is_holding or not self._settings.delayed.delayed_delivery_enabled:
            offers = offers[:0]
        if self._tracker is None:
            if not len(offers):
                return
            self._tracker = self._made()
        self._play(self._tracker, offers, tape, tallies)

    def _made(self) -> BucketTracker | TimeBucketTracker:
        settings = _delay_settings(self._settings)
        if self._is_bucket:
            return BucketTracker(settings, bucket_settings(self._settings.delayed))
        return TimeBucketTracker(settings)

    def _play(
        self,
        tracker: BucketTracker | TimeBucketTracker,
        offers: NDArray[np.int64],
        tape: Tape,
        tallies: Tallies,
    ) -> None:
        end_ms, at = tape.end_us // 1000, 0
        times_ms = offers[:, 0] // 1000
        tick_ms = self._settings.delayed.delayed_delivery_tick_time_millis
        while True:
            deadline_ms = tracker.next_deadline_ms
            until_ms = end_ms if deadline_ms is None else min(deadline_ms, end_ms)
            if at < len(offers) and times_ms[at] <= max(until_ms, self._now_ms):
                together_ms = min(max(until_ms, self._now_ms), int(times_ms[at]) + tick_ms)
                stop = int(np.searchsorted(times_ms, together_ms, side="right"))
                stop = min(stop, at + OFFERED_MAX)
                self._offer(tracker, offers[at:stop], tallies)
                at = stop
            elif deadline_ms is None or max(deadline_ms, self._now_ms) > end_ms:
                break
            else:
                self._take_due(tracker, deadline_ms, tallies)
        self._forget_acked(tracker, tape, tallies)

    def _offer(
        self,
        tracker: BucketTracker | TimeBucketTracker,
        offers: NDArray[np.int64],
        tallies: Tallies,
    ) -> None:
        self._now_ms = max(self._now_ms, int(offers[-1, 0]) // 1000)
        borders = np.flatnonzero(np.diff(offers[:, 1])) + 1
        sums = tallies.at(self._now_ms * 1000)
        for part in np.split(offers, borders):
            held = tracker.add_many(int(part[0, 1]), part[:, 2], part[:, 3], self._now_ms)
            sums.delayed_entries += int(np.count_nonzero(held))
        self._carry_out(tracker, tallies)

    def _take_due(
        self, tracker: BucketTracker | TimeBucketTracker, deadline_ms: int, tallies: Tallies
    ) -> None:
        self._now_ms = max(self._now_ms, deadline_ms)
        popped = tracker.pop_due(self._now_ms, DUE_TAKEN_MAX)
        did_work = self._carry_out(tracker, tallies)
        next_ms = tracker.next_deadline_ms
        if not popped and not did_work and next_ms is not None and next_ms <= self._now_ms:
            self._now_ms += RETRY_MS

    def _carry_out(self, tracker: BucketTracker | TimeBucketTracker, tallies: Tallies) -> bool:
        """Carry out all plans of the tracker; return whether there were any."""
        sums = tallies.at(self._now_ms * 1000)
        did_work = False
        if isinstance(tracker, BucketTracker):
            while plans := tracker.take_plans():
                did_work = True
                for plan in plans:
                    outcome = self._snapshots.carry_out(plan, sums)
                    tracker.answer(plan.plan, outcome, self._now_ms)
            if did_work:
                sums.buckets_max = max(sums.buckets_max, tracker.statistics().buckets)
        sums.delayed_memory_max = max(sums.delayed_memory_max, tracker.byte_estimate)
        return did_work

    def _forget_acked(
        self, tracker: BucketTracker | TimeBucketTracker, tape: Tape, tallies: Tallies
    ) -> None:
        """Discard entries that the tape acked before they were due: cancelled, skipped, expired."""
        if not tracker.entry_count:
            return
        for ledger_id in np.unique(tape.ledger_ids).tolist():
            tracked = tracker.tracked(ledger_id)
            if tracked is None:
                continue
            acked = tape.entry_ids[tape.ledger_ids == ledger_id].tolist()
            for entry_id in [entry_id for entry_id in acked if entry_id in tracked]:
                tracker.discard(Position(ledger_id, entry_id))
        mixed = [each for each in tape.specials.values() if isinstance(each, MixedAck)]
        for position, unacked_mask in chain.from_iterable(each.acks for each in mixed):
            if unacked_mask is None:
                tracker.discard(position)
        tracker.forget_through(tape.mark_delete)
        self._carry_out(tracker, tallies)


def _delay_settings(settings: Settings) -> DelaySettings:
    delayed = settings.delayed
    return DelaySettings(
        tick_ms=delayed.delayed_delivery_tick_time_millis,
        is_strict=delayed.is_delayed_delivery_deliver_at_time_strict,
        fixed_delay_lookahead=delayed.delayed_delivery_fixed_delay_detection_lookahead,
    )
