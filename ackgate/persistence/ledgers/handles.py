"""Handles of ledgers, for reading and for adding, on whichever bookies.

Edge. What is the same for bookies that are directories and for real ones: borders, appends and their
tickets, the end of a ledger. `Reads` and `Catalog` are what a handle wants of the client below it; a
writer adds what bookies are given, and what becomes of one that fails.

Adds (`AddsInFlight`, pure but for the futures) are gathered, then in flight, then confirmed. Appends made
in one turn of the loop are gathered and encoded together, so that a thousand appends of one entry cost
little more than one append of a thousand. What was encoded is in flight as *flights*, batches of some
32 KiB; they are confirmed whole and in order. Each append has a ticket of its own, on the flight that
holds its last entry. Empty queues are None: most ledgers are idle, and an empty deque alone takes
600 bytes.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    CorruptRecordError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchLedgerError,
    StorageError,
)
from ackgate.persistence.ledgers.quorum import with_fragment
from ackgate.persistence.ports import AppendTicket, Fragment, LedgerState
from ackgate.persistence.system.futures import fail_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata

logger = logging.getLogger(__name__)


class Versioned(Protocol):
    """A ledger's metadata as read, with what a catalog needs to replace them."""

    @property
    def metadata(self) -> LedgerMetadata: ...


EntryT = TypeVar("EntryT", bound=Versioned)


class Catalog(Protocol[EntryT]):
    """Where the metadata of ledgers are kept."""

    async def read(self, ledger_id: int, /) -> EntryT:
        """The stored metadata of a ledger. Raises `NoSuchLedgerError`, `CorruptRecordError`."""

    async def replace(self, entry: EntryT, metadata: LedgerMetadata, /) -> EntryT:
        """Store `metadata` if `entry` is still what is stored, and return what is stored then.

        Raises `MetadataConflictError` (somebody else has changed it), `NoSuchLedgerError`.
        """


class Confirmed(NamedTuple):
    """Up to where a ledger is known to be confirmed."""

    last_add_confirmed: int
    length_bytes: int


class Reads(Protocol):
    """Reading and verifying entries of one ledger."""

    async def read(
        self, metadata: LedgerMetadata, first: int, last: int, last_add_confirmed: int
    ) -> list[LedgerEntry]:
        """As the port's `read`, with the border given."""

    async def last_confirmed(self, metadata: LedgerMetadata) -> Confirmed:
        """Up to where the bookies know the ledger to be confirmed. Raises `StorageError`."""

    async def last_found(self, metadata: LedgerMetadata, last_add_confirmed: int) -> int:
        """The highest entry that can be read, going up from the last add confirmed without a gap."""


class ReadHandle(Generic[EntryT]):
    """A ledger opened for reading: an `UnrecoveredReader` on any bookies.

    Two ways lead here: recovered and closed, where the last entry is known for good; or opened without
    recovery beside a writer that goes on, where the border is what the writer knew to be confirmed when
    it added its last entries.
    """

    __slots__ = ("_catalog", "_confirmed", "_is_closed", "_metadata", "_reads")

    def __init__(
        self,
        metadata: LedgerMetadata,
        reads: Reads,
        catalog: Catalog[EntryT],
        confirmed: Confirmed,
    ) -> None:
        self._metadata = metadata
        self._reads = reads
        self._catalog = catalog
        self._confirmed = confirmed
        self._is_closed = False

    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._confirmed.last_add_confirmed

    @property
    def length_bytes(self) -> int:
        return self._confirmed.length_bytes

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        self._check_open()
        border = self._confirmed.last_add_confirmed
        try:
            return await self._reads.read(self._metadata, first_entry_id, last_entry_id, border)
        except (StorageError, CorruptRecordError):
            if last_entry_id > border or not await self._has_moved():
                raise
            return await self._reads.read(self._metadata, first_entry_id, last_entry_id, border)

    async def _has_moved(self) -> bool:
        """Whether an auditor has brought entries to other bookies since the metadata was read."""
        try:
            found = (await self._catalog.read(self.ledger_id)).metadata
        except (StorageError, CorruptRecordError):
            return False
        has_moved = found.fragments != self._metadata.fragments
        self._metadata = replace(self._metadata, fragments=found.fragments)
        return has_moved

    async def read_unconfirmed(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """BookKeeper's readUnconfirmed: as `read`, without the border.

        What lies beyond it may be confirmed without a later entry saying so, or may never be, and
        vanish.
        """
        self._check_open()
        border = max(last_entry_id, self._confirmed.last_add_confirmed)
        return await self._reads.read(self._metadata, first_entry_id, last_entry_id, border)

    async def last_entry_found(self) -> int:
        """The highest entry after the border without a gap, confirmed or not."""
        self._check_open()
        if self._metadata.state is LedgerState.CLOSED:
            return self._confirmed.last_add_confirmed
        return await self._reads.last_found(self._metadata, self._confirmed.last_add_confirmed)

    async def read_last_add_confirmed(self) -> int:
        self._check_open()
        if self._metadata.state is not LedgerState.CLOSED:
            entry = await self._catalog.read(self.ledger_id)
            self._metadata = entry.metadata
            found = await confirmed_of(self._metadata, self._reads)
            if found.last_add_confirmed > self._confirmed.last_add_confirmed:
                self._confirmed = found
        return self._confirmed.last_add_confirmed

    async def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")


async def confirmed_of(metadata: LedgerMetadata, reads: Reads) -> Confirmed:
    """Up to where a ledger is known to be confirmed: by its metadata if closed, else by its bookies."""
    if metadata.state is LedgerState.CLOSED:
        return Confirmed(metadata.last_entry_id, metadata.length_bytes)
    return await reads.last_confirmed(metadata)


_CONFLICTS_MAX: Final = 100
"""Races with auditors lost in a row: more than there are auditors."""


def _is_still_writers(known: LedgerMetadata, found: LedgerMetadata) -> bool:
    return (
        found.state is LedgerState.OPEN
        and found.fragments[-1] == known.fragments[-1]
        and [f.first_entry_id for f in found.fragments]
        == [f.first_entry_id for f in known.fragments]
    )


BatchT = TypeVar("BatchT")
"""What one bookie is given of some entries."""

Ticket: TypeAlias = "tuple[int, asyncio.Future[None]]"
"""Who waits for the entries up to this one."""

_GATHER_MAX: Final = 1000
"""Entries gathered in one turn that are sent on at once, so that bookies and our encoder work at the
same time."""

_BYTES_ONLY: Final = frozenset({bytes})


class Flight(NamedTuple, Generic[BatchT]):
    """A batch on its way to the bookies."""

    last_entry_id: int
    payload_bytes: int
    batches: tuple[BatchT | None, ...]
    """Per place of the ensemble; None where none of its entries belongs."""
    tickets: list[Ticket]


class Gathered(NamedTuple):
    """Payloads that were appended and not yet encoded."""

    first_entry_id: int
    payloads: list[bytes]
    tickets: list[Ticket]


class AddsInFlight(Generic[BatchT]):
    """The adds of one writer that are not confirmed yet."""

    __slots__ = (
        "_flights",
        "_payloads",
        "_tickets",
        "confirmed_bytes",
        "in_flight_bytes",
        "last_add_confirmed",
        "next_entry_id",
    )

    def __init__(self) -> None:
        self._payloads: list[bytes] | None = None
        self._tickets: list[Ticket] | None = None
        self._flights: deque[Flight[BatchT]] | None = None
        self.next_entry_id = 0
        self.last_add_confirmed = -1
        self.confirmed_bytes = 0
        """Payload bytes up to `last_add_confirmed`."""
        self.in_flight_bytes = 0
        """Payload bytes encoded and not yet confirmed."""

    @property
    def count(self) -> int:
        return self.next_entry_id - 1 - self.last_add_confirmed

    def gather(self, payloads: Sequence[bytes], durable: asyncio.Future[None]) -> int:
        """Take an append. Returns how many entries wait to be encoded now."""
        self.next_entry_id += len(payloads)
        ticket = (self.next_entry_id - 1, durable)
        if self._payloads is None or self._tickets is None:
            self._payloads = list(payloads)
            self._tickets = [ticket]
        else:
            self._payloads += payloads
            self._tickets.append(ticket)
        return len(self._payloads)

    def take_gathered(self) -> Gathered | None:
        """What waits to be encoded, which then waits no more."""
        payloads, tickets = self._payloads, self._tickets
        if payloads is None or tickets is None:
            return None
        self._payloads = self._tickets = None
        return Gathered(self.next_entry_id - len(payloads), payloads, tickets)

    def put(self, flight: Flight[BatchT]) -> None:
        if self._flights is None:
            self._flights = deque()
        self._flights.append(flight)
        self.in_flight_bytes += flight.payload_bytes

    def flights(self) -> Iterator[Flight[BatchT]]:
        """Those in flight, first to last."""
        return iter(tuple(self._flights or ()))

    def last_ticket(self) -> Ticket | None:
        """The ticket that is done last."""
        return self._flights[-1].tickets[-1] if self._flights else None

    def confirm(self, border: int) -> None:
        """Confirm the flights that end at the border or before."""
        flights = self._flights
        while flights and flights[0].last_entry_id <= border:
            flight = flights.popleft()
            self.last_add_confirmed = flight.last_entry_id
            self.confirmed_bytes += flight.payload_bytes
            self.in_flight_bytes -= flight.payload_bytes
            for _, durable in flight.tickets:
                if not durable.done():
                    durable.set_result(None)
        if not flights:
            self._flights = None

    def fail(self, error: AckGateError) -> None:
        """Fail all of them; their ids stay used."""
        flights, self._flights = self._flights, None
        self.in_flight_bytes = 0
        gathered = self.take_gathered()
        tickets = [ticket for flight in flights or () for ticket in flight.tickets]
        for _, durable in tickets + (gathered.tickets if gathered else []):
            # The handle says the same at the next append, so this need not be awaited.
            fail_quietly(durable, type(error)(*error.args))
        self.next_entry_id = self.last_add_confirmed + 1


class AddBounds(Protocol):
    """What a handle takes at a time."""

    @property
    def in_flight_adds_max(self) -> int:
        """Adds not yet confirmed, above which `has_room` is False."""

    @property
    def in_flight_bytes_max(self) -> int:
        """Their payload bytes, above which it is False, too."""

    @property
    def batch_bytes_max(self) -> int:
        """Entries of one append are cut into batches of about this size."""


class AddingHandle(Generic[BatchT, EntryT]):
    """A `LedgerWriter`, but for the bookies. A handle ends once, with one reason, and stays ended."""

    __slots__ = (
        "_adds",
        "_bounds",
        "_catalog",
        "_change",
        "_end",
        "_entry",
        "_entry_bytes_max",
        "_is_released",
        "_reads",
        "_room",
    )

    def __init__(
        self,
        entry: EntryT,
        catalog: Catalog[EntryT],
        reads: Reads,
        bounds: AddBounds,
        entry_bytes_max: int,
    ) -> None:
        self._entry = entry
        self._catalog = catalog
        self._reads = reads
        self._bounds = bounds
        self._entry_bytes_max = entry_bytes_max
        self._adds: AddsInFlight[BatchT] = AddsInFlight()
        self._change: asyncio.Task[None] | None = None
        """Fills places of failed bookies. While it runs nothing is confirmed."""
        self._room: asyncio.Future[None] | None = None
        self._end: AckGateError | None = None
        """Why no more adds are taken."""
        self._is_released = False

    @abstractmethod
    def _send(
        self,
        first: int,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        payload_bytes: int,
        tickets: list[Ticket],
    ) -> None:
        """Encode a batch of entries and give it to the bookies."""

    @abstractmethod
    def _let_go(self) -> None:
        """The handle is released: bookies need not know of it any more."""

    @property
    def ledger_id(self) -> int:
        return self._entry.metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._adds.last_add_confirmed

    @property
    def length_bytes(self) -> int:
        """Payload bytes up to the last add confirmed."""
        return self._adds.confirmed_bytes

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        """Add entries. See the port."""
        if self._end is not None:
            raise self._refusal(self._end)
        if not payloads or not _BYTES_ONLY.issuperset(map(type, payloads)):
            raise CallerError(f"ledger {self.ledger_id}: an append takes one `bytes` or more")
        largest = max(map(len, payloads))
        if largest > self._entry_bytes_max:
            raise CallerError(
                f"ledger {self.ledger_id}: an entry of {largest} bytes; at most "
                f"{self._entry_bytes_max} are taken"
            )
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        first = self._adds.next_entry_id
        waiting = self._adds.gather(payloads, durable)
        if waiting == len(payloads):
            loop.call_soon(self._send_gathered)
        if waiting >= _GATHER_MAX:
            self._send_gathered()
        return AppendTicket(first, durable)

    async def add_entry(self, payload: bytes) -> int:
        """BookKeeper's addEntry: wait for room, add, wait for durability."""
        if not self.has_room:
            await self.wait_for_room()
        ticket = self.append((payload,))
        await ticket.durable
        return ticket.first_entry_id

    @property
    def has_room(self) -> bool:
        """Whether adds in flight are below the bounds."""
        adds, bounds = self._adds, self._bounds
        return (
            adds.count < bounds.in_flight_adds_max
            and adds.in_flight_bytes < bounds.in_flight_bytes_max
        )

    async def wait_for_room(self) -> None:
        """Return when adds in flight are below the bounds."""
        while not self.has_room:
            await self._next_confirmed()

    async def _next_confirmed(self) -> None:
        """Return when something more is confirmed and there is room, or when the handle ends."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._room)

    def _send_gathered(self) -> None:
        gathered = self._adds.take_gathered()
        if gathered is None:
            return
        first, payloads, tickets = gathered
        lengths = list(map(len, payloads))
        total, batch_bytes_max = sum(lengths), self._bounds.batch_bytes_max
        if total <= batch_bytes_max:
            self._send(first, payloads, lengths, total, tickets)
            return
        step = max(len(lengths) * batch_bytes_max // total, 1)
        used = 0
        for at in range(0, len(lengths), step):
            part, part_lengths = payloads[at : at + step], lengths[at : at + step]
            start = used
            while used < len(tickets) and tickets[used][0] < first + at + len(part):
                used += 1
            self._send(first + at, part, part_lengths, sum(part_lengths), tickets[start:used])

    def _give_room(self) -> None:
        if self._room is not None and self.has_room:
            self._room.set_result(None)
            self._room = None

    @property
    def _is_through(self) -> bool:
        """Ended, and nothing in flight: a handle being closed still sees its adds through."""
        return self._end is not None and not self._adds.count

    def _finish(self, error: AckGateError) -> None:
        """Take no more adds; those in flight have failed."""
        if not isinstance(self._end, LedgerFencedError):
            self._end = error
        self._adds.fail(error)
        self._give_room()

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """Entries first..last. See the port."""
        self._check_open()
        return await self._reads.read(
            self._entry.metadata, first_entry_id, last_entry_id, self.last_add_confirmed
        )

    async def read_last_add_confirmed(self) -> int:
        """The writer knows it best."""
        self._check_open()
        return self.last_add_confirmed

    async def close(self) -> None:
        """Wait for adds in flight, then close the ledger for good. Twice is fine.

        A fenced handle is only released: the ledger has another owner. Raises
        `MetadataStoreError` when the metadata cannot be written; then call it again.
        """
        if self._is_released:
            return
        await self._last_adds()
        if not isinstance(self._end, LedgerFencedError):
            await self._close_metadata()
        self._release()

    async def release(self) -> None:
        """Wait for adds in flight, and leave the metadata as they are. See the port."""
        if not self._is_released:
            await self._last_adds()
            self._release()

    def _release(self) -> None:
        self._is_released = True
        self._let_go()

    async def _last_adds(self) -> None:
        """Take no more adds, and wait for those in flight."""
        if self._end is None:
            self._end = ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")
        self._send_gathered()
        while self._change is not None or self._adds.count:
            if self._change is not None:
                await asyncio.wait([self._change])
            elif (ticket := self._adds.last_ticket()) is not None and not ticket[1].done():
                await asyncio.wait([ticket[1]])
            else:  # its waiter was cancelled, and this with it
                await self._next_confirmed()

    async def _begin_fragment(self, ensemble: Sequence[str]) -> int:
        """Let these bookies take the entries after the last confirmed one. Returns the first of these.

        Nothing may be confirmed meanwhile. Raises as `_change_metadata`.
        """
        first = self.last_add_confirmed + 1
        fragment = Fragment(first, tuple(ensemble))
        await self._change_metadata(
            lambda found: replace(found, fragments=with_fragment(found.fragments, fragment))
        )
        logger.warning(
            "ledger %d: entries from %d on are written to %s",
            self.ledger_id,
            first,
            ", ".join(ensemble),
        )
        return first

    async def _close_metadata(self) -> None:
        def closed(found: LedgerMetadata) -> LedgerMetadata:
            return replace(
                found,
                state=LedgerState.CLOSED,
                last_entry_id=self.last_add_confirmed,
                length_bytes=self.length_bytes,
            )

        try:
            await self._change_metadata(closed)
        except (MetadataConflictError, NoSuchLedgerError) as error:
            # Deleted, or being recovered: all that was confirmed will be in it.
            logger.info("ledger %d was not closed by its writer: %s", self.ledger_id, error)

    async def _change_metadata(self, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """Change the metadata of the ledger that is being written.

        An auditor may have changed the ensembles of earlier fragments meanwhile, which does not concern
        the writer. Raises `MetadataConflictError` when anything else has changed: the ledger has another
        owner now. Raises `NoSuchLedgerError`, `MetadataStoreError`.
        """
        entry = self._entry
        for attempt in range(_CONFLICTS_MAX):
            try:
                self._entry = await self._catalog.replace(entry, change(entry.metadata))
            except MetadataConflictError:
                found = await self._catalog.read(self.ledger_id)
                is_hopeless = attempt + 1 == _CONFLICTS_MAX
                if is_hopeless or not _is_still_writers(entry.metadata, found.metadata):
                    raise
                entry = found
            else:
                return

    def _check_open(self) -> None:
        if self._is_released:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")

    def _refusal(self, end: AckGateError) -> AckGateError:
        # A fresh one each time: an exception raised twice drags its tracebacks along.
        return type(end)(*end.args)
