"""A broker with several bookies, some of which are not what they should be, and a real client."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from ackgate.testing import BrokerFailedError, BrokerProcess
from tests.broker.target import eventually, receive

TOPIC = "persistent://public/default/bookies"


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"disk{i}" for i in range(3)]


@pytest.fixture
def broker(tmp_path: Path, directories: list[Path]) -> BrokerProcess:
    """Not started yet."""
    settings = {
        "bookieDirectories": ",".join(map(str, directories)),
        "managedLedgerDefaultEnsembleSize": 2,
        "managedLedgerDefaultWriteQuorum": 2,
        "managedLedgerDefaultAckQuorum": 2,
        "auditorPeriodicBookieCheckInterval": 1,
        "lostBookieRecoveryDelay": 0,
    }
    return BrokerProcess(tmp_path / "data", settings=settings)


def connected(broker: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def metrics(broker: BrokerProcess) -> dict[str, float]:
    """There is one topic, and one subscription."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return dict(_samples(lines))


def _samples(lines: list[str]) -> Iterator[tuple[str, float]]:
    for line in lines:
        name, _, rest = line.partition("{")
        if rest:
            yield name, float(rest.rpartition(" ")[2])


def is_all_acked_for_good(broker: BrokerProcess) -> bool:
    told = metrics(broker)
    return told["pulsar_subscription_back_log"] == told["ackgate_cursor_dirty_versions"] == 0


def test_a_directory_that_cannot_be_opened_is_left_out(
    broker: BrokerProcess, directories: list[Path]
) -> None:
    directories[1].write_text("a file where a directory should be")
    with broker:
        client = connected(broker)
        producer = client.create_producer(TOPIC)
        for number in range(10):
            producer.send(b"%d" % number)
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert len(list(receive(consumer, 10))) == 10
        client.close()
        told = metrics(broker)
        assert (told["ackgate_bookies"], told["ackgate_bookies_absent"]) == (2, 1)
        assert str(directories[1]) in broker.log


def test_too_few_directories_are_named(broker: BrokerProcess, directories: list[Path]) -> None:
    for directory in directories[1:]:
        directory.write_text("a file where a directory should be")
    with pytest.raises(BrokerFailedError, match=r"1 of 3 bookies.*at least 2.*disk1"):
        broker.start()


def test_a_directory_lost_in_mid_run_costs_nothing_and_its_copies_are_made_again(
    broker: BrokerProcess, directories: list[Path]
) -> None:
    with broker:
        client = connected(broker)
        producer = client.create_producer(TOPIC, batching_enabled=False)
        sent = [b"%d" % number for number in range(60)]
        consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
        for payload in sent[:20]:
            producer.send(payload)
        for message in receive(consumer, 20):
            consumer.acknowledge(message)
        shutil.rmtree(directories[0])
        for payload in sent[20:40]:
            producer.send(payload)
        for message in receive(consumer, 20):
            consumer.acknowledge(message)
        eventually(lambda: is_all_acked_for_good(broker))
        client.close()
        broker.kill()
        # The directory is made anew, empty: to the ledgers that is another bookie.
        broker.start()
        eventually(
            lambda: (
                (told := metrics(broker))["ackgate_auditor_runs_total"] > 1
                and told["ackgate_auditor_unmended_ledgers"] == 0
            )
        )
        shutil.rmtree(directories[1])
        client = connected(broker)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in range(40)] == sent[:40]
        consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(TOPIC)
        for payload in sent[40:]:
            producer.send(payload)
        assert {m.data() for m in receive(consumer, 20)} == set(sent[40:])
        client.close()
