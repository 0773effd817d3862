"""Rows of the table `cursor_records`, and the records that they describe.

Pure. A history folds these records as recovery does (`persistence.records.recovery.RecordFold`). If
a record is missing (its ledger is deleted, or it is damaged), the ack state is unknown until the
next snapshot. The figures in the records after it are still known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.cursor import CursorGrowth, CursorSnapshot
from ackgate.persistence.records.values import CursorRecord, DeltaRecord, SnapshotRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap

    from ackgate.cursor import Position


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
