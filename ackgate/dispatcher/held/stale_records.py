"""Records that buckets still have of entries that are tracked no more, or with another time.

Pure. A discard clears the index's bit and leaves the buckets alone; the position is noted here until
the buckets are next rewritten. Is such a position tracked again, the one record that counts is the
one with the key noted here; all others of it are stale.

    discard(p)          p is stale
    add(p, key)         p is stale, moved to `key`
    buckets give (k, p) dropped, unless p is moved to k
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import Position, PositionSet, bitmap_of, run_bounds
from ackgate.dispatcher.held.runs import Runs, expanded, joined, ordered

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOVED_BYTES: Final = 400
"""A moved position: a tuple, two numbers, two places in tables. Measured."""


class StaleRecords:
    """Positions of which the buckets may hold records that do not count."""

    __slots__ = ("_moved_to", "moved", "positions")

    positions: PositionSet
    """All of them. To be read only."""

    moved: dict[Position, int]
    """Stale positions that are tracked again, and the key that counts. To be read only."""

    def __init__(self) -> None:
        self.positions = PositionSet()
        self.moved = {}
        self._moved_to: dict[int, dict[int, BitMap]] = {}
        """Key -> ledger -> entries of `moved`."""

    def __bool__(self) -> bool:
        return bool(self.positions.entry_count)

    @property
    def byte_estimate(self) -> int:
        return self.positions.byte_estimate + MOVED_BYTES * len(self.moved)

    # -- noting

    def add(self, position: Position) -> None:
        """It is tracked no more, and buckets may know it."""
        self.positions.add(*position)
        self.taken(position)

    def add_many(self, ledger_id: int, entries: BitMap) -> None:
        """`add` for entries of one ledger. Takes the bitmap over."""
        if self.moved:
            stale = self.positions.bitmap(ledger_id)
            for entry_id in entries & stale if stale is not None else ():
                self.taken(Position(ledger_id, entry_id))
        self.positions.add_many(ledger_id, entries)

    def move(self, position: Position, key: int) -> None:
        """A stale position is tracked again."""
        self.moved[position] = key
        ledger_id, entry_id = position
        self._moved_to.setdefault(key, {}).setdefault(ledger_id, BitMap()).add(entry_id)

    def taken(self, position: Position) -> None:
        """The record that counted is taken, or counts no more."""
        key = self.moved.pop(position, None)
        if key is not None:
            ledger_id, entry_id = position
            at_key = self._moved_to[key]
            at_key[ledger_id].remove(entry_id)
            if not at_key[ledger_id]:
                del at_key[ledger_id]
            if not at_key:
                del self._moved_to[key]

    def clear(self) -> None:
        self.positions.clear()
        self.moved.clear()
        self._moved_to.clear()

    # -- queries

    def live(self, runs: Runs) -> Runs:
        """What counts of these runs, each entry once."""
        if not self:
            return runs
        kept, dropped = self._split(runs)
        if self.moved and dropped.keys.size:
            revived = self._revived(dropped)
            if revived:
                return ordered(joined([kept, *revived]))
        return kept

    def _split(self, runs: Runs) -> tuple[Runs, Runs]:
        """The runs without stale positions, and what of them is stale."""
        kept: list[Runs] = []
        dropped: list[Runs] = []
        for ledger_id in np.unique(runs.ledger_ids).tolist():
            stale = self.positions.bitmap(ledger_id)
            of_ledger = runs.rows(runs.ledger_ids == ledger_id)
            if stale is None:
                kept.append(of_ledger)
            else:
                _split_ledger(of_ledger, stale, kept, dropped)
        return ordered(joined(kept)), ordered(joined(dropped))

    def _revived(self, dropped: Runs) -> list[Runs]:
        """The runs of entries that were dropped although they count, each entry once."""
        revived = []
        keys, firsts = np.unique(dropped.keys, return_index=True)
        stops = np.append(firsts[1:], dropped.keys.size)
        for key, first, stop in zip(keys.tolist(), firsts.tolist(), stops.tolist(), strict=True):
            at_key = self._moved_to.get(key)
            if at_key is None:
                continue
            rows = dropped.rows(slice(first, stop))
            for ledger_id, moved in at_key.items():
                _, _, entry_ids = expanded(rows.rows(rows.ledger_ids == ledger_id))
                found = moved & bitmap_of(entry_ids)
                if found:
                    revived.append(_rows_of(key, ledger_id, found))
        return revived

    def check(self) -> None:
        self.positions.check()
        assert all(position in self.positions for position in self.moved)
        moved_to = {
            Position(ledger_id, entry_id): key
            for key, ledgers in self._moved_to.items()
            for ledger_id, entries in ledgers.items()
            for entry_id in entries
        }
        assert moved_to == self.moved
        assert all(all(ledgers.values()) for ledgers in self._moved_to.values())


def _split_ledger(runs: Runs, stale: BitMap, kept: list[Runs], dropped: list[Runs]) -> None:
    """Runs of one ledger, by whether a bitmap has them; what it has in part is cut."""
    stale_starts, stale_stops = run_bounds(stale)
    first = np.searchsorted(stale_stops, runs.starts, side="right")
    is_clear = first >= np.searchsorted(stale_starts, runs.stops, side="left")
    first[is_clear] = 0
    is_covered = ~is_clear & (stale_starts[first] <= runs.starts)
    is_covered &= stale_stops[first] >= runs.stops
    kept.append(runs.rows(is_clear))
    dropped.append(runs.rows(is_covered))
    for row in np.flatnonzero(~is_clear & ~is_covered).tolist():
        key, ledger_id, start, stop = (int(column[row]) for column in runs)
        whole = BitMap()
        whole.add_range(start, stop)
        kept.append(_rows_of(key, ledger_id, whole - stale))
        dropped.append(_rows_of(key, ledger_id, whole & stale))


def _rows_of(key: int, ledger_id: int, entries: BitMap) -> Runs:
    starts, stops = run_bounds(entries)
    keys: NDArray[np.int64] = np.full(starts.size, key, dtype=np.int64)
    return Runs(keys, np.full(starts.size, ledger_id, dtype=np.int64), starts, stops)
