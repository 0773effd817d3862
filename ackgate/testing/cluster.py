"""Several brokers on one ZooKeeper and the same bookies, for tests of fail-over.

Edge: owns broker processes, a proxy between each broker and each ZooKeeper server, and, unless it is
given one, a ZooKeeper server::

    with BrokerCluster(directory) as cluster:                # returns when two brokers serve
        client = pulsar.Client(cluster.service_url)          # knows both
        producer = client.create_producer("orders")
        cluster.brokers[cluster.owner("orders")].kill()      # kill -9
        producer.send(b"goes on")                            # the other one has taken over

        cluster.partition(0, ProxyMode.DROP)                 # broker 0 is cut off from ZooKeeper
        cluster.heal(0)

Shared directories stand for shared bookies. A broker that is killed and started again comes back
with the same ports on the same directory. Sessions are short, so that a broker that has died is
missed within `SESSION_TIMEOUT_MS`; `settings` may say otherwise.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from ackgate.errors import AckGateError
from ackgate.testing.admin import BrokerAdmin
from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess
from ackgate.testing.proxy import ProxyMode, TcpProxy
from ackgate.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SESSION_TIMEOUT_MS: Final = 3_000
_ANSWER_SECONDS: Final = 5.0


class BrokerCluster:
    """Two or more brokers, by default with a ZooKeeper of their own."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 2,
        bookies: int = 3,
        settings: Mapping[str, object] | None = None,
        zookeeper: ZooKeeperEnsemble | ZooKeeperProcess | None = None,
        root: str = "",
        ledgers_root: str = "",
        admin_token: str | None = None,
    ) -> None:
        """Describe a cluster; nothing is started.

        `zookeeper` is one that runs already and goes on afterwards, below whose node `root` the
        cluster has its own. `ledgers_root`: where a BookKeeper cluster has its metadata there, as a rule
        ``/ledgers``; its bookies take the place of directories. `admin_token`: what `owner` shows, if
        `settings` demand one.
        """
        self.admin_token = admin_token
        self.directory = directory
        self._own_zookeeper = ZooKeeperProcess(directory / "zookeeper") if not zookeeper else None
        self.zookeeper = zookeeper or self._own_zookeeper
        servers = (
            zookeeper.servers
            if isinstance(zookeeper, ZooKeeperEnsemble)
            else (zookeeper or self._own_zookeeper,)
        )
        self.zookeeper_servers = tuple(server for server in servers if server is not None)
        self.proxies = tuple(
            tuple(TcpProxy(("127.0.0.1", server.port)) for server in self.zookeeper_servers)
            for _ in range(brokers)
        )
        """Of each broker, one to each ZooKeeper server."""
        self.bookie_directories = tuple(directory / "bookies" / str(n) for n in range(bookies))
        self.root = root
        self._ledgers_root = ledgers_root
        self._settings = dict(settings or {})
        self.brokers = tuple(
            BrokerProcess(directory / f"broker-{number}") for number in range(brokers)
        )
        self._stack = ExitStack()

    # ---------------------------------------------------------------- life

    def start(self, timeout_seconds: float = 60.0) -> Self:
        """Start everything, and return when every broker serves."""
        with ExitStack() as stack:
            if self._own_zookeeper is not None:
                stack.enter_context(self._own_zookeeper)
            for proxies in self.proxies:
                for proxy in proxies:
                    stack.enter_context(proxy)
            self.configure(self._settings)
            for broker in self.brokers:
                stack.callback(broker.kill)
                broker.launch()
            for broker in self.brokers:
                broker.wait_until_ready(timeout_seconds)
            self._stack = stack.pop_all()
        return self

    def configure(self, settings: Mapping[str, object]) -> None:
        """Keys of broker.conf for every broker that is started from now on."""
        self._settings = dict(settings)
        for broker, proxies in zip(self.brokers, self.proxies, strict=True):
            servers = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
            bookies = {"bookieDirectories": ",".join(map(str, self.bookie_directories))}
            if self._ledgers_root:
                uri = f"zk+hierarchical://{servers.replace(',', ';')}{self._ledgers_root}"
                bookies = {"bookkeeperMetadataServiceUri": uri}
            broker.settings = {
                "metadataStoreUrl": f"zk:{servers}{self.root}",
                "metadataStoreSessionTimeoutMillis": SESSION_TIMEOUT_MS,
                **bookies,
                **self._settings,
            }

    def stop(self) -> None:
        """SIGTERM to the brokers that run; then the rest ends. Raises `BrokerFailedError`."""
        try:
            for broker in self.brokers:
                code = broker.stop()
                if code != 0:
                    raise BrokerFailedError(
                        f"exit code {code} after SIGTERM:\n{broker.log[-2000:]}"
                    )
        finally:
            self.kill()

    def kill(self) -> None:
        """`kill -9` to all that runs. Twice is fine."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ---------------------------------------------------------------- the wire to ZooKeeper

    def partition(
        self,
        broker: int,
        mode: ProxyMode,
        *,
        delay_ms: float = 0.0,
        drops_answers_only: bool = False,
    ) -> None:
        """Trouble between that broker and every ZooKeeper server, until `heal`."""
        for proxy in self.proxies[broker]:
            proxy.switch(mode, delay_ms=delay_ms, drops_answers_only=drops_answers_only)

    def heal(self, broker: int) -> None:
        for proxy in self.proxies[broker]:
            proxy.switch(ProxyMode.PASS)

    # ---------------------------------------------------------------- what it is

    @property
    def service_url(self) -> str:
        """For `pulsar.Client`: every broker that has ever been started."""
        return "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def owner(self, topic: str) -> int:
        """Which broker owns a topic; it is made to own one if none does.

        Raises `BrokerFailedError` when that is unknown.
        """
        story = "no broker runs"
        for broker in self.brokers:
            if not broker.is_running:
                continue
            try:
                owner_url = BrokerAdmin(
                    broker.admin_url, timeout_seconds=_ANSWER_SECONDS, token=self.admin_token
                ).owner_url(topic)
            except AckGateError as error:
                story = str(error)
                continue
            for number, each in enumerate(self.brokers):
                if each.service_url == owner_url:
                    return number
            story = f"{owner_url} is none of ours"
        raise BrokerFailedError(f"no broker knows the owner of {topic}: {story}")
