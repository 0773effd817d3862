"""One cursor's records, one after the other: the state that each of them leaves in storage.

Pure. The same fold as `persistence.recovery.fold`, forward and kept going: where recovery wants the
last state only, a history wants what lay between. A delta whose base is missing (its ledger is gone)
makes the state unknown until the next snapshot; the figures that a record carries are known anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.cursor.position import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap


@dataclass(frozen=True, slots=True)
class CursorRecordRow:
    """What a row of table `cursor_records` says, as far as a history needs it."""

    owner_epoch: int
    version: int
    base_version: int | None
    """None: a snapshot."""
    written_ms: int
    mark_delete: Position
    range_count: int
    ranges_in_memory: int
    entries_dropped: int
    record_bytes: int
    cursor_ledger_id: int | None = None
    """None: it lies in the metadata node."""
    entry_id: int | None = None
    partly_acked_count: int = 0
    acked: Mapping[int, BitMap] = field(default_factory=dict)

    @property
    def is_in_node(self) -> bool:
        """Whether the metadata node holds it."""
        return self.cursor_ledger_id is None

    @property
    def is_cut(self) -> bool:
        """Whether a limit left something out of it."""
        return self.range_count < self.ranges_in_memory or self.entries_dropped > 0

    @property
    def order(self) -> tuple[int, int, bool, int, int]:
        """Sorts records as they were written; the node last, which may hold less than the ledger."""
        ledger_id, entry_id = self.cursor_ledger_id or 0, self.entry_id or 0
        return (self.owner_epoch, self.version, self.is_in_node, ledger_id, entry_id)


class CursorFold:
    """The state after the records so far."""

    __slots__ = ("_stamp", "acked", "is_known", "mark_delete", "records_unlinked")

    acked: dict[int, BitMap]
    """Message ledger id -> entries acked above the mark-delete."""

    def __init__(self) -> None:
        self.acked = {}
        self.mark_delete = Position(-1, -1)
        self.is_known = False
        self.records_unlinked = 0
        """Deltas whose base was not there."""
        self._stamp = (-1, -1)

    def apply(self, row: CursorRecordRow) -> bool:
        """The next record, in their `order`. False: it says no more than what is known."""
        stamp = (row.owner_epoch, row.version)
        if row.base_version is None:
            if row.is_in_node and self.is_known and stamp == self._stamp:
                return False
            self.acked = {ledger_id: bitmap.copy() for ledger_id, bitmap in row.acked.items()}
            self.is_known = True
        elif self.is_known and (row.owner_epoch, row.base_version) == self._stamp:
            self._grow(row)
        else:
            self.records_unlinked += 1
            self.is_known = False
            self.acked = {}
        self.mark_delete, self._stamp = row.mark_delete, stamp
        return True

    def _grow(self, row: CursorRecordRow) -> None:
        for ledger_id, bitmap in row.acked.items():
            if ledger_id in self.acked:
                self.acked[ledger_id] |= bitmap
            else:
                self.acked[ledger_id] = bitmap.copy()
        if row.mark_delete == self.mark_delete:
            return
        md_ledger_id, md_entry_id = row.mark_delete
        for ledger_id in [known for known in self.acked if known < md_ledger_id]:
            del self.acked[ledger_id]
        partly = self.acked.get(md_ledger_id)
        if partly is not None:
            partly.remove_range(0, md_entry_id + 1)
            if not partly:
                del self.acked[md_ledger_id]
