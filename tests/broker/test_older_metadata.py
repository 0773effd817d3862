"""A copy of the metadata from before the newest messages is refused, not believed.

Believed, it gives ledger ids out a second time: topic B delivers messages of A, and loses its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess
from ackgate.testing.zookeeper import ZooKeeperProcess

A, B = (f"persistent://public/default/{name}" for name in "ab")
SECONDS = 20


def send(broker: BrokerProcess, topic: str, payloads: list[bytes]) -> None:
    """All are confirmed when this returns."""
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    producer = client.create_producer(topic)
    for payload in payloads:
        producer.send(payload)
    client.close()


def numbered(name: str, count: int) -> list[bytes]:
    return [f"{name} {n}".encode() for n in range(count)]


def refusal(broker: BrokerProcess) -> str:
    """The one line with which it ends."""
    with pytest.raises(BrokerFailedError, match="exit code 2"):
        broker.start()
    return broker.log.splitlines()[-1]


def check_refusal(line: str) -> None:
    assert "the metadata store is older than bookie" in line
    assert "`ackgate ledgers adopt`" in line
    assert "docs/operations.md" in line


def an_old_copy(broker: BrokerProcess, copy: Callable[[], None]) -> None:
    """Messages, a copy of the metadata while nothing runs, and more messages."""
    broker.start()
    send(broker, A, numbered("early", 3))
    broker.stop()
    copy()
    broker.start()
    send(broker, A, numbered("of a", 200))
    broker.stop()


@pytest.mark.slow
def test_embedded_store(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    aside.mkdir()

    def copy() -> None:
        for path in data.glob("metadata.sqlite*"):
            shutil.copy2(path, aside)

    broker = BrokerProcess(data)
    an_old_copy(broker, copy)
    for path in data.glob("metadata.sqlite*"):
        path.unlink()
    for path in aside.iterdir():
        shutil.copy2(path, data)
    check_refusal(refusal(broker))
    check_refusal(refusal(broker))  # trying again does not help it along


@pytest.mark.slow
def test_zookeeper(tmp_path: Path) -> None:
    servers = ZooKeeperProcess(tmp_path / "zookeeper", force_sync=False)
    broker = BrokerProcess(
        tmp_path / "data",
        settings={"metadataStoreUrl": f"zk:{servers.connection_string}/ackgate"},
    )
    aside = tmp_path / "aside"

    def copy() -> None:
        servers.stop()
        shutil.copytree(servers.directory, aside)
        servers.start()

    with servers:
        an_old_copy(broker, copy)
        servers.stop()
        shutil.rmtree(servers.directory)
        shutil.copytree(aside, servers.directory)
        servers.start()
        check_refusal(refusal(broker))
        check_refusal(refusal(broker))
