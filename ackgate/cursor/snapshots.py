"""What a cursor hands to persistence, and how it is made to fit when it is read back.

Pure; frozen values, never live structures. A `CursorSnapshot` is complete. A `CursorGrowth` is what
was acked since a given version; it exists only while the state has done nothing but grow since then
(a reset, clear or rewind leaves none, and the next record must be a snapshot).

Fold: ``snapshot + growth`` = union of the bitmaps, the growth's mark-delete, its batch indexes laid
over the snapshot's, then everything at or below the mark-delete dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ackgate.cursor.position import ENTRY_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap

    from ackgate.cursor.message_ledgers import MessageLedgers


@dataclass(frozen=True, slots=True)
class CursorSnapshot:
    """The whole ack state of one cursor at one version."""

    version: int
    """Number of mutations so far; grows with each change of any part."""

    mark_delete: Position
    """Every position at or before it is acked."""

    acked: Mapping[int, BitMap]
    """Message ledger id -> entry ids acked above the mark-delete. Own copies; no empty bitmap."""

    range_count: int
    """Maximal runs in `acked`, counted per ledger."""

    unacked_indexes: Mapping[Position, int] = field(default_factory=dict)
    """Partly acked entries: bit i set = message i of the batch is not yet acked. Never 0."""

    properties: Mapping[str, int] = field(default_factory=dict)
    """Pulsar's mark-delete ("long") properties."""


@dataclass(frozen=True, slots=True)
class CursorGrowth:
    """What was acked between two versions."""

    base_version: int
    """The version that this builds on."""

    version: int
    """The version reached."""

    mark_delete: Position
    """The mark-delete at `version`."""

    acked: Mapping[int, BitMap]
    """Message ledger id -> entry ids newly acked and above `mark_delete`. No empty bitmap."""

    range_count: int
    """Ranges of the whole state at `version` (not of this growth)."""

    unacked_indexes: Mapping[Position, int] = field(default_factory=dict)
    """Partly acked entries whose set changed, with their whole set as it is now. An entry that
    became fully acked is in `acked` (or below the mark-delete) instead."""

    properties: Mapping[str, int] | None = None
    """The properties if they changed, else None."""


# ------------------------------------------------------------------------------ reading back
#
# Storage may be older or newer than the ledgers it speaks of: ledgers were trimmed, entries at the
# end were lost with an unconfirmed write. Acks that concern nothing are dropped, a mark-delete
# beyond the end is clamped; the report counts each of them. Nothing that exists and was not acked
# ever becomes acked here.


@dataclass(frozen=True, slots=True)
class WrittenCounts:
    """What a durable write holds of the ack state, and what it left out; the default: all was kept."""

    version: int
    """The version of the ack state that was written: it is durable now."""

    ranges_in_memory: int = 0
    """Ack ranges of the cursor when it was written."""

    ranges_persisted: int = 0
    """Fewer than in memory when the cap or the size guard cut the state; the lowest are kept."""

    entries_dropped: int = 0
    """Acked entries that would be delivered again after a crash now."""

    batch_indexes_in_memory: int = 0
    """Partly acked entries of the cursor."""

    batch_indexes_persisted: int = 0

    size_guard_hit: bool = False
    """Whether the metadata node's size limit cut the state, beyond what the caps did."""

    @property
    def ranges_dropped(self) -> int:
        """Ranges that exist in memory only."""
        return self.ranges_in_memory - self.ranges_persisted

    @property
    def batch_indexes_dropped(self) -> int:
        """Partly acked entries that are so in memory only."""
        return self.batch_indexes_in_memory - self.batch_indexes_persisted

    @property
    def is_complete(self) -> bool:
        """Whether all acks that were in memory are durable."""
        return (
            self.ranges_dropped == 0
            and self.entries_dropped == 0
            and self.batch_indexes_dropped == 0
        )


@dataclass(frozen=True, slots=True)
class RecoveredStateReport:
    """What of a recovered snapshot could not be taken as it was; all zero: everything could."""

    mark_delete_was: Position | None = None
    """The recovered mark-delete, when it lay beyond the last entry and was clamped."""

    entries_below_mark_delete: int = 0
    """Acked entries at or below the mark-delete, dropped."""

    entries_beyond_end: int = 0
    """Acked entries after the last entry of their ledger; they were dropped."""

    entries_of_unknown_ledgers: int = 0
    """Acked entries of ledgers that do not exist (any more), dropped."""

    unknown_ledger_ids: tuple[int, ...] = ()
    """Ids of those ledgers, ascending."""

    batch_sets_dropped: int = 0
    """Partly acked entries that do not exist, are acked as a whole, or hold an impossible set."""

    @property
    def is_clean(self) -> bool:
        """Whether the snapshot was taken exactly as it was."""
        return self == RecoveredStateReport()


class FittedState(NamedTuple):
    """The part of a snapshot that fits, in copies of its own."""

    mark_delete: Position
    acked: Mapping[int, BitMap]
    unacked_indexes: Mapping[Position, int]
    report: RecoveredStateReport


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
