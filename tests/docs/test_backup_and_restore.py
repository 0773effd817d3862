"""The procedures of docs/operations.md, Backup and restore, are carried out word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess
from ackgate.testing.zookeeper import ZooKeeperProcess

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TOPIC = "persistent://public/default/orders"
ZOOKEEPER_OF_PAGE = "zk:zk1:2181,zk2:2181,zk3:2181/ackgate"

pytestmark = pytest.mark.slow


def blocks(heading: str) -> list[str]:
    """The shell commands below a heading, one text a block."""
    text = PAGE.read_text()
    _, found, rest = text.partition(f"\n### {heading}\n")
    assert found, heading
    section = re.split(r"\n##", rest)[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def carry_out(block: str, directory: Path) -> str:
    """Run it there. Every command must succeed."""
    tools = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=directory,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Shop:
    """A topic whose every confirmed message must be there."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        client = self._client()
        client.subscribe(TOPIC, "billing")
        producer = client.create_producer(TOPIC)
        for _ in range(count):
            self.sent.append(b"order %d" % len(self.sent))
            producer.send(self.sent[-1])
        client.close()

    def check(self) -> None:
        """Start, read everything, go on, and stop."""
        with self.broker:
            for _ in range(2):
                client = self._client()
                reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
                found = []
                while reader.has_message_available():
                    found.append(reader.read_next(60_000).data())
                client.close()
                assert found == self.sent
                self.send(3)
            self.broker.stop()

    def lives_on(self, count: int) -> None:
        """A start, some messages, a stop in good order."""
        self.broker.start()
        self.send(count)
        self.broker.stop()

    def is_refused(self, match: str) -> None:
        with pytest.raises(BrokerFailedError, match=match):
            self.broker.start()

    def _client(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.broker.service_url, logger=logger)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(BrokerProcess(tmp_path / "data"))
    yield made
    made.broker.kill()


def test_metadata_of_one_machine(shop: Shop, tmp_path: Path) -> None:
    shop.lives_on(5)
    (backup,) = blocks("Back up one machine")
    carry_out(backup, tmp_path)
    shop.lives_on(50)
    shop.check()
    (restore,) = blocks("Restore the metadata of one machine")
    *putting_back, planning, applying = restore.strip().splitlines()
    carry_out("\n".join(putting_back), tmp_path)
    shop.is_refused("the metadata store is older than bookie .*ackgate ledgers adopt")
    assert "nothing was changed; --apply does it" in carry_out(planning, tmp_path)
    shop.is_refused("the metadata store is older than bookie")
    carry_out(applying, tmp_path)
    shop.check()


def test_metadata_of_one_machine_are_lost(shop: Shop, tmp_path: Path) -> None:
    shop.lives_on(20)
    (block,) = blocks("The metadata of one machine are lost, and there is no backup")
    carry_out(block, tmp_path)
    shop.check()


def test_everything_of_one_machine(shop: Shop, tmp_path: Path) -> None:
    shop.lives_on(20)
    backup, restore = blocks("Back up and restore everything of one machine")
    carry_out(backup, tmp_path)
    kept = list(shop.sent)
    shop.lives_on(20)
    carry_out(restore, tmp_path)
    shop.sent = kept
    shop.check()


@pytest.mark.parametrize("has_backup", [True, False])
def test_a_cluster(tmp_path: Path, *, has_backup: bool) -> None:
    servers = ZooKeeperProcess(tmp_path / "zookeeper", force_sync=False)
    url = f"zk:{servers.connection_string}/ackgate"
    shared = [tmp_path / "shared" / f"bookie-{n}" for n in range(2)]
    settings = {"metadataStoreUrl": url, "bookieDirectories": ",".join(map(str, shared))}
    shop = Shop(BrokerProcess(tmp_path / "data", settings=settings))
    (backup,) = blocks("Back up a cluster")
    putting_back, adopting = blocks("Restore a cluster, or one whose ZooKeeper is lost")
    with servers:
        shop.lives_on(5)
        servers.stop()
        if has_backup:
            carry_out(backup, tmp_path)
        else:
            (tmp_path / "backup" / "zookeeper").mkdir(parents=True)
        servers.start()
        shop.lives_on(50)
        servers.stop()
        carry_out(putting_back, tmp_path)
        servers.start()
        shop.is_refused("older than bookie" if has_backup else "the metadata store is empty")
        carry_out(adopting.replace(ZOOKEEPER_OF_PAGE, url), tmp_path)
        shop.check()
