"""A snapshot read back from storage, made to fit the message ledgers that really exist.

Pure. Storage may be older or newer than the ledgers it speaks of: ledgers were trimmed, entries at
the end were lost with an unconfirmed write. Acks that concern nothing are dropped, a mark-delete
beyond the end is clamped; each of it is counted in the report. Nothing that exists and was not
acked ever becomes acked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.cursor.position import ENTRY_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.snapshot import CursorSnapshot


@dataclass(frozen=True, slots=True)
class RecoveredStateReport:
    """What of a recovered snapshot could not be taken as it was; all zero: everything could."""

    mark_delete_was: Position | None = None
    """The recovered mark-delete, when it lay beyond the last entry and was clamped."""

    entries_below_mark_delete: int = 0
    """Acked entries at or below the mark-delete, dropped."""

    entries_beyond_end: int = 0
    """Acked entries behind the last entry of their ledger, dropped."""

    entries_of_unknown_ledgers: int = 0
    """Acked entries of ledgers that do not exist (any more), dropped."""

    unknown_ledger_ids: tuple[int, ...] = ()
    """Those ledgers, ascending."""

    batch_sets_dropped: int = 0
    """Partly acked entries that do not exist, are acked as a whole, or hold an impossible set."""

    @property
    def is_clean(self) -> bool:
        """Whether the snapshot was taken exactly as it was."""
        return self == RecoveredStateReport()


@dataclass(frozen=True, slots=True)
class FittedState:
    """The part of a snapshot that fits, in copies of its own."""

    mark_delete: Position
    acked: Mapping[int, BitMap]
    unacked_indexes: Mapping[Position, int]
    report: RecoveredStateReport = field(default_factory=RecoveredStateReport)


def fit(
    snapshot: CursorSnapshot, ledgers: MessageLedgers, *, batch_index_acks: bool
) -> FittedState:
    """Drop and clamp what does not fit the existing ledgers."""
    mark_delete = clamp(snapshot.mark_delete, ledgers)
    acked: dict[int, BitMap] = {}
    below = beyond = unknown = 0
    unknown_ids: list[int] = []
    for ledger_id in sorted(snapshot.acked):
        bitmap = snapshot.acked[ledger_id].copy()
        count = ledgers.entry_count(ledger_id)
        if ledger_id < mark_delete.ledger_id:
            below += len(bitmap)
            continue
        if count is None:
            unknown += len(bitmap)
            unknown_ids.append(ledger_id)
            continue
        beyond += _cut(bitmap, count, ENTRY_ID_MAX + 1)
        if ledger_id == mark_delete.ledger_id:
            below += _cut(bitmap, 0, mark_delete.entry_id + 1)
        if bitmap:
            acked[ledger_id] = bitmap
    unacked = {
        position: mask
        for position, mask in snapshot.unacked_indexes.items()
        if batch_index_acks
        and mask > 0
        and position > mark_delete
        and ledgers.exists(position)
        and position[1] not in acked.get(position[0], ())
    }
    report = RecoveredStateReport(
        mark_delete_was=None if mark_delete == snapshot.mark_delete else snapshot.mark_delete,
        entries_below_mark_delete=below,
        entries_beyond_end=beyond,
        entries_of_unknown_ledgers=unknown,
        unknown_ledger_ids=tuple(unknown_ids),
        batch_sets_dropped=len(snapshot.unacked_indexes) - len(unacked),
    )
    return FittedState(mark_delete, acked, unacked, report)


def clamp(mark_delete: Position, ledgers: MessageLedgers) -> Position:
    """The mark-delete itself, or the last entry that it can stand for."""
    ledger_id, entry_id = mark_delete
    count = ledgers.entry_count(ledger_id)
    if count is not None and entry_id >= count:
        return Position(ledger_id, count - 1)
    newest = ledgers.ledger_ids[-1] if ledgers.ledger_ids else ledgers.last_confirmed.ledger_id
    # An older ledger that is gone stays a good place: nothing will ever be written before it.
    return ledgers.last_confirmed if ledger_id > newest else mark_delete


def _cut(bitmap: BitMap, start: int, stop: int) -> int:
    """Remove ``[start, stop)`` and return how many members that were."""
    before = len(bitmap)
    bitmap.remove_range(start, stop)
    return before - len(bitmap)
