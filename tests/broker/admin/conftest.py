"""A broker in this process, on a loop in a thread of its own, so that tests can look inside it; a browser."""

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
from ackgate.config.load import load_settings
from ackgate.persistence.ports import MetadataStore
from tests.broker.admin.scenario import Answer, Ask, ask
from tests.support import chromium
from tests.support.chromium import Chromium

T = TypeVar("T")

START_SECONDS = 30


class InProcessBroker:
    """A `BrokerServer`, and a way into its loop."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object] | None = None,
        metadata: Callable[[], MetadataStore] | None = None,
    ) -> None:
        """`metadata` opens its metadata store; default: what the settings name."""
        self.directory = directory
        self._metadata = metadata
        overrides = {
            "dataDirectory": directory,
            "brokerServicePort": 0,
            "webServicePort": 0,
            **(settings or {}),
        }
        self._settings = load_settings(
            None, [f"{key}={value}" for key, value in overrides.items()]
        ).settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.server = self.run(self._start())
        except BaseException:
            self._end_loop()
            raise
        return self

    async def _start(self) -> BrokerServer:
        metadata = None if self._metadata is None else self._metadata()
        return await BrokerServer.start(self._settings, self.directory, metadata=metadata)

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.server.stop())
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function on the broker's loop."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(START_SECONDS)

    @property
    def url(self) -> str:
        return self.server.web_url

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """A request below ``/admin/v2``, or anywhere with a path that begins with a slash."""
        full = path if path.startswith("/") else f"/admin/v2/{path}"
        return ask(self.url, Ask(method, full, body))

    def get(self, path: str) -> Any:
        """What a GET answers, which must be a success."""
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.value


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def pulsar_client(broker: InProcessBroker) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        broker.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for the module; what it logs as errors is for the tests to look at."""
    if why := chromium.missing():
        pytest.skip(why)
    with Chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        browser.size(1280, 900)
        yield browser
