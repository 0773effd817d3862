"""Opening a cursor: read, recover, validate, claim.

Edge. Nothing is written before the recovery has succeeded, except what fencing the old ledger
writes.

    read the node -> open its ledger with fencing -> newest state -> fit it to the message ledgers
         ^                                                                     |
         |              another writer changed the node                        v
         +--------------------------------------------------- claim: put our epoch into the node

The claim shuts out an owner that still lives. Its ledger is fenced, but it could fall back to the
node. After the claim its compare-and-set fails; a put before the claim fails our own compare-and-set,
and we recover again. A claim whose answer is lost is repeated, and so is one for an epoch that the
node has already: a put of ours may be on its way from an earlier opening that failed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import NO_NACKS, ManagedCursor, PendingNacks, existing_nacks, unacked_nacks
from ackgate.errors import (
    NoSuchNodeError,
    OwnershipError,
)
from ackgate.persistence.cursors.loading import ReadNode, read_node, read_stored
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.limits import PersistLimits, packing
from ackgate.persistence.records.outcome import (
    PersistOutcome,
    PersistWhere,
    RecoveryReport,
    RecoverySource,
)
from ackgate.persistence.records.planner import plan_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import MessageLedgers, Position
    from ackgate.persistence.ports import LedgerClient, MetadataStore
    from ackgate.persistence.records.values import CursorRecord

ATTEMPTS_MAX: Final = 5
"""Recoveries in a row, each because the node was written during the one before, or did not answer."""


class OpenedCursor(NamedTuple):
    """A cursor that is ours."""

    path: str
    cursor: ManagedCursor
    node: CursorNode
    """The node, as this opening wrote it."""
    node_version: int
    report: RecoveryReport
    outcome: PersistOutcome
    """How the recovered state is stored."""
    durable_version: int
    nacks: PendingNacks
    """Entries that are still held back."""


@dataclass(frozen=True, slots=True)
class CursorOpening:
    """Everything that opening one cursor needs to know."""

    path: str
    ledgers: MessageLedgers
    ledger_client: LedgerClient
    metadata: MetadataStore
    settings: PersistenceSettings
    batch_index_acks: bool
    owner_epoch: int
    clock_ms: Callable[[], int]
    create_at: Position | None
    cursor_properties: Mapping[str, str]

    async def open(self) -> OpenedCursor:
        """Recover the cursor, or make it if `create_at` says where.

        Raises `NoSuchNodeError`, `OwnershipError` (a later owner has it), `StorageError` (nothing
        was changed; try again), `CorruptRecordError` (the node itself cannot be read).
        """
        return await until_won(self._open, of=f"cursor {self.path}", attempts_max=ATTEMPTS_MAX)

    async def _open(self) -> OpenedCursor:
        found = await read_node(self.metadata, self.path)
        if found is not None:
            return await self._recover(found)
        if self.create_at is None:
            raise NoSuchNodeError(f"there is no cursor {self.path}")
        return await self._create(self.create_at)

    async def _create(self, mark_delete: Position) -> OpenedCursor:
        began = asyncio.get_running_loop().time()
        cursor = ManagedCursor(self.ledgers, mark_delete, batch_index_acks=self.batch_index_acks)
        plan = plan_snapshot(
            cursor.snapshot(),
            limits=PersistLimits(0, 0),
            owner_epoch=self.owner_epoch,
            now_ms=self.clock_ms(),
        )
        node = CursorNode(
            owner_epoch=self.owner_epoch,
            cursor_ledger_id=None,
            state=encode_record(plan.record, packing(self.settings)),
            cursor_properties=dict(self.cursor_properties),
        )
        version = await self._put(node, expected_version=-1)
        report = RecoveryReport(
            source=RecoverySource.NEW,
            version=cursor.version,
            mark_delete=cursor.mark_delete,
            ranges=0,
            records_applied=0,
            cursor_ledger_id=None,
            torn_records=(),
            lost=None,
            dropped=None,
            duration_ms=(asyncio.get_running_loop().time() - began) * 1000,
        )
        return self._opened(cursor, node, version, report, plan.record, cursor.version, NO_NACKS)

    async def _recover(self, found: ReadNode) -> OpenedCursor:
        began = asyncio.get_running_loop().time()
        node, version = found
        if node.owner_epoch > self.owner_epoch:
            raise OwnershipError(
                f"cursor {self.path} belongs to the owner of epoch {node.owner_epoch}, "
                f"we are {self.owner_epoch}"
            )
        stored = await read_stored(
            self.path,
            node,
            partial(self.ledger_client.open, password=self.settings.ledger_password),
            scan_entries_max=self.settings.cursor_recovery_scan_entries_max,
        )
        snapshot = stored.state.record.snapshot
        cursor, dropped = ManagedCursor.from_snapshot(
            self.ledgers, snapshot, batch_index_acks=self.batch_index_acks
        )
        stored_nacks = stored.state.record.nacks
        fitted = cursor.snapshot() if stored_nacks else snapshot
        nacks = unacked_nacks(
            existing_nacks(stored_nacks, self.ledgers), fitted.mark_delete, fitted.acked
        )
        node = node._replace(owner_epoch=self.owner_epoch)
        version = await self._put(node, expected_version=version)
        report = RecoveryReport(
            source=stored.source,
            version=snapshot.version,
            mark_delete=cursor.mark_delete,
            ranges=cursor.range_count,
            records_applied=stored.state.records_applied,
            cursor_ledger_id=node.cursor_ledger_id,
            torn_records=stored.notes,
            lost=stored.lost,
            dropped=dropped,
            duration_ms=(asyncio.get_running_loop().time() - began) * 1000,
            nacks=nacks.entry_count,
            nacks_dropped=stored_nacks.entry_count - nacks.entry_count,
            damaged_records=stored.damaged_records,
            versions_lost=stored.versions_lost,
        )
        # What is left of a damaged ledger is worth another copy: it counts as not written yet.
        durable_version = snapshot.version - (stored.damaged_records > 0)
        record = stored.state.record
        return self._opened(cursor, node, version, report, record, durable_version, nacks)

    def _opened(
        self,
        cursor: ManagedCursor,
        node: CursorNode,
        version: int,
        report: RecoveryReport,
        record: CursorRecord,
        durable_version: int,
        nacks: PendingNacks,
    ) -> OpenedCursor:
        is_in_ledger = report.source is RecoverySource.LEDGER
        outcome = PersistOutcome(
            version=record.stamp.version,
            mark_delete=record.mark_delete,
            where=PersistWhere.LEDGER if is_in_ledger else PersistWhere.METADATA_STORE,
            is_delta=False,
            ranges_in_memory=cursor.range_count,
            ranges_persisted=cursor.range_count,
            entries_dropped=0,
            batch_indexes_in_memory=cursor.partly_acked_count,
            batch_indexes_persisted=cursor.partly_acked_count,
            size_guard_hit=False,
            bytes_written=0,
            at_ms=record.written_ms,
            duration_ms=0.0,
            written_ms=record.written_ms,
            cursor_ledger_id=node.cursor_ledger_id,
        )
        return OpenedCursor(
            self.path, cursor, node, version, report, outcome, durable_version, nacks
        )

    async def _put(self, node: CursorNode, *, expected_version: int) -> int:
        value = encode_cursor_node(node, packing(self.settings))
        return await self.metadata.put(self.path, value, expected_version=expected_version)
