"""Ledgers that fail as a plan says: a wrapper over any `LedgerClient` and the handles it gives out.

With an empty plan it passes the conformance suite as the client below does. What each fault means
here:

====================  ==============================================================================
FAIL                  an append's ticket fails with `LedgerWriteError`, nothing is stored, and the
                      handle takes no more adds; other calls raise a `StorageError`
DELAY, LATE_ANSWER    an append is stored at once and its ticket waits; so do those behind it, since
                      tickets of one ledger are answered in order
DROP_ANSWER           the same errors, though all is stored, made, fenced, deleted
REPEAT                create: another ledger besides, which nobody knows; delete: the answer is that
                      of the second request; an append twice is one, by its ids
CORRUPT               an entry of those read has no good copy from now on: `DigestMismatchError`
====================  ==============================================================================

Ledgers know no session of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ackgate.errors import (
    AckGateError,
    DigestMismatchError,
    LedgerWriteError,
    NotEnoughBookiesError,
    StorageError,
)
from ackgate.persistence.ports import AppendTicket
from ackgate.persistence.system.futures import fail_quietly, resolve
from tests.support.faults import Fault, FaultPlan, Injected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ackgate.persistence.ports import (
        LedgerClient,
        LedgerEntry,
        LedgerMetadata,
        LedgerOptions,
        LedgerReader,
        LedgerWriter,
        UnrecoveredReader,
    )

T = TypeVar("T")

_OF_CALLS: Final = frozenset({Fault.FAIL, Fault.DELAY, Fault.LATE_ANSWER, Fault.DROP_ANSWER})
_OF_READS: Final = _OF_CALLS | {Fault.CORRUPT}
_OF_WRITES: Final = _OF_CALLS | {Fault.REPEAT}


class _Faults:
    """What a client and all its handles share."""

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self.bad: dict[int, set[int]] = {}
        """Ledger to entries of which no good copy is left."""

    async def call(
        self,
        operation: str,
        subject: object,
        work: Callable[[], Awaitable[T]],
        *,
        usual: Callable[[str], AckGateError] = StorageError,
        again: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        """Make a call, or let go wrong what the plan says."""
        possible = _OF_CALLS if again is None else _OF_WRITES
        chosen = self.plan.next_fault(f"ledger.{operation}", str(subject), possible)
        if chosen is None:
            return await work()
        if chosen.fault in {Fault.FAIL, Fault.DELAY} and chosen.seconds:
            await asyncio.sleep(chosen.seconds)
        if chosen.fault is Fault.FAIL:
            raise chosen.failure(usual)
        answer = await work()
        if chosen.fault is Fault.REPEAT and again is not None:
            await again()
        if chosen.fault in {Fault.LATE_ANSWER, Fault.DROP_ANSWER} and chosen.seconds:
            await asyncio.sleep(chosen.seconds)
        if chosen.fault is Fault.DROP_ANSWER:
            raise chosen.failure(usual)
        return answer

    async def read(
        self,
        operation: str,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        work: Callable[[int, int], Awaitable[list[LedgerEntry]]],
    ) -> list[LedgerEntry]:
        """Read entries, of which some may be bad."""
        chosen = self.plan.next_fault(f"ledger.{operation}", str(ledger_id), _OF_READS)
        if chosen is not None:
            if chosen.seconds:
                await asyncio.sleep(chosen.seconds)
            if chosen.fault in {Fault.FAIL, Fault.DROP_ANSWER}:
                raise chosen.failure(StorageError)
            if chosen.fault is Fault.CORRUPT and first_entry_id <= last_entry_id:
                entry_id = self.plan.random.randint(first_entry_id, last_entry_id)
                self.bad.setdefault(ledger_id, set()).add(entry_id)
        entries = await work(first_entry_id, last_entry_id)
        for entry_id in sorted(self.bad.get(ledger_id, ())):
            if first_entry_id <= entry_id <= last_entry_id:
                raise DigestMismatchError(f"injected: every copy of {ledger_id}:{entry_id} is bad")
        return entries


class FaultyLedgerReader:
    """Implements `LedgerReader`."""

    def __init__(self, reader: LedgerReader, faults: _Faults) -> None:
        self._reader = reader
        self._faults = faults

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._reader.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry known to be confirmed."""
        return self._reader.last_add_confirmed

    @property
    def length_bytes(self) -> int:
        """Payload bytes up to the last add confirmed."""
        return self._reader.length_bytes

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """Entries first..last."""
        return await self._faults.read(
            "read", self.ledger_id, first_entry_id, last_entry_id, self._reader.read
        )

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies anew."""
        work = self._reader.read_last_add_confirmed
        return await self._faults.call("read_last_add_confirmed", self.ledger_id, work)

    async def close(self) -> None:
        """End the handle. A reader's end cannot fail."""
        await self._reader.close()


class FaultyUnrecoveredReader(FaultyLedgerReader):
    """Implements `UnrecoveredReader`."""

    def __init__(self, reader: UnrecoveredReader, faults: _Faults) -> None:
        super().__init__(reader, faults)
        self._unrecovered = reader

    async def last_entry_found(self) -> int:
        """The last entry that is stored."""
        work = self._unrecovered.last_entry_found
        return await self._faults.call("last_entry_found", self.ledger_id, work)

    async def read_unconfirmed(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """Entries first..last, confirmed or not."""
        work = self._unrecovered.read_unconfirmed
        return await self._faults.read(
            "read_unconfirmed", self.ledger_id, first_entry_id, last_entry_id, work
        )


class _Ticket(NamedTuple):
    """A ticket given out, and the one below that it stands for."""

    durable: asyncio.Future[None]
    below: asyncio.Future[None]
    ripe: asyncio.Event
    """Set when it has been held up for long enough."""
    dropped: Injected | None


class FaultyLedgerWriter(FaultyLedgerReader):
    """Implements `LedgerWriter`."""

    def __init__(self, writer: LedgerWriter, faults: _Faults) -> None:
        super().__init__(writer, faults)
        self._writer = writer
        self._next_entry_id = 0
        self._tickets: deque[_Ticket] = deque()
        self._failed: str | None = None

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        """Add entries."""
        if self._failed is not None:
            raise LedgerWriteError(self._failed)
        possible = _OF_WRITES
        chosen = self._faults.plan.next_fault("ledger.append", str(self.ledger_id), possible)
        loop = asyncio.get_running_loop()
        if chosen is not None and chosen.fault is Fault.FAIL:
            failing: asyncio.Future[None] = loop.create_future()
            ticket = AppendTicket(self._next_entry_id, failing)
            self._fail(str(chosen))
            loop.call_later(chosen.seconds, fail_quietly, failing, chosen.failure(LedgerWriteError))
            return ticket
        first, below = self._writer.append(payloads)
        self._next_entry_id = first + len(payloads)
        if chosen is None and not self._tickets:
            return AppendTicket(first, below)
        seconds = 0.0 if chosen is None else chosen.seconds
        dropped = chosen if chosen is not None and chosen.fault is Fault.DROP_ANSWER else None
        durable: asyncio.Future[None] = loop.create_future()
        ripe = asyncio.Event()
        self._tickets.append(_Ticket(durable, below, ripe, dropped))
        below.add_done_callback(lambda _: self._answer())
        loop.call_later(seconds, self._ripen, ripe)
        return AppendTicket(first, durable)

    def _ripen(self, ripe: asyncio.Event) -> None:
        ripe.set()
        self._answer()

    def _answer(self) -> None:
        """Answer the tickets whose turn it is, in order."""
        while self._tickets:
            durable, below, ripe, dropped = self._tickets[0]
            if not (below.done() and ripe.is_set()):
                return
            self._tickets.popleft()
            error = None if below.cancelled() else below.exception()
            if dropped is not None and error is None:
                error = dropped.failure(LedgerWriteError)
                self._fail(str(dropped))
            if error is not None:
                fail_quietly(durable, error)
            else:
                resolve(durable)

    def _fail(self, why: str) -> None:
        """Take no more adds; what is in flight behind the failed one has failed too."""
        self._failed = f"injected earlier: call {why}"
        while self._tickets:
            fail_quietly(self._tickets.pop().durable, LedgerWriteError(self._failed))

    async def add_entry(self, payload: bytes) -> int:
        """Add one entry and wait until it is durable."""
        await self.wait_for_room()
        ticket = self.append([payload])
        await ticket.durable
        return ticket.first_entry_id

    @property
    def has_room(self) -> bool:
        """Whether adds in flight are below the bound."""
        return self._writer.has_room

    async def wait_for_room(self) -> None:
        """Return when adds in flight are below the bound."""
        await self._writer.wait_for_room()

    async def close(self) -> None:
        """Close the ledger for good."""
        close = self._writer.close
        await self._faults.call("close", self.ledger_id, close, again=close)

    async def release(self) -> None:
        """Let go of a ledger that is deleted next. Nothing is written, so nothing fails."""
        await self._writer.release()


class FaultyLedgerClient:
    """Implements `LedgerClient`."""

    def __init__(self, client: LedgerClient, plan: FaultPlan | None = None) -> None:
        self.plan = plan if plan is not None else FaultPlan()
        self._client = client
        self._faults = _Faults(self.plan)

    async def create(self, options: LedgerOptions) -> FaultyLedgerWriter:
        """Make a ledger. In rules it is known by what it is made for."""
        made_for = " ".join(
            value.decode(errors="replace")
            for key, value in options.custom_metadata.items()
            if value.startswith(b"/")
        )

        async def create() -> LedgerWriter:
            return await self._client.create(options)

        writer = await self._faults.call(
            "create", made_for, create, usual=NotEnoughBookiesError, again=create
        )
        return FaultyLedgerWriter(writer, self._faults)

    async def open(self, ledger_id: int, *, password: bytes = b"") -> FaultyLedgerReader:
        """Fence, recover, close."""

        async def open_it() -> LedgerReader:
            return await self._client.open(ledger_id, password=password)

        reader = await self._faults.call("open", ledger_id, open_it, again=open_it)
        return FaultyLedgerReader(reader, self._faults)

    async def open_without_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> FaultyUnrecoveredReader:
        """Read beside the writer."""

        async def open_it() -> UnrecoveredReader:
            return await self._client.open_without_recovery(ledger_id, password=password)

        reader = await self._faults.call("open_without_recovery", ledger_id, open_it)
        return FaultyUnrecoveredReader(reader, self._faults)

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger."""

        async def delete() -> None:
            await self._client.delete(ledger_id)

        await self._faults.call("delete", ledger_id, delete, again=delete)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """What is known of a ledger."""
        return await self._faults.call(
            "metadata", ledger_id, lambda: self._client.metadata(ledger_id)
        )

    async def is_empty(self, ledger_id: int) -> bool:
        """Whether a ledger holds nothing."""
        return await self._faults.call(
            "is_empty", ledger_id, lambda: self._client.is_empty(ledger_id)
        )

    async def announce_deletion(self, ledger_ids: Iterable[int]) -> None:
        """Say that they are about to go."""
        announced = list(ledger_ids)

        async def announce() -> None:
            await self._client.announce_deletion(announced)

        await self._faults.call("announce_deletion", announced, announce, again=announce)

    async def ledger_ids(self) -> list[int]:
        """All ledgers."""
        return await self._faults.call("ledger_ids", "", self._client.ledger_ids)

    async def close(self) -> None:
        """End the client."""
        await self._client.close()
