"""Columns of positions against a set of positions: which rows are in it, put in, taken out.

Pure. Both sides are arrays or bitmaps; Python sees the ledgers, never the entries (but for a
handful, for which that is quicker).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import bitmap_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor import PositionSet, SnapshotSegment

HANDFUL: Final = 48
"""Up to so many ids a Python loop is quicker than arrays. Measured."""


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
    """Take all rows out. Which of them were in? A position that comes twice counts once."""
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
