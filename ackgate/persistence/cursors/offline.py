"""The stored state of one cursor, for tools: beside a running broker, or long after it.

Edge: reads only. Nothing is fenced, claimed, closed or deleted, and a writer never notices. What is
read may be a few milliseconds older than what the writer has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.cursor import unacked_nacks
from ackgate.errors import CorruptRecordError, NoSuchNodeError
from ackgate.persistence.cursors.loading import read_node, read_stored
from ackgate.persistence.cursors.node import internal_properties, users_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor import CursorSnapshot, PendingNacks
    from ackgate.persistence.ports import (
        LedgerClient,
        LedgerEntry,
        LedgerReader,
        MetadataStore,
        UnrecoveredReader,
    )
    from ackgate.persistence.records.outcome import RecoverySource

SCAN_ENTRIES_MAX: Final = 10_000
"""How far back from a ledger's tail to look, as recovery does by default."""

_ATTEMPTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class StoredCursorView:
    """A cursor as storage has it, and how the last write kept it."""

    path: str
    owner_epoch: int
    cursor_ledger_id: int | None
    cursor_properties: Mapping[str, str]
    internal_properties: Mapping[str, str]
    source: RecoverySource
    """Which store holds the newer state."""
    snapshot: CursorSnapshot
    """What would be recovered, before it is fitted to the message ledgers."""
    written_ms: int
    """When the newest record was written."""
    records_applied: int
    ranges_in_memory: int
    """Ranges that the cursor had then; more than the snapshot has when a limit cut it."""
    entries_dropped: int
    batch_indexes_in_memory: int
    nacks: PendingNacks
    """Entries held back after a negative ack, less those acked since, as `snapshot`."""
    torn_records: tuple[str, ...]
    lost: str | None
    """What was durable and cannot be read, in words; None: nothing."""
    damaged_records: int
    versions_lost: int | None


class _AsRecoveryWould:
    """Reads a ledger up to the end that a recovery would find.

    The last entry of an open ledger is durable, but only the entry after it would confirm it; a
    cursor's newest record is just that entry.
    """

    def __init__(self, reader: UnrecoveredReader, last_entry_found: int) -> None:
        self._reader = reader
        self.ledger_id = reader.ledger_id
        self.last_add_confirmed = last_entry_found
        self.length_bytes = reader.length_bytes

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        return await self._reader.read_unconfirmed(first_entry_id, last_entry_id)

    async def read_last_add_confirmed(self) -> int:
        return self.last_add_confirmed

    async def close(self) -> None:
        await self._reader.close()


async def read_cursor(
    path: str,
    *,
    ledger_client: LedgerClient,
    metadata: MetadataStore,
    password: bytes = b"",
    scan_entries_max: int = SCAN_ENTRIES_MAX,
) -> StoredCursorView:
    """Read a cursor's state and change nothing.

    Raises `NoSuchNodeError`, `StorageError`, `CorruptRecordError` (no state is left).
    """

    async def open_beside(ledger_id: int) -> LedgerReader:
        reader = await ledger_client.open_without_recovery(ledger_id, password=password)
        return _AsRecoveryWould(reader, await reader.last_entry_found())

    for attempt in range(1, _ATTEMPTS_MAX + 1):
        found = await read_node(metadata, path)
        if found is None:
            raise NoSuchNodeError(f"there is no cursor {path}")
        node = found.node
        failure: CorruptRecordError | None = None
        try:
            stored = await read_stored(path, node, open_beside, scan_entries_max=scan_entries_max)
        except CorruptRecordError as error:
            failure = error
        # A writer may have replaced the ledger between our two looks; then look again.
        if (failure is None and stored.lost is None) or attempt == _ATTEMPTS_MAX:
            break
        again = await read_node(metadata, path)
        if again is not None and again.version == found.version:
            break
    if failure is not None:
        raise failure
    record = stored.state.record
    return StoredCursorView(
        path=path,
        owner_epoch=node.owner_epoch,
        cursor_ledger_id=node.cursor_ledger_id,
        cursor_properties=users_properties(node.cursor_properties),
        internal_properties=internal_properties(node.cursor_properties),
        source=stored.source,
        snapshot=record.snapshot,
        written_ms=record.written_ms,
        records_applied=stored.state.records_applied,
        ranges_in_memory=record.ranges_in_memory,
        entries_dropped=record.entries_dropped,
        batch_indexes_in_memory=record.batch_indexes_in_memory,
        nacks=unacked_nacks(record.nacks, record.mark_delete, record.snapshot.acked),
        torn_records=stored.notes,
        lost=stored.lost,
        damaged_records=stored.damaged_records,
        versions_lost=stored.versions_lost,
    )
