"""What one subscription holds back: entries that are delayed, and entries that were given back.

Decides, and does no I/O: time comes in as an argument. Held entries stay unacked in the cursor and
out of the dispatcher; normal reads leave them out. When their time has come they go to the
dispatcher's replay queue, and with that they pass the shut gate, as replays do::

    normal read --> sift --------------> deliver now
                      | not due yet
                      v
                 delayed tracker --+
                                   +-- take_due(now) --> dispatcher.queue_due
    REDELIVER --> held nacks ------+                          |
                                                              v
                               ahead: given before the read position has come to it

A position belongs to one of: the cursor (not read yet), what is held, the dispatcher (queued or in
flight), the acked. What falls due before the read position has come to it (after a rewind, or a
restart) is the dispatcher's while the cursor would read it, too: until the next rewind it is kept
as ``ahead``, and left out of normal reads like the held ones, whatever becomes of it.
"""

from __future__ import annotations

from itertools import compress, groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from ackgate.broker.delayed.delivery_times import delayed_by_ledger
from ackgate.broker.delayed.statistics import DelayedStatistics
from ackgate.dispatcher.trackers.tracked_positions import TrackedPositions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.broker.entry import Entry
    from ackgate.cursor.position import Position
    from ackgate.cursor.unacked_entries import LeftOut
    from ackgate.dispatcher.trackers.delayed import DelayedTracker, DelaySettings, HeldSource

_LEDGER_ID: Final = attrgetter("position.ledger_id")

NOT_DELAYED: Final = -1
"""What a tracker is told of an entry that nothing delays: its times do not only grow."""


class HeldEntries:
    """The held entries of one subscription, whoever holds them."""

    def __init__(
        self,
        make_tracker: Callable[[DelaySettings], DelayedTracker],
        settings: DelaySettings,
    ) -> None:
        """The tracker is made when the first delayed entry comes, or by `start`."""
        self.is_used = False
        """Whether anything was ever held: what need not be asked until then."""
        self.tracker: DelayedTracker | None = None
        self.nacks: HeldSource | None = None
        self._make_tracker = make_tracker
        self._settings = settings
        self._sources: list[HeldSource] = []
        self._entries_offered = 0
        self._ahead = TrackedPositions()
        self._read_through: Position | None = None
        """How far normal reads have come at most, since there is a tracker."""

    def start(self) -> DelayedTracker:
        """Make the tracker, if that has not been done: one that remembers goes to work at once."""
        if self.tracker is None:
            self.tracker = self._make_tracker(self._settings)
            self._sources.insert(0, self.tracker)
            self.is_used = True
        return self.tracker

    def hold_nacks(self, nacks: HeldSource) -> None:
        """These hold what consumers gave back."""
        assert self.nacks is None, "nacks are held already"
        self.nacks = nacks
        self._sources.append(nacks)
        self.is_used = True

    # -- what is held ---------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        return any(position in source for source in self._sources)

    @property
    def entry_count(self) -> int:
        """Held entries. O(1)."""
        return sum([source.entry_count for source in self._sources])

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask `take_due` next. In the past: now. None: nothing is waited for."""
        known = [
            deadline
            for source in self._sources
            if (deadline := source.next_deadline_ms) is not None
        ]
        return min(known, default=None)

    def pauses_reads(self, now_ms: int, read_position: Position) -> bool:
        """Whether reading on is useless: whatever comes is delayed, and longer than what is held.

        Not of what was read before: after a rewind what was in flight has to be read again.
        """
        return (
            self.tracker is not None
            and self._read_through is not None
            and read_position > self._read_through
            and self.tracker.pauses_reads(now_ms)
        )

    # -- reading --------------------------------------------------------------------------------

    @property
    def left_out(self) -> LeftOut | None:
        """What normal reads leave out; None when that is nothing."""
        for source in self._sources:
            if source.entry_count:
                return self._left_out
        return self._left_out if self._ahead.entry_count else None

    def _left_out(self, ledger_id: int) -> BitMap | None:
        """To be read only, and only until the next call."""
        found = [source.tracked(ledger_id) for source in self._sources]
        found.append(self._ahead.bitmap(ledger_id))
        bitmaps = [bitmap for bitmap in found if bitmap]
        if len(bitmaps) > 1:
            return BitMap.union(*bitmaps)
        return bitmaps[0] if bitmaps else None

    def sift(self, entries: list[Entry], now_ms: int, *, is_active: bool) -> list[Entry]:
        """What of a normal read is to be delivered now.

        What was read through only is dropped; what is delayed is held from here on, if delayed
        delivery ``is_active``.
        """
        if not entries:
            return entries
        last = entries[-1].position
        if self.left_out is not None:
            entries = self._not_elsewhere(entries)
        if is_active and entries:
            entries = self._less_delayed(entries, now_ms)
            self._note_undelayed(entries[-1:], now_ms)
        if self.tracker is not None and (self._read_through is None or last > self._read_through):
            self._read_through = last
        return entries

    def _less_delayed(self, entries: list[Entry], now_ms: int) -> list[Entry]:
        """Those that the tracker does not want."""
        delayed = delayed_by_ledger(entries, now_ms)
        if not delayed:
            return entries
        tracker = self.start()
        held: set[tuple[int, int]] = set()
        for ledger_id, entry_ids, times_ms in delayed:
            self._entries_offered += len(entry_ids)
            kept = tracker.add_many(ledger_id, entry_ids, times_ms, now_ms)
            held.update(zip(repeat(ledger_id), compress(entry_ids, kept.tolist()), strict=False))
        return [entry for entry in entries if entry.position not in held]

    def _not_elsewhere(self, entries: list[Entry]) -> list[Entry]:
        left: list[Entry] = []
        for ledger_id, group in groupby(entries, _LEDGER_ID):
            bitmap = self._left_out(ledger_id)
            left += [e for e in group if bitmap is None or e.position[1] not in bitmap]
        return left

    def _note_undelayed(self, entries: list[Entry], now_ms: int) -> None:
        """Times that only grow are one tracker's reason to stop reading: this is another case."""
        tracker = self.tracker
        if tracker is not None and tracker.entry_count and entries:
            tracker.add(entries[0].position, NOT_DELAYED, now_ms)

    # -- taking out -----------------------------------------------------------------------------

    def take_due(
        self, now_ms: int, entries_max: int, read_position: Position, *, in_order: bool = False
    ) -> list[Position]:
        """What is due: the dispatcher owns it from here on.

        With ``in_order`` only what lies before the read position: the cursor reads the rest.
        """
        due: list[Position] = []
        for source in self._sources:
            deadline = source.next_deadline_ms
            if deadline is not None and deadline <= now_ms and len(due) < entries_max:
                due += source.pop_due(now_ms, entries_max - len(due))
        if in_order:
            return [position for position in due if position < read_position]
        for position in due:
            if position >= read_position:
                self._ahead.add(*position)
        return due

    def discard(self, positions: Iterable[Position]) -> None:
        """These are acked, as a whole."""
        if self.left_out is None:
            return
        of_ledger, bitmap = None, None
        for position in positions:  # nearly none of them is held: who is given it acks it
            if position[0] != of_ledger:
                of_ledger = position[0]
                bitmap = self._left_out(of_ledger)
            if bitmap is None or position[1] not in bitmap:
                continue
            bitmap = None
            for source in self._sources:
                source.discard(position)
            self._ahead.discard(*position)
            of_ledger = None

    def forget_through(self, mark_delete: Position) -> None:
        """Everything up to this one is acked or trimmed."""
        for source in self._sources:
            source.forget_through(mark_delete)
        self._ahead.take_through(mark_delete)

    def rewound(self) -> None:
        """The dispatcher has forgotten all; the cursor reads again whatever is not held."""
        self._ahead.clear()

    def clear_delayed(self) -> None:
        """Forget the delayed entries alone: the cursor is to read them again."""
        if self.tracker is not None:
            self.tracker.clear()

    def clear(self) -> None:
        """Hold nothing any more. What was held is lost unless it is acked or read again."""
        for source in self._sources:
            source.clear()

    # -- the rest -------------------------------------------------------------------------------

    def configure(self, settings: DelaySettings) -> None:
        """New settings."""
        if settings != self._settings:
            self._settings = settings
            if self.tracker is not None:
                self.tracker.configure(settings)

    def statistics(self) -> DelayedStatistics:
        """Everything, frozen. O(1)."""
        tracker, nacks = self.tracker, self.nacks
        return DelayedStatistics(
            tracker="" if tracker is None else type(tracker).__name__,
            delayed_entries=0 if tracker is None else tracker.entry_count,
            delayed_bytes=0 if tracker is None else tracker.byte_estimate,
            held_nacks=0 if nacks is None else nacks.entry_count,
            held_nack_bytes=0 if nacks is None else nacks.byte_estimate,
            next_deadline_ms=self.next_deadline_ms,
            delayed_deadline_ms=None if tracker is None else tracker.next_deadline_ms,
            entries_offered=self._entries_offered,
            entries_ahead=self._ahead.entry_count,
        )

    def check(self) -> None:
        """Assert every invariant. For tests."""
        for source in self._sources:
            source.check()
        self._ahead.check()
