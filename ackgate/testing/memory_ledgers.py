"""Ledgers in memory: the whole behaviour of the `LedgerClient` port and no durability.

A `MemoryLedgers` is the storage, which outlives its clients: drop a client without closing its
handles, make another one on the same storage, and you have a crash and a restart. Adds become
durable one turn of the loop after they were made, in order, so that there is such a thing as an add
in flight. Passes the conformance suite of the port.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    DigestMismatchError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from ackgate.persistence.ledgers.quorum import check_quorum
from ackgate.persistence.nodes.unnamed_ledgers import DELETION_KEY
from ackgate.persistence.ports import (
    AppendTicket,
    Fragment,
    LedgerEntry,
    LedgerMetadata,
    LedgerState,
)
from ackgate.persistence.system.futures import fail_quietly, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ackgate.persistence.ports import LedgerOptions


@dataclass(slots=True)
class _Ledger:
    metadata: LedgerMetadata
    password: bytes
    entries: list[tuple[bytes, int]] = field(default_factory=list)
    """Payload, and last add confirmed when it was added."""
    is_fenced: bool = False


class MemoryLedgers:
    """The storage: the ledgers that bookies and metadata would hold."""

    def __init__(self, *, bookie_count: int = 3) -> None:
        self.bookie_ids = tuple(f"memory-{i}" for i in range(bookie_count))
        self.ledgers: dict[int, _Ledger] = {}
        self.next_id = 1

    def ledger(self, ledger_id: int, password: bytes | None = None) -> _Ledger:
        """The ledger, if it exists and the password is its own."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        if password is not None and password != ledger.password:
            raise DigestMismatchError(
                f"ledger {ledger_id}: the password is not the one it was created with"
            )
        return ledger


class MemoryLedgerReader:
    """A `LedgerReader` of a ledger in memory."""

    def __init__(self, storage: MemoryLedgers, ledger: _Ledger) -> None:
        self._storage = storage
        self._ledger = ledger
        self._is_closed = False
        self._last_add_confirmed = -1
        self._look()

    @property
    def ledger_id(self) -> int:
        return self._ledger.metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry known to be confirmed."""
        return self._last_add_confirmed

    @property
    def length_bytes(self) -> int:
        """Payload bytes up to the last add confirmed."""
        return sum(len(e) for e, _ in self._ledger.entries[: self._last_add_confirmed + 1])

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        self._check_open()
        return _read(
            self._storage, self._ledger, first_entry_id, last_entry_id, self._last_add_confirmed
        )

    async def last_entry_found(self) -> int:
        """The last entry that is stored."""
        self._check_open()
        return len(self._ledger.entries) - 1

    async def read_unconfirmed(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """Entries first..last, confirmed or not."""
        self._check_open()
        last_found = len(self._ledger.entries) - 1
        return _read(self._storage, self._ledger, first_entry_id, last_entry_id, last_found)

    async def read_last_add_confirmed(self) -> int:
        self._check_open()
        self._look()
        return self._last_add_confirmed

    async def close(self) -> None:
        self._is_closed = True

    def _look(self) -> None:
        metadata, entries = self._ledger.metadata, self._ledger.entries
        if metadata.state is LedgerState.CLOSED:
            self._last_add_confirmed = metadata.last_entry_id
        elif entries:
            self._last_add_confirmed = entries[-1][1]

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")


class MemoryLedgerWriter:
    """A `LedgerWriter` of a ledger in memory."""

    def __init__(
        self, storage: MemoryLedgers, ledger: _Ledger, entry_bytes_max: int, in_flight_adds_max: int
    ) -> None:
        self._storage = storage
        self._ledger = ledger
        self._entry_bytes_max = entry_bytes_max
        self._in_flight_adds_max = in_flight_adds_max
        self._in_flight: list[tuple[int, asyncio.Future[None]]] = []
        self._is_closed = False
        self._last_add_confirmed = -1
        self._room = asyncio.Event()

    @property
    def ledger_id(self) -> int:
        return self._ledger.metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._last_add_confirmed

    @property
    def length_bytes(self) -> int:
        """Payload bytes up to the last add confirmed."""
        return sum(len(e) for e, _ in self._ledger.entries[: self._last_add_confirmed + 1])

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        self._check_open()
        if self._ledger.is_fenced:
            raise LedgerFencedError(f"ledger {self.ledger_id} was fenced")
        if not payloads or max(map(len, payloads)) > self._entry_bytes_max:
            raise CallerError(f"ledger {self.ledger_id}: no entry, or one that is too large")
        entries = self._ledger.entries
        first = len(entries)
        entries += [(bytes(payload), self._last_add_confirmed) for payload in payloads]
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        self._in_flight.append((len(entries) - 1, durable))
        loop.call_soon(self._confirm)
        return AppendTicket(first, durable)

    def _confirm(self) -> None:
        last, durable = self._in_flight.pop(0)
        if self._ledger.is_fenced:
            fail_quietly(durable, LedgerFencedError(f"ledger {self.ledger_id} was fenced"))
        else:
            self._last_add_confirmed = last
            resolve(durable)
        self._room.set()

    async def add_entry(self, payload: bytes) -> int:
        """Add one entry and wait until it is durable."""
        await self.wait_for_room()
        ticket = self.append([payload])
        await ticket.durable
        return ticket.first_entry_id

    @property
    def has_room(self) -> bool:
        """Whether adds in flight are below the bound."""
        in_flight = len(self._ledger.entries) - 1 - self._last_add_confirmed
        return not self._in_flight or in_flight < self._in_flight_adds_max

    async def wait_for_room(self) -> None:
        """Return when adds in flight are below the bound."""
        while not self.has_room:
            self._room.clear()
            await self._room.wait()

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        if self._is_closed:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")
        return _read(
            self._storage, self._ledger, first_entry_id, last_entry_id, self._last_add_confirmed
        )

    async def read_last_add_confirmed(self) -> int:
        self._check_open()
        return self._last_add_confirmed

    async def close(self) -> None:
        """Wait for adds in flight, then close the ledger for good."""
        if self._is_closed:
            return
        await self.release()
        metadata = self._ledger.metadata
        if metadata.state is LedgerState.OPEN and self.ledger_id in self._storage.ledgers:
            _close(self._ledger, self._last_add_confirmed)

    async def release(self) -> None:
        """Wait for adds in flight. See the port."""
        self._is_closed = True
        for _, durable in tuple(self._in_flight):
            await asyncio.wait([durable])

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")


def _read(
    storage: MemoryLedgers, ledger: _Ledger, first: int, last: int, border: int
) -> list[LedgerEntry]:
    ledger_id = ledger.metadata.ledger_id
    if not 0 <= first <= last:
        raise CallerError(f"ledger {ledger_id}: entries {first}..{last} are no range")
    if last > border or ledger_id not in storage.ledgers:
        raise NoSuchEntryError(f"entry {ledger_id}:{last}: beyond the last add confirmed, or gone")
    return [LedgerEntry(i, ledger.entries[i][0]) for i in range(first, last + 1)]


def _close(ledger: _Ledger, last_entry_id: int) -> None:
    del ledger.entries[last_entry_id + 1 :]
    ledger.metadata = replace(
        ledger.metadata,
        state=LedgerState.CLOSED,
        last_entry_id=last_entry_id,
        length_bytes=sum(len(payload) for payload, _ in ledger.entries),
    )


class MemoryLedgerClient:
    """A `LedgerClient` with its ledgers in memory."""

    def __init__(
        self,
        storage: MemoryLedgers | None = None,
        *,
        entry_bytes_max: int = 5 * 1024 * 1024 + 10 * 1024,
        in_flight_adds_max: int = 50_000,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.storage = storage or MemoryLedgers()
        self.create_error: AckGateError | None = None
        """Raised by `create` while set: a storage that takes no new ledgers."""
        self._entry_bytes_max = entry_bytes_max
        self._in_flight_adds_max = in_flight_adds_max
        self._clock_ms = clock_ms
        self._is_closed = False

    async def create(self, options: LedgerOptions) -> MemoryLedgerWriter:
        self._check_open()
        if self.create_error is not None:
            raise self.create_error
        check_quorum(options.ensemble_size, options.write_quorum, options.ack_quorum)
        if options.ensemble_size > len(self.storage.bookie_ids):
            raise NotEnoughBookiesError(f"there are {len(self.storage.bookie_ids)} bookies")
        metadata = LedgerMetadata(
            ledger_id=self.storage.next_id,
            state=LedgerState.OPEN,
            ensemble_size=options.ensemble_size,
            write_quorum=options.write_quorum,
            ack_quorum=options.ack_quorum,
            digest_type=options.digest_type,
            fragments=(Fragment(0, self.storage.bookie_ids[: options.ensemble_size]),),
            last_entry_id=-1,
            length_bytes=0,
            created_ms=self._clock_ms(),
            custom_metadata=dict(options.custom_metadata),
        )
        self.storage.next_id += 1
        ledger = _Ledger(metadata, options.password)
        self.storage.ledgers[metadata.ledger_id] = ledger
        return MemoryLedgerWriter(
            self.storage, ledger, self._entry_bytes_max, self._in_flight_adds_max
        )

    async def open(self, ledger_id: int, *, password: bytes = b"") -> MemoryLedgerReader:
        """Fence, recover, close. Every entry that was added is found here, in flight or not."""
        self._check_open()
        ledger = self.storage.ledger(ledger_id, password)
        if ledger.metadata.state is not LedgerState.CLOSED:
            ledger.is_fenced = True
            _close(ledger, len(ledger.entries) - 1)
        return MemoryLedgerReader(self.storage, ledger)

    async def open_without_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> MemoryLedgerReader:
        self._check_open()
        return MemoryLedgerReader(self.storage, self.storage.ledger(ledger_id, password))

    async def delete(self, ledger_id: int) -> None:
        self._check_open()
        self.storage.ledger(ledger_id)
        del self.storage.ledgers[ledger_id]

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """What is known of a ledger."""
        self._check_open()
        return self.storage.ledger(ledger_id).metadata

    async def is_empty(self, ledger_id: int) -> bool:
        """Whether a ledger holds nothing."""
        self._check_open()
        return not self.storage.ledger(ledger_id).entries

    async def announce_deletion(self, ledger_ids: Iterable[int]) -> None:
        """Write the deletion into their custom metadata."""
        self._check_open()
        for ledger_id in ledger_ids:
            ledger = self.storage.ledgers.get(ledger_id)
            if ledger is not None:
                custom = {**ledger.metadata.custom_metadata, DELETION_KEY: b"1"}
                ledger.metadata = replace(ledger.metadata, custom_metadata=custom)

    async def ledger_ids(self) -> list[int]:
        self._check_open()
        return sorted(self.storage.ledgers)

    async def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError("this ledger client is closed")
