"""Reading what is stored of one cursor: its node, then its ledger from the tail.

Edge: reads only, and writes nothing; whether a ledger is fenced is up to the way it is opened,
which the caller passes in. What may be retried (`StorageError`) is raised; what is lost for good
(no such ledger, nothing valid in it, wrong digests) becomes part of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node
from ackgate.persistence.records.outcome import RecoverySource
from ackgate.persistence.records.recovery import ScannedTail, StoredState, TailScan, recover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence.ports import LedgerReader, MetadataStore

READ_BYTES: Final = 4 * 1024 * 1024
"""Target size of one read at the tail: bounds memory when entries are large, round trips when
small."""

READ_ENTRIES_MAX: Final = 512


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
