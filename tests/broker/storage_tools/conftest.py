"""A data directory that a broker with three bookies has left, fresh for every test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

from ackgate.commands.cli import main
from ackgate.commands.stats.stored import stored_stats
from ackgate.testing import BrokerProcess
from ackgate.testing.pytest_plugin import zookeeper, zookeeper_url  # noqa: F401 - fixtures
from tests.broker.target import eventually

TOPIC = "persistent://public/default/orders"
MESSAGES = 50
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": 3,
    "managedLedgerDefaultWriteQuorum": 2,
    "managedLedgerDefaultAckQuorum": 2,
}


def talk(broker: BrokerProcess) -> None:
    """Messages with keys and properties, some of them acked one by one."""
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    consumer = client.subscribe(TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, "shop", batching_enabled=False)
    for number in range(MESSAGES):
        producer.send(
            b"content %d" % number, partition_key=f"k{number % 3}", properties={"n": str(number)}
        )
    for number in range(MESSAGES):
        message = consumer.receive(60_000)
        if number % 2:
            consumer.acknowledge(message)
    client.close()


@dataclass
class Told:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Tool = Callable[..., Told]


@pytest.fixture(scope="session")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped in order: everything is in fragment files."""
    directory = tmp_path_factory.mktemp("storage") / "data"
    with BrokerProcess(directory, settings=SETTINGS) as broker:
        talk(broker)
        broker.stop()
    return directory


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed: the last entries are in journals, the cursor has a ledger, nothing is closed."""
    directory = tmp_path_factory.mktemp("killed") / "data"
    with BrokerProcess(directory, settings=SETTINGS) as broker:
        talk(broker)
        eventually(lambda: stored_ranges(directory) == MESSAGES // 2)
        broker.kill()
    return directory


def stored_ranges(directory: Path) -> int:
    """Of the only subscription."""
    (told,) = stored_stats(TOPIC, data_directory=directory).subscriptions
    return told.ack_state.ranges_persisted


@pytest.fixture
def crashed(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "data"))


@pytest.fixture
def data(left_behind: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(left_behind, tmp_path / "data"))


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    def run(*arguments: object) -> Told:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Told(code, said.out, said.err)

    return run


def fragment_files(data: Path, bookie: int) -> list[Path]:
    return sorted((data / "bookies" / str(bookie) / "ledgers").iterdir())


def ledger_of(tool: Tool, data: Path, kind: str) -> int:
    """The id of the only ledger of a kind that has entries."""
    (row,) = [
        row
        for row in tool("ledgers", "list", "--data-dir", data, "--json").json
        if row["kind"] == kind and row["entries"]
    ]
    return int(row["ledgerId"])
