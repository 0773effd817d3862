"""Bookies that can be crashed and started again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pytest

from ackgate.persistence import BookieLedgerClient, MemoryMetadataStore, open_bookies
from ackgate.persistence.bookies.bookie import Bookie
from ackgate.persistence.bookies.settings import BookieSettings, LedgerClientSettings
from ackgate.persistence.ledgers.entry_reads import BadCopy
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.faulty_disk import FaultyDisk


def avro_records(file: Path) -> list[dict[str, Any]]:
    """What an ordinary Avro reader finds in a file."""
    with file.open("rb") as stream:
        return list(fastavro.reader(stream))  # type: ignore[arg-type]


SETTINGS = BookieSettings(checkpoint_idle_seconds=None)


@dataclass
class World:
    """Directories, a metadata tree, and who has them open."""

    directory: Path
    bookie_count: int = 1
    settings: BookieSettings = SETTINGS
    client_settings: LedgerClientSettings = field(default_factory=LedgerClientSettings)
    tree: MemoryTree = field(default_factory=MemoryTree)
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    clients: list[BookieLedgerClient] = field(default_factory=list)
    bad_copies: list[BadCopy] = field(default_factory=list)

    @property
    def directories(self) -> list[Path]:
        return [self.directory / f"bookie-{i}" for i in range(self.bookie_count)]

    def metadata(self) -> MemoryMetadataStore:
        return MemoryMetadataStore(self.tree)

    async def bookies(self, *, is_read_only: bool = False) -> list[Bookie]:
        return await open_bookies(
            self.directories, settings=self.settings, is_read_only=is_read_only, disk=self.disk
        )

    async def start(self, *, is_read_only: bool = False) -> BookieLedgerClient:
        """A process opens the directories."""
        client = BookieLedgerClient(
            await self.bookies(is_read_only=is_read_only),
            self.metadata(),
            settings=self.client_settings,
            on_bad_copy=self.bad_copies.append,
        )
        self.clients.append(client)
        return client

    def crash(self) -> None:
        """All processes die; the disk that the next ones find is as they left it."""
        self.disk.crash()
        self.disk = FaultyDisk()

    async def restart(self) -> BookieLedgerClient:
        self.crash()
        return await self.start()

    def files(self, bookie: int = 0, part: str = "ledgers") -> list[Path]:
        return sorted((self.directories[bookie] / part).rglob("*.avro"))


@pytest.fixture
async def make_world(tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(bookie_count: int = 1, **options: object) -> World:
        world = World(tmp_path / f"world-{len(worlds)}", bookie_count, **options)  # type: ignore[arg-type]
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.disk.before = None
        for client in world.clients:
            await client.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
