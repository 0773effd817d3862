"""Real bookies' directories, written by the ledger client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ackgate.persistence import BookieLedgerClient, LedgerOptions, MemoryMetadataStore, open_bookies
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.ledgers.catalog import LedgerCatalog
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.pipeline.storage.places import BookiePlaces, find_bookies
from ackgate.pipeline.storage.ranges import EntryRange, plan_ranges

SETTINGS = BookieSettings(checkpoint_idle_seconds=None, block_bytes=256)
"""Small blocks: a few dozen entries are many of them."""


@dataclass
class Written:
    """A ledger, and where its copies lie."""

    directories: list[Path]
    ranges: list[EntryRange]
    password: bytes = b""

    @property
    def places(self) -> BookiePlaces:
        present = [directory for directory in self.directories if directory.is_dir()]
        return find_bookies(map(str, present), password=self.password)

    def file(self, bookie: int) -> Path:
        """The ledger's only fragment file there."""
        (file,) = (self.directories[bookie] / "ledgers").glob("*.avro")
        return file


class Ledgers:
    """Bookies that run until they are stopped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = MemoryMetadataStore(MemoryTree())
        self._clients: list[BookieLedgerClient] = []

    async def write(
        self,
        payloads: list[bytes],
        options: LedgerOptions,
        *,
        bookies: int = 1,
        is_in_journal: bool = False,
        length: int = 7,
    ) -> Written:
        """A ledger with these payloads. `is_in_journal`: in no fragment file yet, and not closed."""
        directories = [self._directory / f"bookie-{i}" for i in range(bookies)]
        opened = await open_bookies(directories, settings=SETTINGS)
        client = BookieLedgerClient(opened, self._store)
        self._clients.append(client)
        writer = await client.create(options)
        for start in range(0, len(payloads), length):
            await writer.append(payloads[start : start + length]).durable
        if not is_in_journal:
            await writer.close()
            await self.stop()
        found = await LedgerCatalog(self._store).read(writer.ledger_id)
        ranges = plan_ranges(found.metadata, len(payloads) - 1, password_check=found.password)
        return Written(directories, ranges, options.password)

    async def stop(self) -> None:
        while self._clients:
            await self._clients.pop().close()


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[Ledgers]:
    made = Ledgers(tmp_path)
    yield made
    await made.stop()
