"""The one writer of an open ledger.

Edge. `append` assigns ids and returns. All else happens once a turn of the loop: gathered payloads are
encoded and passed to the bookies, and these report what they have synced. There is no state per
entry.

             append              once a turn             ack quorum has synced it
    payloads ------> gathered ----------------> in flight -----------------------> confirmed
                        |                          |
                        |                          |  a bookie failed: see `ensemble_change`; until
                        |                          |  that is done nothing is confirmed
                        +-----------+--------------+
                                    v
                fenced | below ack quorum | closed: tickets fail, and no more are accepted

A handle ends once, with one reason, and stays ended.

A bookie has a place of the ensemble for a while, and its reports count only for that place and time: a
bookie that failed, was replaced and came back to another place still reports on its earlier adds, which
must not count.

Adds on their way (`AddsInFlight`, pure but for the futures) are gathered, then in flight, then
confirmed. Appends made in one turn of the loop are gathered and encoded together, so that a thousand
appends of one entry cost little more than one append of a thousand. What was encoded is in flight as
*flights*, batches of some 32 KiB; they are confirmed whole and in order. Each append has a ticket of
its own, on the flight that holds its last entry. Empty queues are None: most ledgers are idle, and an
empty deque alone takes 600 bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    LedgerFencedError,
    LedgerWriteError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from ackgate.persistence.bookies.entry_batch import EntryBatch
from ackgate.persistence.bookies.entry_codec import EntryEncoder
from ackgate.persistence.ledgers.ensemble_change import change_as_writer, change_ensemble, take_in
from ackgate.persistence.ledgers.quorum import ConfirmedBorder, held_count, parts_of_place
from ackgate.persistence.ports import AppendTicket, LedgerState
from ackgate.persistence.system.futures import fail_quietly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookies.settings import LedgerClientSettings
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata

Ticket: TypeAlias = "tuple[int, asyncio.Future[None]]"
"""Who waits for the entries up to this one."""

logger = logging.getLogger(__name__)

_GATHER_MAX: Final = 1000
"""Entries gathered in one turn that are sent on at once, so that a bookie's disk and our encoder work
at the same time."""

_BYTES_ONLY: Final = frozenset({bytes})


class Flight(NamedTuple):
    """A batch on its way to the bookies."""

    last_entry_id: int
    payload_bytes: int
    batches: tuple[EntryBatch | None, ...]
    """Per place of the ensemble; None where none of its entries belongs."""
    tickets: list[Ticket]


class Gathered(NamedTuple):
    """Payloads that were appended and not yet encoded."""

    first_entry_id: int
    payloads: list[bytes]
    tickets: list[Ticket]


class AddsInFlight:
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
        self._flights: deque[Flight] | None = None
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

    def put(self, flight: Flight) -> None:
        """Append a flight."""
        if self._flights is None:
            self._flights = deque()
        self._flights.append(flight)
        self.in_flight_bytes += flight.payload_bytes

    def flights(self) -> Iterator[Flight]:
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


class PlaceOwner(Protocol):
    """The writer, as its places see it."""

    @property
    def ledger_id(self) -> int: ...

    def place_synced(self, place: int, last_entry_id: int) -> None:
        """The bookie there has synced all its adds up to this entry."""

    def place_failed(self, place: int, error: AckGateError) -> None:
        """The bookie there has failed."""

    def place_fenced(self) -> None:
        """Another process recovers the ledger."""


class EnsemblePlace:
    """Implements `AddSink` for a writer."""

    __slots__ = ("_owner", "_place", "bookie", "ledger_id")

    is_recovery = False

    def __init__(self, owner: PlaceOwner, place: int, bookie: Bookie | None) -> None:
        self._owner = owner
        self._place = place
        self.ledger_id = owner.ledger_id
        self.bookie = bookie
        """None: it failed, or is not here, and was not replaced."""

    def add(self, batch: EntryBatch | None) -> None:
        """Give entries to the bookie, if there is one and if any belong there."""
        if batch is not None and self.bookie is not None:
            self.bookie.add(batch, self)

    def leave(self) -> None:
        """Ignore the bookie's reports from now on."""
        self.bookie = None

    def synced(self, last_entry_id: int) -> None:
        if self.bookie is not None:
            self._owner.place_synced(self._place, last_entry_id)

    def failed(self, error: AckGateError) -> None:
        if self.bookie is not None:
            self._owner.place_failed(self._place, error)

    def fenced(self) -> None:
        """A bookie reports a fence; counts from any bookie."""
        self._owner.place_fenced()


class BookieLedgerWriter:
    """Implements `LedgerWriter`. About a kilobyte while nothing is in flight."""

    __slots__ = (
        "_adds",
        "_border",
        "_catalog",
        "_change",
        "_changes_in_a_row",
        "_encoder",
        "_end",
        "_entry",
        "_is_released",
        "_lost",
        "_places",
        "_pool",
        "_reads",
        "_room",
        "_settings",
    )

    def __init__(
        self,
        entry: CatalogEntry,
        catalog: LedgerCatalog,
        pool: BookiePool,
        reads: EntryReads,
        settings: LedgerClientSettings,
    ) -> None:
        metadata = entry.metadata
        self._entry = entry
        self._catalog = catalog
        self._pool = pool
        self._reads = reads
        self._settings = settings
        self._adds = AddsInFlight()
        self._encoder = EntryEncoder(metadata.ledger_id, reads.digest)
        self._border = ConfirmedBorder(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._places = [
            EnsemblePlace(self, place, pool.get(bookie_id))
            for place, bookie_id in enumerate(metadata.fragments[-1].ensemble)
        ]
        self._lost: set[int] = set()
        """Places whose bookie failed and was not replaced."""
        self._change: asyncio.Task[None] | None = None
        self._changes_in_a_row = 0
        """Ensemble changes since an entry was last confirmed."""
        self._room: asyncio.Future[None] | None = None
        self._end: AckGateError | None = None
        """Why no more adds are taken."""
        self._is_released = False

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

    # -------------------------------------------------------------------------------------- adding

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        """Add entries. See the port."""
        if self._end is not None:
            raise self._refusal(self._end)
        if not payloads or not _BYTES_ONLY.issuperset(map(type, payloads)):
            raise CallerError(f"ledger {self.ledger_id}: an append takes one `bytes` or more")
        largest = max(map(len, payloads))
        if largest > self._settings.entry_bytes_max:
            raise CallerError(
                f"ledger {self.ledger_id}: an entry of {largest} bytes; at most "
                f"{self._settings.entry_bytes_max} are taken"
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
        adds, settings = self._adds, self._settings
        return (
            adds.count < settings.in_flight_adds_max
            and adds.in_flight_bytes < settings.in_flight_bytes_max
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
        total, batch_bytes_max = sum(lengths), self._settings.batch_bytes_max
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

    def _send(
        self,
        first: int,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        payload_bytes: int,
        tickets: list[Ticket],
    ) -> None:
        batches = self._encode(first, payloads, lengths)
        self._adds.put(Flight(first + len(lengths) - 1, payload_bytes, batches, tickets))
        for place, batch in zip(self._places, batches, strict=True):
            place.add(batch)

    def _encode(
        self, first: int, payloads: Sequence[bytes], lengths: Sequence[int]
    ) -> tuple[EntryBatch | None, ...]:
        """Per place of the ensemble what goes there."""
        adds, metadata = self._adds, self._entry.metadata
        parts = self._encoder.encode(
            first, adds.last_add_confirmed, adds.confirmed_bytes, payloads, lengths
        )
        ledger_id, fragment_id = metadata.ledger_id, metadata.fragments[-1].first_entry_id
        count, size, quorum = len(lengths), metadata.ensemble_size, metadata.write_quorum
        last = first + count - 1
        if quorum == size:
            whole = EntryBatch(ledger_id, fragment_id, first, last, count, b"".join(parts))
            return (whole,) * size
        batches: list[EntryBatch | None] = []
        for place in range(size):
            held = held_count(place, first, last, size, quorum)
            if held:
                encoded = parts_of_place(parts, first, place, size, quorum)
                batches.append(EntryBatch(ledger_id, fragment_id, first, last, held, encoded))
            else:
                batches.append(None)
        return tuple(batches)

    # --------------------------------------------------------- what bookies report (`PlaceOwner`)

    def place_synced(self, place: int, last_entry_id: int) -> None:
        """A bookie has synced its adds up to this entry."""
        self._border.synced(place, last_entry_id)
        self._confirm()

    def place_fenced(self) -> None:
        """Another process recovers the ledger."""
        self._finish(LedgerFencedError(f"ledger {self.ledger_id} was fenced"))

    def place_failed(self, place: int, error: AckGateError) -> None:
        """A bookie did not write its adds."""
        if self._is_through:
            return
        logger.warning("ledger %d: %s", self.ledger_id, error)
        self._places[place].leave()
        self._lost.add(place)
        if self._change is None:
            self._change = asyncio.get_running_loop().create_task(self._replace_lost(error))

    @property
    def _is_through(self) -> bool:
        """Ended, and nothing in flight: a handle being closed still sees its adds through."""
        return self._end is not None and not self._adds.count

    def _confirm(self) -> None:
        if self._change is None and self._adds.count:
            before = self._adds.last_add_confirmed
            self._adds.confirm(self._border.border(self._places_behind()))
            if self._adds.last_add_confirmed != before:
                self._changes_in_a_row = 0
                self._give_room()

    def _places_behind(self) -> Sequence[int]:
        """Places whose bookie is too slow to go on without it: else what waits for it would grow."""
        metadata = self._entry.metadata
        if metadata.ack_quorum == metadata.write_quorum:
            return ()
        return [
            number
            for number, place in enumerate(self._places)
            if place.bookie is not None and place.bookie.is_behind
        ]

    def _give_room(self) -> None:
        if self._room is not None and self.has_room:
            self._room.set_result(None)
            self._room = None

    def _finish(self, error: AckGateError) -> None:
        """Take no more adds; those in flight have failed."""
        if not isinstance(self._end, LedgerFencedError):
            self._end = error
        self._adds.fail(error)
        self._give_room()

    # ------------------------------------------------------------------------------ ensemble change

    async def _replace_lost(self, error: AckGateError) -> None:
        """Bring spares to where bookies failed, or go on without, or end."""
        try:
            while self._lost and not self._is_through:
                self._changes_in_a_row += 1
                # Bookies that seem to work and then do not must not be tried forever.
                is_hopeless = self._changes_in_a_row > 2 * len(self._pool)
                if is_hopeless or not await self._replace_some():
                    self._check_quorum(error)
                    break
        except (MetadataConflictError, NoSuchLedgerError) as conflict:
            self._finish(LedgerFencedError(f"ledger {self.ledger_id}: {conflict}"))
        except LedgerWriteError as refused:
            self._finish(refused)
        except AckGateError as other:
            self._finish(LedgerWriteError(f"ledger {self.ledger_id}: {error}; {other}"))
        finally:
            self._change = None
            self._confirm()

    async def _replace_some(self) -> bool:
        change = await change_ensemble(
            self._entry, self._catalog, self._pool, self._lost, self.last_add_confirmed
        )
        if change is None:
            return False
        self._entry = change.entry
        first = self.last_add_confirmed + 1
        for place, spare in change.spares.items():
            await take_in(spare, self._entry)
            self._places[place] = taken = EnsemblePlace(self, place, spare)
            self._lost.discard(place)
            self._border.replaced(place, self.last_add_confirmed)
            for flight in self._adds.flights():
                batch = flight.batches[place]
                if batch is not None:
                    taken.add(batch._replace(fragment_id=first))
        return True

    def _check_quorum(self, error: AckGateError) -> None:
        """Raise `LedgerWriteError` when what is left makes no ack quorum."""
        left, size = len(self._places) - len(self._lost), len(self._places)
        if not self._border.reaches_ack_quorum(self._lost):
            raise LedgerWriteError(
                f"ledger {self.ledger_id}: {left} of {size} bookies left, below the ack "
                f"quorum, and none to take a place: {error}"
            )
        logger.warning("ledger %d continues with %d of %d bookies", self.ledger_id, left, size)

    # ----------------------------------------------------------------------------- reading, the end

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
        if not isinstance(self._end, LedgerFencedError):
            await self._close_metadata()
        self._is_released = True
        for place in self._places:
            if place.bookie is not None:
                place.bookie.ledger_closed(self.ledger_id)

    async def _close_metadata(self) -> None:
        def closed(found: LedgerMetadata) -> LedgerMetadata:
            return replace(
                found,
                state=LedgerState.CLOSED,
                last_entry_id=self.last_add_confirmed,
                length_bytes=self.length_bytes,
            )

        try:
            self._entry = await change_as_writer(self._entry, self._catalog, closed)
        except (MetadataConflictError, NoSuchLedgerError) as error:
            # Deleted, or being recovered: all that was confirmed will be in it.
            logger.info("ledger %d was not closed by its writer: %s", self.ledger_id, error)

    def _check_open(self) -> None:
        if self._is_released:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")

    def _refusal(self, end: AckGateError) -> AckGateError:
        # A fresh one each time: an exception raised twice drags its tracebacks along.
        return type(end)(*end.args)
