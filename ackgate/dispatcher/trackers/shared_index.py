"""One index of delayed entries for all subscriptions of a topic, and a view of it for each.

Pure. PIP-195 promised it; apache/pulsar#24927 begins it. What is delayed is kept once, whoever reads
it or publishes it first; a view (`shared_view`) knows only what is *not* its own of it::

    tracker     . # # # # . # #        what is delayed, for anybody
    gone (a)      #     #              acked by a, or handed to it: none of a's business
    gone (b)        #
                              | fallen due: taken out of the tracker once
                              v
    due (a)         # #   ...          for each view what is its own, until that view pops it
    due (b)       #   #   ...

So no view loses an entry because another one has popped it, and a view that does not pop holds up
nobody: what waits for it are a few bits. An entry leaves the tracker when no view wants it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor.bitmap_pack import pack
from ackgate.cursor.id_arrays import entry_ids_below
from ackgate.cursor.position import EARLIEST, ENTRY_ID_MAX, Position
from ackgate.dispatcher.trackers.keys import DelayKeys, times_ms
from ackgate.dispatcher.trackers.shared_view import SharedView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike
    from pyroaring import BitMap

    from ackgate.dispatcher.trackers.delayed import DelayedTracker, DelaySettings

DUE_ENTRIES_MAX: Final = 4_096
"""So many are handed out at once."""


class SharedIndex:
    """What is delayed in one topic."""

    def __init__(self, tracker: DelayedTracker, settings: DelaySettings) -> None:
        """`tracker`: made with the same settings; nobody else calls it from here on."""
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
        """The subscription is gone; nothing is kept for it. The last one takes the index along."""
        if view not in self.views:
            return
        self.views.remove(view)
        view.close()
        self.sweep()

    # -- adding ---------------------------------------------------------------------------------

    def add_published(
        self, ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, now_ms: int
    ) -> None:
        """Delayed entries of one ledger have become durable: nobody needs to read them."""
        if self.views:
            ids = entry_ids_below(entry_ids, ENTRY_ID_MAX + 1, ledger_id)
            self.add_new(ledger_id, ids.astype(np.int64), times_ms(deliver_at_ms), now_ms, None)

    def add_new(
        self,
        ledger_id: int,
        ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        times: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        now_ms: int,
        finder: SharedView | None,
    ) -> None:
        """Track entries, of which some may be tracked; views hear of what is new to them."""
        tracked = self.tracker.tracked(ledger_id)
        new = pack(ids)
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
        """The tracker may have more entries of these ledgers than it was told of here."""
        for ledger_id in ledger_ids:
            entries = self.tracker.tracked(ledger_id)
            if entries:
                self._note_ledger(ledger_id)
                for view in self.views:
                    view.hear_added(ledger_id, entries)

    def hear_lost(self, lost: Mapping[int, BitMap]) -> None:
        """The tracker has lost these: they are to be read and offered again, by each view."""
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
        """Some of what is due goes to the views. False: nothing is due in the tracker."""
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
            entries = pack(ids)
            for view in self.views:
                view.hear_due(ledger_id, entries, turn, now_ms)
        self._turn = int(turns[-1])
        self._last_due = due[-1]
        return True

    def unwanted(self, position: Position) -> None:
        """One view wants this entry no more; it goes if nobody does."""
        if all(position in view.gone for view in self.views):
            self.tracker.discard(position)
            for view in self.views:
                view.gone.discard(*position)

    def sweep(self) -> None:
        """Drop what no view wants: all of it, or what all mark-deletes have passed. O(views)."""
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
        """New settings, for all views."""
        self._keys.set_tick(settings.tick_ms)
        self.tracker.configure(settings)

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self.tracker.check()
        known = sum(len(self.tracker.tracked(each) or ()) for each in self._ledger_ids)
        assert known == self.tracker.entry_count, "a ledger is not known"
        assert self.views or not known, "nobody wants these"
        for view in self.views:
            view.check_own()
