"""What one subscription holds: delayed entries, and entries that consumers negatively acked.

Pure. Held entries stay unacked in the cursor and out of the dispatcher; normal reads leave them out.
When they fall due they go to the dispatcher's replay queue, and so pass the shut gate, as
replays do::

    normal read --> sift --------------> deliver now
                      | not due yet
                      v
                 delayed tracker --+
                                   +-- take_due(now) --> dispatcher.queue_due
    nack --------> held nacks -----+                          |
                                                              v
                               ahead: delivered before the read position reaches it

A position belongs to exactly one of: the cursor (not read yet), what is held, the dispatcher (queued or
in flight), the acked. An entry that falls due before the read position reaches it (after a rewind,
or a restart) is the dispatcher's while the cursor would read it, too: until the next rewind it is kept
as ``ahead``, and left out of normal reads like the held ones, even after its delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, compress, groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import NackedLedger, NackImage, PositionSet, earliest_nacks
from ackgate.described import statistic
from ackgate.dispatcher.nacks import NackSettings, NackTracker
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from ackgate.cursor import LeftOut, PendingNacks, Position
    from ackgate.dispatcher.delayed import DelayedTracker, DelaySettings, HeldSource
    from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
    from ackgate.subscription.entries import EntryT

_DELIVER_AT: Final = attrgetter("deliver_at_ms")
_LEDGER_ID: Final = attrgetter("position.ledger_id")

NOT_DELAYED: Final = -1
"""The time a tracker gets for an entry that nothing delays: its times do not only grow."""

PRECISION_BITS_MAX: Final = 8
"""Nacks wait in buckets of 256 ms, as in Pulsar's client: few buckets, however long the delays."""

EARLY_SHARE: Final = 16
"""A bucket of nacks is no wider than this part of the least delay."""

ARRAYS_FROM: Final = 16
"""With fewer nacks a loop is quicker than making arrays of them."""


# ------------------------------------------------------------------------------ delayed entries


class DelayedOfLedger(NamedTuple):
    """Delayed entries of one message ledger: two columns of one length."""

    ledger_id: int
    entry_ids: list[int]
    deliver_at_ms: list[int]


def any_delayed(entries: Iterable[EntryT]) -> bool:
    """Whether any of them has a delivery time."""
    return max(map(_DELIVER_AT, entries), default=0) > 0


def delayed_by_ledger(entries: Sequence[EntryT], now_ms: int) -> list[DelayedOfLedger]:
    """Those of the entries, in order of position, whose time is still to come."""
    if max(map(_DELIVER_AT, entries), default=0) <= now_ms:
        return []
    delayed = [entry for entry in entries if entry.deliver_at_ms > now_ms]
    groups = [(ledger_id, list(group)) for ledger_id, group in groupby(delayed, _LEDGER_ID)]
    return [
        DelayedOfLedger(
            ledger_id,
            [entry.position.entry_id for entry in group],
            [entry.deliver_at_ms for entry in group],
        )
        for ledger_id, group in groups
    ]


# ------------------------------------------------------------------------------ held nacks


class HeldNacks:
    """Entries that consumers negatively acked, until their backoff or their own delay has passed.

    The n-th nack of an entry waits for the backoff's n-th delay, at most a sixteenth of the least delay
    less, and never more. A changed backoff applies to later nacks; held entries keep their time.
    Counts live as long as the dispatcher's.

    Persistence takes images (`image`) and returns the newest at recovery. An entry that falls due or is
    acked makes no new image: recovery finds that it is due, or acked.
    """

    __slots__ = ("_backoff", "_settings", "_tracker", "version")

    version: int
    """Grows with every change that makes a new image worth storing."""

    def __init__(self, recovered: PendingNacks) -> None:
        """What is recovered keeps waiting for its time."""
        self.version = 0
        self._backoff: MultiplierRedeliveryBackoff | None = None
        self._settings = NackSettings(precision_bits=PRECISION_BITS_MAX)
        self._tracker = NackTracker.restore(recovered, self._settings)

    def configure(self, backoff: MultiplierRedeliveryBackoff | None) -> None:
        """Set the backoff for later nacks. None: only nacks with a delay of their own are held."""
        self._backoff = backoff
        if backoff is not None:
            widest_ms = max(1, backoff.min_delay_ms // EARLY_SHARE)
            bits = min(PRECISION_BITS_MAX, widest_ms.bit_length() - 1)
            self._settings = NackSettings(backoff=backoff, precision_bits=bits)
            self._tracker.configure(self._settings)

    @property
    def is_active(self) -> bool:
        """Whether there is a backoff."""
        return self._backoff is not None

    def hold(
        self,
        positions: Sequence[Position],
        times_before: Sequence[int],
        now_ms: int,
        chance: Callable[[], float],
        delay_ms: int | None = None,
    ) -> list[Position]:
        """Hold these, given back so often before; for `delay_ms`, or else as the backoff says.

        `chance` (0 to 1) is asked only where there is jitter. Returns what is not held: there is
        neither delay nor backoff, or the wait would end after 2^63 - 1 ms.
        """
        backoff = self._backoff
        if not positions or (delay_ms is None and backoff is None):
            return list(positions)
        has_jitter = delay_ms is None and backoff is not None and backoff.jitter > 0
        chances = np.array([chance() for _ in positions]) if has_jitter else None
        self.version += 1
        if len(positions) >= ARRAYS_FROM:
            return self._hold_many(positions, np.array(times_before), now_ms, chances, delay_ms)
        refused = []
        for place, position in enumerate(positions):
            try:
                self._tracker.add(
                    position,
                    now_ms,
                    delay_ms=delay_ms,
                    redelivery_count=times_before[place],
                    chance=0.0 if chances is None else float(chances[place]),
                )
            except CallerError:
                refused.append(position)
        return refused

    def _hold_many(
        self,
        positions: Sequence[Position],
        times_before: NDArray[np.int64],
        now_ms: int,
        chances: NDArray[np.float64] | None,
        delay_ms: int | None,
    ) -> list[Position]:
        pairs = np.fromiter(chain.from_iterable(positions), np.int64, 2 * len(positions))
        ledger_ids, entry_ids = pairs[0::2], pairs[1::2]
        refused: list[Position] = []
        for ledger_id in np.unique(ledger_ids).tolist():
            of_ledger = ledger_ids == ledger_id
            try:
                self._tracker.add_many(
                    ledger_id,
                    entry_ids[of_ledger],
                    now_ms,
                    delays_ms=delay_ms,
                    redelivery_counts=times_before[of_ledger],
                    chances=None if chances is None else chances[of_ledger],
                )
            except CallerError:
                refused += [position for position in positions if position[0] == ledger_id]
        return refused

    # -- as a `HeldSource`

    def __contains__(self, position: Position) -> bool:
        return position in self._tracker

    def tracked(self, ledger_id: int) -> BitMap | None:
        return self._tracker.tracked(ledger_id)

    @property
    def entry_count(self) -> int:
        return self._tracker.whole_count

    @property
    def byte_estimate(self) -> int:
        return self._tracker.byte_estimate

    @property
    def next_deadline_ms(self) -> int | None:
        return self._tracker.next_deadline_ms

    def has_due(self, now_ms: int) -> bool:
        deadline_ms = self.next_deadline_ms
        return deadline_ms is not None and deadline_ms <= now_ms

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        return self._tracker.pop_due(now_ms, entries_max).positions

    def discard(self, position: Position) -> bool:
        return self._tracker.discard(position)

    def forget_through(self, mark_delete: Position) -> int:
        return self._tracker.forget_through(mark_delete)

    def clear(self) -> None:
        """See `HeldSource`. Durably: the next image is empty."""
        self._tracker.clear()
        self.version += 1

    def check(self) -> None:
        self._tracker.check()

    # -- for persistence

    def image(self, bytes_max: int) -> NackImage:
        """What is held now, frozen: as much as fits into so many bytes, earliest first."""
        parts = (NackedLedger(*part) for part in self._tracker.parts())
        kept = earliest_nacks(parts, bytes_max, precision_bits=self._settings.precision_bits)
        return NackImage(self.version, kept, self._tracker.whole_count)


# ------------------------------------------------------------------------------ both


@dataclass(frozen=True, slots=True)
class HeldStatistics:
    """The held entries of one subscription."""

    tracker: str = statistic(
        "The class of the delayed tracker; empty before the first delayed entry", default=""
    )
    delayed_entries: int = statistic(
        "Entries that wait for their delivery time (a batch is one)", default=0
    )
    delayed_bytes: int = statistic("Memory of their index", "bytes", default=0)
    held_nacks: int = statistic("Entries that wait after a negative ack", default=0)
    held_nack_bytes: int = statistic("Memory of these", "bytes", default=0)
    next_deadline_ms: int | None = statistic(
        "When the next held entry falls due; in the past if one waits for consumers, null if none is held",
        "ms since 1970",
        default=None,
    )
    delayed_deadline_ms: int | None = statistic(
        "When the delayed tracker needs its next call, for due entries or for its own work",
        "ms since 1970",
        default=None,
    )
    nack_deadline_ms: int | None = statistic(
        "When the next held nack is due", "ms since 1970", default=None
    )
    entries_offered: int = statistic(
        "Delayed entries that were read and offered to the tracker since the topic was loaded. After "
        "a restart: how much of the index was read again, and not recovered",
        default=0,
    )
    entries_ahead: int = statistic(
        "Entries that fell due before the read position had come to them", default=0
    )


class HeldEntries:
    """The held entries of one subscription, whatever holds them."""

    def __init__(
        self, make_tracker: Callable[[DelaySettings], DelayedTracker], settings: DelaySettings
    ) -> None:
        """The tracker is made when the first delayed entry comes, or by `start`."""
        self.tracker: DelayedTracker | None = None
        self.nacks: HeldNacks | None = None
        self._make_tracker = make_tracker
        self._settings = settings
        self._sources: list[HeldSource] = []
        self._entries_offered = 0
        self._ahead = PositionSet()
        self._read_through: Position | None = None
        """How far normal reads have come at most, since there is a tracker."""

    @property
    def is_used(self) -> bool:
        """Whether anything was ever held. Until then nothing else need be asked."""
        return bool(self._sources)

    def start(self) -> DelayedTracker:
        """Make the tracker, unless there is one. One with stored buckets begins to recover at once."""
        if self.tracker is None:
            self.tracker = self._make_tracker(self._settings)
            self._sources.insert(0, self.tracker)
        return self.tracker

    def hold_nacks(self, nacks: HeldNacks) -> HeldNacks:
        """Hold entries that consumers negatively acked."""
        assert self.nacks is None, "nacks are held already"
        self.nacks = nacks
        self._sources.append(nacks)
        return nacks

    # -- what is held ---------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        return any(position in source for source in self._sources)

    def was_given_ahead(self, position: Position) -> bool:
        """Whether it fell due before the read position had come to it."""
        return self._ahead.entry_count > 0 and position in self._ahead

    @property
    def entry_count(self) -> int:
        """Entries that wait, delayed and negatively acked ones together. O(1)."""
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

    def sift(self, entries: Sequence[EntryT], now_ms: int, *, is_active: bool) -> Sequence[EntryT]:
        """Return what of a normal read is to be delivered now.

        Entries that were only read through are dropped; delayed ones are held from here on, if
        delayed delivery ``is_active``.
        """
        if not entries:
            return entries
        last = entries[-1].position
        if self.left_out is not None:
            entries = self._not_elsewhere(entries)
        if is_active and entries:
            entries = self._less_delayed(entries, now_ms)
        tracker = self.tracker
        if is_active and entries and tracker is not None and tracker.entry_count:
            # Times that only grow are one tracker's reason to stop reading: this is another case.
            tracker.add(entries[-1].position, NOT_DELAYED, now_ms)
        if tracker is not None:
            if self._read_through is None or last > self._read_through:
                self._read_through = last
            if tracker.is_recovering:  # a bucket that is still to be read may name them
                for entry in entries:
                    tracker.discard(entry.position)
        return entries

    def _less_delayed(self, entries: Sequence[EntryT], now_ms: int) -> Sequence[EntryT]:
        """The entries that the tracker does not hold."""
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

    def _not_elsewhere(self, entries: Sequence[EntryT]) -> Sequence[EntryT]:
        left: list[EntryT] = []
        for ledger_id, group in groupby(entries, _LEDGER_ID):
            bitmap = self._left_out(ledger_id)
            left += [e for e in group if bitmap is None or e.position[1] not in bitmap]
        return left

    # -- taking out -----------------------------------------------------------------------------

    def take_due(
        self, now_ms: int, entries_max: int, read_position: Position, *, in_order: bool = False
    ) -> list[Position]:
        """The due entries, which the dispatcher owns from here on.

        With ``in_order`` only those before the read position: the cursor reads the rest.
        """
        due: list[Position] = []
        for source in self._sources:
            deadline = source.next_deadline_ms
            if deadline is None or len(due) == entries_max:
                continue
            if deadline <= now_ms or source.has_due(now_ms):
                due += source.pop_due(now_ms, entries_max - len(due))
        if in_order:
            return [position for position in due if position < read_position]
        for position in due:
            if position >= read_position:
                self._ahead.add(*position)
        return due

    def discard(self, positions: Iterable[Position]) -> None:
        """Forget entries that were acked as a whole."""
        if self.left_out is None:
            return
        of_ledger, bitmap = None, None
        for position in positions:  # nearly none of them is held: a consumer acks what it has
            if position[0] != of_ledger:
                of_ledger = position[0]
                bitmap = self._left_out(of_ledger)
            if bitmap is None or position[1] not in bitmap:
                continue
            for source in self._sources:
                source.discard(position)
            self._ahead.discard(*position)
            of_ledger = None

    def forget_through(self, mark_delete: Position) -> None:
        """Forget everything up to this position: it is acked or trimmed."""
        for source in self._sources:
            source.forget_through(mark_delete)
        self._ahead.take_through(mark_delete)

    def rewound(self) -> None:
        """Note a rewind: the dispatcher forgot all, and the cursor rereads what is not held."""
        self._ahead.clear()

    def clear_delayed(self) -> None:
        """Forget the delayed entries alone: the cursor is to read them again."""
        if self.tracker is not None:
            self.tracker.clear()

    # -- the rest -------------------------------------------------------------------------------

    def configure(self, settings: DelaySettings) -> None:
        """Replace the settings; see `HeldNacks.configure`."""
        if settings != self._settings:
            self._settings = settings
            if self.tracker is not None:
                self.tracker.configure(settings)

    def statistics(self) -> HeldStatistics:
        """Counts and deadlines of the held entries, frozen. O(1)."""
        tracker, nacks = self.tracker, self.nacks
        return HeldStatistics(
            tracker="" if tracker is None else type(tracker).__name__,
            delayed_entries=0 if tracker is None else tracker.entry_count,
            delayed_bytes=0 if tracker is None else tracker.byte_estimate,
            held_nacks=0 if nacks is None else nacks.entry_count,
            held_nack_bytes=0 if nacks is None else nacks.byte_estimate,
            next_deadline_ms=self.next_deadline_ms,
            delayed_deadline_ms=None if tracker is None else tracker.next_deadline_ms,
            nack_deadline_ms=None if nacks is None else nacks.next_deadline_ms,
            entries_offered=self._entries_offered,
            entries_ahead=self._ahead.entry_count,
        )

    def check(self) -> None:
        """Assert every invariant. For tests."""
        for source in self._sources:
            source.check()
        self._ahead.check()
