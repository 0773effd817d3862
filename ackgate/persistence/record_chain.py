"""Which record may follow in a cursor ledger: what it holds, as far as that decides.

Pure. A cursor ledger begins with a snapshot and carries deltas behind it; every so often another
snapshot. What may be appended next follows from what was appended last:

    snapshot  delta delta ... delta  snapshot  delta ...      so many deltas and bytes at most,
    |<--- at most N deltas, B bytes --->|                     each on top of the record before

An append that has begun and not ended leaves a tail that nobody knows: nothing links up with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.persistence.chunks import CHUNK_OVERHEAD_BYTES, cut
from ackgate.persistence.records import DeltaRecord

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.records import CursorRecord


class RecordChain:
    """The records of one cursor ledger, counted."""

    __slots__ = (
        "_base_version",
        "_delta_bytes",
        "_delta_entries",
        "_deltas",
        "_opened_at",
        "entry_count",
    )

    entry_count: int
    """Entries appended so far."""

    def __init__(self, *, opened_at: float) -> None:
        """An empty ledger, made at this time (in seconds of any clock)."""
        self._opened_at = opened_at
        self._deltas = 0
        self._delta_entries = 0
        self._delta_bytes = 0
        self._base_version: int | None = None
        self.entry_count = 0

    def takes_deltas(self, settings: PersistenceSettings) -> bool:
        """Whether a delta may follow what is there; cheap, before one is made."""
        return (
            self._base_version is not None
            and self._deltas < settings.cursor_deltas_per_snapshot_max
        )

    def takes_delta(self, base_version: int, encoded: bytes, settings: PersistenceSettings) -> bool:
        """Whether this delta links up with the last record and stays within the bounds."""
        entries = 1 + len(encoded) // (settings.cursor_record_chunk_bytes - CHUNK_OVERHEAD_BYTES)
        return (
            base_version == self._base_version
            and self._delta_bytes + len(encoded) <= settings.cursor_delta_bytes_per_snapshot_max
            # Recovery must meet the snapshot within its scan, whatever the other bounds say.
            and self._delta_entries + entries < settings.cursor_recovery_scan_entries_max
        )

    def is_full(self, settings: PersistenceSettings, *, now: float) -> bool:
        """Whether the next record should begin a new ledger."""
        return self.entry_count >= settings.managed_ledger_cursor_max_entries_per_ledger or (
            self.is_old(settings, now=now)
        )

    def is_old(self, settings: PersistenceSettings, *, now: float) -> bool:
        """Whether the ledger has reached the age at which it is replaced."""
        return now - self._opened_at >= settings.managed_ledger_cursor_rollover_time_in_seconds

    def begin(
        self, record: CursorRecord, encoded: bytes, settings: PersistenceSettings
    ) -> list[bytes]:
        """The entries to append for a record. Until `appended` is told, nothing links up."""
        self._base_version = None
        return cut(encoded, record.stamp, settings.cursor_record_chunk_bytes)

    def appended(self, record: CursorRecord, encoded: bytes, *, entry_count: int) -> None:
        """The record is durable, in so many entries."""
        version = record.stamp.version
        self.entry_count += entry_count
        if isinstance(record, DeltaRecord):
            self._base_version = version
            self._deltas += 1
            self._delta_entries += entry_count
            self._delta_bytes += len(encoded)
        else:
            # On top of a snapshot that was cut, a delta would make a state that never was.
            self._base_version = version if record.is_complete else None
            self._deltas = self._delta_entries = self._delta_bytes = 0
