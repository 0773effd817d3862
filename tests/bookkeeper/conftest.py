"""Clients of real bookies."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from ackgate.bookkeeper import BookKeeperClient, BookKeeperSettings
from ackgate.commands.cli import main
from tests.support.bookkeeper import JavaClient, RealBookKeeper, missing

Connect = Callable[..., Awaitable[BookKeeperClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Clients of a cluster, closed at the end."""
    clients: list[BookKeeperClient] = []

    async def connect(cluster: RealBookKeeper, **settings: Any) -> BookKeeperClient:
        client = await BookKeeperClient.connect(
            cluster.uri, settings=BookKeeperSettings(**settings)
        )
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture(scope="module")
def java_client(real_bookkeeper, tmp_path_factory) -> Iterator[JavaClient]:
    client = JavaClient(real_bookkeeper, tmp_path_factory.mktemp("java"))
    yield client
    client.close()


@pytest.fixture
def own_bookkeeper(tmp_path):
    """Makes clusters whose bookies may be killed."""
    if why := missing():
        pytest.skip(why)
    clusters: list[RealBookKeeper] = []

    def make(**conf: Any) -> RealBookKeeper:
        cluster = RealBookKeeper(tmp_path / f"cluster-{len(clusters)}", **conf)
        clusters.append(cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()


class Answer(NamedTuple):
    """What a command printed."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def ackgate(capsys):
    """Runs the command in a thread, beside the loop of the test."""

    async def run(*arguments):
        capsys.readouterr()
        code = await asyncio.to_thread(main, [str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run
