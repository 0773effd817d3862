"""One index of delayed entries for all subscriptions of a topic, and a view of it for each.

Pure. PIP-195 promised it; apache/pulsar#24927 begins it. A delayed entry is stored once, by the first
that reads or publishes it; a view (`SharedView`) stores only which entries are *not* its own::

    tracker     . # # # # . # #        delayed entries of all views
    gone (a)      #     #              acked by a, or popped by it: no longer its own
    gone (b)        #
                              | fallen due: taken out of the tracker once
                              v
    due (a)         # #   ...          its own entries that fell due, until that view pops them
    due (b)       #   #   ...

So no view loses an entry because another one has popped it, and a view that does not pop delays no
other: it costs a few bits. An entry leaves the tracker when no view needs it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import (
    EARLIEST,
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    PositionSet,
    bitmap_of,
    members,
    positions_of,
)
from ackgate.dispatcher.delayed.port import DelayKeys, offered_columns, refuse_position, time_ms
from ackgate.dispatcher.held import TIME_MS_MAX, HeldPositions
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from ackgate.dispatcher.delayed.port import DelayedTracker, DelaySettings

VIEW_BYTES: Final = 2_900
"""An empty view. Measured."""

DUE_ENTRIES_MAX: Final = 4_096
"""So many are handed out at once."""


class SharedIndex:
    """The delayed entries of one topic, and its subscriptions' views of them."""

    def __init__(self, tracker: DelayedTracker, settings: DelaySettings) -> None:
        """`tracker`: made with the same settings; only this object calls it from then on."""
        self.tracker = tracker
        self.views: list[SharedView] = []
        self._keys = DelayKeys(settings.tick_ms, is_strict=settings.is_strict)
        self._ledger_ids: list[int] = []
        self._forgotten_through = EARLIEST
        self._turn = 0
        self._last_due = EARLIEST

    # -- views ----------------------------------------------------------------------------------

    def join(self, mark_delete: Position, acked: Callable[[int], BitMap | None]) -> SharedView:
        """A view for a subscription. `acked`: its acked entries above mark-delete, of a ledger."""
        view = SharedView(self, mark_delete, acked)
        for ledger_id in self._ledger_ids:
            entries = self.tracker.tracked(ledger_id)
            if entries:
                view.hear_added(ledger_id, entries)
        self.views.append(view)
        self._forgotten_through = min(self._forgotten_through, mark_delete)
        return view

    def leave(self, view: SharedView) -> None:
        """Remove the view of a subscription that is gone. The last view empties the index."""
        if view not in self.views:
            return
        self.views.remove(view)
        view.close()
        self.sweep()

    # -- adding ---------------------------------------------------------------------------------

    def add_published(
        self, ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, now_ms: int
    ) -> None:
        """Track delayed entries of one ledger that are durable now: no view needs to read them."""
        if self.views:
            self.add_new(
                ledger_id, *offered_columns(ledger_id, entry_ids, deliver_at_ms), now_ms, None
            )

    def add_new(
        self,
        ledger_id: int,
        ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        times: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        now_ms: int,
        finder: SharedView | None,
    ) -> None:
        """Track entries, some of which may be tracked already; notify views of those new to them."""
        tracked = self.tracker.tracked(ledger_id)
        new = bitmap_of(ids)
        if tracked is not None:
            new -= tracked
        self.tracker.add_many(ledger_id, ids, times, now_ms)
        now_tracked = self.tracker.tracked(ledger_id)
        if now_tracked is None:
            return
        self._note_ledger(ledger_id)
        new &= now_tracked
        for view in self.views:
            if view is not finder:
                view.hear_added(ledger_id, new)

    def hear_recovered(self, ledger_ids: Iterable[int]) -> None:
        """Notify views: the tracker may have recovered entries of these ledgers."""
        for ledger_id in ledger_ids:
            entries = self.tracker.tracked(ledger_id)
            if entries:
                self._note_ledger(ledger_id)
                for view in self.views:
                    view.hear_added(ledger_id, entries)
        if not self.tracker.is_recovering:
            for view in self.views:
                view.settled.clear()

    def hear_lost(self, lost: Mapping[int, BitMap]) -> None:
        """Notify views that the tracker has lost these: each is to read and offer them again."""
        for view in self.views:
            for ledger_id, entries in lost.items():
                view.gone.discard_many(ledger_id, entries)

    def _note_ledger(self, ledger_id: int) -> None:
        place = bisect_left(self._ledger_ids, ledger_id)
        if place == len(self._ledger_ids) or self._ledger_ids[place] != ledger_id:
            insort(self._ledger_ids, ledger_id)

    # -- asking, for views ----------------------------------------------------------------------

    def refused_through(self, now_ms: int) -> int:
        """Times up to this one are not delayed."""
        return self._keys.refused_through(now_ms)

    def ledger_ids(self, first: int, last: int) -> Sequence[int]:
        """Ledgers with tracked entries, and perhaps others, within these bounds."""
        low, high = bisect_left(self._ledger_ids, first), bisect_right(self._ledger_ids, last)
        return self._ledger_ids[low:high]

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory, without what is the views' own. O(1)."""
        return self.tracker.byte_estimate

    # -- taking out -----------------------------------------------------------------------------

    def hand_out(self, now_ms: int) -> bool:
        """Hand some of what is due to the views. False: nothing is due in the tracker."""
        due = self.tracker.pop_due(now_ms, DUE_ENTRIES_MAX)
        if not due:
            return False
        columns = np.array(due, dtype=np.int64)
        ledger_ids, entry_ids = columns[:, 0], columns[:, 1]
        # What comes in ascending order needs one turn; where the order breaks another one begins.
        before = np.concatenate(([self._last_due], columns[:-1]))
        falls = (ledger_ids < before[:, 0]) | (
            (ledger_ids == before[:, 0]) & (entry_ids <= before[:, 1])
        )
        turns = self._turn + np.cumsum(falls)
        borders = np.flatnonzero((np.diff(turns) != 0) | (np.diff(ledger_ids) != 0)) + 1
        for ids, first in zip(np.split(entry_ids, borders), [0, *borders.tolist()], strict=True):
            ledger_id, turn = int(ledger_ids[first]), int(turns[first])
            entries = bitmap_of(ids)
            for view in self.views:
                view.hear_due(ledger_id, entries, turn, now_ms)
        self._turn = int(turns[-1])
        self._last_due = due[-1]
        return True

    def unwanted(self, position: Position) -> None:
        """One view no longer needs this entry; drop it if none does."""
        if all(position in view.gone for view in self.views):
            self.tracker.discard(position)
            for view in self.views:
                view.gone.discard(*position)

    def sweep(self) -> None:
        """Drop what no view needs: everything, or what all mark-deletes have passed. O(views)."""
        count = self.tracker.entry_count
        if all(view.gone.entry_count == count for view in self.views):
            if count:
                self.tracker.clear()
            for view in self.views:
                view.gone.clear()
            self._ledger_ids.clear()
        through = min((view.forgotten_through for view in self.views), default=EARLIEST)
        if through > self._forgotten_through:
            self.tracker.forget_through(through)
            for view in self.views:
                view.gone.take_through(through)
            del self._ledger_ids[: bisect_left(self._ledger_ids, through.ledger_id)]
        self._forgotten_through = through

    # -- the rest -------------------------------------------------------------------------------

    def configure(self, settings: DelaySettings) -> None:
        """Use new settings, for all views."""
        self._keys.set_tick(settings.tick_ms)
        self.tracker.configure(settings)

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self.tracker.check()
        known = sum(len(self.tracker.tracked(each) or ()) for each in self._ledger_ids)
        assert known == self.tracker.entry_count, "a ledger is not known"
        assert self.views or not known, "no view needs these"
        for view in self.views:
            view.check_own()


# ------------------------------------------------------------------------------ the views


class SharedView:
    """One subscription's view of the index of delayed entries that its topic's subscriptions share.

    Implements `DelayedTracker`. It holds what the index tracks, less what is **gone** for it
    (acked, forgotten, refused as due, or handed over already), and what is **due**: handed to it by the
    index and not popped yet. In `due` a turn takes the place of a time, so that entries keep the order
    in which they fell due.
    """

    def __init__(
        self,
        index: SharedIndex,
        mark_delete: Position,
        acked: Callable[[int], BitMap | None],
    ) -> None:
        self.gone = PositionSet()
        """What the index tracks, and not for this view. Changed by the index, too."""
        self.settled = PositionSet()
        """Discarded while the index recovers, and not tracked yet. Cleared by the index."""
        self.forgotten_through = mark_delete
        self._index = index
        self._acked = acked
        self._due = HeldPositions()
        self._due_ms = 0
        self._is_closed = False

    # -- adding ---------------------------------------------------------------------------------

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        """See `DelayedTracker.add`. What another view has brought already costs nothing."""
        self._check_open()
        time, now_ms = time_ms(deliver_at_ms), time_ms(now_ms)
        if not (0 <= position[1] <= ENTRY_ID_MAX and 0 <= position[0] <= LEDGER_ID_MAX):
            refuse_position(position)
        if time < 0 or time <= self._index.refused_through(now_ms):
            self.discard(position)
            return False
        self.settled.discard(*position)
        if position in self._due.index:
            return True
        if position in self._index.tracker:
            self.gone.discard(*position)
            return True
        ids, times = (np.array([value], dtype=np.int64) for value in (position[1], time))
        self._index.add_new(position[0], ids, times, now_ms, self)
        return True

    def add_many(
        self, ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, now_ms: int
    ) -> NDArray[np.bool_]:
        self._check_open()
        now_ms = time_ms(now_ms)
        ids, times = offered_columns(ledger_id, entry_ids, deliver_at_ms)
        if len(bitmap_of(ids)) < ids.size:  # one comes twice: the order decides
            pairs = zip(ids.tolist(), times.tolist(), strict=True)
            added = [self.add(Position(ledger_id, each), time, now_ms) for each, time in pairs]
            return np.array(added, dtype=np.bool_)
        is_delayed: NDArray[np.bool_] = times > max(self._index.refused_through(now_ms), -1)
        if not is_delayed.all():
            self.discard_many(ledger_id, bitmap_of(ids[~is_delayed]))
            ids, times = ids[is_delayed], times[is_delayed]
        offered = bitmap_of(ids)
        self.settled.discard_many(ledger_id, offered)
        due, shared = self._due.index.bitmap(ledger_id), self._index.tracker.tracked(ledger_id)
        if due is not None:
            offered -= due
        if shared is not None:
            self.gone.discard_many(ledger_id, offered)
            offered -= shared
        if offered:
            is_new = np.isin(ids, members(offered))
            self._index.add_new(ledger_id, ids[is_new], times[is_new], now_ms, self)
        return is_delayed

    # -- what the index says --------------------------------------------------------------------

    def hear_added(self, ledger_id: int, entries: BitMap) -> None:
        """Take entries that the index tracks now, but those that this subscription has acked."""
        forgotten = self.forgotten_through
        if ledger_id < forgotten.ledger_id:
            self.gone.add_many(ledger_id, entries.copy())
            return
        gone = BitMap()
        if ledger_id == forgotten.ledger_id and forgotten.entry_id >= 0:
            gone.add_range(0, forgotten.entry_id + 1)
        settled = self.settled.bitmap(ledger_id)
        for known in (self._acked(ledger_id), self._due.index.bitmap(ledger_id), settled):
            if known is not None:
                gone |= known
        gone &= entries
        if gone:
            self.gone.add_many(ledger_id, gone)

    def hear_due(self, ledger_id: int, entries: BitMap, turn: int, now_ms: int) -> None:
        """Take entries that fell due in the index."""
        gone = self.gone.discard_many(ledger_id, entries)
        own = entries - gone
        if own:
            ids = members(own)
            self._due.add_many(ledger_id, ids.astype(np.int64), np.full(ids.size, turn), own)
            self._due_ms = now_ms

    # -- asking ---------------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        if position in self._due.index:
            return True
        return position in self._index.tracker and position not in self.gone

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Entries of a ledger that wait in this view: shared ones not gone, and due ones. O(containers)."""
        shared, due = self._index.tracker.tracked(ledger_id), self._due.index.bitmap(ledger_id)
        gone = self.gone.bitmap(ledger_id)
        if shared is not None and gone is not None:
            shared = shared - gone or None
        if shared is None or due is None:
            return due if shared is None else shared
        return shared | due

    @property
    def entry_count(self) -> int:
        """Entries that this view holds. O(1)."""
        if self._is_closed:
            return 0
        shared = self._index.tracker.entry_count - self.gone.entry_count
        return shared + self._due.index.entry_count

    @property
    def byte_estimate(self) -> int:
        """Its own bytes, and its part of those that are shared. O(1)."""
        shared = self._index.byte_estimate // max(1, len(self._index.views))
        own = (self.gone, self.settled, self._due)
        return shared + VIEW_BYTES + sum(each.byte_estimate for each in own)

    @property
    def next_deadline_ms(self) -> int | None:
        """See `DelayedTracker.next_deadline_ms`. What is due then may turn out to be others'."""
        if self._due.index.entry_count:
            return self._due_ms
        return self._index.tracker.next_deadline_ms if self.entry_count else None

    def has_due(self, now_ms: int) -> bool:
        """Whether `pop_due` would give anything."""
        while not self._due.index.entry_count:
            if not self.entry_count or not self._index.hand_out(now_ms):
                return False
        return True

    @property
    def is_recovering(self) -> bool:
        return self._index.tracker.is_recovering

    def pauses_reads(self, now_ms: int) -> bool:  # noqa: ARG002
        """Never: what is published is in the index already, and is not read."""
        return False

    # -- taking out -----------------------------------------------------------------------------

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        """Take out what is due for this view. What is due for others waits for them."""
        self._check_open()
        while self._due.index.entry_count < entries_max and self.entry_count:
            if not self._index.hand_out(now_ms):
                break
        return positions_of(*self._due.pop(TIME_MS_MAX, entries_max))

    def discard(self, position: Position) -> bool:
        """Forget an entry that this subscription has acked; other views keep it. Was it held?"""
        if self._due.discard(position):
            return True
        if position not in self._index.tracker:
            if self._index.tracker.is_recovering:
                self.settled.add(*position)
            return False
        if not self.gone.add(*position):
            return False
        self._index.unwanted(Position(*position))
        return True

    def discard_many(self, ledger_id: int, entries: BitMap) -> int:
        """As `discard`, for entries of one ledger. Returns how many were held."""
        before = self.entry_count
        for entry_id in entries & (self.tracked(ledger_id) or BitMap()):
            self.discard(Position(ledger_id, entry_id))
        return before - self.entry_count

    def forget_through(self, mark_delete: Position) -> int:
        """See `DelayedTracker.forget_through`. A mark-delete that went back is taken as it is."""
        before = self.entry_count
        self._due.forget_through(mark_delete)
        first, self.forgotten_through = self.forgotten_through, mark_delete
        for ledger_id in self._index.ledger_ids(first.ledger_id, mark_delete.ledger_id):
            start = first.entry_id + 1 if ledger_id == first.ledger_id else 0
            is_last = ledger_id == mark_delete.ledger_id
            stop = min(mark_delete.entry_id if is_last else ENTRY_ID_MAX, ENTRY_ID_MAX) + 1
            entries = self._index.tracker.tracked(ledger_id)
            if entries and start < stop:
                passed = BitMap()
                passed.add_range(start, stop)
                self.gone.add_many(ledger_id, entries & passed)
        held = self.entry_count
        self._index.sweep()
        return before - held

    def clear(self) -> None:
        """Hold nothing any more; others are not touched."""
        for ledger_id in self._index.ledger_ids(0, LEDGER_ID_MAX):
            entries = self._index.tracker.tracked(ledger_id)
            if entries:
                self.gone.add_many(ledger_id, entries.copy())
        self._due.clear()
        self.settled.clear()
        self._index.sweep()

    # -- the rest -------------------------------------------------------------------------------

    def configure(self, settings: DelaySettings) -> None:
        """Use new settings. They hold for all views."""
        self._index.configure(settings)

    def close(self) -> None:
        """Close the view, which has left the index."""
        self._is_closed = True
        self.gone.clear()
        self.settled.clear()
        self._due.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise CallerError("this view has left the index of delayed entries")

    def check(self) -> None:
        """Assert every invariant of all views. For tests; O(everything)."""
        self._index.check()

    def check_own(self) -> None:
        """Assert what concerns this view alone."""
        self._due.check()
        self.gone.check()
        self.settled.check()
        assert self.is_recovering or not self.settled.entry_count, "settled outlives the recovery"
        for ledger_id, gone in self.gone.bitmaps():
            shared = self._index.tracker.tracked(ledger_id) or BitMap()
            assert not gone - shared, f"gone and not there: {ledger_id}:{list(gone - shared)}"
        for ledger_id in self._index.ledger_ids(0, LEDGER_ID_MAX):
            due = self._due.index.bitmap(ledger_id) or BitMap()
            shared = self._index.tracker.tracked(ledger_id) or BitMap()
            both = due & (shared - (self.gone.bitmap(ledger_id) or BitMap()))
            assert not both, f"waits, and is due: {ledger_id}:{list(both)}"
