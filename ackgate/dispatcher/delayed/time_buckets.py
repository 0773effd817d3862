"""The delayed entries of a subscription, in memory: time bucket, ledger, entries.

Pure. Implements `DelayedTracker`; apache/pulsar#23611 is the idea: of a delivery time only the
upper bits are kept, so thousands of entries share a key and lie in runs.

::

    index    ledger -> bitmap                 what is tracked: the truth
    store    (key, ledger, start, stop)       when it is due
    stale    ledger -> bitmap                 what the store has and the index has not, or
                                              with another key

A position that is tracked keeps the time that it was first accepted with. A discard costs one bit
of the index and one of `stale`; the store drops the record when its time comes, or when more than
half of what it has is stale and all of it is rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    PositionSet,
    bitmap_of,
    check_position,
    entry_ids_below,
    positions_of,
)
from ackgate.dispatcher.delayed.delay_keys import DelayKeys, time_ms, times_ms
from ackgate.dispatcher.held import (
    TIME_MS_MAX,
    Runs,
    RunStore,
    StaleRecords,
    expanded,
    found_in,
    joined,
    no_runs,
)
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ackgate.dispatcher.delayed.port import DelaySettings
    from ackgate.dispatcher.held import IntArray

STALE_ENTRIES_MIN: Final = 65_536
"""With fewer stale entries than this the store is never rewritten."""

MOVED_MAX: Final = 4_096
"""With more positions than this that came again with another time it is rewritten at once."""

LONG_RUN_ENTRIES: Final = 16
"""Runs that are so long are taken out of the index one by one."""

SCATTERED_ENTRIES: Final = 64
"""And single entries, if there are not so many of each ledger."""

TRACKER_BYTES: Final = 6_000
"""An empty tracker. Measured."""


class TimeBucketTracker:
    """Delayed entries of one subscription."""

    __slots__ = (
        "_fixed_delay",
        "_index",
        "_keys",
        "_settings",
        "_stale",
        "_store",
        "_witness",
    )

    def __init__(self, settings: DelaySettings) -> None:
        self._settings = settings
        self._keys = DelayKeys(settings.tick_ms, is_strict=settings.is_strict)
        self._index = PositionSet()
        self._store = RunStore()
        self._stale = StaleRecords()
        self._fixed_delay = FixedDelay()
        self._witness: tuple[int, Position] | None = None
        """A tracked entry of the store's first key, as long as some are stale."""

    # -- adding

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        """Offer an entry that was read. True: it is tracked (or was already)."""
        if type(deliver_at_ms) is not int or type(now_ms) is not int or deliver_at_ms > TIME_MS_MAX:
            deliver_at_ms, now_ms = time_ms(deliver_at_ms), time_ms(now_ms)
        ledger_id, entry_id = position
        if not (0 <= entry_id <= ENTRY_ID_MAX and 0 <= ledger_id <= LEDGER_ID_MAX):
            _refuse_position(position)
        keys = self._keys
        if deliver_at_ms <= now_ms + keys.ahead_ms or deliver_at_ms < 0:
            self.discard(position)
            self._fixed_delay.refused()
            return False
        if not self._index.add(ledger_id, entry_id):
            return True
        key = keys.key(deliver_at_ms)
        self._store.add(key, ledger_id, entry_id)
        if self._stale.positions.entry_count:
            self._added_again(Position(ledger_id, entry_id), key)
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
        if not 0 <= ledger_id <= LEDGER_ID_MAX:
            _refuse_position(Position(ledger_id, 0))
        now_ms = time_ms(now_ms)
        times = times_ms(deliver_at_ms)
        ids = entry_ids_below(entry_ids, ENTRY_ID_MAX + 1, ledger_id).astype(np.int64, copy=False)
        if ids.size != times.size:
            raise CallerError(f"{ids.size} entry ids do not pair with {times.size} times")
        entries = bitmap_of(ids)
        if len(entries) < ids.size:
            return self._add_one_by_one(ledger_id, ids, times, now_ms)
        refused_through = max(self._keys.refused_through(now_ms), -1)
        is_delayed: NDArray[np.bool_] = times > refused_through
        if not is_delayed.all():
            self._discard_many(ledger_id, bitmap_of(ids[~is_delayed]))
            ids, times = ids[is_delayed], times[is_delayed]
            self._fixed_delay.refused()
            entries = bitmap_of(ids)
        new = self._index.add_many(ledger_id, entries)
        if len(new) < ids.size:
            is_new = np.isin(ids, np.frombuffer(new.to_array(), dtype=np.uint32))
            ids, times = ids[is_new], times[is_new]
        if ids.size:
            self._store_many(ledger_id, ids, times, new)
        return is_delayed

    def _store_many(
        self, ledger_id: int, ids: NDArray[np.int64], times: NDArray[np.int64], new: BitMap
    ) -> None:
        keys = self._keys.keys(times)
        self._store.add_runs(found_in(keys, ledger_id, ids))
        self._fixed_delay.tracked_many(times, self._settings.tick_ms)
        stale = self._stale.positions.bitmap(ledger_id)
        if stale is not None and stale.intersect(new):
            again = stale & new
            is_again = np.isin(ids, np.frombuffer(again.to_array(), dtype=np.uint32))
            for entry_id, key in zip(ids[is_again].tolist(), keys[is_again].tolist(), strict=True):
                self._stale.move(Position(ledger_id, entry_id), key)
            self._tidy()

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

    def _added_again(self, position: Position, key: int) -> None:
        if position in self._stale.positions:
            self._stale.move(position, key)
            self._tidy()

    # -- asking

    def __contains__(self, position: Position) -> bool:
        return position in self._index

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Tracked entry ids of one ledger, to be read only, and only until the next call."""
        return self._index.bitmap(ledger_id)

    @property
    def entry_count(self) -> int:
        return self._index.entry_count

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory of everything. O(1)."""
        held = self._index.byte_estimate + self._store.byte_estimate
        return TRACKER_BYTES + held + self._stale.byte_estimate

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first tracked entry is due; None without one."""
        key = self._first_key()
        return None if key is None else self._keys.due_ms(key)

    def has_due(self, now_ms: int) -> bool:
        """Whether `pop_due` would give anything."""
        key = self._first_key()
        return key is not None and key <= self._keys.cutoff(now_ms)

    @property
    def is_recovering(self) -> bool:
        return False

    def pauses_reads(self, now_ms: int) -> bool:
        """Whether all that could be read now is due later than what is tracked."""
        lookahead = self._settings.fixed_delay_lookahead
        return (
            0 < lookahead <= self._index.entry_count
            and self._fixed_delay.is_fixed
            and not self.has_due(now_ms)
        )

    def _first_key(self) -> int | None:
        """The key of the first entry that is tracked; stale ones before it go."""
        if not self._stale or not self._index.entry_count:
            return self._store.first_key
        while True:
            key = self._store.first_key
            if key is None or (self._witness is not None and key == self._witness[0]):
                return key
            live = self._stale.live(self._store.take(key, self._store.entry_count))
            if live.keys.size:
                # In the middle: whichever way one by one goes, half of them goes first.
                row = live.keys.size // 2
                entry_id = (int(live.starts[row]) + int(live.stops[row]) - 1) // 2
                self._store.put_back(live)
                self._witness = key, Position(int(live.ledger_ids[row]), entry_id)

    # -- taking out

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        """Take out what is due: by key, then by position."""
        return positions_of(*self.pop_due_arrays(now_ms, entries_max))

    def pop_due_arrays(
        self, now_ms: int, entries_max: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`pop_due` as columns: ledger ids and entry ids."""
        cutoff = self._keys.cutoff(now_ms)
        pieces: list[Runs] = []
        missing = entries_max
        while missing > 0:
            taken = self._store.take(cutoff, missing)
            if not taken.keys.size:
                break
            live = self._stale.live(taken)
            if live.keys.size:
                pieces.append(live)
                missing -= live.entry_count
                if self._stale:
                    self._popped_stale(live)
        runs = joined(pieces) if pieces else no_runs()
        _, ledger_ids, entry_ids = expanded(runs)
        if pieces:
            self._witness = None
            _untrack(self._index, runs, ledger_ids, entry_ids)
        if not self._index.entry_count:
            self._emptied()
        return ledger_ids, entry_ids

    def _popped_stale(self, runs: Runs) -> None:
        """Forget stale records of entries that were popped."""
        if self._stale.moved:
            _, ledger_ids, entry_ids = expanded(runs)
            for position in positions_of(ledger_ids, entry_ids):
                self._stale.taken(position)

    def discard(self, position: Position) -> bool:
        """It was acked or cancelled: forget it. Was it tracked?"""
        if not self._index.discard(*position):
            return False
        self._stale.add(Position(*position))
        if self._witness is not None and self._witness[1] == position:
            self._witness = None
        self._tidy()
        return True

    def forget_through(self, mark_delete: Position) -> int:
        """Forget everything up to this position. Returns how many entries were tracked."""
        count = 0
        for ledger_id, entries in self._index.take_through(mark_delete):
            count += len(entries)
            self._stale.add_many(ledger_id, entries)
        if count:
            if self._witness is not None and self._witness[1] <= mark_delete:
                self._witness = None
            self._tidy()
        return count

    def _discard_many(self, ledger_id: int, entries: BitMap) -> None:
        gone = self._index.discard_many(ledger_id, entries)
        if gone:
            self._stale.add_many(ledger_id, gone)
            self._witness = None
            self._tidy()

    def clear(self) -> None:
        self._index.clear()
        self._emptied()

    def _emptied(self) -> None:
        """Nothing is tracked: nothing in the store counts."""
        self._store.clear()
        self._stale.clear()
        self._fixed_delay.reset()
        self._witness = None

    def _tidy(self) -> None:
        """Bound what is stale by what is not."""
        live = self._index.entry_count
        if not live:
            self._emptied()
        elif (
            self._store.entry_count - live > max(live, STALE_ENTRIES_MIN)
            or len(self._stale.moved) > MOVED_MAX
        ):
            self._store.rewrite(self._kept)
            self._stale.clear()
            self._witness = None

    def _kept(self, runs: Runs) -> Runs:
        """For the rewriting, which hands over all there is, piece by piece: each entry once."""
        live = self._stale.live(runs)
        self._popped_stale(live)
        return live

    # -- the rest

    def configure(self, settings: DelaySettings) -> None:
        """Use new settings. Keys that are there stay as they are, and so do width and mode."""
        self._keys.set_tick(settings.tick_ms)
        self._settings = settings

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self._index.check()
        self._stale.check()
        live: set[Position] = set()
        everything = self._store.everything()
        _, ledger_ids, entry_ids = expanded(self._stale.live(everything))
        positions = positions_of(ledger_ids, entry_ids)
        live.update(positions)
        assert len(live) == len(positions), "an entry would be popped twice"
        tracked = set(self._index)
        assert live == tracked, (live - tracked, tracked - live)
        assert self._store.entry_count == everything.entry_count
        moved = {each for each in tracked if each in self._stale.positions}
        assert moved == set(self._stale.moved), (moved, self._stale.moved)
        self._store.check()


def _untrack(index: PositionSet, runs: Runs, ledger_ids: IntArray, entry_ids: IntArray) -> None:
    """Take entries out of the index, given as runs and expanded."""
    if runs.keys.size * LONG_RUN_ENTRIES <= entry_ids.size:
        by_ledger: dict[int, BitMap] = {}
        for ledger_id, start, stop in zip(*(c.tolist() for c in runs[1:]), strict=True):
            if ledger_id not in by_ledger:
                by_ledger[ledger_id] = BitMap()
            by_ledger[ledger_id].add_range(start, stop)
        for ledger_id, entries in by_ledger.items():
            index.discard_many(ledger_id, entries)
        return
    order = np.argsort(ledger_ids, kind="stable")
    in_order = ledger_ids[order]
    firsts = np.flatnonzero(np.diff(in_order, prepend=-1))
    if firsts.size * SCATTERED_ENTRIES > entry_ids.size:
        for ledger_id, entry_id in zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True):
            index.discard(ledger_id, entry_id)
        return
    for ledger_id, ids in zip(
        in_order[firsts].tolist(), np.split(entry_ids[order], firsts[1:]), strict=True
    ):
        index.discard_many(ledger_id, bitmap_of(ids))


def _refuse_position(position: Position) -> None:
    check_position(Position(*position))
    raise PositionError(f"no entry can lie at {Position(*position)}")


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
