"""The unacked entries between a mark-delete and the last acked entry of each ledger.

Pure. A hole is a maximal run of unacked entries that an acked one of the same ledger follows; written
half-open, one array each of ledgers, starts and stops, in ascending order::

    ledger 7, mark-delete 7:2     # # # . . # # . #            holes [3, 5) and [7, 8)
    ledger 8                      . . # # . . . (last entry)   hole  [0, 2)

What is unacked at a ledger's end, behind its last acked entry, is backlog and no hole: records do not
say where a ledger ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ackgate.cursor import Position, run_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.pipeline.jobs.ack_stats.records import CursorRecordRow


class HighWater:
    """The last acked entries of each ledger, and when they were first seen."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, tuple[list[int], list[int]]] = {}
        """Ledger id -> entries, ascending, and the time of each."""

    def see(self, row: CursorRecordRow, at_ms: int) -> None:
        """The next record that was applied. Amortised O(ledgers in it)."""
        if row.base_version is None:
            self._set_back(row)
        for ledger_id, bitmap in row.acked.items():
            if not bitmap:
                continue
            entries, times = self._by_ledger.setdefault(ledger_id, ([], []))
            last = bitmap.max()
            if not entries or last > entries[-1]:
                entries.append(last)
                times.append(at_ms)
        for ledger_id in [known for known in self._by_ledger if known < row.mark_delete.ledger_id]:
            del self._by_ledger[ledger_id]

    def since(self, holes: Holes) -> NDArray[np.int64]:
        """Since when each hole of the state is one."""
        since_ms = np.empty(holes.count, np.int64)
        ledger_ids, firsts, counts = np.unique(
            holes.ledger_ids, return_index=True, return_counts=True
        )
        for ledger_id, first, end in zip(ledger_ids.tolist(), firsts, firsts + counts, strict=True):
            entries, times = self._by_ledger[ledger_id]
            moved_on = np.searchsorted(entries, holes.starts[first:end], side="right")
            since_ms[first:end] = np.array(times, np.int64)[moved_on]
        return since_ms

    def _set_back(self, row: CursorRecordRow) -> None:
        for ledger_id in list(self._by_ledger):
            bitmap = row.acked.get(ledger_id)
            if not bitmap:
                del self._by_ledger[ledger_id]
                continue
            entries, times = self._by_ledger[ledger_id]
            last = bitmap.max()
            while entries and entries[-1] > last:
                entries.pop()
                times.pop()


@dataclass(frozen=True, slots=True)
class Holes:
    """All holes of a state."""

    ledger_ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.starts)

    @property
    def entries(self) -> int:
        """Unacked entries in them."""
        return int(np.sum(self.stops - self.starts))

    def position(self, number: int) -> Position:
        """Where a hole begins."""
        return Position(int(self.ledger_ids[number]), int(self.starts[number]))


def holes_of(mark_delete: Position, acked: Mapping[int, BitMap]) -> Holes:
    """`acked`: entries above the mark-delete, by ledger. O(ranges)."""
    ledger_ids, starts, stops = [], [], []
    for ledger_id in sorted(acked):
        first = mark_delete.entry_id + 1 if ledger_id == mark_delete.ledger_id else 0
        range_starts, range_stops = run_bounds(acked[ledger_id])
        begin = np.concatenate((np.array([first], np.int64), range_stops[:-1]))
        is_hole = begin < range_starts
        starts.append(begin[is_hole])
        stops.append(range_starts[is_hole])
        ledger_ids.append(np.full(int(np.count_nonzero(is_hole)), ledger_id, np.int64))
    if not starts:
        empty = np.empty(0, np.int64)
        return Holes(empty, empty, empty)
    return Holes(np.concatenate(ledger_ids), np.concatenate(starts), np.concatenate(stops))


@dataclass(frozen=True, slots=True)
class PositionAxis:
    """The entries of several ledgers laid end to end and cut into bins of one width.

    ledger 7       ledger 9     ledger 12
    [40 .. 100)    [0 .. 50)    [0 .. 90)
    |---------------|------------|----------------------|
    0              60           110                    200      coordinate
    |     0     |     1     |     2     |     3     |           bins of 50
    """

    ledger_ids: NDArray[np.int64]
    first_entries: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Coordinate of each ledger's first entry."""
    entry_count: int
    bin_entries: int
    """Entries of a bin."""

    @classmethod
    def over(cls, extents: Mapping[int, tuple[int, int]], bins_max: int) -> PositionAxis:
        """`extents`: ledger id -> first entry and end (exclusive)."""
        ledger_ids = sorted(ledger_id for ledger_id, (a, b) in extents.items() if a < b)
        firsts = np.array([extents[ledger_id][0] for ledger_id in ledger_ids], np.int64)
        ends = np.array([extents[ledger_id][1] for ledger_id in ledger_ids], np.int64)
        lengths = ends - firsts
        offsets = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        width = max(1, -(-total // bins_max))
        return cls(np.array(ledger_ids, np.int64), firsts, offsets, total, width)

    @property
    def bin_count(self) -> int:
        """Bins, the last one perhaps not full."""
        return -(-self.entry_count // self.bin_entries)

    def place(self, bin_number: int) -> tuple[int, int]:
        """Ledger and entry that a bin begins with."""
        coordinate = bin_number * self.bin_entries
        at = int(np.searchsorted(self.offsets, coordinate, side="right")) - 1
        return int(self.ledger_ids[at]), int(self.first_entries[at] + coordinate - self.offsets[at])

    def bin_of(self, position: Position) -> float:
        """Where a position lies, in bins; one that is not on the axis lies at the nearest end."""
        if not len(self.ledger_ids):
            return 0.0
        at = int(np.searchsorted(self.ledger_ids, position.ledger_id))
        if at == len(self.ledger_ids):
            return self.entry_count / self.bin_entries
        coordinate = int(self.offsets[at])
        if self.ledger_ids[at] == position.ledger_id:
            coordinate += max(position.entry_id - int(self.first_entries[at]), 0)
        return min(coordinate, self.entry_count) / self.bin_entries

    def unacked_by_bin(self, holes: Holes) -> NDArray[np.int64]:
        """How many entries of each bin lie in a hole. The axis must reach over all of them."""
        if not holes.count:
            return np.zeros(self.bin_count, np.int64)
        at = np.searchsorted(self.ledger_ids, holes.ledger_ids)
        shift = self.offsets[at] - self.first_entries[at]
        starts, stops = holes.starts + shift, holes.stops + shift
        before = np.cumsum(stops - starts) - (stops - starts)
        edges = np.arange(self.bin_count + 1, dtype=np.int64) * self.bin_entries
        last = np.searchsorted(starts, edges, side="right") - 1  # last hole that begins at or below
        known = np.maximum(last, 0)
        below = np.where(
            last < 0, 0, before[known] + np.minimum(stops[known], edges) - starts[known]
        )
        return np.diff(below)
