"""What the next write of a cursor holds, as bytes: its present state, planned and encoded.

Pure: the state is asked for, times are arguments. Which ledger and which node, in what order, and what
is done after a failure, is up to `CursorPersister`; the pipeline's ``what-if`` forms the records of
recorded traffic by the same code.

    ledger open    next_record     a delta where one may follow, else a snapshot
    none, or full  first_record    a snapshot; and into the node what of it fits (`inline_state`)
    no ledger      for_node        a snapshot, cut to what fits into the node
    closing        whole_for_node  the same, if nothing must be left out
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ackgate.errors import NodeTooLargeError
from ackgate.persistence.codec import encode_record
from ackgate.persistence.limits import ledger_limits, node_limits, packing
from ackgate.persistence.planner import PersistPlan, plan_delta, plan_node, plan_snapshot

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.managed_cursor import ManagedCursor
    from ackgate.cursor.pending_nacks import NackImage
    from ackgate.cursor.snapshot import CursorSnapshot
    from ackgate.persistence.envelope import Packing
    from ackgate.persistence.nack_writes import NackWrites
    from ackgate.persistence.record_chain import RecordChain
    from ackgate.persistence.records import SnapshotRecord


class NodeShape(Protocol):
    """The cursor's node, as far as it decides what fits into it."""

    @property
    def owner_epoch(self) -> int:
        """Ours."""
        ...

    @property
    def bytes_max(self) -> int:
        """The store's own size guard."""
        ...

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        """The node's value with this content."""
        ...


class FormedRecord(NamedTuple):
    """A record ready to be written."""

    plan: PersistPlan
    encoded: bytes


class FirstRecord(NamedTuple):
    """The record that begins a ledger, and the state that it was formed of."""

    formed: FormedRecord
    snapshot: CursorSnapshot
    nacks: NackImage | None
    now_ms: int


class RecordForming:
    """Forms the records of one cursor."""

    __slots__ = ("cursor", "nacks", "node", "settings")

    def __init__(
        self,
        cursor: ManagedCursor,
        nacks: NackWrites,
        node: NodeShape,
        settings: PersistenceSettings,
    ) -> None:
        self.cursor = cursor
        self.nacks = nacks
        self.node = node
        self.settings = settings

    # ------------------------------------------------------------------ for a ledger

    def next_record(self, chain: RecordChain, *, now: float, now_ms: int) -> FormedRecord:
        """A delta where one may follow in this ledger, else a snapshot."""
        if chain.takes_deltas(self.settings):
            growth = self.cursor.take_growth()
            if growth is not None:
                plan = plan_delta(
                    growth,
                    partly_acked_count=self.cursor.partly_acked_count,
                    limits=ledger_limits(self.settings),
                    owner_epoch=self.node.owner_epoch,
                    now_ms=now_ms,
                    nacks=self.nacks.if_due(now),
                )
                if plan is not None:
                    formed = self._form(plan)
                    if chain.takes_delta(growth.base_version, formed.encoded, self.settings):
                        return formed
        return self.first_record(now_ms).formed

    def first_record(self, now_ms: int) -> FirstRecord:
        """The whole state, cut to the caps."""
        snapshot, nacks = self.cursor.take_snapshot(), self.nacks.image()
        plan = plan_snapshot(
            snapshot,
            limits=ledger_limits(self.settings),
            owner_epoch=self.node.owner_epoch,
            now_ms=now_ms,
            nacks=nacks,
        )
        return FirstRecord(self._form(plan), snapshot, nacks, now_ms)

    def inline_state(self, first: FirstRecord, ledger_id: int) -> bytes | None:
        """What of that state goes into a node that points at its ledger; None: nothing fits."""
        limits = node_limits(self.settings)
        snapshot, encoded = first.snapshot, first.formed.encoded
        whole_fits = (
            snapshot.range_count <= limits.ranges_max
            and len(snapshot.unacked_indexes) <= limits.batch_indexes_max
            and self._node_bytes(encoded, ledger_id) <= self._node_bytes_max()
        )
        if whole_fits:
            return encoded
        try:
            return self._for_node(snapshot, first.nacks, ledger_id, first.now_ms).encoded
        except NodeTooLargeError:
            return None

    # -------------------------------------------------------------------- for the node

    def for_node(self, now_ms: int) -> FormedRecord:
        """The state, cut to what fits into a node that names no ledger.

        Raises `NodeTooLargeError` when not even the mark-delete fits.
        """
        return self._for_node(self.cursor.take_snapshot(), self.nacks.image(), None, now_ms)

    def whole_for_node(self, now_ms: int) -> FormedRecord | None:
        """The whole state for a node that names no ledger; None when it is too large for that."""
        limits = node_limits(self.settings)
        if (
            self.cursor.range_count > limits.ranges_max
            or self.cursor.partly_acked_count > limits.batch_indexes_max
        ):
            return None
        nacks = self.nacks.image()
        try:
            formed = self._for_node(self.cursor.take_snapshot(), nacks, None, now_ms)
        except NodeTooLargeError:
            return None
        return formed if formed.plan.is_complete and formed.plan.nacks is nacks else None

    def _for_node(
        self,
        snapshot: CursorSnapshot,
        nacks: NackImage | None,
        ledger_id: int | None,
        now_ms: int,
    ) -> FormedRecord:
        packed = packing(self.settings)
        tried: list[tuple[SnapshotRecord, bytes]] = []

        def encoded_bytes(record: SnapshotRecord) -> int:
            encoded = encode_record(record, packed)
            tried.append((record, encoded))
            return self._node_bytes(encoded, ledger_id)

        plan = plan_node(
            snapshot,
            limits=node_limits(self.settings),
            owner_epoch=self.node.owner_epoch,
            now_ms=now_ms,
            bytes_max=self._node_bytes_max(),
            encoded_bytes=encoded_bytes,
            nacks=nacks,
        )
        encoded = next(encoded for record, encoded in tried if record is plan.record)
        return FormedRecord(plan, encoded)

    def _node_bytes(self, state: bytes, ledger_id: int | None) -> int:
        value = self.node.encode(
            cursor_ledger_id=ledger_id, state=state, packing=packing(self.settings)
        )
        return len(value)

    def _node_bytes_max(self) -> int:
        return min(self.settings.metadata_store_max_node_bytes, self.node.bytes_max)

    def _form(self, plan: PersistPlan) -> FormedRecord:
        return FormedRecord(plan, encode_record(plan.record, packing(self.settings)))
