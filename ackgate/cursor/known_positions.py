"""Does an entry lie there? What an ack may name, and the words in which it is refused.

Pure. An entry at or below the mark-delete is always known, whether or not its ledger still exists:
it is acked, and acking it again is no error. Above it, the message ledgers decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.cursor.id_arrays import entry_ids_below
from ackgate.cursor.position import ENTRY_ID_MAX, Position, check_position
from ackgate.errors import PositionError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ackgate.cursor.id_arrays import IdArray
    from ackgate.cursor.message_ledgers import MessageLedgers


def is_known(position: Position, ledgers: MessageLedgers, mark_delete: Position) -> bool:
    """Whether an entry lies there now. False: it is acked and gone. Raises for anything else."""
    ledger_id, entry_id = position
    entry_count = ledgers.entry_counts.get(ledger_id)
    if entry_count is not None and 0 <= entry_id < entry_count:
        return True
    text = f"{ledger_id}:{entry_id}"
    check_position(Position(ledger_id, entry_id))
    if entry_id < 0:
        raise PositionError(f"{text} is not an entry and cannot be acked")
    if position <= mark_delete:
        return False
    if entry_count is None:
        raise PositionError(
            f"{text} is unknown: there is no ledger {ledger_id} above the mark-delete {mark_delete}"
        )
    raise PositionError(f"{text} is unknown: ledger {ledger_id} has {entry_count} entries")


def known_ids(
    ledger_id: int, entry_ids: ArrayLike, ledgers: MessageLedgers, mark_delete: Position
) -> IdArray:
    """The ids as an array, all of them known. Raises `PositionError` naming one that is not."""
    entry_count = ledgers.entry_counts.get(ledger_id, 0)
    if ledger_id < mark_delete.ledger_id:
        entry_count = ENTRY_ID_MAX + 1
    elif ledger_id == mark_delete.ledger_id:
        entry_count = max(entry_count, mark_delete.entry_id + 1)
    return entry_ids_below(entry_ids, entry_count, ledger_id)


def check_cumulative(
    position: Position, ledgers: MessageLedgers, mark_delete: Position, *, is_whole: bool
) -> None:
    """Raise unless everything up to the position may be acked.

    It must be an entry, or the place before the first entry of a ledger; and not go back.
    """
    if position == mark_delete:
        return
    if position < mark_delete:
        raise PositionError(
            f"cumulative ack of {position} goes back: the mark-delete is {mark_delete}"
        )
    ledger_id, entry_id = position
    is_border = is_whole and entry_id == -1 and ledger_id in ledgers.entry_counts
    if not is_border:
        is_known(position, ledgers, mark_delete)


def check_mask(mask: int | None) -> None:
    """Raise for a set of batch indexes that is none."""
    if mask is not None and mask < 0:
        raise PositionError(f"a set of batch indexes cannot be negative: {mask}")
