"""Adds on their way: gathered, then in flight, then confirmed.

Pure but for the futures. Appends made in one turn of the loop are gathered and encoded together, so
that a thousand appends of one entry cost little more than one append of a thousand. What was
encoded is in flight as *flights*, batches of some 32 KiB; they are confirmed whole and in order.
Each append has a ticket of its own, on the flight that holds its last entry.

Empty queues are None: most ledgers are idle, and an empty deque alone takes 600 bytes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ackgate.persistence.system.futures import fail_quietly

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from ackgate.errors import AckGateError
    from ackgate.persistence.bookies.entry_batch import EntryBatch


Ticket: TypeAlias = "tuple[int, asyncio.Future[None]]"
"""Who waits for the entries up to this one."""


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
        """Add a flight behind the others."""
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
            # The handle says the same at the next append, so nobody need await this.
            fail_quietly(durable, type(error)(*error.args))
        self.next_entry_id = self.last_add_confirmed + 1
