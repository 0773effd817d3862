"""Brokers on real bookies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Protocol

import pytest

from ackgate.testing import BrokerProcess
from tests.support.bookkeeper import RealBookKeeper, missing

if TYPE_CHECKING:
    from pathlib import Path

_ROOTS = count()


class MakeBroker(Protocol):
    """Describes a broker on a cluster of bookies; nothing is started."""

    def __call__(
        self, cluster: RealBookKeeper, *, root: str = "", **settings: object
    ) -> BrokerProcess: ...


def new_root() -> str:
    """A root in ZooKeeper for one metadata store."""
    return f"/brokers-{next(_ROOTS)}"


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    brokers: list[BrokerProcess] = []

    def make(cluster: RealBookKeeper, *, root: str = "", **settings: object) -> BrokerProcess:
        zookeeper = cluster.zookeeper.connection_string
        broker = BrokerProcess(
            tmp_path / f"broker-{len(brokers)}",
            settings={
                "metadataStoreUrl": f"zk:{zookeeper}{root or new_root()}",
                "metadataStoreSessionTimeoutMillis": 3_000,
                "bookkeeperMetadataServiceUri": cluster.uri,
                "managedLedgerDefaultEnsembleSize": 3,
                "managedLedgerDefaultWriteQuorum": 3,
                **settings,
            },
        )
        brokers.append(broker)
        return broker

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture(scope="module")
def own_bookkeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBookKeeper]:
    """Four bookies of this file, which may be killed; each test leaves all of them running."""
    if why := missing():
        pytest.skip(why)
    with RealBookKeeper(tmp_path_factory.mktemp("bookkeeper"), bookies=4) as cluster:
        yield cluster
