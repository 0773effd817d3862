"""Reading what is stored of one cursor: its node, then its ledger from the tail.

Edge: reads only, and writes nothing; whether a ledger is fenced is up to the way it is opened, which
the caller passes in. `opening` fences. `read_cursor`, for tools, does not: a writer never notices, and
what is read may be a few milliseconds older than what the writer has. What may be retried
(`StorageError`) is raised; what is lost for good (no such ledger, nothing valid in it, wrong digests)
becomes part of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import unacked_nacks
from ackgate.errors import CorruptRecordError, NoSuchNodeError, UnknownFormatError
from ackgate.persistence.cursors.node import (
    CursorNode,
    decode_cursor_node,
    internal_properties,
    users_properties,
)
from ackgate.persistence.records.outcome import RecoverySource
from ackgate.persistence.records.recovery import ScannedTail, StoredState, TailScan, recover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ackgate.cursor import CursorSnapshot, PendingNacks
    from ackgate.persistence.ports import (
        LedgerClient,
        LedgerEntry,
        LedgerReader,
        MetadataStore,
        UnrecoveredReader,
    )

READ_BYTES: Final = 4 * 1024 * 1024
"""Target size of one read at the tail: bounds memory when entries are large, round trips when
small."""

READ_ENTRIES_MAX: Final = 512

SCAN_ENTRIES_MAX: Final = 10_000
"""How far back from a ledger's tail a tool looks, as recovery does by default."""

_ATTEMPTS_MAX: Final = 3


class ReadNode(NamedTuple):
    """A cursor's node as read."""

    node: CursorNode
    version: int


class LedgerTail(NamedTuple):
    """What was found in a cursor ledger."""

    found: ScannedTail | None
    """None: there is no ledger, or it cannot be opened."""
    lost: str | None = None
    """Why it cannot be opened."""


class StoredCursor(NamedTuple):
    """All that is stored of a cursor, and which part of it counts."""

    state: StoredState
    source: RecoverySource
    """Where its newest record lies."""
    notes: tuple[str, ...]
    lost: str | None
    """What was durable and is not there, in words; None: nothing."""
    damaged_records: int
    """Records of the ledger that cannot be read, whether or not others replace them."""
    versions_lost: int | None
    """Changes that are lost; None: some, of unknown number."""


async def read_node(metadata: MetadataStore, path: str) -> ReadNode | None:
    """The node, or None when there is no such cursor. Raises `CorruptRecordError`."""
    found = await metadata.get(path)
    if found is None:
        return None
    return ReadNode(decode_cursor_node(found.value, path=path), found.version)


async def read_stored(
    path: str,
    node: CursorNode,
    open_ledger: Callable[[int], Awaitable[LedgerReader]],
    *,
    scan_entries_max: int,
) -> StoredCursor:
    """The newest state of node and ledger: all that is intact of its descent.

    Raises `StorageError` (try again), `UnknownFormatError`, and `CorruptRecordError` when neither
    holds any state.
    """
    in_node = _state_of_node(path, node)
    tail = LedgerTail(None)
    if node.cursor_ledger_id is not None:
        tail = await _read_ledger(node.cursor_ledger_id, open_ledger, scan_entries_max)
    found = tail.found
    state, is_from_node, missing = recover(found, None if in_node is None else in_node.record)
    if state is None:
        why = tail.lost or f"cursor ledger {node.cursor_ledger_id} has no intact record"
        raise CorruptRecordError(f"cursor {path}: no state is left: {why}")
    lost = tail.lost
    if lost is None and not missing.is_nothing:
        version = state.record.stamp.version
        lost = f"of cursor ledger {node.cursor_ledger_id}: {missing.text(version)}"
    return StoredCursor(
        state=state,
        source=RecoverySource.METADATA_STORE if is_from_node else RecoverySource.LEDGER,
        notes=() if found is None else found.notes,
        lost=lost,
        damaged_records=0 if found is None else found.damaged_records,
        versions_lost=missing.versions if tail.lost is None else None,
    )


def _state_of_node(path: str, node: CursorNode) -> StoredState | None:
    try:
        return node.stored_state()
    except CorruptRecordError as error:
        raise type(error)(f"cursor node {path}: {error}") from error


async def _read_ledger(
    ledger_id: int, open_ledger: Callable[[int], Awaitable[LedgerReader]], entries_max: int
) -> LedgerTail:
    try:
        reader = await open_ledger(ledger_id)
    except CorruptRecordError as error:
        return LedgerTail(None, f"cursor ledger {ledger_id} cannot be opened: {error}")
    try:
        scan = TailScan()
        await _read_back(reader, scan, entries_max)
        return LedgerTail(scan.finish())
    except UnknownFormatError as error:
        raise UnknownFormatError(f"cursor ledger {ledger_id}, {error}") from error
    finally:
        await reader.close()


async def _read_back(reader: LedgerReader, scan: TailScan, entries_max: int) -> None:
    """Feed the scan from the last entry backwards until it has enough."""
    last = reader.last_add_confirmed
    entry_bytes = max(1, reader.length_bytes // (last + 1)) if last >= 0 else 1
    step = max(1, min(READ_ENTRIES_MAX, READ_BYTES // entry_bytes, entries_max))
    stop = max(-1, last - entries_max)
    # The bound says how far back a snapshot is looked for: writers see to it that there is one. A
    # record that was begun is read to its end; past damage every intact record is wanted.
    while last >= 0 and not scan.is_done and (last > stop or scan.is_joining or scan.is_damaged):
        first = max(0, last - step + 1)
        try:
            entries = await reader.read(first, last)
        except CorruptRecordError:
            await _read_one_by_one(reader, scan, first, last)
        else:
            scan.feed(reversed(entries))
        last = first - 1


async def _read_one_by_one(reader: LedgerReader, scan: TailScan, first: int, last: int) -> None:
    """Some entry of a range cannot be read: find the ones that can."""
    for entry_id in range(last, first - 1, -1):
        if scan.is_done:
            return
        try:
            entries = await reader.read(entry_id, entry_id)
        except CorruptRecordError as error:
            scan.skip(entry_id, error)
        else:
            scan.feed(entries)


# ------------------------------------------------------------------------------- for tools


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
