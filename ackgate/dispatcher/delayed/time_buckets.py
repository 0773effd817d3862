"""The delayed entries of a subscription, in memory.

Pure. Implements `DelayedTracker`; apache/pulsar#23611 is the idea: of a delivery time only the
upper bits are kept, so thousands of entries share a key and lie in runs (`held.HeldPositions`).
A position that is tracked keeps the time that it was first accepted with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    bitmap_of,
    positions_of,
)
from ackgate.dispatcher.delayed.port import (
    DelayKeys,
    offered_columns,
    refuse_position,
    time_ms,
)
from ackgate.dispatcher.held import TIME_MS_MAX, HeldPositions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from pyroaring import BitMap

    from ackgate.dispatcher.delayed.port import DelaySettings

TRACKER_BYTES: Final = 2_300
"""An empty tracker. Measured."""


class TimeBucketTracker:
    """Delayed entries of one subscription."""

    __slots__ = ("_fixed_delay", "_held", "_keys", "_settings")

    def __init__(self, settings: DelaySettings) -> None:
        self._settings = settings
        self._keys = DelayKeys(settings.tick_ms, is_strict=settings.is_strict)
        self._held = HeldPositions()
        self._fixed_delay = FixedDelay()

    # -- adding

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        """Offer an entry that was read. True: it is tracked (or was already)."""
        if type(deliver_at_ms) is not int or type(now_ms) is not int or deliver_at_ms > TIME_MS_MAX:
            deliver_at_ms, now_ms = time_ms(deliver_at_ms), time_ms(now_ms)
        ledger_id, entry_id = position
        if not (0 <= entry_id <= ENTRY_ID_MAX and 0 <= ledger_id <= LEDGER_ID_MAX):
            refuse_position(position)
        keys = self._keys
        if deliver_at_ms <= now_ms + keys.ahead_ms or deliver_at_ms < 0:
            self.discard(position)
            self._fixed_delay.refused()
            return False
        if not self._held.add(ledger_id, entry_id, keys.key(deliver_at_ms)):
            return True
        fixed_delay = self._fixed_delay
        if deliver_at_ms >= fixed_delay.highest_ms:
            fixed_delay.highest_ms = deliver_at_ms
        else:
            fixed_delay.tracked(deliver_at_ms, self._settings.tick_ms)
        return True

    def add_many(
        self, ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, now_ms: int
    ) -> NDArray[np.bool_]:
        """As `add` for entries of one ledger: what is tracked now."""
        now_ms = time_ms(now_ms)
        ids, times = offered_columns(ledger_id, entry_ids, deliver_at_ms)
        entries = bitmap_of(ids)
        if len(entries) < ids.size:
            return self._add_one_by_one(ledger_id, ids, times, now_ms)
        refused_through = max(self._keys.refused_through(now_ms), -1)
        is_delayed: NDArray[np.bool_] = times > refused_through
        if not is_delayed.all():
            self._note_gone(self._held.discard_many(ledger_id, bitmap_of(ids[~is_delayed])))
            ids, times = ids[is_delayed], times[is_delayed]
            self._fixed_delay.refused()
            entries = bitmap_of(ids)
        is_new = self._held.add_many(ledger_id, ids, self._keys.keys(times), entries)
        new_times = times if is_new is None else times[is_new]
        self._fixed_delay.tracked_many(new_times, self._settings.tick_ms)
        return is_delayed

    def _add_one_by_one(
        self, ledger_id: int, ids: NDArray[np.int64], times: NDArray[np.int64], now_ms: int
    ) -> NDArray[np.bool_]:
        """Some entry comes twice: the order decides."""
        return np.array(
            [
                self.add(Position(ledger_id, entry_id), time, now_ms)
                for entry_id, time in zip(ids.tolist(), times.tolist(), strict=True)
            ],
            dtype=np.bool_,
        )

    # -- asking

    def __contains__(self, position: Position) -> bool:
        return position in self._held.index

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Tracked entry ids of one ledger, to be read only, and only until the next call."""
        return self._held.index.bitmap(ledger_id)

    @property
    def entry_count(self) -> int:
        return self._held.index.entry_count

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory of everything. O(1)."""
        return TRACKER_BYTES + self._held.byte_estimate

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first bucket's times have all come; None without one."""
        key = self._held.first_key
        return None if key is None else self._keys.deadline_ms(key)

    def has_due(self, now_ms: int) -> bool:
        """Whether `pop_due` would give anything."""
        key = self._held.first_key
        return key is not None and key <= self._keys.cutoff(now_ms)

    @property
    def is_recovering(self) -> bool:
        return False

    def pauses_reads(self, now_ms: int) -> bool:
        """Whether all that could be read now is due later than what is tracked."""
        lookahead = self._settings.fixed_delay_lookahead
        return (
            0 < lookahead <= self._held.index.entry_count
            and self._fixed_delay.is_fixed
            and not self.has_due(now_ms)
        )

    # -- taking out

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        """Take out what is due: by key, then by position."""
        return positions_of(*self.pop_due_arrays(now_ms, entries_max))

    def pop_due_arrays(
        self, now_ms: int, entries_max: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`pop_due` as columns: ledger ids and entry ids."""
        columns = self._held.pop(self._keys.cutoff(now_ms), entries_max)
        if not self._held.index.entry_count:
            self._fixed_delay.reset()
        return columns

    def discard(self, position: Position) -> bool:
        """It was acked or cancelled: forget it. Was it tracked?"""
        was_tracked = self._held.discard(position)
        self._note_gone(was_tracked)
        return was_tracked

    def forget_through(self, mark_delete: Position) -> int:
        """Forget everything up to this position. Returns how many entries were tracked."""
        count = self._held.forget_through(mark_delete)
        self._note_gone(count)
        return count

    def clear(self) -> None:
        self._held.clear()
        self._fixed_delay.reset()

    def _note_gone(self, gone: object) -> None:
        if gone and not self._held.index.entry_count:
            self._fixed_delay.reset()

    # -- the rest

    def configure(self, settings: DelaySettings) -> None:
        """Use new settings. Keys that are there stay as they are, and so do width and mode."""
        self._keys.set_tick(settings.tick_ms)
        self._settings = settings

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self._held.check()


# ------------------------------------------------------------------------------ fixed delays


class FixedDelay:
    """Do all entries wait equally long? Then nothing that is read later can be due sooner.

    Upstream's rule (apache/pulsar#16609): the times of tracked entries only ever grew, give or take
    a tick, and no entry came that does not wait. One that breaks this settles it until the tracker is
    empty again.
    """

    __slots__ = ("highest_ms", "is_fixed")

    is_fixed: bool
    """Every entry so far was tracked, and none has a time before that of an earlier one."""

    highest_ms: int
    """The latest time seen."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.is_fixed = True
        self.highest_ms = 0

    def tracked(self, deliver_at_ms: int, tick_ms: int) -> None:
        if deliver_at_ms > self.highest_ms:
            self.highest_ms = deliver_at_ms
        elif deliver_at_ms < self.highest_ms - tick_ms:
            self.is_fixed = False

    def tracked_many(self, deliver_at_ms: NDArray[np.int64], tick_ms: int) -> None:
        """Take the times of entries that were tracked, in this order."""
        if not deliver_at_ms.size:
            return
        if self.is_fixed:
            highest = deliver_at_ms.copy()
            highest[0] = max(self.highest_ms, int(highest[0]))
            np.maximum.accumulate(highest, out=highest)
            self.is_fixed = not bool((highest - deliver_at_ms > tick_ms).any())
            self.highest_ms = int(highest[-1])
        else:
            self.highest_ms = max(self.highest_ms, int(deliver_at_ms.max()))

    def refused(self) -> None:
        """Note an entry that does not wait."""
        self.is_fixed = False
