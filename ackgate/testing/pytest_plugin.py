"""pytest fixtures: a broker for a test session, and a fresh topic for each test.

Edge. Name the plugin in the ``conftest.py`` at the root, or in a test file::

    pytest_plugins = ["ackgate.testing"]

    def test_greets(ackgate_broker, ackgate_topic):
        client = pulsar.Client(ackgate_broker.service_url)
        ...

The broker starts in a fraction of a second, once in a session, on a temporary directory and free
ports; settings of broker.conf come from the fixture `ackgate_settings`, which a suite may override.
Tests share the broker and are kept apart by their topics' names.

`zookeeper` is a real ZooKeeper server for the session; tests are kept apart by their roots, each of
which `zookeeper_url` chooses. It needs Java, and the jars that come with PySpark.

`ackgate_cluster` is two brokers on that ZooKeeper, for one test, which may do to them what it likes::

    def test_survives_a_failover(ackgate_cluster, ackgate_topic):
        client = pulsar.Client(ackgate_cluster.service_url)
        producer = client.create_producer(ackgate_topic)
        ackgate_cluster.brokers[ackgate_cluster.owner(ackgate_topic)].kill()
        producer.send(b"goes on")
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

import pytest

from ackgate.testing.broker_process import BrokerProcess
from ackgate.testing.cluster import BrokerCluster
from ackgate.testing.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_numbers: Final = itertools.count()


@pytest.fixture(scope="session")
def ackgate_settings() -> Mapping[str, object]:
    """Keys of broker.conf for the session's broker. Override it to set some."""
    return {}


@pytest.fixture(scope="session")
def ackgate_broker(
    tmp_path_factory: pytest.TempPathFactory, ackgate_settings: Mapping[str, object]
) -> Iterator[BrokerProcess]:
    """A running broker: `service_url`, `admin_url`, and `kill`, `stop`, `start` for the brave."""
    directory = tmp_path_factory.mktemp("ackgate")
    with BrokerProcess(directory, settings=ackgate_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A running ZooKeeper server: `connection_string`. Not to be killed or paused: others use it."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), force_sync=False) as server:
        yield server


@pytest.fixture
def zookeeper_url(zookeeper: ZooKeeperProcess) -> str:
    """A `metadataStoreUrl` with a root of its own."""
    return f"zk:{zookeeper.connection_string}/test-{next(_numbers)}"


@pytest.fixture
def ackgate_cluster(
    zookeeper: ZooKeeperProcess, tmp_path: Path, ackgate_settings: Mapping[str, object]
) -> Iterator[BrokerCluster]:
    """Two brokers that take over from each other, on the session's ZooKeeper."""
    root = f"/cluster-{next(_numbers)}"
    with BrokerCluster(
        tmp_path / "cluster", settings=ackgate_settings, zookeeper=zookeeper, root=root
    ) as cluster:
        yield cluster


@pytest.fixture
def ackgate_topic(fresh_ackgate_topic: Callable[[], str]) -> str:
    """The full name of a topic that no other test uses."""
    return fresh_ackgate_topic()


@pytest.fixture
def fresh_ackgate_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes unique names of topics, with the test's name in them."""
    stem = re.sub(r"\W+", "-", request.node.name).strip("-")[:80]
    return lambda: f"persistent://public/default/{stem}-{next(_numbers)}"
