"""A ledger client in memory that fails, holds back and corrupts on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ackgate.errors import (
    ClosedHandleError,
    DigestMismatchError,
    LedgerFencedError,
    LedgerWriteError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from ackgate.persistence import (
    AppendTicket,
    LedgerEntry,
    LedgerMetadata,
    LedgerOptions,
    LedgerState,
)


@dataclass
class StoredLedger:
    """What the bookies have of one ledger."""

    ledger_id: int
    options: LedgerOptions
    entries: list[bytes] = field(default_factory=list)
    state: LedgerState = LedgerState.OPEN
    bad: set[int] = field(default_factory=set)
    """Entries of which no copy can be read."""


class Faults:
    """What goes wrong. An error in a slot is raised by every such call until it is taken out."""

    def __init__(self) -> None:
        self.create: Exception | None = None
        self.append: Exception | None = None
        self.append_lands = False
        """Whether a failing append reaches the disk all the same."""
        self.open: Exception | None = None
        self.delete: Exception | None = None
        self.is_holding = False
        """Appends become durable only by `ScriptedLedgers.release`."""
        self.on_append: Callable[[], None] | None = None


class ScriptedLedgers:
    """Implements `LedgerClient`. `crash` leaves the stored ledgers and ends every handle."""

    def __init__(
        self, stored: dict[int, StoredLedger] | None = None, *, first_id: int = 100
    ) -> None:
        self.stored = {} if stored is None else stored
        self.faults = Faults()
        self.created: list[int] = []
        self.appends = 0
        self.held: list[Callable[[], None]] = []
        self._first_id = first_id

    async def create(self, options: LedgerOptions) -> Handle:
        await asyncio.sleep(0)
        if self.faults.create is not None:
            raise self.faults.create
        ledger_id = max(self.stored, default=self._first_id - 1) + 1
        ledger_id = max(ledger_id, max(self.created, default=0) + 1)
        self.stored[ledger_id] = StoredLedger(ledger_id, options)
        self.created.append(ledger_id)
        return Handle(self, self.stored[ledger_id], is_writer=True)

    async def open(self, ledger_id: int, *, password: bytes = b"") -> Handle:
        ledger = await self._find(ledger_id, password)
        ledger.state = LedgerState.CLOSED
        return Handle(self, ledger, is_writer=False)

    async def open_without_recovery(self, ledger_id: int, *, password: bytes = b"") -> Handle:
        return Handle(self, await self._find(ledger_id, password), is_writer=False)

    async def _find(self, ledger_id: int, password: bytes) -> StoredLedger:
        await asyncio.sleep(0)
        if self.faults.open is not None:
            raise self.faults.open
        ledger = self.stored.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        if ledger.options.password != password:
            raise DigestMismatchError(f"ledger {ledger_id}: wrong password")
        return ledger

    async def delete(self, ledger_id: int) -> None:
        await asyncio.sleep(0)
        if self.faults.delete is not None:
            raise self.faults.delete
        if self.stored.pop(ledger_id, None) is None:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        ledger = self.stored.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        options = ledger.options
        return LedgerMetadata(
            ledger_id=ledger_id,
            state=ledger.state,
            ensemble_size=options.ensemble_size,
            write_quorum=options.write_quorum,
            ack_quorum=options.ack_quorum,
            digest_type=options.digest_type,
            fragments=(),
            last_entry_id=len(ledger.entries) - 1,
            length_bytes=sum(map(len, ledger.entries)),
            created_ms=0,
            custom_metadata=options.custom_metadata,
        )

    async def ledger_ids(self) -> list[int]:
        return sorted(self.stored)

    async def close(self) -> None: ...

    def release(self) -> None:
        """Let the held appends become durable."""
        held, self.held = self.held, []
        for finish in held:
            finish()

    def crash(self) -> ScriptedLedgers:
        """A new client of the same ledgers; nothing held becomes durable."""
        self.faults.append = ClosedHandleError("the process is gone")
        return ScriptedLedgers(self.stored)


class Handle:
    """Implements `LedgerWriter`."""

    def __init__(self, client: ScriptedLedgers, ledger: StoredLedger, *, is_writer: bool) -> None:
        self._client = client
        self._ledger = ledger
        self._is_writer = is_writer
        self._failed: Exception | None = None

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return len(self._ledger.entries) - 1

    @property
    def length_bytes(self) -> int:
        return sum(map(len, self._ledger.entries))

    @property
    def has_room(self) -> bool:
        return True

    async def wait_for_room(self) -> None: ...

    async def add_entry(self, payload: bytes) -> int:
        ticket = self.append([payload])
        await ticket.durable
        return ticket.first_entry_id

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        await asyncio.sleep(0)
        if last_entry_id >= len(self._ledger.entries):
            raise NoSuchEntryError(f"entry {last_entry_id} of ledger {self.ledger_id}")
        for entry_id in range(first_entry_id, last_entry_id + 1):
            if entry_id in self._ledger.bad:
                raise DigestMismatchError(f"entry {entry_id} of ledger {self.ledger_id}")
        return [
            LedgerEntry(entry_id, self._ledger.entries[entry_id])
            for entry_id in range(first_entry_id, last_entry_id + 1)
        ]

    async def read_last_add_confirmed(self) -> int:
        return self.last_add_confirmed

    async def last_entry_found(self) -> int:
        return self.last_add_confirmed

    async def read_unconfirmed(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        return await self.read(first_entry_id, last_entry_id)

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        faults, ledger = self._client.faults, self._ledger
        assert self._is_writer
        if self._failed is not None:
            raise self._failed
        self._client.appends += 1
        if faults.on_append is not None:
            faults.on_append()
        first = len(ledger.entries)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def land() -> None:
            ledger.entries.extend(payloads)

        def finish() -> None:
            failure = faults.append
            if ledger.state is not LedgerState.OPEN:
                failure = LedgerFencedError(f"ledger {ledger.ledger_id} is fenced")
            elif failure is None or faults.append_lands:
                land()
            if failure is not None:
                self._failed = LedgerWriteError(f"ledger {ledger.ledger_id} has failed")
            if not durable.done():
                durable.set_result(None) if failure is None else durable.set_exception(failure)

        if faults.is_holding:
            self._client.held.append(finish)
        else:
            asyncio.get_running_loop().call_soon(finish)
        return AppendTicket(first, durable)

    async def release(self) -> None:
        self._failed = ClosedHandleError(f"ledger {self.ledger_id} is closed")

    async def close(self) -> None:
        await self.release()
        if self._is_writer and self._ledger.state is LedgerState.OPEN:
            self._ledger.state = LedgerState.CLOSED
