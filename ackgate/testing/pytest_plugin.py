"""pytest fixtures: brokers, an admin client, and what a test has for itself: topics, namespaces, tenants.

Edge. Name the plugin in the ``conftest.py`` at the root, or in a test file::

    pytest_plugins = ["ackgate.testing"]

    def test_greets(ackgate_broker, ackgate_topic):
        client = pulsar.Client(ackgate_broker.service_url)
        ...

======================================  ========  ==================================================
fixture                                 scope     what it is
======================================  ========  ==================================================
`ackgate_broker`                        session   a broker; `ackgate_settings` has its settings
`ackgate_broker_factory`                function  starts more brokers, each with settings of its own
`ackgate_module_broker_factory`         module    the same, for a module's tests
`ackgate_session_broker_factory`        session   the same, for all tests
`ackgate_admin`                         session   typed admin calls to `ackgate_broker`
`ackgate_topic`, `fresh_ackgate_topic`  function  names of topics that no other test uses
`create_ackgate_topic`                  function  creates topics, partitioned or not; deleted after it
`ackgate_namespace`                     function  a namespace of this test; deleted with its topics
`create_ackgate_namespace`              function  creates more of them, with policies
`ackgate_tenant`                        function  the tenant of these namespaces; deleted, too
`ackgate_tokens`                        session   signs tokens, and has the settings to take them
`ackgate_certificates`                  session   files for TLS, and the settings to use them
`ackgate_cluster`                       function  two brokers that take over from each other
`zookeeper`, `zookeeper_url`            session   a real ZooKeeper server; a root of this test there
======================================  ========  ==================================================

A failed test's report ends with what its brokers logged during the test; a passed test's does not.

A broker starts in a fraction of a second. ZooKeeper needs Java, and its jars: see ``zookeeper.py``.
The cluster is for one test, which may do to it what it likes::

    def test_survives_a_failover(ackgate_cluster, ackgate_topic):
        client = pulsar.Client(ackgate_cluster.service_url)
        producer = client.create_producer(ackgate_topic)
        ackgate_cluster.brokers[ackgate_cluster.owner(ackgate_topic)].kill()
        producer.send(b"goes on")
"""

from __future__ import annotations

import itertools
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from ackgate.testing.admin import BrokerAdmin
from ackgate.testing.broker_process import BrokerProcess
from ackgate.testing.cluster import BrokerCluster
from ackgate.testing.credentials import CertificateMaker, TokenMaker
from ackgate.testing.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

_numbers: Final = itertools.count()

_running: Final = pytest.StashKey[list[BrokerProcess]]()
_lines_before: Final = pytest.StashKey[dict[BrokerProcess, int]]()


def pytest_configure() -> None:
    """Brokers start as forks: see `BrokerProcess.is_forked`."""
    BrokerProcess.is_forked = True


# ---------------------------------------------------------------------- the log of a failed test


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Notes where each broker's log ends when a test begins."""
    brokers = item.config.stash.setdefault(_running, [])
    item.stash[_lines_before] = {broker: broker.log_lines for broker in brokers}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attaches what the brokers logged since then, if the test failed."""
    report = yield
    if report.failed:
        before = item.stash.get(_lines_before, {})
        for broker in item.config.stash.get(_running, []):
            text = broker.log_after(before.get(broker, 0))
            if text:
                report.sections.append((f"log of {broker.name}", text))
    return report


@contextmanager
def _watched(request: pytest.FixtureRequest, *brokers: BrokerProcess) -> Iterator[None]:
    """The log of a test that fails meanwhile has theirs."""
    watched = request.config.stash.setdefault(_running, [])
    watched += brokers
    try:
        yield
    finally:
        for broker in brokers:
            watched.remove(broker)


# ---------------------------------------------------------------------- brokers


class SchemaOfClient(Protocol):
    """One of ``pulsar.schema``, which has no types."""

    def schema_info(self) -> Any: ...  # noqa: ANN401 - the client's


class BrokerFactory(Protocol):
    """Starts a broker. It ends with the scope of the fixture that gave the factory."""

    def __call__(
        self, settings: Mapping[str, object] | None = None, /, **more: object
    ) -> BrokerProcess:
        """A running broker on a directory of its own. Both arguments hold keys of broker.conf."""
        ...


@pytest.fixture(scope="session")
def ackgate_settings() -> Mapping[str, object]:
    """Keys of broker.conf for the session's broker. Override it to set some."""
    return {}


@pytest.fixture(scope="session")
def ackgate_broker(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    ackgate_settings: Mapping[str, object],
) -> Iterator[BrokerProcess]:
    """A running broker: `service_url`, `admin_url`, and `kill`, `stop`, `start` for the brave."""
    with _factory(request, tmp_path_factory) as factory:
        yield factory(ackgate_settings)


@pytest.fixture
def ackgate_broker_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    """Starts brokers that end with the test."""
    with _factory(request, tmp_path_factory) as factory:
        yield factory


@pytest.fixture(scope="module")
def ackgate_module_broker_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    """Starts brokers that end with the module."""
    with _factory(request, tmp_path_factory) as factory:
        yield factory


@pytest.fixture(scope="session")
def ackgate_session_broker_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    """Starts brokers that end with the session."""
    with _factory(request, tmp_path_factory) as factory:
        yield factory


@contextmanager
def _factory(
    request: pytest.FixtureRequest, directories: pytest.TempPathFactory
) -> Iterator[BrokerFactory]:
    with ExitStack() as stack:

        def start(settings: Mapping[str, object] | None = None, /, **more: object) -> BrokerProcess:
            directory = directories.mktemp("ackgate")
            broker = BrokerProcess(directory, settings={**(settings or {}), **more})
            stack.enter_context(broker)
            stack.enter_context(_watched(request, broker))
            return broker

        yield start


# ---------------------------------------------------------------------- what a test has for itself


@pytest.fixture(scope="session")
def ackgate_tokens() -> TokenMaker:
    """Signs tokens. A broker with its `settings` takes them, and refuses clients without one."""
    return TokenMaker()


@pytest.fixture(scope="session")
def ackgate_certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateMaker:
    """Certificates. A broker with its `settings` has TLS ports, too."""
    return CertificateMaker(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def ackgate_admin_token() -> str | None:
    """What `ackgate_admin` and `ackgate_cluster` show. Override it if `ackgate_settings` ask for one."""
    return None


@pytest.fixture(scope="session")
def ackgate_admin(ackgate_broker: BrokerProcess, ackgate_admin_token: str | None) -> BrokerAdmin:
    """The admin interface of the session's broker; of one by TLS only, with what `ackgate_settings` trust."""
    authority = ackgate_broker.settings.get("tlsTrustCertsFilePath")
    return BrokerAdmin(
        ackgate_broker.admin_url,
        token=ackgate_admin_token,
        authority=Path(str(authority)) if authority else None,
    )


@pytest.fixture
def ackgate_topic(fresh_ackgate_topic: Callable[[], str]) -> str:
    """The full name of a topic that no other test uses."""
    return fresh_ackgate_topic()


@pytest.fixture
def fresh_ackgate_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes unique names of topics, with the test's name in them."""
    return lambda: f"persistent://public/default/{_fresh(request)}"


@pytest.fixture
def ackgate_tenant(request: pytest.FixtureRequest, ackgate_admin: BrokerAdmin) -> Iterator[str]:
    """A tenant of this test. What is in it is deleted with it."""
    tenant = _fresh(request)
    ackgate_admin.create_tenant(tenant)
    yield tenant
    ackgate_admin.delete_tenant(tenant)


@pytest.fixture
def ackgate_namespace(create_ackgate_namespace: Callable[[], str]) -> str:
    """A namespace that no other test uses, as ``tenant/namespace``. It is deleted after the test."""
    return create_ackgate_namespace()


@pytest.fixture
def create_ackgate_namespace(ackgate_tenant: str, ackgate_admin: BrokerAdmin) -> Callable[..., str]:
    """Creates namespaces of this test: ``create_ackgate_namespace(messageTTL=60)``."""

    def create(**policies: object) -> str:
        namespace = f"{ackgate_tenant}/namespace-{next(_numbers)}"
        ackgate_admin.create_namespace(namespace, **policies)
        return namespace

    return create


@pytest.fixture
def create_ackgate_topic(
    request: pytest.FixtureRequest, ackgate_admin: BrokerAdmin
) -> Iterator[Callable[..., str]]:
    """Creates topics of this test: ``create_ackgate_topic(partitions=4)``, or with a `namespace`.

    `schema` is one of ``pulsar.schema``; it becomes the topic's first.
    """
    with ExitStack() as stack:

        def create(
            *,
            partitions: int = 0,
            namespace: str = "public/default",
            schema: SchemaOfClient | None = None,
        ) -> str:
            topic = f"persistent://{namespace}/{_fresh(request)}"
            ackgate_admin.create_topic(topic, partitions=partitions)
            stack.callback(ackgate_admin.delete_topic, topic)
            if schema is not None:
                info = schema.schema_info()
                if info.schema_type().name != "BYTES":  # that is what a topic without a schema has
                    ackgate_admin.create_schema(topic, info.schema_type().name, info.schema())
            return topic

        yield create


def _fresh(request: pytest.FixtureRequest) -> str:
    stem = re.sub(r"\W+", "-", request.node.name, flags=re.ASCII).strip("-")[:80]
    return f"{stem}-{next(_numbers)}"


# ---------------------------------------------------------------------- clusters


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
    request: pytest.FixtureRequest,
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    ackgate_settings: Mapping[str, object],
    ackgate_admin_token: str | None,
) -> Iterator[BrokerCluster]:
    """Two brokers that take over from each other, on the session's ZooKeeper."""
    cluster = BrokerCluster(
        tmp_path / "cluster",
        settings=ackgate_settings,
        zookeeper=zookeeper,
        root=f"/cluster-{next(_numbers)}",
        admin_token=ackgate_admin_token,
    )
    with _watched(request, *cluster.brokers), cluster:
        yield cluster
