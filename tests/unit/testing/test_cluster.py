"""A cluster for tests: a real client goes on when the owner of its topic is killed or cut off."""

from __future__ import annotations

import time

import pulsar
import pytest

from ackgate.testing.cluster import SESSION_TIMEOUT_MS
from ackgate.testing.proxy import ProxyMode
from tests.support.wire_client import WireClient
from tests.support.wire_lookup import NoOwnerError, find_owner

pytestmark = pytest.mark.slow


@pytest.fixture
def client(ackgate_cluster):
    client = pulsar.Client(
        ackgate_cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.shutdown()


def test_another_broker_takes_over_from_one_that_is_killed(ackgate_cluster, ackgate_topic, client):
    producer = client.create_producer(ackgate_topic)
    consumer = client.subscribe(ackgate_topic, "s")
    producer.send(b"before")
    assert consumer.receive(60_000).data() == b"before"
    owner = ackgate_cluster.owner(ackgate_topic)
    ackgate_cluster.brokers[owner].kill()
    producer.send(b"after")
    assert consumer.receive(30_000).data() == b"before"  # it was not acked
    assert consumer.receive(60_000).data() == b"after"
    assert ackgate_cluster.owner(ackgate_topic) == 1 - owner


async def test_another_broker_takes_over_from_one_that_is_cut_off(ackgate_cluster, ackgate_topic):
    brokers = [f"127.0.0.1:{broker.port}" for broker in ackgate_cluster.brokers]
    first = await find_owner(brokers, ackgate_topic)
    old = next(n for n, each in enumerate(ackgate_cluster.brokers) if each.port == first.port)
    client = await WireClient.connect(first.host, first.port)
    producer = await client.producer(ackgate_topic)
    await producer.send(b"before")
    ackgate_cluster.partition(old, ProxyMode.DROP)
    began = time.monotonic()
    await client.until(lambda: client.events)  # CLOSE_PRODUCER
    assert time.monotonic() - began < SESSION_TIMEOUT_MS / 1000 + 60
    second = await find_owner([brokers[1 - old]], ackgate_topic)
    assert str(second) == brokers[1 - old]
    ackgate_cluster.heal(old)
    assert await find_owner([brokers[old]], ackgate_topic) == second
    await client.close()


async def test_a_lookup_that_nobody_answers_says_so():
    with pytest.raises(NoOwnerError, match=r"127.0.0.1:1: ConnectionRefusedError"):
        await find_owner(["127.0.0.1:1"], "t", timeout_seconds=0.1)
