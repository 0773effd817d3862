"""Workers that take tokens only, and ask each other with the broker's own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import pulsar
import pytest

from ackgate.testing import BrokerAdmin
from tests.broker.security.secured import TOKENS_ON, http, token
from tests.broker.target import eventually, numbered, send_all
from tests.broker.worker_processes import Workers, if_answered
from tests.support.wire_client import RefusedError, WireClient

pytestmark = pytest.mark.slow

TOPICS = [f"persistent://public/default/secured-{number}" for number in range(8)]
SUBSCRIPTION = "s"
SECONDS = 120.0

BROKERS_TOKEN = token("broker")
SETTINGS = {
    **TOKENS_ON,
    "authorizationEnabled": True,
    "superUserRoles": "root,broker",
    "brokerClientAuthenticationPlugin": ("org.apache.pulsar.client.impl.auth.AuthenticationToken"),
    "brokerClientAuthenticationParameters": f"token:{BROKERS_TOKEN}",
    "brokerWorkers": 2,
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("workers") / "data", settings=dict(SETTINGS))
    workers.token = token("root")
    try:
        workers.start(SECONDS)
        admin = BrokerAdmin(workers.admin_url, token=workers.token)
        admin.grant("public/default", "app", ["produce", "consume"])
        yield workers
    finally:
        workers.kill()


def client_of(workers: Workers, role: str) -> pulsar.Client:
    return pulsar.Client(
        workers.service_url,
        authentication=pulsar.AuthenticationToken(token(role)),
        operation_timeout_seconds=int(SECONDS),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def scraped(workers: Workers, url: str = "") -> int:
    """Of how many workers an answer of `/metrics` is; at any of them, or at one."""
    status, text = http(f"{url or workers.admin_url}/metrics", workers.token)
    assert status == 200, text
    # The worker that answers counts all; one that was asked has counted itself.
    return max(map(int, re.findall(r"^ackgate_workers_scraped{.*} (\d)$", text, re.MULTILINE)))


def port_of(workers: Workers, number: int) -> int:
    """The port that a worker has beside the shared one."""
    return int(workers.record(number)["pulsar"].rpartition(":")[2])


def test_every_worker_asks_who_it_is_and_what_it_may(workers: Workers) -> None:
    client = client_of(workers, "app")
    for topic in TOPICS:
        client.subscribe(topic, SUBSCRIPTION).close()
        send_all(client.create_producer(topic), numbered(5))
    owners = {topic: workers.number_of(topic) for topic in TOPICS}
    assert set(owners.values()) == {1, 2}
    for number in (1, 2):
        topic = next(topic for topic, owner in owners.items() if owner == number)
        stranger = client_of(workers, "stranger")
        with pytest.raises(pulsar.AuthorizationError):
            stranger.create_producer(topic)
        stranger.close()
        with pytest.raises(RefusedError, match="credentials are needed: token"):
            asyncio.run(WireClient.connect("127.0.0.1", port_of(workers, number)))
        web = workers.record(number)["http"]
        assert http(f"{web}/admin/v2/clusters")[0] == 401
        assert http(f"{web}/admin/v2/tenants", token("stranger"))[0] == 403
    client.close()


def test_workers_show_each_other_the_brokers_token(workers: Workers) -> None:
    admin = BrokerAdmin(workers.admin_url, token=workers.token)
    assert [admin.backlog(topic, SUBSCRIPTION) for topic in TOPICS] == [5] * len(TOPICS)
    status, overview = http(f"{workers.admin_url}/ackgate/overview", workers.token)
    assert status == 200
    assert {row["topic"] for row in overview["rows"]} == set(TOPICS)
    eventually(lambda: scraped(workers) == 2, seconds=SECONDS)
    assert BROKERS_TOKEN not in workers.log


def test_a_worker_that_hangs_is_left_out_of_the_scrape(workers: Workers) -> None:
    pid = int(workers.record(2)["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert scraped(workers, workers.record(1)["http"]) == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: "metrics are without those of worker" in workers.log, seconds=SECONDS)
    eventually(lambda: scraped(workers) == 2, seconds=SECONDS)


def test_a_killed_worker_is_replaced_under_the_same_tokens(workers: Workers) -> None:
    client = client_of(workers, "app")
    eventually(lambda: all(workers.number_of(topic) for topic in TOPICS), seconds=SECONDS)
    producers = {topic: client.create_producer(topic) for topic in TOPICS}
    owner = workers.number_of(TOPICS[0])
    killed = int(workers.record(owner)["pid"])
    os.kill(killed, signal.SIGKILL)
    for producer in producers.values():
        producer.send(b"after")
    admin = BrokerAdmin(workers.admin_url, token=workers.token)
    for topic in TOPICS:
        eventually(
            lambda t=topic: if_answered(lambda: admin.backlog(t, SUBSCRIPTION)) == 6,
            seconds=SECONDS,
        )
    client.close()
    eventually(lambda: workers.record(owner).get("pid") not in (None, killed), seconds=SECONDS)
    assert workers.stop(SECONDS) == 0
