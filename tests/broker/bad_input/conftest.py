"""Every test here runs beside a client that must not notice, on a broker that must not fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ackgate.testing import BrokerProcess
from tests.broker.bad_input.bystander import Bystander
from tests.broker.bad_input.raw import RawConnection

SIGNS_OF_A_BUG = ("Traceback (most recent call last)", "a bug ended the connection")


@pytest.fixture(scope="package")
def abused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all the abuse, in a directory that shows if anything steps out of it."""
    directory = tmp_path_factory.mktemp("fence") / "a" / "b" / "data"
    with BrokerProcess(directory, settings={"handshakeTimeoutSeconds": 5}) as broker:
        yield broker


@pytest.fixture
def bystander(abused: BrokerProcess, fresh_ackgate_topic: Callable[[], str]) -> Iterator[Bystander]:
    """Works during the test; fails it when it is disturbed. The broker must have logged no bug."""
    pid = abused.pid
    bugs_before = _bugs(abused)
    with Bystander(abused.service_url, fresh_ackgate_topic()) as bystander:
        yield bystander
    assert abused.is_running
    assert abused.pid == pid
    assert _bugs(abused) <= bugs_before, abused.log[-8000:]


def _bugs(broker: BrokerProcess) -> int:
    return sum(broker.log.count(sign) for sign in SIGNS_OF_A_BUG)


@pytest.fixture
def connect(abused: BrokerProcess, bystander: Bystander) -> Iterator[Callable[..., RawConnection]]:
    """Makes raw connections, which are closed at the end."""
    connections = []

    def make(*, connect: bool = True) -> RawConnection:
        connection = RawConnection(abused.service_url, connect=connect)
        connections.append(connection)
        return connection

    yield make
    for connection in connections:
        connection.close()


@pytest.fixture
def fence(abused: BrokerProcess) -> Path:
    """Two levels above the data directory: nothing but ``a/b/data`` may ever be in it."""
    return abused.data_directory.parents[2]
