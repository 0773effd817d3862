"""Bookies of the test's own process, which refuse, hold back and forget as a test wants, and their cluster.

They speak wire protocol v2 over sockets; the cluster is a dictionary. So a client's whole road to a bookie
is under test, without a JVM, and each answer is in the test's hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

from ackgate.bookkeeper import BookKeeperClient, BookKeeperSettings
from ackgate.errors import MetadataConflictError, NoSuchLedgerError
from ackgate.persistence.bookkeeper.metadata_format import BookieAddress
from ackgate.persistence.bookkeeper.protocol import KEY_BYTES, Code, Opcode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ackgate.persistence.bookkeeper.metadata_format import StoredMetadata
    from ackgate.persistence.ports import LedgerMetadata


class ScriptedBookie:
    """Stores entries and answers at once, but where `code_of_add` says otherwise."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.entries: dict[tuple[int, int], bytes] = {}
        self.adds: list[int] = []
        """Ids of all entries that it was sent, in order, each time."""
        self.code_of_add: Callable[[int], int | None] = lambda _entry_id: Code.OK
        """By the entry's id; None: no answer."""
        self.connections: set[_Served] = set()
        self.address = BookieAddress("", 0)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), "127.0.0.1", self.address[1])
        self.address = BookieAddress(*self._server.sockets[0].getsockname())

    def stop(self) -> None:
        """Ends its connections, too; `start` brings it back on the same port."""
        assert self._server is not None
        self._server.close()
        for each in tuple(self.connections):
            each.transport.abort()

    def answer(self, frame: bytes) -> bytes | None:
        opcode = int.from_bytes(frame[:4], "big") >> 16 & 0xFF
        if opcode == Opcode.ADD:
            entry = frame[4 + KEY_BYTES :]
            ledger_id, entry_id = struct.unpack_from(">qq", entry)
            self.adds.append(entry_id)
            code = self.code_of_add(entry_id)
            if code == Code.OK:
                self.entries[ledger_id, entry_id] = entry
            return None if code is None else reply(opcode, code, ledger_id, entry_id)
        ledger_id, entry_id = struct.unpack_from(">qq", frame, 4)
        assert opcode == Opcode.READ
        found = entry_id
        if entry_id < 0:
            found = max((e for each, e in self.entries if each == ledger_id), default=-1)
        body = self.entries.get((ledger_id, found))
        code = Code.NO_ENTRY if body is None else Code.OK
        return reply(opcode, code, ledger_id, entry_id, body or b"")


def reply(opcode: int, code: int, ledger_id: int, entry_id: int, body: bytes = b"") -> bytes:
    """A bookie's answer, with its size."""
    frame = struct.pack(">Iiqq", 2 << 24 | opcode << 16, code, ledger_id, entry_id) + body
    return struct.pack(">i", len(frame)) + frame


class _Served(asyncio.Protocol):
    """A connection of a client."""

    transport: asyncio.Transport

    def __init__(self, bookie: ScriptedBookie) -> None:
        self._bookie = bookie
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._bookie.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            frame = bytes(self._received[4:end])
            del self._received[:end]
            answer = self._bookie.answer(frame)
            if answer is not None:
                self.transport.write(answer)


class ScriptedCluster:
    """As much of a `BookKeeperCluster` as a client that writes and reads wants."""

    instance_id = "scripted"

    def __init__(self, bookies: list[ScriptedBookie]) -> None:
        self.bookies_by_id = {bookie.bookie_id: bookie for bookie in bookies}
        self.writable = [bookie.bookie_id for bookie in bookies]
        self.ledgers: dict[int, StoredMetadata] = {}
        self.reads = 0
        """How often metadata were read."""

    async def writable_bookies(self) -> list[str]:
        return list(self.writable)

    async def address(self, bookie_id: str) -> BookieAddress:
        return self.bookies_by_id[bookie_id].address

    async def new_id(self) -> int:
        return len(self.ledgers) + 1

    async def create(self, stored: StoredMetadata) -> StoredMetadata:
        self.ledgers[stored.metadata.ledger_id] = stored
        return stored

    async def read(self, ledger_id: int, *, is_latest: bool = False) -> StoredMetadata:
        self.reads += 1
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return self.ledgers[ledger_id]

    async def replace(self, stored: StoredMetadata, metadata: LedgerMetadata) -> StoredMetadata:
        found = await self.read(metadata.ledger_id)
        if found.version != stored.version:
            raise MetadataConflictError(f"ledger {metadata.ledger_id}: version {found.version}")
        changed = stored.changed(metadata)._replace(version=stored.version + 1)
        self.ledgers[metadata.ledger_id] = changed
        return changed

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def scripted_bookies(
    count: int, **settings: float
) -> AsyncIterator[tuple[BookKeeperClient, ScriptedCluster, list[ScriptedBookie]]]:
    """A client of so many bookies; the writer of a ledger gets the first ones that are writable."""
    bookies = [ScriptedBookie(f"bookie-{number}") for number in range(count)]
    for bookie in bookies:
        await bookie.start()
    cluster = ScriptedCluster(bookies)
    client = BookKeeperClient(cluster, settings=BookKeeperSettings(**settings))  # type: ignore[arg-type]
    try:
        yield client, cluster, bookies
    finally:
        await client.close()
        for bookie in bookies:
            bookie.stop()
