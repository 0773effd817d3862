"""The ledger clients under test. A new implementation joins by adding itself to `BACKENDS`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ackgate.bookkeeper import BookKeeperClient, BookKeeperSettings
from ackgate.persistence import (
    BookieLedgerClient,
    LedgerClient,
    LedgerOptions,
    MemoryMetadataStore,
    open_bookies,
)
from ackgate.persistence.bookies.settings import BookieSettings, LedgerClientSettings
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bookkeeper import RealBookKeeper
from tests.support.faulty_ledgers import FaultyLedgerClient

ENTRY_BYTES_MAX = 100_000
IN_FLIGHT_ADDS_MAX = 10


@dataclass
class Backend:
    """One kind of ledger storage, ready to be connected to."""

    connect: Callable[[], Awaitable[LedgerClient]]
    """Another client of the same storage: another process, as far as the two can tell."""

    options: LedgerOptions
    """How this backend likes its ledgers."""

    deletes_entries: bool = True
    """Whether entries are gone with their ledger; if not, bookies drop them some time later."""

    clients: list[LedgerClient] = field(default_factory=list)

    async def client(self) -> LedgerClient:
        client = await self.connect()
        self.clients.append(client)
        return client


def memory(_: Path) -> Backend:
    storage = MemoryLedgers()

    async def connect() -> LedgerClient:
        return MemoryLedgerClient(
            storage, entry_bytes_max=ENTRY_BYTES_MAX, in_flight_adds_max=IN_FLIGHT_ADDS_MAX
        )

    return Backend(connect, LedgerOptions(3, 2, 2))


def faulty(directory: Path) -> Backend:
    below = memory(directory)

    async def connect() -> LedgerClient:
        return FaultyLedgerClient(await below.connect())

    return Backend(connect, below.options)


def bookies(count: int, options: LedgerOptions, directory: Path) -> Backend:
    tree = MemoryTree()
    directories = [directory / f"bookie-{i}" for i in range(count)]

    async def connect() -> LedgerClient:
        return BookieLedgerClient(
            await open_bookies(
                directories, settings=BookieSettings(checkpoint_idle_seconds=None, open_files_max=8)
            ),
            MemoryMetadataStore(tree),
            settings=LedgerClientSettings(
                entry_bytes_max=ENTRY_BYTES_MAX, in_flight_adds_max=IN_FLIGHT_ADDS_MAX
            ),
        )

    return Backend(connect, options)


def one_bookie(directory: Path) -> Backend:
    return bookies(1, LedgerOptions(), directory)


def three_bookies_striped(directory: Path) -> Backend:
    return bookies(3, LedgerOptions(3, 2, 2), directory)


def four_bookies_mirrored(directory: Path) -> Backend:
    return bookies(4, LedgerOptions(3, 3, 2), directory)


BACKENDS = [memory, faulty, one_bookie, three_bookies_striped, four_bookies_mirrored]


def real_bookies(cluster: RealBookKeeper) -> Backend:
    """Other tests have ledgers there, too: only those with a mark of its own are this one's."""
    mark = {"test": os.urandom(8)}
    settings = BookKeeperSettings(
        entry_bytes_max=ENTRY_BYTES_MAX, in_flight_adds_max=IN_FLIGHT_ADDS_MAX
    )

    async def connect() -> LedgerClient:
        return await BookKeeperClient.connect(cluster.uri, settings=settings, marks=mark)

    return Backend(connect, LedgerOptions(3, 2, 2), deletes_entries=False)


@pytest.fixture(params=[*BACKENDS, real_bookies], ids=lambda backend: backend.__name__)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    is_real = request.param is real_bookies
    made = request.param(request.getfixturevalue("real_bookkeeper") if is_real else tmp_path)
    yield made
    for client in made.clients:
        await client.close()


@pytest.fixture
async def client(backend: Backend) -> LedgerClient:
    return await backend.client()
