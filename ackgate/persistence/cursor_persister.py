"""One write of a cursor's state: to its ledger, or to its metadata node.

Edge: the ledger and the node of one cursor. It decides *what* a write holds and in which order the
stores are changed; *when* to write, and where after a failure, is up to `CursorStore`. Called by
one task at a time.

A new ledger is begun in this order, so that at every moment the node names something recoverable:

    1. create the ledger          crash after it: an orphan, found at the next start
    2. snapshot into it, durable  the same
    3. node: point at it, by compare-and-set, with the state inline as far as it fits
    4. the state is durable now; the old ledger may be deleted

If step 3 fails without an answer, the node may name either ledger. Nothing counts as durable then
until the node has been read again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import NodeTooLargeError, StorageError
from ackgate.persistence.codec import encode_record
from ackgate.persistence.cursor_ledger import CursorLedger, delete_ledger
from ackgate.persistence.limits import ledger_limits, node_limits, packing
from ackgate.persistence.nack_writes import NackWrites
from ackgate.persistence.outcome import PersistOutcome, PersistWhere
from ackgate.persistence.planner import (
    PersistPlan,
    plan_delta,
    plan_node,
    plan_snapshot,
)
from ackgate.persistence.ports import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.managed_cursor import ManagedCursor
    from ackgate.cursor.pending_nacks import NackImage
    from ackgate.cursor.snapshot import CursorSnapshot
    from ackgate.persistence.owned_node import OwnedNode
    from ackgate.persistence.ports import LedgerClient
    from ackgate.persistence.records import SnapshotRecord

GARBAGE_MAX: Final = 64
"""Ledgers remembered for deletion; beyond it the oldest are left to the search for orphans."""

ROLL_RETRY_SECONDS: Final = 10.0
"""A full ledger that cannot be replaced goes on being written; how often to try again."""

SWEEP_RETRY_SECONDS: Final = 10.0
"""How long a ledger that could not be deleted is left alone."""


class _Formed(NamedTuple):
    """A record ready to be written."""

    plan: PersistPlan
    encoded: bytes


class CursorPersister:
    """Writes one cursor's state."""

    __slots__ = (
        "_candidate",
        "_client",
        "_clock_ms",
        "_garbage",
        "_ledger",
        "_named",
        "_retired",
        "_roll_at",
        "_settings",
        "_sweep_at",
        "cursor",
        "nacks",
        "node",
    )

    def __init__(
        self,
        cursor: ManagedCursor,
        node: OwnedNode,
        client: LedgerClient,
        settings: PersistenceSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self.cursor = cursor
        self.node = node
        self.nacks = NackWrites(settings.pending_nacks_max_bytes_to_persist)
        self._client = client
        self._settings = settings
        self._clock_ms = clock_ms
        self._ledger: CursorLedger | None = None
        self._candidate: CursorLedger | None = None
        """A new ledger that the node may or may not name by now."""
        self._named = node.cursor_ledger_id
        """The ledger that the node surely named when that was last known."""
        self._retired: list[CursorLedger] = []
        """Not written any more, and still to be closed."""
        self._roll_at = 0.0
        self._sweep_at = 0.0
        self._garbage: tuple[int, ...] = ()

    def configure(self, settings: PersistenceSettings) -> None:
        """Holds from the next write on."""
        self._settings = settings
        self.nacks.bytes_max = settings.pending_nacks_max_bytes_to_persist

    @property
    def last_entry_id(self) -> int:
        """Last entry of the open ledger, -1 when none is open or it is empty."""
        return -1 if self._ledger is None else self._ledger.last_entry_id

    def is_ledger_old(self) -> bool:
        """Whether the open ledger has reached the age at which it is replaced."""
        ledger = self._ledger
        return ledger is not None and ledger.is_old(self._settings, now=_now())

    # ------------------------------------------------------------------ to the ledger

    async def to_ledger(self) -> PersistOutcome:
        """Make the present state durable in the cursor ledger; a new one where that is due.

        Raises `OwnershipError`, or another `AckGateError` when it could not be written.
        """
        began = _now()
        await self._settle_node()
        ledger = self._ledger
        if ledger is None:
            return await self._begin_ledger(began)
        if self._may_roll(ledger, began):
            try:
                return await self._begin_ledger(began)
            except StorageError:
                # The old ledger still works, and is full only by our own bounds. But if the node
                # may name the new one by now, writing to the old one would be writing to nowhere.
                if not self.node.is_certain:
                    raise
                self._roll_at = _now() + ROLL_RETRY_SECONDS
        formed = self._next_record(ledger, began)
        written = await self._append(ledger, formed)
        return self._outcome(formed.plan, PersistWhere.LEDGER, written, began)

    def _may_roll(self, ledger: CursorLedger, now: float) -> bool:
        """Not while the metadata store is out of touch: the ledger there is needs none of it."""
        return (
            now >= self._roll_at
            and ledger.is_full(self._settings, now=now)
            and self.node.session_state is SessionState.CONNECTED
        )

    async def _begin_ledger(self, began: float) -> PersistOutcome:
        snapshot, nacks = self.cursor.take_snapshot(), self.nacks.image()
        formed = self._form(self._ledger_plan(snapshot, nacks))
        ledger = await CursorLedger.create(self._client, self.node.path, self._settings, now=began)
        self._candidate = ledger
        try:
            written = await ledger.append(formed.plan.record, formed.encoded, self._settings)
            written += await self.node.put(
                cursor_ledger_id=ledger.ledger_id,
                state=self._inline_state(snapshot, nacks, formed, ledger.ledger_id),
                packing=packing(self._settings),
            )
        except BaseException:
            if self.node.is_certain:
                await self._settle_node()
            raise
        await self._settle_node()
        outcome = self._outcome(formed.plan, PersistWhere.LEDGER, written, began)
        return replace(outcome, is_ledger_begun=True)

    async def _settle_node(self) -> None:
        """Make sure what the node names, and hold exactly that ledger open."""
        await self.node.make_certain()
        named = self.node.cursor_ledger_id
        if self._named is not None and self._named != named:
            self._discard(self._named)
        self._named = named
        for ledger in (self._ledger, self._candidate):
            if ledger is not None and ledger.ledger_id != named:
                self._retired.append(ledger)
                self._discard(ledger.ledger_id)
        candidate, self._candidate = self._candidate, None
        if candidate is not None and candidate.ledger_id == named:
            self._ledger = candidate
        elif self._ledger is not None and self._ledger.ledger_id != named:
            self._ledger = None

    async def _append(self, ledger: CursorLedger, formed: _Formed) -> int:
        try:
            return await ledger.append(formed.plan.record, formed.encoded, self._settings)
        except BaseException:
            # The handle is not writable any more. The node goes on naming the ledger, which holds
            # the newest state that is surely durable.
            self._ledger = None
            self._retired.append(ledger)
            raise

    def _next_record(self, ledger: CursorLedger, now: float) -> _Formed:
        """A delta where one may follow, else a snapshot."""
        if ledger.takes_deltas(self._settings):
            growth = self.cursor.take_growth()
            if growth is not None:
                plan = plan_delta(
                    growth,
                    partly_acked_count=self.cursor.partly_acked_count,
                    limits=ledger_limits(self._settings),
                    owner_epoch=self.node.owner_epoch,
                    now_ms=self._clock_ms(),
                    nacks=self.nacks.if_due(now),
                )
                if plan is not None:
                    formed = self._form(plan)
                    if ledger.takes_delta(growth.base_version, formed.encoded, self._settings):
                        return formed
        return self._form(self._ledger_plan(self.cursor.take_snapshot(), self.nacks.image()))

    # -------------------------------------------------------------------- to the node

    async def to_node(self) -> PersistOutcome:
        """The fallback: the present state into the metadata node, cut to what fits there.

        Raises `OwnershipError`, or another `AckGateError` when it could not be written.
        """
        began = _now()
        snapshot = self.cursor.take_snapshot()
        formed = self._form_for_node(snapshot, self.nacks.image(), None)
        return await self._put_inline(formed, began)

    async def to_node_if_it_fits(self) -> PersistOutcome | None:
        """The whole state into the node, so that no ledger is needed; None when it is too large."""
        began = _now()
        limits = node_limits(self._settings)
        if (
            self.cursor.range_count > limits.ranges_max
            or self.cursor.partly_acked_count > limits.batch_indexes_max
        ):
            return None
        nacks = self.nacks.image()
        try:
            formed = self._form_for_node(self.cursor.take_snapshot(), nacks, None)
        except NodeTooLargeError:
            return None
        is_whole = formed.plan.is_complete and formed.plan.nacks is nacks
        return await self._put_inline(formed, began) if is_whole else None

    async def _put_inline(self, formed: _Formed, began: float) -> PersistOutcome:
        written = await self.node.put(
            cursor_ledger_id=None, state=formed.encoded, packing=packing(self._settings)
        )
        await self._settle_node()
        return self._outcome(formed.plan, PersistWhere.METADATA_STORE, written, began)

    def _inline_state(
        self,
        snapshot: CursorSnapshot,
        nacks: NackImage | None,
        formed: _Formed,
        ledger_id: int,
    ) -> bytes | None:
        """What of the state goes into a node that points at a ledger."""
        limits = node_limits(self._settings)
        whole_fits = (
            snapshot.range_count <= limits.ranges_max
            and len(snapshot.unacked_indexes) <= limits.batch_indexes_max
            and self._node_bytes(formed.encoded, ledger_id) <= self._node_bytes_max()
        )
        if whole_fits:
            return formed.encoded
        try:
            return self._form_for_node(snapshot, nacks, ledger_id).encoded
        except NodeTooLargeError:
            return None

    def _form_for_node(
        self, snapshot: CursorSnapshot, nacks: NackImage | None, ledger_id: int | None
    ) -> _Formed:
        packed = packing(self._settings)
        tried: list[tuple[SnapshotRecord, bytes]] = []

        def encoded_bytes(record: SnapshotRecord) -> int:
            encoded = encode_record(record, packed)
            tried.append((record, encoded))
            return self._node_bytes(encoded, ledger_id)

        plan = plan_node(
            snapshot,
            limits=node_limits(self._settings),
            owner_epoch=self.node.owner_epoch,
            now_ms=self._clock_ms(),
            bytes_max=self._node_bytes_max(),
            encoded_bytes=encoded_bytes,
            nacks=nacks,
        )
        return _Formed(plan, next(encoded for record, encoded in tried if record is plan.record))

    def _node_bytes(self, state: bytes, ledger_id: int | None) -> int:
        value = self.node.encode(
            cursor_ledger_id=ledger_id, state=state, packing=packing(self._settings)
        )
        return len(value)

    def _node_bytes_max(self) -> int:
        return min(self._settings.metadata_store_max_node_bytes, self.node.bytes_max)

    # -------------------------------------------------------------------------- the end

    @property
    def has_garbage(self) -> bool:
        """Whether `sweep` has something to do."""
        return bool(self._retired) or (bool(self._garbage) and _now() >= self._sweep_at)

    async def sweep(self) -> None:
        """Close and delete ledgers that are out of use. What fails is tried again later.

        May go on beside a write, which needs nothing of it.
        """
        while self._retired:
            await self._retired.pop().close()
        for ledger_id in self._garbage:
            if not self.node.is_certain or ledger_id == self.node.cursor_ledger_id:
                continue
            if await delete_ledger(self._client, ledger_id):
                self._garbage = tuple(each for each in self._garbage if each != ledger_id)
            else:
                self._sweep_at = _now() + SWEEP_RETRY_SECONDS

    async def close(self) -> None:
        """Close the ledger handles. Writes nothing."""
        ledgers = [self._ledger, self._candidate, *self._retired]
        self._ledger = self._candidate = None
        self._retired = []
        for ledger in ledgers:
            if ledger is not None:
                await ledger.close()

    async def delete(self) -> None:
        """Remove the node, then every ledger of the cursor. Raises `StorageError`."""
        if self._candidate is not None:
            self._discard(self._candidate.ledger_id)
        await self.close()
        await self.node.delete()
        for named in (self._named, self.node.cursor_ledger_id):
            if named is not None:
                self._discard(named)
        for ledger_id in self._garbage:
            await delete_ledger(self._client, ledger_id)
        self._garbage = ()

    def _discard(self, ledger_id: int) -> None:
        if ledger_id not in self._garbage:
            self._garbage = (*self._garbage, ledger_id)[-GARBAGE_MAX:]

    # ------------------------------------------------------------------------- settings

    def _ledger_plan(self, snapshot: CursorSnapshot, nacks: NackImage | None) -> PersistPlan:
        return plan_snapshot(
            snapshot,
            limits=ledger_limits(self._settings),
            owner_epoch=self.node.owner_epoch,
            now_ms=self._clock_ms(),
            nacks=nacks,
        )

    def _form(self, plan: PersistPlan) -> _Formed:
        return _Formed(plan, encode_record(plan.record, packing(self._settings)))

    def _outcome(
        self, plan: PersistPlan, where: PersistWhere, bytes_written: int, began: float
    ) -> PersistOutcome:
        now = _now()
        if plan.nacks is not None:
            self.nacks.wrote(plan.nacks, now)
        return plan.outcome(
            where=where,
            bytes_written=bytes_written,
            at_ms=self._clock_ms(),
            duration_ms=(now - began) * 1000,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
