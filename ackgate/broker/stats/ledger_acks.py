"""How densely a message ledger is acked, in a bounded number of cells: the picture of the holes.

Pure. A ledger's entries are cut into equal slices; a cell says how many thousandths of its slice
are acked, at or below the mark-delete included. Rounding never lies at the ends: a cell is 0
exactly when nothing in it is acked, and `FULL` exactly when everything is::

    entries   0         10        20        30        40
              ##########.#.#.#.#.#..........................
    cells     |  1000   |   500   |    0    |    0    |  0

Costs O(cells x containers), whatever the number of ranges: Roaring ranks by its containers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.cursor import run_count
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyroaring import BitMap

    from ackgate.cursor import Position

FULL: Final = 1000
"""The value of a cell whose entries are all acked."""

CELLS_MAX: Final = 1024
"""Cells of one ledger; more than a terminal is wide."""

LEDGERS_MAX: Final = 64
"""Ledgers of one answer."""


@dataclass(frozen=True, slots=True)
class LedgerAcks:
    """What is acked in one message ledger."""

    ledger_id: int
    entries: int
    acked: int
    """Acked entries, including those at or below the mark-delete."""
    ranges: int
    """Ack ranges above the mark-delete."""
    cells: tuple[int, ...]
    """Thousandths acked per slice, from the first entry to the last. Empty if there are no
    entries."""


@dataclass(frozen=True, slots=True)
class AckPicture:
    """The ledgers from the mark-delete on."""

    ledgers: tuple[LedgerAcks, ...]
    ledgers_omitted: int
    """Number of later ledgers that are left out."""


def ack_picture(
    entry_counts: Iterable[tuple[int, int]],
    mark_delete: Position,
    acked: Mapping[int, BitMap],
    cells: int,
) -> AckPicture:
    """The picture of a subscription's message ledgers.

    `entry_counts`: (ledger id, entries), ascending. `acked`: entry ids above the mark-delete.
    """
    if not 1 <= cells <= CELLS_MAX:
        raise CallerError(f"number of cells is {cells}, allowed is 1..{CELLS_MAX}")
    shown = [pair for pair in entry_counts if pair[0] >= mark_delete.ledger_id and pair[1] > 0]
    return AckPicture(
        tuple(
            _ledger_acks(ledger_id, entries, mark_delete, acked.get(ledger_id), cells)
            for ledger_id, entries in shown[:LEDGERS_MAX]
        ),
        max(0, len(shown) - LEDGERS_MAX),
    )


def _ledger_acks(
    ledger_id: int, entries: int, mark_delete: Position, bitmap: BitMap | None, cells: int
) -> LedgerAcks:
    passed = mark_delete.entry_id + 1 if ledger_id == mark_delete.ledger_id else 0
    return LedgerAcks(
        ledger_id=ledger_id,
        entries=entries,
        acked=min(entries, passed) + _rank(bitmap, entries),
        ranges=run_count(bitmap) if bitmap else 0,
        cells=cells_between(bitmap, passed, 0, entries, cells),
    )


def cells_between(
    bitmap: BitMap | None, passed: int, start: int, stop: int, cells: int
) -> tuple[int, ...]:
    """The cells of a part of a ledger, for ``start <= entry < stop``.

    `bitmap`: acked entry ids above the mark-delete. `passed`: number of entries at or below it.
    """
    width = min(cells, stop - start)
    edges = [start + (stop - start) * cell // width for cell in range(width + 1)] if width else []
    below = [min(edge, passed) + _rank(bitmap, edge) for edge in edges]
    return tuple(
        _thousandths(below[cell + 1] - below[cell], edges[cell + 1] - edges[cell])
        for cell in range(width)
    )


def _rank(bitmap: BitMap | None, edge: int) -> int:
    return bitmap.rank(edge - 1) if bitmap and edge > 0 else 0


def _thousandths(part: int, whole: int) -> int:
    if part in {0, whole}:
        return FULL if part else 0
    return min(max(part * FULL // whole, 1), FULL - 1)
