"""Opening a cursor: read, recover, validate, claim.

Edge. Nothing is written before the recovery has succeeded, except what fencing the old ledger
writes.

    read the node -> open its ledger with fencing -> newest state -> fit it to the message ledgers
         ^                                                                     |
         |              somebody wrote the node meanwhile                      v
         +--------------------------------------------------- claim: put our epoch into the node

The claim is what shuts out an owner that still lives. Its ledger is fenced, but it could fall back
to the node; after the claim its compare-and-set fails, and anything that it put before the claim is
seen by our own compare-and-set and recovered anew. A claim whose answer is lost is made again, and
so is one for an epoch that the node has already: a put of ours may be on its way from an earlier
opening that failed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ackgate.cursor.managed_cursor import ManagedCursor
from ackgate.cursor.pending_nacks import NO_NACKS, PendingNacks, existing, unacked
from ackgate.errors import (
    MetadataConflictError,
    MetadataStoreError,
    NoSuchNodeError,
    OutcomeUnknownError,
    OwnershipError,
)
from ackgate.persistence.codec import encode_record
from ackgate.persistence.cursor_ledger import ledger_password
from ackgate.persistence.cursor_node import CursorNode, encode_cursor_node
from ackgate.persistence.limits import PersistLimits, packing
from ackgate.persistence.loading import ReadNode, read_node, read_stored
from ackgate.persistence.outcome import RecoveryReport, RecoverySource
from ackgate.persistence.owned_node import OwnedNode
from ackgate.persistence.planner import plan_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position
    from ackgate.persistence.ports import LedgerClient, MetadataStore

ATTEMPTS_MAX: Final = 5
"""Recoveries in a row, each because the node was written during the one before, or did not answer."""


@dataclass(frozen=True, slots=True)
class OpenedCursor:
    """A cursor that is ours."""

    cursor: ManagedCursor
    node: OwnedNode
    report: RecoveryReport
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
        for _ in range(ATTEMPTS_MAX):
            try:
                found = await read_node(self.metadata, self.path)
                if found is not None:
                    return await self._recover(found)
                if self.create_at is None:
                    raise NoSuchNodeError(f"there is no cursor {self.path}")
                return await self._create(self.create_at)
            except (MetadataConflictError, OutcomeUnknownError):
                continue
        raise MetadataStoreError(
            f"cursor {self.path} is being written by somebody else, or does not answer"
        )

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
        return self._opened(cursor, node, version, report, cursor.version, NO_NACKS)

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
            partial(self.ledger_client.open, password=ledger_password(self.settings)),
            scan_entries_max=self.settings.cursor_recovery_scan_entries_max,
        )
        snapshot = stored.state.record.snapshot
        cursor, dropped = ManagedCursor.from_snapshot(
            self.ledgers, snapshot, batch_index_acks=self.batch_index_acks
        )
        stored_nacks = stored.state.record.nacks
        fitted = cursor.snapshot() if stored_nacks else snapshot
        nacks = unacked(existing(stored_nacks, self.ledgers), fitted.mark_delete, fitted.acked)
        node = replace(node, owner_epoch=self.owner_epoch)
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
        )
        return self._opened(cursor, node, version, report, snapshot.version, nacks)

    def _opened(
        self,
        cursor: ManagedCursor,
        node: CursorNode,
        version: int,
        report: RecoveryReport,
        durable_version: int,
        nacks: PendingNacks,
    ) -> OpenedCursor:
        owned = OwnedNode(self.metadata, self.path, node, version=version)
        return OpenedCursor(cursor, owned, report, durable_version, nacks)

    async def _put(self, node: CursorNode, *, expected_version: int) -> int:
        value = encode_cursor_node(node, packing(self.settings))
        return await self.metadata.put(self.path, value, expected_version=expected_version)
