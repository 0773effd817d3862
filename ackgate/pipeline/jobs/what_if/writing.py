"""The records of one cursor, formed again: by the broker's own planner, chain and codec.

Pure. Where a write goes and when is up to whoever calls (`recorded_moments`, `paced_moments`); what it
holds, and whether a ledger is begun for it, comes out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.config.field import INT_MAX
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.records.forming import NackWrites, RecordChain, RecordForming
from ackgate.persistence.records.limits import packing
from ackgate.persistence.records.outcome import PersistWhere

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import ManagedCursor
    from ackgate.persistence.records.envelope import Packing
    from ackgate.persistence.records.forming import FormedRecord
    from ackgate.persistence.records.planner import PersistPlan

FIRST_LEDGER_ID: Final = 1
"""A cursor ledger of which nobody knows the number has this one: it decides a byte or two."""


class ReplayedNode:
    """The cursor's node, but for the properties that users gave it."""

    __slots__ = ("bytes_max", "owner_epoch")

    def __init__(self, owner_epoch: int) -> None:
        self.owner_epoch = owner_epoch
        self.bytes_max = INT_MAX

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        """The node's value."""
        return encode_cursor_node(
            CursorNode(self.owner_epoch, cursor_ledger_id, state, {}), packing
        )


class WrittenRecords(NamedTuple):
    """What one write held, and what it took."""

    plan: PersistPlan
    where: PersistWhere
    ledger_bytes: int
    node_bytes: int
    is_ledger_begun: bool


class CursorWrites:
    """The writes of one cursor, from its opening on."""

    __slots__ = ("_chain", "_forming", "_settings", "cursor", "ledger_id")

    def __init__(
        self, cursor: ManagedCursor, settings: PersistenceSettings, *, owner_epoch: int
    ) -> None:
        self.cursor = cursor
        self._settings = settings
        self._forming = RecordForming(cursor, NackWrites(0), ReplayedNode(owner_epoch), settings)
        self._chain: RecordChain | None = None
        self.ledger_id = FIRST_LEDGER_ID
        """Of the next ledger that is begun."""

    def configure(self, settings: PersistenceSettings) -> None:
        """Holds from the next write on."""
        self._settings = self._forming.settings = settings

    @property
    def has_ledger(self) -> bool:
        """Whether a cursor ledger is open."""
        return self._chain is not None

    def is_ledger_full(self, now: float) -> bool:
        """Whether the next record should begin another one."""
        chain = self._chain
        return chain is not None and (
            chain.is_full(self._settings, now=now) or chain.is_from_before(self.cursor.grown_since)
        )

    def lose_ledger(self) -> None:
        """An append failed: the next record begins another ledger."""
        self._chain = None

    def to_ledger(self, now: float, now_ms: int, *, begins: bool | None = None) -> WrittenRecords:
        """The present state, into the open ledger, or a new one where that is due.

        `begins` None: as the ledger is full or not; else it is said.
        """
        chain = self._chain
        if chain is None or (self.is_ledger_full(now) if begins is None else begins):
            return self._begin_ledger(now, now_ms)
        formed = self._forming.next_record(chain, now=now, now_ms=now_ms)
        written = self._append(chain, formed)
        return WrittenRecords(formed.plan, PersistWhere.LEDGER, written, 0, is_ledger_begun=False)

    def fail_to_roll(self, now_ms: int) -> None:
        """A new ledger was to be begun and could not be: the state was taken for it."""
        self._forming.first_record(now_ms)

    def to_node(self, now_ms: int) -> WrittenRecords:
        """The present state, cut to what fits into the node. Raises `NodeTooLargeError`."""
        return self._put(self._forming.for_node(now_ms))

    def to_node_if_it_fits(self, now_ms: int) -> WrittenRecords | None:
        """All of it, or nothing."""
        formed = self._forming.whole_for_node(now_ms)
        return None if formed is None else self._put(formed)

    def _begin_ledger(self, now: float, now_ms: int) -> WrittenRecords:
        first = self._forming.first_record(now_ms)
        self._chain = chain = RecordChain(opened_at=now)
        written = self._append(chain, first.formed)
        state = self._forming.inline_state(first, self.ledger_id)
        node_bytes = self._node_bytes(self.ledger_id, state)
        plan = first.formed.plan
        return WrittenRecords(plan, PersistWhere.LEDGER, written, node_bytes, is_ledger_begun=True)

    def _append(self, chain: RecordChain, formed: FormedRecord) -> int:
        record = formed.plan.record
        entries = chain.begin(record, formed.encoded, self._settings)
        chain.appended(record, formed.encoded, entry_count=len(entries))
        return sum(map(len, entries))

    def _put(self, formed: FormedRecord) -> WrittenRecords:
        self._chain = None
        node_bytes = self._node_bytes(None, formed.encoded)
        return WrittenRecords(
            formed.plan, PersistWhere.METADATA_STORE, 0, node_bytes, is_ledger_begun=False
        )

    def _node_bytes(self, ledger_id: int | None, state: bytes | None) -> int:
        value = self._forming.node.encode(
            cursor_ledger_id=ledger_id, state=state, packing=packing(self._settings)
        )
        return len(value)
