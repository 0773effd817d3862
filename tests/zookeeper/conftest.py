"""Servers that a test may kill and pause, and sessions that end with the test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from ackgate.persistence import SessionState, WatchEvent, ZooKeeperMetadataStore
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.testing import ZooKeeperEnsemble, ZooKeeperProcess
from ackgate.testing.pytest_plugin import zookeeper, zookeeper_url  # noqa: F401 - fixtures

WAIT_SECONDS = 30
QUICK = SessionOptions(session_timeout_ms=1_500, operation_timeout_seconds=20)

_numbers = itertools.count()

Connect = Callable[..., Awaitable[ZooKeeperMetadataStore]]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("own"), force_sync=False) as server:
        yield server


@pytest.fixture(scope="module")
def own_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"), force_sync=False) as ensemble:
        yield ensemble


@pytest.fixture
def server(own_server: ZooKeeperProcess) -> Iterator[ZooKeeperProcess]:
    yield own_server
    own_server.resume() if own_server.is_running else own_server.start()


@pytest.fixture
def ensemble(own_ensemble: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    yield own_ensemble
    for member in own_ensemble.servers:
        if member.is_running:
            member.resume()
    own_ensemble.start()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Begins a session; the root is the test's unless one is given."""
    root = f"/root-{next(_numbers)}"
    stores = []

    async def begin(
        servers: str, options: SessionOptions = QUICK, root: str = root, **more: int | bool
    ) -> ZooKeeperMetadataStore:
        store = await ZooKeeperMetadataStore.open(f"{servers}{root}", options=options, **more)
        stores.append(store)
        return store

    yield begin
    await asyncio.gather(*(store.close() for store in stores))


class States:
    """The session's states as they are told."""

    def __init__(self, store: ZooKeeperMetadataStore) -> None:
        self.told: list[SessionState] = []
        self._changed = asyncio.Event()
        store.on_session_change(self._hear)

    def _hear(self, state: SessionState) -> None:
        self.told.append(state)
        self._changed.set()

    async def until(self, state: SessionState) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while state not in self.told:
                self._changed.clear()
                await self._changed.wait()


class Heard:
    """Watch events, waited for."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[WatchEvent] = asyncio.Queue()

    def __call__(self, event: WatchEvent) -> None:
        self.queue.put_nowait(event)

    async def next(self) -> WatchEvent:
        return await asyncio.wait_for(self.queue.get(), WAIT_SECONDS)
