"""Positions that wait, each for one time: under the delayed tracker in memory, and under the nacks.

Pure. A time is a **key**: what has the same key comes out together, by position. ::

    index    ledger -> bitmap                 what waits: the truth
    store    (key, ledger, start, stop)       when it is due
    stale    ledger -> bitmap                 what the store has and the index has not, or has
                                              with another key

A discard costs one bit of the index and one of `stale`; the store drops the record when its time
comes, or when more than half of what it has is stale and all of it is rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import Position, PositionSet, bitmap_of, positions_of
from ackgate.dispatcher.held.run_store import RunStore
from ackgate.dispatcher.held.runs import TIME_MS_MAX, Runs, expanded, found_in, joined, no_runs
from ackgate.dispatcher.held.stale_records import StaleRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ackgate.dispatcher.held.runs import IntArray

STALE_ENTRIES_MIN: Final = 65_536
"""With fewer stale entries than this the store is never rewritten."""

MOVED_MAX: Final = 4_096
"""With more positions than this that came again with another time it is rewritten..."""

MOVED_SHARE: Final = 32
"""...or with more than this part of all that wait, if that is more."""

LONG_RUN_ENTRIES: Final = 16
"""Runs that are so long are made bitmaps of one by one."""

SCATTERED_ENTRIES: Final = 64
"""And single entries, if there are not so many of each ledger."""

LOOK_ENTRIES: Final = 4_096
"""`by_key` looks at so many entries first, and each time at four times as many."""


class HeldPositions:
    """A set of positions, each with a key. One owner calls it."""

    __slots__ = ("_stale", "_store", "_witness", "index")

    index: PositionSet
    """What waits. To be read only."""

    def __init__(self) -> None:
        self.index = PositionSet()
        self._store = RunStore()
        self._stale = StaleRecords()
        self._witness: tuple[int, Position] | None = None
        """A waiting entry of the store's first key, as long as some are stale."""

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory of everything. O(1)."""
        return self.index.byte_estimate + self._store.byte_estimate + self._stale.byte_estimate

    # -- adding ---------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_id: int, key: int) -> bool:
        """Let it wait for this key. False, and nothing changed: it waits already."""
        if not self.index.add(ledger_id, entry_id):
            return False
        self._store.add(key, ledger_id, entry_id)
        if self._stale.positions.entry_count:
            position = Position(ledger_id, entry_id)
            if position in self._stale.positions:
                self._stale.move(position, key)
                self._tidy()
        return True

    def put(self, ledger_id: int, entry_id: int, key: int) -> None:
        """Let it wait for this key, and for no other from now on."""
        if not self.add(ledger_id, entry_id, key):
            self.discard(Position(ledger_id, entry_id))
            self.add(ledger_id, entry_id, key)

    def add_many(
        self, ledger_id: int, ids: IntArray, keys: IntArray, entries: BitMap
    ) -> NDArray[np.bool_] | None:
        """`add` for distinct entries of one ledger: which of them are new; None: all are.

        ``entries``: the same ids, taken over.
        """
        new = self.index.add_many(ledger_id, entries)
        is_new = None
        if len(new) < ids.size:
            is_new = np.isin(ids, np.frombuffer(new.to_array(), dtype=np.uint32))
            ids, keys = ids[is_new], keys[is_new]
        if ids.size:
            self._store.add_runs(found_in(keys, ledger_id, ids))
            stale = self._stale.positions.bitmap(ledger_id)
            if stale is not None and stale.intersect(new):
                again = np.frombuffer((stale & new).to_array(), dtype=np.uint32)
                is_again = np.isin(ids, again)
                for entry_id, key in zip(
                    ids[is_again].tolist(), keys[is_again].tolist(), strict=True
                ):
                    self._stale.move(Position(ledger_id, entry_id), key)
                self._tidy()
        return is_new

    # -- taking out -----------------------------------------------------------------------------

    @property
    def first_key(self) -> int | None:
        """The lowest key that anything waits for; stale records before it go."""
        if not self._stale or not self.index.entry_count:
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

    def pop(self, cutoff: int, entries_max: int) -> tuple[IntArray, IntArray]:
        """Take out what has keys up to this one, by key, then by position: ledger and entry ids."""
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
                    self._taken(live)
        runs = joined(pieces) if pieces else no_runs()
        _, ledger_ids, entry_ids = expanded(runs)
        if pieces:
            self._witness = None
            _untrack(self.index, runs, ledger_ids, entry_ids)
        if not self.index.entry_count:
            self.clear()
        return ledger_ids, entry_ids

    def discard(self, position: Position) -> bool:
        """It waits no more. Did it?"""
        if not self.index.discard(*position):
            return False
        self._stale.add(Position(*position))
        if self._witness is not None and self._witness[1] == position:
            self._witness = None
        self._tidy()
        return True

    def discard_many(self, ledger_id: int, entries: BitMap) -> int:
        """As `discard`, for entries of one ledger. Returns how many waited."""
        gone = self.index.discard_many(ledger_id, entries)
        count = len(gone)
        if count:
            self._stale.add_many(ledger_id, gone)
            self._witness = None
            self._tidy()
        return count

    def forget_through(self, mark_delete: Position) -> int:
        """Forget everything up to this position. Returns how many entries waited there."""
        count = 0
        for ledger_id, entries in self.index.take_through(mark_delete):
            count += len(entries)
            self._stale.add_many(ledger_id, entries)
        if count:
            if self._witness is not None and self._witness[1] <= mark_delete:
                self._witness = None
            self._tidy()
        return count

    def clear(self) -> None:
        self.index.clear()
        self._store.clear()
        self._stale.clear()
        self._witness = None

    # -- looking --------------------------------------------------------------------------------

    def by_key(self) -> Iterator[tuple[int, int, BitMap]]:
        """What waits: (key, ledger, entry ids), by key, then by ledger.

        The bitmaps are run-optimised, and the caller's own. Change nothing before the last of them.
        """
        if self._stale.moved:
            self._rewrite()
        entries_max = LOOK_ENTRIES
        last = (-1, -1)
        while self.index.entry_count:
            runs = self._first(entries_max)
            is_all = runs.entry_count == self.index.entry_count
            borders = np.flatnonzero(
                (runs.keys[1:] != runs.keys[:-1]) | (runs.ledger_ids[1:] != runs.ledger_ids[:-1])
            )
            firsts = np.concatenate(([0], borders + 1))
            stops = [*firsts[1:].tolist(), runs.keys.size] if is_all else firsts[1:].tolist()
            keys, ledger_ids, starts, _ = (column.tolist() for column in runs.rows(firsts))
            for group, stop in enumerate(stops):  # the last one may be cut
                if (keys[group], ledger_ids[group]) > last:
                    last = keys[group], ledger_ids[group]
                    start = int(firsts[group])
                    if stop == start + 1:
                        entries = BitMap(range(starts[group], int(runs.stops[start])))
                    else:
                        entries = _bitmap(runs.rows(slice(start, stop)))
                    entries.run_optimize()
                    yield (*last, entries)
            if is_all:
                return
            entries_max *= 4

    def _first(self, entries_max: int) -> Runs:
        """The first so many that wait, in order. They stay where they are."""
        pieces: list[Runs] = []
        missing = entries_max
        while missing > 0:
            taken = self._store.take(TIME_MS_MAX, missing)
            if not taken.keys.size:
                break
            pieces.append(self._stale.live(taken))
            missing -= pieces[-1].entry_count
        runs = joined(pieces)
        self._store.put_back(runs)
        return runs

    # -- what is stale --------------------------------------------------------------------------

    def _taken(self, runs: Runs) -> None:
        """Forget which records counted of entries that were moved: these were taken."""
        if self._stale.moved:
            _, ledger_ids, entry_ids = expanded(runs)
            for position in positions_of(ledger_ids, entry_ids):
                self._stale.taken(position)

    def _tidy(self) -> None:
        """Bound what is stale by what is not."""
        live = self.index.entry_count
        if not live:
            self.clear()
        elif self._store.entry_count - live > max(live, STALE_ENTRIES_MIN) or len(
            self._stale.moved
        ) > max(live // MOVED_SHARE, MOVED_MAX):
            self._rewrite()

    def _rewrite(self) -> None:
        self._store.rewrite(self._kept)
        self._stale.clear()
        self._witness = None

    def _kept(self, runs: Runs) -> Runs:
        """For the rewriting, which hands over all there is, piece by piece: each entry once."""
        live = self._stale.live(runs)
        self._taken(live)
        return live

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self.index.check()
        self._stale.check()
        everything = self._store.everything()
        _, ledger_ids, entry_ids = expanded(self._stale.live(everything))
        positions = positions_of(ledger_ids, entry_ids)
        live = set(positions)
        assert len(live) == len(positions), "an entry would be popped twice"
        tracked = set(self.index)
        assert live == tracked, (live - tracked, tracked - live)
        assert self._store.entry_count == everything.entry_count
        moved = {each for each in tracked if each in self._stale.positions}
        assert moved == set(self._stale.moved), (moved, self._stale.moved)
        self._store.check()


def _untrack(index: PositionSet, runs: Runs, ledger_ids: IntArray, entry_ids: IntArray) -> None:
    """Take entries out of the index, given as runs and expanded."""
    if runs.keys.size * LONG_RUN_ENTRIES <= entry_ids.size:
        for ledger_id in np.unique(runs.ledger_ids).tolist():
            index.discard_many(ledger_id, _bitmap(runs.rows(runs.ledger_ids == ledger_id)))
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


def _bitmap(runs: Runs) -> BitMap:
    """The entries of runs of one ledger."""
    if runs.keys.size * LONG_RUN_ENTRIES > runs.entry_count:
        return bitmap_of(expanded(runs)[2])
    entries = BitMap()
    for start, stop in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True):
        entries.add_range(start, stop)
    return entries
