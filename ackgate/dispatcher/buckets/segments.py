"""Columns of delayed entries: sorted, joined, cut into segments, described, and against sets of positions.

Pure. One read of a snapshot brings one segment; segments follow each other in time:

    keys   100 101 .. 109 | 110 .. 119 | 120            span 10 ms: an entry more than 9 ms after
           segment 0        segment 1    segment 2      the segment's first begins the next one

A bucket whose entries are thinly spread has many small segments. They are stored one by one, but
loaded and indexed in **groups** of neighbours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ackgate.cursor import Position, SegmentMetadata, SnapshotSegment, bitmap_of
from ackgate.dispatcher.buckets.plans import CreateSnapshot
from ackgate.dispatcher.held import TIME_MS_MAX, sorted_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor import PositionSet
    from ackgate.dispatcher.buckets.settings import BucketSettings

RUN_OPTIMISE_IDS_MIN: Final = 8
"""Smaller bitmaps gain nothing from run containers."""

HANDFUL: Final = 48
"""Up to so many ids a Python loop is quicker than arrays. Measured."""

NO_ENTRIES: Final = SnapshotSegment(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
)


# -- sorting -------------------------------------------------------------------------------------


def in_order(
    keys_ms: NDArray[np.int64], ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]
) -> SnapshotSegment:
    """The same entries by key, then by position. New arrays."""
    if keys_ms.size == 0:
        return NO_ENTRIES
    return SnapshotSegment(*sorted_columns((keys_ms, ledger_ids, entry_ids)))


def joined(parts: Sequence[SnapshotSegment]) -> SnapshotSegment:
    """All entries of these, in order."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_ENTRIES
    return in_order(*stacked(parts))


def stacked(parts: Sequence[SnapshotSegment]) -> SnapshotSegment:
    """The rows of all parts one after the other, as they are."""
    if len(parts) == 1:
        return parts[0]
    return SnapshotSegment(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def picked(columns: SnapshotSegment, at: slice | NDArray[Any]) -> SnapshotSegment:
    """Some rows: a view for a slice, a copy for a mask."""
    return SnapshotSegment(columns.keys_ms[at], columns.ledger_ids[at], columns.entry_ids[at])


def without_repeats(columns: SnapshotSegment) -> SnapshotSegment:
    """Columns in order, every row once."""
    repeats = np.ones(max(columns.keys_ms.size - 1, 0), np.bool_)
    for column in columns:
        repeats &= column[1:] == column[:-1]
    if not repeats.any():
        return columns
    return picked(columns, np.concatenate(([True], ~repeats)))


def row_of(columns: SnapshotSegment, first: tuple[int, int, int]) -> int:
    """The first row that is not before (key, ledger, entry)."""
    key_ms, ledger_id, entry_id = first
    low = int(columns.keys_ms.searchsorted(key_ms))
    high = int(columns.keys_ms.searchsorted(key_ms, "right"))
    ledgers = columns.ledger_ids[low:high]
    low, high = (
        low + int(ledgers.searchsorted(ledger_id)),
        low + int(ledgers.searchsorted(ledger_id, "right")),
    )
    return low + int(columns.entry_ids[low:high].searchsorted(entry_id))


def is_in_order(columns: SnapshotSegment) -> bool:
    """Whether every row comes after the one above it, or is the same."""
    rises = np.ones(max(columns.keys_ms.size - 1, 0), np.bool_)
    for column in reversed(columns):
        rises &= column[1:] == column[:-1]
        rises |= column[1:] > column[:-1]
    return bool(rises.all())


def span_of(columns: SnapshotSegment) -> tuple[Position, Position]:
    """The lowest and the highest position of the columns, which are not empty."""
    ledgers, entries = columns.ledger_ids, columns.entry_ids
    low, high = int(ledgers.min()), int(ledgers.max())
    return (
        Position(low, int(entries[ledgers == low].min())),
        Position(high, int(entries[ledgers == high].max())),
    )


# -- rows and sets of positions ------------------------------------------------------------------
#
# Which rows are in a set, put in, taken out. Both sides are arrays or bitmaps; Python sees the ledgers, never
# the entries (but for a handful, for which that is quicker).


def members_of(bitmap: BitMap, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the ids the bitmap holds."""
    if ids.size <= HANDFUL:
        return np.fromiter((entry_id in bitmap for entry_id in ids.tolist()), np.bool_, ids.size)
    found = bitmap_of(ids)
    found &= bitmap
    return np.isin(ids, np.frombuffer(found.to_array(), dtype=np.uint32))


def by_ledger(columns: SnapshotSegment) -> Iterator[tuple[int, slice | NDArray[np.bool_]]]:
    """Each ledger of the columns, ascending, and the rows that are its own."""
    ledger_ids = columns.ledger_ids
    if ledger_ids.size == 0:
        return
    low = int(ledger_ids[0])
    if bool((ledger_ids == low).all()):
        yield low, slice(None)
        return
    for ledger_id in np.unique(ledger_ids).tolist():
        yield ledger_id, ledger_ids == ledger_id


def rows_in(positions: PositionSet, columns: SnapshotSegment) -> NDArray[np.bool_]:
    """Which rows the set holds."""
    held = np.zeros(columns.entry_ids.size, np.bool_)
    for ledger_id, rows in by_ledger(columns):
        bitmap = positions.bitmap(ledger_id)
        if bitmap is not None:
            held[rows] = members_of(bitmap, columns.entry_ids[rows])
    return held


def add_rows(positions: PositionSet, columns: SnapshotSegment) -> None:
    for ledger_id, rows in by_ledger(columns):
        positions.add_many(ledger_id, bitmap_of(columns.entry_ids[rows]))


def take_rows(positions: PositionSet, columns: SnapshotSegment) -> NDArray[np.bool_]:
    """Remove all rows from the set. Returns which were in it; a repeated position counts once."""
    held = np.zeros(columns.entry_ids.size, np.bool_)
    for ledger_id, rows in by_ledger(columns):
        ids = columns.entry_ids[rows]
        taken = positions.discard_many(ledger_id, bitmap_of(ids))
        if len(taken) == ids.size:
            held[rows] = True
        elif taken:
            held[rows] = _first_rows(members_of(taken, ids), ids, len(taken))
    return held


def _first_rows(
    members: NDArray[np.bool_], ids: NDArray[np.int64], distinct: int
) -> NDArray[np.bool_]:
    """Of rows with the same id only the first."""
    if int(members.sum()) == distinct:
        return members
    at = np.flatnonzero(members)
    _, firsts = np.unique(ids[at], return_index=True)
    only = np.zeros_like(members)
    only[at[firsts]] = True
    return only


# -- cutting -------------------------------------------------------------------------------------


def cut(columns: SnapshotSegment, *, span_ms: int, entries_max: int) -> list[int]:
    """Where each segment of the columns starts, and where the last one stops."""
    keys_ms = columns.keys_ms
    total = int(keys_ms.size)
    bounds = [0]
    start = 0
    while start < total:
        last_key_ms = min(int(keys_ms[start]) + span_ms - 1, TIME_MS_MAX)
        stop = int(keys_ms.searchsorted(last_key_ms, "right"))
        if entries_max != -1:
            stop = min(stop, start + entries_max)
        bounds.append(stop)
        start = stop
    return bounds


def metadata_of(columns: SnapshotSegment, bounds: Sequence[int]) -> tuple[SegmentMetadata, ...]:
    """What is to be known of each segment without loading it."""
    if len(bounds) < 2:
        return ()
    starts = np.asarray(bounds[:-1])
    sizes = np.diff(np.asarray(bounds))
    numbers = np.repeat(np.arange(sizes.size), sizes)
    # By segment, then by position: the columns are by key within a segment.
    rows = in_order(numbers, columns.ledger_ids, columns.entry_ids)
    is_first = np.empty(rows.keys_ms.size, np.bool_)
    is_first[0] = True
    np.not_equal(rows.keys_ms[1:], rows.keys_ms[:-1], out=is_first[1:])
    is_first[1:] |= rows.ledger_ids[1:] != rows.ledger_ids[:-1]
    firsts = np.flatnonzero(is_first)
    stops = [*firsts[1:].tolist(), rows.keys_ms.size]
    positions: list[dict[int, BitMap]] = [{} for _ in range(sizes.size)]
    for number, ledger_id, start, stop in zip(
        rows.keys_ms[firsts].tolist(),
        rows.ledger_ids[firsts].tolist(),
        firsts.tolist(),
        stops,
        strict=True,
    ):
        bitmap = bitmap_of(rows.entry_ids[start:stop])
        if stop - start >= RUN_OPTIMISE_IDS_MIN:
            bitmap.run_optimize()
        positions[number][ledger_id] = bitmap
    return tuple(
        map(
            SegmentMetadata,
            columns.keys_ms[starts].tolist(),
            columns.keys_ms[starts + sizes - 1].tolist(),
            sizes.tolist(),
            positions,
        )
    )


# -- grouping ------------------------------------------------------------------------------------


class SegmentGroups(NamedTuple):
    """Segments that are fetched together: columns, one row a group; 16 bytes each."""

    bounds: NDArray[np.uint32]
    """The first segment of each group, and where the last one stops: one row more."""
    first_keys_ms: NDArray[np.int64]
    entry_counts: NDArray[np.uint32]

    def __len__(self) -> int:
        return int(self.first_keys_ms.size)


def groups_of(
    first_keys_ms: Iterable[int], entry_counts: Iterable[int], *, entries_min: int
) -> SegmentGroups:
    """Group neighbouring segments until each group has `entries_min` entries."""
    keys = np.fromiter(first_keys_ms, np.int64)
    totals = np.cumsum(np.fromiter(entry_counts, np.int64))
    bounds = [0]
    while bounds[-1] < totals.size:
        before = int(totals[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(min(int(totals.searchsorted(before + entries_min)) + 1, totals.size))
    starts = np.asarray(bounds[:-1], np.int64)
    ends = totals[np.asarray(bounds[1:], np.int64) - 1] if starts.size else totals
    return SegmentGroups(
        np.asarray(bounds, np.uint32),
        keys[starts],
        np.diff(ends, prepend=0).astype(np.uint32),
    )


# ------------------------------------------------------------------------------ a snapshot in the making


class Draft:
    """A snapshot in the making: sorted columns are cut, and described piece by piece.

    To describe a bucket's segments takes a microsecond an entry, and more where each entry of a segment
    is of another ledger: half a second for a large one. That is too long for one step. ::

        columns   | segment 0 | segment 1 | ... | segment 4711 |      cut at once
        metadata  [ a piece      ][ a piece      ][ to come ...       a call of `go_on` each
    """

    __slots__ = ("_bounds", "_metadata", "_settings", "columns", "first", "groups", "last")

    columns: Final[SnapshotSegment]
    first: Final[Position]
    last: Final[Position]

    groups: Final[SegmentGroups]
    """How it will be loaded."""

    def __init__(self, columns: SnapshotSegment, settings: BucketSettings) -> None:
        """The columns are in order, and have a row at least."""
        self.columns = columns
        self.first, self.last = span_of(columns)
        self._settings = settings
        self._bounds = cut(
            columns,
            span_ms=settings.segment_span_ms,
            entries_max=settings.segment_entries_max,
        )
        self._metadata: list[SegmentMetadata] = []
        self.groups = groups_of(
            columns.keys_ms[self._bounds[:-1]].tolist(),
            (stop - start for start, stop in pairwise(self._bounds)),
            entries_min=settings.load_entries_min,
        )

    def go_on(self) -> bool:
        """Describe one more piece. Returns whether that was the last one."""
        bounds, first = self._bounds, len(self._metadata)
        stop = first + 1
        while (
            stop < len(bounds) - 1 and bounds[stop] - bounds[first] < self._settings.draft_entries
        ):
            stop += 1
        rows = picked(self.columns, slice(bounds[first], bounds[stop]))
        piece = [bound - bounds[first] for bound in bounds[first : stop + 1]]
        self._metadata += metadata_of(rows, piece)
        return stop == len(bounds) - 1

    def plan(self, number: int) -> CreateSnapshot:
        """What is to be written, when all is described. The segments are views."""
        assert len(self._metadata) == len(self._bounds) - 1
        segments = tuple(
            picked(self.columns, slice(start, stop)) for start, stop in pairwise(self._bounds)
        )
        return CreateSnapshot(number, self.first, self.last, segments, tuple(self._metadata))
