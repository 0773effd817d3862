"""The history of one cursor in a bounded number of time bins, however many records it has.

Pure. Ranges, bytes and drops are in every record. Holes and acked entries are computed from the
folded state, once at the end of each bin that has a record:

    records   s d d d s d d        d d d s          d d
    bins     |-------|-------|-------|-------|-------|
                   ^       ^               ^       ^       state sampled

A hole is a maximal run of unacked entries after the mark-delete, followed by an acked entry of the
same ledger. Holes are half-open, in ascending order, in three arrays: ledgers, starts and stops::

    ledger 7, mark-delete 7:2     # # # . . # # . #            holes [3, 5) and [7, 8)
    ledger 8                      . . # # . . . (last entry)   hole  [0, 2)

Unacked entries after a ledger's last acked entry are backlog, not a hole: records do not contain
the length of a ledger.

Records are folded as recovery does (`persistence.records.recovery.RecordFold`). If a record is
missing (its ledger is deleted, or it is damaged), the ack state is unknown until the next snapshot.
The figures in the records after it are still known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ackgate.cursor import CursorGrowth, CursorSnapshot, Position, run_bounds
from ackgate.persistence.records.recovery import RecordFold
from ackgate.persistence.records.values import CursorRecord, DeltaRecord, SnapshotRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pyroaring import BitMap


@dataclass(frozen=True, slots=True)
class CursorRecordRow:
    """The columns of one row of `cursor_records` that a history needs."""

    owner_epoch: int
    version: int
    base_version: int | None
    """Version that a delta builds on; None for a snapshot."""
    written_ms: int
    mark_delete: Position
    range_count: int
    ranges_in_memory: int
    entries_dropped: int
    record_bytes: int
    cursor_ledger_id: int | None = None
    """None: the record is in the metadata node."""
    entry_id: int | None = None
    partly_acked_count: int = 0
    base_snapshot_version: int | None = None
    """Version of the snapshot that began the descent; None: this one did, or it is unknown."""
    acked: Mapping[int, BitMap] = field(default_factory=dict)
    """Message ledger id -> entries acked above the mark-delete; of a delta, only the new ones."""
    is_from_journal: bool = False
    """The record is gone. The row is from the delivery journal, which lacks the acked entries."""

    @property
    def is_in_node(self) -> bool:
        """Whether the metadata node holds it."""
        return self.cursor_ledger_id is None

    @property
    def is_cut(self) -> bool:
        """Whether a limit left ack state out of the record."""
        return self.range_count < self.ranges_in_memory or self.entries_dropped > 0

    @property
    def order(self) -> tuple[int, int, bool, int, int]:
        """Sort key in write order. A node's record follows a ledger's of the same version."""
        ledger_id, entry_id = self.cursor_ledger_id or 0, self.entry_id or 0
        return (self.owner_epoch, self.version, self.is_in_node, ledger_id, entry_id)

    @property
    def record(self) -> CursorRecord:
        """The record without batches, properties and nacks. The bitmaps are copies."""
        acked = {ledger_id: bitmap.copy() for ledger_id, bitmap in self.acked.items()}
        if self.base_version is not None:
            growth = CursorGrowth(
                self.base_version, self.version, self.mark_delete, acked, self.range_count
            )
            return DeltaRecord(
                self.owner_epoch,
                self.written_ms,
                growth,
                base_snapshot_version=self.base_snapshot_version,
            )
        return SnapshotRecord(
            self.owner_epoch,
            self.written_ms,
            CursorSnapshot(self.version, self.mark_delete, acked, self.range_count),
            self.ranges_in_memory,
            self.entries_dropped,
            batch_indexes_in_memory=0,
            base_snapshot_version=self.base_snapshot_version,
        )


class HighWater:
    """Tracks the highest acked entry of each ledger over time, to date holes."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, tuple[list[int], list[int]]] = {}
        """Ledger id -> its highest acked entries, ascending, and when each was first seen."""

    def see(self, row: CursorRecordRow, at_ms: int) -> None:
        """Note the next record, written at `at_ms`. Amortised O(ledgers in the record)."""
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
        """Return for each hole the time, in ms, at which an entry after it was first seen acked."""
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
    """All holes of an ack state, as parallel arrays; hole i is [starts[i], stops[i])."""

    ledger_ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def entries(self) -> int:
        return int(np.sum(self.stops - self.starts))

    def position(self, number: int) -> Position:
        """Return the first position of hole `number`."""
        return Position(int(self.ledger_ids[number]), int(self.starts[number]))


def holes_of(mark_delete: Position, acked: Mapping[int, BitMap]) -> Holes:
    """Return the holes. `acked`: entries acked above the mark-delete, by ledger. O(ranges)."""
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
    """Length of the axis, in entries."""
    bin_entries: int
    """Width of a bin, in entries."""

    @classmethod
    def over(cls, extents: Mapping[int, tuple[int, int]], bins_max: int) -> PositionAxis:
        """Build an axis of at most `bins_max` bins. `extents`: ledger id -> first entry and end."""
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
        """Number of bins. The last one may be narrower."""
        return -(-self.entry_count // self.bin_entries)

    def place(self, bin_number: int) -> tuple[int, int]:
        """Return the ledger id and entry id at which a bin begins."""
        coordinate = bin_number * self.bin_entries
        at = int(np.searchsorted(self.offsets, coordinate, side="right")) - 1
        return int(self.ledger_ids[at]), int(self.first_entries[at] + coordinate - self.offsets[at])

    def bin_of(self, position: Position) -> float:
        """Return the place of a position, in bins (fractional) from the beginning of the axis.

        A position of a ledger that is not on the axis is placed where the next ledger begins.
        """
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
        """Count the entries of each bin that lie in holes. The axis must cover all holes."""
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


@dataclass(frozen=True, slots=True)
class StateFigures:
    """Figures of the folded ack state at the end of a time bin."""

    holes: int
    hole_entries: int
    acked_entries: int
    """Acked entries after the mark-delete."""
    oldest_hole: Position | None
    oldest_hole_since_ms: int | None
    """When an entry after the oldest hole was first acked, as far as records reach back."""
    hole_entries_by_place: NDArray[np.int64]
    """Unacked entries in holes, for each bin of the history's `PositionAxis`."""


@dataclass(frozen=True, slots=True)
class HistoryBin:
    """The records written in one time bin. Bins without a record are left out."""

    from_ms: int
    until_ms: int
    """End of the bin, exclusive."""
    owner_epoch: int
    version: int
    mark_delete: Position
    records: int
    snapshots: int
    node_records: int
    record_bytes: int
    records_cut: int
    """Records from which a limit left something out."""
    range_count: int
    """Ranges persisted with the last record."""
    ranges_in_memory: int
    ranges_in_memory_max: int
    entries_dropped_max: int
    partly_acked: int
    """Partly acked entries in the last record."""
    state: StateFigures | None
    """None: unknown, since an earlier record is missing or the last one is only in the journal."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenHoles:
    """Holes with the time an entry after each was first acked, as far as records reach back."""

    holes: Holes
    since_ms: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CursorHistory:
    """The time bins of one cursor's records, and the axis for their positions."""

    bins: tuple[HistoryBin, ...]
    axis: PositionAxis
    records: int
    records_unlinked: int
    """Deltas whose base record is missing."""
    open_holes: OpenHoles | None = None
    """Holes of the newest state; None if that state is unknown."""


def cursor_history(
    rows: Sequence[CursorRecordRow], *, time_bins_max: int = 240, place_bins_max: int = 96
) -> CursorHistory:
    """Fold the rows of one cursor, given in any order, into a history.

    Takes O(records + state x time bins).
    """
    rows = sorted(rows, key=lambda row: row.order)
    axis = PositionAxis.over(_extents(rows), place_bins_max)
    if not rows:
        return CursorHistory((), axis, 0, 0)
    # A clock may go back: a record's time is at least that of the record before it.
    times = np.maximum.accumulate(np.array([row.written_ms for row in rows], np.int64))
    edges = time_edges(int(times[0]), int(times[-1]) + 1, time_bins_max)
    # The first row number of each bin, and the one after the last.
    begins = np.searchsorted(times, edges, side="left")
    fold, high_water = RecordFold(), HighWater()
    bins = []
    for number in np.flatnonzero(np.diff(begins)):
        of_bin = rows[begins[number] : begins[number + 1]]
        for row, at_ms in zip(of_bin, times[begins[number] :], strict=False):
            if row.is_from_journal:
                continue
            counts = fold.apply(row.record, is_in_node=row.is_in_node)
            if counts or not row.is_in_node:
                high_water.see(row, int(at_ms))
        holes = None if of_bin[-1].is_from_journal else _open_holes(fold, high_water)
        state = None if holes is None else _figures(fold, holes, axis)
        bins.append(_bin(of_bin, int(edges[number]), int(edges[number + 1]), state))
    return CursorHistory(tuple(bins), axis, len(rows), fold.records_unlinked, holes)


def time_edges(from_ms: int, until_ms: int, bins_max: int) -> NDArray[np.int64]:
    """Return the edges of at most `bins_max` bins, each 1 ms or wider. `from_ms` < `until_ms`."""
    count = min(bins_max, until_ms - from_ms)
    return from_ms + np.arange(count + 1, dtype=np.int64) * (until_ms - from_ms) // count


def _extents(rows: Sequence[CursorRecordRow]) -> dict[int, tuple[int, int]]:
    """Return for each message ledger the first entry in any record and the end (exclusive)."""
    extents: dict[int, tuple[int, int]] = {}

    def reach(ledger_id: int, first: int, end: int) -> None:
        known = extents.get(ledger_id, (first, end))
        extents[ledger_id] = min(first, known[0]), max(end, known[1])

    for row in rows:
        ledger_id, entry_id = row.mark_delete
        reach(ledger_id, entry_id + 1, entry_id + 1)
        for acked_id, bitmap in row.acked.items():
            if bitmap:
                first = entry_id + 1 if acked_id == ledger_id else 0
                reach(acked_id, first, bitmap.max() + 1)
    return extents


def _open_holes(fold: RecordFold, high_water: HighWater) -> OpenHoles | None:
    if not fold.is_whole:
        return None
    holes = holes_of(fold.mark_delete, fold.acked)
    return OpenHoles(holes, high_water.since(holes))


def _figures(fold: RecordFold, open_holes: OpenHoles, axis: PositionAxis) -> StateFigures:
    holes, since_ms = open_holes.holes, open_holes.since_ms
    oldest = int(np.argmin(since_ms)) if holes.count else None
    return StateFigures(
        holes=holes.count,
        hole_entries=holes.entries,
        acked_entries=sum(len(bitmap) for bitmap in fold.acked.values()),
        oldest_hole=None if oldest is None else holes.position(oldest),
        oldest_hole_since_ms=None if oldest is None else int(since_ms[oldest]),
        hole_entries_by_place=axis.unacked_by_bin(holes),
    )


def _bin(
    rows: Sequence[CursorRecordRow], from_ms: int, until_ms: int, state: StateFigures | None
) -> HistoryBin:
    last = rows[-1]
    return HistoryBin(
        from_ms=from_ms,
        until_ms=until_ms,
        owner_epoch=last.owner_epoch,
        version=last.version,
        mark_delete=last.mark_delete,
        records=len(rows),
        snapshots=sum(row.base_version is None for row in rows),
        node_records=sum(row.is_in_node for row in rows),
        record_bytes=sum(row.record_bytes for row in rows),
        records_cut=sum(row.is_cut for row in rows),
        range_count=last.range_count,
        ranges_in_memory=last.ranges_in_memory,
        ranges_in_memory_max=max(row.ranges_in_memory for row in rows),
        entries_dropped_max=max(row.entries_dropped for row in rows),
        partly_acked=last.partly_acked_count,
        state=state,
    )
