"""Several brokers in this process, on one metadata tree and the same bookies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import pulsar
import pytest

from ackgate.broker.server import BrokerServer
from ackgate.broker.wire.names import TopicName
from ackgate.config.load import load_settings
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from tests.broker.admin.scenario import Answer, Ask, ask

T = TypeVar("T")

SECONDS_MAX = 30


class MemoryCluster:
    """Brokers, all on one loop in a thread of its own, and a way into that loop."""

    def __init__(self, directory: Path, settings: dict[str, object] | None = None) -> None:
        self.directory = directory
        self.settings = settings or {}
        self.brokers: list[BrokerServer] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._tree = MemoryTree()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for broker in self.brokers:
                self.run(broker.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def start(self, count: int = 1, **settings: object) -> BrokerServer:
        """Start brokers; returns the last."""
        for _ in range(count):
            number = len(self.brokers)
            keys = {
                "dataDirectory": self.directory / str(number),
                "brokerServicePort": 0,
                "webServicePort": 0,
                "bookieDirectories": f"{self.directory}/bookie",
                **self.settings,
                **settings,
            }
            loaded = load_settings(None, [f"{key}={value}" for key, value in keys.items()])
            self.brokers.append(
                self.run(self._start(loaded.settings, self.directory / str(number)))
            )
        return self.brokers[-1]

    async def _start(self, settings: Any, directory: Path) -> BrokerServer:
        store = MemoryMetadataStore(self._tree)
        return await BrokerServer.start(settings, directory, metadata=store)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the brokers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function on the brokers' loop."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(SECONDS_MAX)

    def session(self, broker: BrokerServer) -> MemoryMetadataStore:
        """A broker's session to the metadata store."""
        store = broker.services.metadata
        assert isinstance(store, MemoryMetadataStore)
        return store

    def owner(self, topic: str) -> BrokerServer | None:
        """Who serves a topic."""
        name = TopicName.parse(topic)
        owners = self.call(lambda: [b for b in self.brokers if b.ownership.is_served_here(name)])
        assert len(owners) < 2, f"{topic} is served by {[b.broker_id for b in owners]}"
        return owners[0] if owners else None

    def other(self, broker: BrokerServer) -> BrokerServer:
        """Of two brokers, the one that this is not."""
        return next(each for each in self.brokers if each is not broker)

    def ask(self, broker: BrokerServer, method: str, path: str, body: object = None) -> Answer:
        """A request below ``/admin/v2``, or anywhere with a path that begins with a slash."""
        full = path if path.startswith("/") else f"/admin/v2/{path}"
        return ask(broker.web_url, Ask(method, full, body))

    def get(self, broker: BrokerServer, path: str) -> Any:
        """What a GET answers, which must be a success."""
        answer = self.ask(broker, "GET", path)
        assert answer.status == 200, answer
        return answer.value


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    """Two brokers."""
    with MemoryCluster(tmp_path) as cluster:
        cluster.start(2)
        yield cluster


@pytest.fixture
def connect() -> Iterator[Callable[[str], pulsar.Client]]:
    """Makes clients that are gone at the end of the test."""
    clients = []

    def make(service_url: str) -> pulsar.Client:
        clients.append(
            pulsar.Client(
                service_url,
                operation_timeout_seconds=20,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
        )
        return clients[-1]

    yield make
    for client in clients:
        client.shutdown()
