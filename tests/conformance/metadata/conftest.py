"""The stores under test. A new implementation joins by adding itself to `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ackgate.persistence import (
    MemoryMetadataStore,
    MetadataStore,
    SqliteMetadataStore,
    ZooKeeperMetadataStore,
    open_metadata_store,
)
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.socket_server import MetadataServer
from ackgate.persistence.metadata.socket_store import SocketMetadataStore
from ackgate.testing.pytest_plugin import zookeeper, zookeeper_url  # noqa: F401 - fixtures
from tests.support.faulty_metadata import FaultyMetadataStore

NODE_BYTES_MAX = 64 * 1024


@dataclass
class Backend:
    """One kind of store, ready to be connected to."""

    connect: Callable[[], Awaitable[MetadataStore]]
    """Begin a session."""

    is_shared: bool
    """Whether two sessions can be open at a time."""

    lose: Callable[[MetadataStore], Awaitable[None]] | None = None
    """Let the servers give a session up, where that can be done."""

    close: Callable[[], Awaitable[None]] | None = None
    """End what the sessions were to, where that is a process of its own."""

    sessions: list[MetadataStore] = field(default_factory=list)

    async def session(self) -> MetadataStore:
        store = await self.connect()
        self.sessions.append(store)
        return store


def memory(_: pytest.FixtureRequest) -> Backend:
    tree = MemoryTree()

    async def connect() -> MetadataStore:
        return MemoryMetadataStore(tree, node_bytes_max=NODE_BYTES_MAX)

    async def lose(store: MetadataStore) -> None:
        assert isinstance(store, MemoryMetadataStore)
        store.expire()
        store.lease_until = asyncio.get_running_loop().time()

    return Backend(connect, is_shared=True, lose=lose)


def faulty(request: pytest.FixtureRequest) -> Backend:
    below = memory(request)

    async def connect() -> MetadataStore:
        return FaultyMetadataStore(await below.connect())

    return Backend(connect, is_shared=True)


def sqlite(request: pytest.FixtureRequest) -> Backend:
    directory: Path = request.getfixturevalue("tmp_path")

    async def connect() -> MetadataStore:
        return await SqliteMetadataStore.open(
            directory / "metadata.db", node_bytes_max=NODE_BYTES_MAX
        )

    return Backend(connect, is_shared=False)


def socket(request: pytest.FixtureRequest) -> Backend:
    """The SQLite file, served; the path of the socket is longer than the system takes."""
    directory: Path = request.getfixturevalue("tmp_path")
    path = directory / ("a-directory-of-a-long-name" * 4) / "metadata.socket"
    serving: list[MetadataServer] = []

    async def connect() -> MetadataStore:
        if not serving:
            path.parent.mkdir()
            below = await SqliteMetadataStore.open(
                directory / "metadata.db", node_bytes_max=NODE_BYTES_MAX
            )
            serving.append(await MetadataServer.serve(below, path))
        return await open_metadata_store(f"unix:{path}", node_bytes_max=NODE_BYTES_MAX)

    async def lose(store: MetadataStore) -> None:
        """Its socket ends, as when its process is killed."""
        assert isinstance(store, SocketMetadataStore)
        assert store._wire is not None
        store._wire.cut()

    async def close() -> None:
        for server in serving:
            await server.close()
            await server.store.close()

    return Backend(connect, is_shared=True, lose=lose, close=close)


def real_zookeeper(request: pytest.FixtureRequest) -> Backend:
    url = request.getfixturevalue("zookeeper_url")
    options = SessionOptions(session_timeout_ms=10_000, operation_timeout_seconds=20)

    async def connect() -> MetadataStore:
        return await open_metadata_store(url, node_bytes_max=NODE_BYTES_MAX, session=options)

    async def lose(store: MetadataStore) -> None:
        """Close the session from beside: by its number and password it can be used elsewhere."""
        assert isinstance(store, ZooKeeperMetadataStore)
        assert store._session._bridge is not None
        hosts, session = ",".join(store._session._hosts), store._session._bridge._client.client_id
        thief = KazooClient(hosts, client_id=session)
        await asyncio.to_thread(thief.start)
        await asyncio.to_thread(thief.stop)
        thief.close()

    return Backend(connect, is_shared=True, lose=lose)


BACKENDS = [memory, faulty, sqlite, socket, real_zookeeper]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    made = request.param(request)
    yield made
    for store in made.sessions:
        await store.close()
    if made.close is not None:
        await made.close()


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.session()
