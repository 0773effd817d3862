"""Entry ids that arrive as arrays: checked as a whole before any of them is applied.

Pure. Refused: what is no array of whole numbers, negative ids, ids above the limit. The error names
the first bad value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ackgate.cursor.position import LEDGER_ID_MAX
from ackgate.cursor.whole_numbers import whole_numbers
from ackgate.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    IdArray = NDArray[np.integer[Any]]


def entry_ids_below(ids: ArrayLike, entry_count: int, ledger_id: int) -> IdArray:
    """The ids as an array of integers, every one of them an entry of the ledger."""
    array = whole_numbers(ids, "entry ids", PositionError)
    if array.size:
        if int(array.min()) < 0:
            raise PositionError(f"entry id {int(array.min())} of ledger {ledger_id} is negative")
        if int(array.max()) >= entry_count:
            beyond = int(array[array >= entry_count][0])
            raise PositionError(
                f"entry id {beyond} is unknown: ledger {ledger_id} has {entry_count} entries"
            )
    return array


def by_ledger(ledger_ids: ArrayLike, entry_ids: ArrayLike) -> Iterator[tuple[int, IdArray]]:
    """Split pairs into one array of entry ids per ledger, ledgers ascending."""
    ledgers = whole_numbers(ledger_ids, "ledger ids", PositionError)
    entries = whole_numbers(entry_ids, "entry ids", PositionError)
    if ledgers.size != entries.size:
        raise PositionError(f"{ledgers.size} ledger ids do not pair with {entries.size} entry ids")
    if ledgers.size == 0:
        return
    lowest, highest = int(ledgers.min()), int(ledgers.max())
    if lowest < 0 or highest > LEDGER_ID_MAX:
        wrong = lowest if lowest < 0 else highest
        raise PositionError(f"ledger id {wrong} is not in 0..{LEDGER_ID_MAX}")
    if lowest == highest:
        yield lowest, entries
        return
    order = np.argsort(ledgers, kind="stable")
    ledgers = ledgers[order]
    borders = np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1
    for first, group in zip((0, *borders), np.split(entries[order], borders), strict=True):
        yield int(ledgers[first]), group
