"""The history of one cursor, in at most so many bins of time, whatever the number of its records.

Pure. Ranges, bytes and drops are in every record; holes and acked entries are worked out of the fold,
once for each bin that a record falls into:

    records   s d d d s d d        d d d s          d d
    bins     |-------|-------|-------|-------|-------|
                   ^       ^               ^       ^       state looked at
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ackgate.persistence.records.recovery import RecordFold
from ackgate.pipeline.jobs.ack_stats.holes import HighWater, Holes, PositionAxis, holes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ackgate.cursor import Position
    from ackgate.pipeline.jobs.ack_stats.records import CursorRecordRow


@dataclass(frozen=True, slots=True)
class StateFigures:
    """What the fold says of the state at a bin's end."""

    holes: int
    hole_entries: int
    acked_entries: int
    """Above the mark-delete."""
    oldest_hole: Position | None
    oldest_hole_since_ms: int | None
    """When an entry after it was acked first, as far as records reach back."""
    hole_entries_by_place: NDArray[np.int64]
    """By bin of the history's `PositionAxis`."""


@dataclass(frozen=True, slots=True)
class HistoryBin:
    """What was written in one stretch of time. There is none where nothing was."""

    from_ms: int
    until_ms: int
    """Half-open."""
    owner_epoch: int
    version: int
    mark_delete: Position
    records: int
    snapshots: int
    node_records: int
    record_bytes: int
    records_cut: int
    """Records that a limit had left something out of."""
    range_count: int
    """Persisted, by the last record."""
    ranges_in_memory: int
    ranges_in_memory_max: int
    entries_dropped_max: int
    partly_acked: int
    """Partly acked entries in the last record."""
    state: StateFigures | None
    """None: a record before it is gone, and no snapshot has come since."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenHoles:
    """Holes, and when an entry after each was acked first, as far as records reach back."""

    holes: Holes
    since_ms: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CursorHistory:
    """The history of one cursor."""

    bins: tuple[HistoryBin, ...]
    axis: PositionAxis
    records: int
    records_unlinked: int
    """Deltas whose base is gone."""
    open_holes: OpenHoles | None = None
    """Of the newest state. None: it is unknown."""


def cursor_history(
    rows: Sequence[CursorRecordRow], *, time_bins_max: int = 240, place_bins_max: int = 96
) -> CursorHistory:
    """Rows of one cursor in any order. O(records + state x time bins)."""
    rows = sorted(rows, key=lambda row: row.order)
    axis = PositionAxis.over(_extents(rows), place_bins_max)
    if not rows:
        return CursorHistory((), axis, 0, 0)
    # A clock may go back; what was written later is never drawn as earlier.
    times = np.maximum.accumulate(np.array([row.written_ms for row in rows], np.int64))
    edges = time_edges(int(times[0]), int(times[-1]) + 1, time_bins_max)
    # Row number that each bin begins with, and behind the last one.
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
    """Edges of at most so many bins, each at least a millisecond wide. `from_ms` < `until_ms`."""
    count = min(bins_max, until_ms - from_ms)
    return from_ms + np.arange(count + 1, dtype=np.int64) * (until_ms - from_ms) // count


def _extents(rows: Sequence[CursorRecordRow]) -> dict[int, tuple[int, int]]:
    """For each message ledger its first entry in any record, and the end (exclusive)."""
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
