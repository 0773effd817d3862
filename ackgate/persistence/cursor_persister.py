"""One write of a cursor's state: to its ledger, or to its metadata node.

Edge: the ledger and the node of one cursor. It decides in which order the stores are changed; *what* a
write holds is up to `RecordForming`, *when* to write, and where after a failure, to `CursorStore`.
Called by one task at a time.

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
from typing import TYPE_CHECKING, Final

from ackgate.errors import StorageError
from ackgate.persistence.cursor_ledger import CursorLedger, delete_ledger
from ackgate.persistence.limits import packing
from ackgate.persistence.nack_writes import NackWrites
from ackgate.persistence.outcome import PersistOutcome, PersistWhere
from ackgate.persistence.ports import SessionState
from ackgate.persistence.record_forming import RecordForming

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.managed_cursor import ManagedCursor
    from ackgate.persistence.owned_node import OwnedNode
    from ackgate.persistence.planner import PersistPlan
    from ackgate.persistence.ports import LedgerClient
    from ackgate.persistence.record_forming import FormedRecord

GARBAGE_MAX: Final = 64
"""Ledgers remembered for deletion; beyond it the oldest are left to the search for orphans."""

ROLL_RETRY_SECONDS: Final = 10.0
"""A full ledger that cannot be replaced goes on being written; how often to try again."""

SWEEP_RETRY_SECONDS: Final = 10.0
"""How long a ledger that could not be deleted is left alone."""


class CursorPersister:
    """Writes one cursor's state."""

    __slots__ = (
        "_candidate",
        "_client",
        "_clock_ms",
        "_forming",
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
        self._forming = RecordForming(cursor, self.nacks, node, settings)
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
        self._settings = self._forming.settings = settings
        self.nacks.bytes_max = settings.pending_nacks_max_bytes_to_persist

    @property
    def last_entry_id(self) -> int:
        """Last entry of the open ledger, -1 when none is open or it is empty."""
        return -1 if self._ledger is None else self._ledger.last_entry_id

    def is_ledger_old(self) -> bool:
        """Whether the open ledger has reached the age at which it is replaced."""
        ledger = self._ledger
        return ledger is not None and ledger.chain.is_old(self._settings, now=_now())

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
        formed = self._forming.next_record(ledger.chain, now=began, now_ms=self._clock_ms())
        written = await self._append(ledger, formed)
        return self._outcome(formed.plan, PersistWhere.LEDGER, written, began)

    def _may_roll(self, ledger: CursorLedger, now: float) -> bool:
        """Not while the metadata store is out of touch: the ledger there is needs none of it."""
        return (
            now >= self._roll_at
            and ledger.chain.is_full(self._settings, now=now)
            and self.node.session_state is SessionState.CONNECTED
        )

    async def _begin_ledger(self, began: float) -> PersistOutcome:
        first = self._forming.first_record(self._clock_ms())
        formed = first.formed
        ledger = await CursorLedger.create(self._client, self.node.path, self._settings, now=began)
        self._candidate = ledger
        try:
            written = await ledger.append(formed.plan.record, formed.encoded, self._settings)
            node_bytes = await self.node.put(
                cursor_ledger_id=ledger.ledger_id,
                state=self._forming.inline_state(first, ledger.ledger_id),
                packing=packing(self._settings),
            )
        except BaseException:
            if self.node.is_certain:
                await self._settle_node()
            raise
        await self._settle_node()
        outcome = self._outcome(formed.plan, PersistWhere.LEDGER, written, began, node_bytes)
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

    async def _append(self, ledger: CursorLedger, formed: FormedRecord) -> int:
        try:
            return await ledger.append(formed.plan.record, formed.encoded, self._settings)
        except BaseException:
            # The handle is not writable any more. The node goes on naming the ledger, which holds
            # the newest state that is surely durable.
            self._ledger = None
            self._retired.append(ledger)
            raise

    # -------------------------------------------------------------------- to the node

    async def to_node(self) -> PersistOutcome:
        """The fallback: the present state into the metadata node, cut to what fits there.

        Raises `OwnershipError`, or another `AckGateError` when it could not be written.
        """
        began = _now()
        return await self._put_inline(self._forming.for_node(self._clock_ms()), began)

    async def to_node_if_it_fits(self) -> PersistOutcome | None:
        """The whole state into the node, so that no ledger is needed; None when it is too large."""
        began = _now()
        formed = self._forming.whole_for_node(self._clock_ms())
        return None if formed is None else await self._put_inline(formed, began)

    async def _put_inline(self, formed: FormedRecord, began: float) -> PersistOutcome:
        node_bytes = await self.node.put(
            cursor_ledger_id=None, state=formed.encoded, packing=packing(self._settings)
        )
        await self._settle_node()
        return self._outcome(formed.plan, PersistWhere.METADATA_STORE, 0, began, node_bytes)

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

    def _outcome(
        self,
        plan: PersistPlan,
        where: PersistWhere,
        ledger_bytes: int,
        began: float,
        node_bytes: int = 0,
    ) -> PersistOutcome:
        now, node = _now(), self.node
        if plan.nacks is not None:
            self.nacks.wrote(plan.nacks, now)
        outcome = plan.outcome(
            where=where,
            bytes_written=ledger_bytes + node_bytes,
            at_ms=self._clock_ms(),
            duration_ms=(now - began) * 1000,
        )
        return replace(
            outcome,
            cursor_ledger_id=node.cursor_ledger_id,
            node_bytes=node_bytes,
            properties_bytes=_text_bytes(node.cursor_properties) if node_bytes else 0,
        )


def _text_bytes(properties: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())


def _now() -> float:
    return asyncio.get_running_loop().time()
