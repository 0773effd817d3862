"""`ackgate broker --workers`: several processes, one address, one exit; with a real client.

One set of workers for all tests, which come in the order of this file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from ackgate.network import TrialCertificates, make_trial_certificates
from ackgate.testing import BrokerAdmin, BrokerProcess
from ackgate.testing.ports import free_ports
from tests.broker.target import eventually, numbered, send_all
from tests.broker.worker_processes import Workers, if_answered

TOPICS = [f"persistent://public/default/of-workers-{number}" for number in range(8)]
SUBSCRIPTION = "s"
MESSAGES = 20
SECONDS = 120.0

SIZE_SAMPLE = re.compile(r'^pulsar_storage_size{.*worker="(.)".*topic="(.*?)"', re.MULTILINE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, made: TrialCertificates) -> Iterator[Workers]:
    settings = {
        "brokerWorkers": 2,
        "tlsCertificateFilePath": made.server.certificate,
        "tlsKeyFilePath": made.server.key,
    }
    workers = Workers(tmp_path_factory.mktemp("workers") / "data", settings=settings)
    try:
        yield workers.start(SECONDS)
    finally:
        workers.kill()


@pytest.fixture
def client(workers: Workers) -> Iterator[pulsar.Client]:
    """It knows the one address."""
    made = pulsar.Client(
        workers.service_url,
        operation_timeout_seconds=int(SECONDS),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield made
    made.close()


@pytest.fixture
def admin(workers: Workers) -> BrokerAdmin:
    return BrokerAdmin(workers.admin_url)


def test_both_serve_and_one_address_leads_to_each(
    workers: Workers, admin: BrokerAdmin, client: pulsar.Client
) -> None:
    for topic in TOPICS:
        client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared).close()
        send_all(client.create_producer(topic), numbered(MESSAGES))
    assert {workers.number_of(topic) for topic in TOPICS} == {1, 2}
    assert len(set(admin.ask("GET", "brokers/standalone"))) == 2
    # Whichever worker answers: of each topic, and of all topics together.
    assert [admin.backlog(topic, SUBSCRIPTION) for topic in TOPICS] == [MESSAGES] * len(TOPICS)
    assert {row["topic"] for row in _overview(workers)} == set(TOPICS)


def test_one_scrape_has_the_metrics_of_all(workers: Workers) -> None:
    def scraped(url: str) -> str:
        """A busy worker may be left out."""
        text = _metrics(url)
        return text if re.search(r"^ackgate_workers_scraped{.*} 2$", text, re.MULTILINE) else ""

    text = eventually(lambda: scraped(workers.admin_url), seconds=SECONDS)
    # Every topic once, of its owner; every metric described once.
    owners = {topic: int(worker) for worker, topic in SIZE_SAMPLE.findall(text)}
    assert len(SIZE_SAMPLE.findall(text)) == len(TOPICS)
    assert owners == {topic: workers.number_of(topic) for topic in TOPICS}
    described = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(described) == len(set(described))
    for number in (1, 2):
        alone = _metrics(workers.record(number)["http"], "?here=true")
        assert {int(worker) for worker, _ in SIZE_SAMPLE.findall(alone)} == {number}


def test_one_address_for_tls(workers: Workers, made: TrialCertificates) -> None:
    client = pulsar.Client(
        workers.service_url_tls,
        tls_trust_certs_file_path=str(made.authority),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    for topic in TOPICS[:2]:
        client.create_producer(topic).close()
    client.close()


def test_a_killed_worker_is_replaced_and_nothing_acked_comes_again(
    workers: Workers, admin: BrokerAdmin, client: pulsar.Client
) -> None:
    consumers = {
        topic: client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
        for topic in TOPICS
    }
    acked, unacked = set(numbered(MESSAGES)[::2]), set(numbered(MESSAGES)[1::2])
    waiting: dict[str, list[pulsar.Message]] = {}
    for topic, consumer in consumers.items():
        messages = [_receive(consumer) for _ in range(MESSAGES)]
        assert [message.data() for message in messages] == numbered(MESSAGES)
        for message in reversed(messages[::2]):
            consumer.acknowledge(message)
        waiting[topic] = messages[1::2]
        # Acks of this client carry no receipt. The first one moves mark-delete; the others are ranges.
        eventually(
            lambda t=topic: _persisted_ranges(admin, t) == MESSAGES // 2 - 1, seconds=SECONDS
        )
    owner = workers.number_of(TOPICS[0])
    moved = {topic for topic in TOPICS if workers.number_of(topic) == owner}
    killed = int(workers.record(owner)["pid"])
    os.kill(killed, signal.SIGKILL)
    for topic, consumer in consumers.items():
        client.create_producer(topic).send(b"after")
        came: set[bytes] = set()
        # Bundles may move once more, when the worker is back: then what is not acked comes again.
        while not came >= ((unacked | {b"after"}) if topic in moved else {b"after"}):
            message = _receive(consumer)
            came.add(message.data())
            consumer.acknowledge(message)
        assert not came & acked
        for message in waiting[topic]:
            consumer.acknowledge(message)
        eventually(lambda t=topic, c=consumer: _is_empty(admin, t, c, acked), seconds=SECONDS)
    eventually(
        lambda: len(if_answered(lambda: admin.ask("GET", "brokers/standalone")) or ()) == 2,
        seconds=SECONDS,
    )
    assert workers.record(owner)["pid"] != killed
    assert re.search(rf"worker {owner}, process {killed}, was ended by signal 9", workers.log)


def test_a_worker_that_is_back_gets_its_share_of_the_topics(workers: Workers) -> None:
    eventually(lambda: {workers.number_of(topic) for topic in TOPICS} == {1, 2}, seconds=SECONDS)


def test_sigterm_ends_all_of_them_and_one_broker_finds_the_same(
    workers: Workers, client: pulsar.Client
) -> None:
    for number, topic in enumerate(TOPICS):
        send_all(client.create_producer(topic), numbered(number))
    pids = workers.pids
    assert workers.stop(SECONDS) == 0
    assert workers.ended(pids)
    assert not (workers.data_directory / "workers").exists()
    workers.settings["brokerWorkers"] = 1
    workers.start(SECONDS)
    admin = BrokerAdmin(workers.admin_url)
    backlogs = [admin.backlog(topic, SUBSCRIPTION) for topic in TOPICS]
    assert backlogs == list(range(len(TOPICS)))
    assert workers.stop(SECONDS) == 0


def test_workers_end_with_a_killed_supervisor(workers: Workers) -> None:
    workers.settings["brokerWorkers"] = 2
    workers.start(SECONDS)
    pids = workers.pids
    workers.kill()  # returns when nobody holds its standard error any more
    eventually(lambda: workers.ended(pids), seconds=SECONDS)


def _receive(consumer: pulsar.Consumer) -> pulsar.Message:
    return consumer.receive(int(SECONDS * 1000))


def _is_empty(admin: BrokerAdmin, topic: str, consumer: pulsar.Consumer, acked: set[bytes]) -> bool:
    """Whether all is acked; an ack that was lost with a connection is sent again, as its message is."""
    with contextlib.suppress(pulsar.Timeout):
        message = consumer.receive(100)
        assert message.data() not in acked
        consumer.acknowledge(message)
    return if_answered(lambda: admin.backlog(topic, SUBSCRIPTION)) == 0


def _persisted_ranges(admin: BrokerAdmin, topic: str) -> int:
    return int(admin.subscription_stats(topic, SUBSCRIPTION)["ackState"]["rangesPersisted"])


def _metrics(url: str, query: str = "") -> str:
    with urllib.request.urlopen(f"{url}/metrics{query}") as answer:
        return str(answer.read().decode())


def _overview(workers: Workers) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{workers.admin_url}/ackgate/overview") as answer:
        return list(json.load(answer)["rows"])


def test_all_workers_accept_on_the_addresses_of_listeners(tmp_path: Path) -> None:
    free = set(free_ports(60))
    # Worker n takes ports that are ten times n higher.
    port = next(p for p in free if free.issuperset(range(p, p + 26)))
    bound, web = port + 1, port + 2
    settings = {
        "brokerWorkers": 2,
        "webServicePort": port + 5,
        "advertisedListeners": f"inside:pulsar://127.0.0.1:{port},outside:pulsar://127.0.0.2:{port}",
        "bindAddress": "0.0.0.0",
        "bindAddresses": f"outside:pulsar://127.0.0.3:{bound},outside:http://127.0.0.3:{web}",
    }
    with BrokerProcess(tmp_path / "data", settings=settings, port=port) as broker:
        connected = pulsar.Client(f"pulsar://127.0.0.3:{bound}")
        try:
            for topic in TOPICS:
                connected.create_producer(topic).send(b"hello")
                path = topic.replace("://", "/")
                with urllib.request.urlopen(
                    f"http://127.0.0.3:{web}/lookup/v2/topic/{path}"
                ) as got:
                    led = json.load(got)["brokerUrl"]
                assert led in {f"pulsar://127.0.0.2:{port + 10 * number}" for number in (1, 2)}
        finally:
            connected.close()
        assert broker.stop() == 0
