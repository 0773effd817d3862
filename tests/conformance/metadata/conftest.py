"""The stores under test. A new implementation joins by adding itself to `BACKENDS`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ackgate.persistence.metadata.memory import MemoryMetadataStore, MemoryTree
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.ports import MetadataStore
from ackgate.testing.faulty_metadata import FaultyMetadataStore

NODE_BYTES_MAX = 64 * 1024


@dataclass
class Backend:
    """One kind of store, ready to be connected to."""

    connect: Callable[[], Awaitable[MetadataStore]]
    """Begin a session."""

    is_shared: bool
    """Whether two sessions can be open at a time."""

    sessions: list[MetadataStore] = field(default_factory=list)

    async def session(self) -> MetadataStore:
        store = await self.connect()
        self.sessions.append(store)
        return store


def memory(_: Path) -> Backend:
    tree = MemoryTree()

    async def connect() -> MetadataStore:
        return MemoryMetadataStore(tree, node_bytes_max=NODE_BYTES_MAX)

    return Backend(connect, is_shared=True)


def faulty(directory: Path) -> Backend:
    below = memory(directory)

    async def connect() -> MetadataStore:
        return FaultyMetadataStore(await below.connect())

    return Backend(connect, is_shared=True)


def sqlite(directory: Path) -> Backend:
    async def connect() -> MetadataStore:
        return await SqliteMetadataStore.open(
            directory / "metadata.db", node_bytes_max=NODE_BYTES_MAX
        )

    return Backend(connect, is_shared=False)


BACKENDS = [memory, faulty, sqlite]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made = request.param(tmp_path)
    yield made
    for store in made.sessions:
        await store.close()


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.session()
