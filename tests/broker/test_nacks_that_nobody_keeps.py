"""`pendingNacksMaxBytesToPersist=0`: what is held back is not stored, and acks are all the same."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pulsar
import pytest

from ackgate.testing import BrokerProcess, query_stats
from tests.broker.target import eventually

TOPIC = "persistent://public/default/orders"


def is_durable(broker: BrokerProcess) -> bool:
    (told,) = query_stats(TOPIC, url=broker.admin_url).subscriptions
    store = told.ack_state.store
    return store is not None and store.persisted_version > 0 and store.dirty_versions == 0


@pytest.mark.slow
def test_acks_become_durable_after_a_nack(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={"pendingNacksMaxBytesToPersist": 0}) as broker:
        client = pulsar.Client(broker.service_url)
        consumer = client.subscribe(
            TOPIC,
            "billing",
            pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=100,
        )
        policy = {"minDelayMs": 60_000, "maxDelayMs": 60_000, "multiplier": 2}
        path = f"{broker.admin_url}/admin/v2/{TOPIC.replace('://', '/')}/redeliveryBackoff"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(path, json.dumps(policy).encode(), headers)
        urllib.request.urlopen(request, timeout=60).close()
        producer = client.create_producer(TOPIC)
        for number in range(2):
            producer.send(b"%d" % number)
        first, second = consumer.receive(60_000), consumer.receive(60_000)
        consumer.negative_acknowledge(first)
        eventually(lambda: held_nacks(broker) == 1)
        consumer.acknowledge(second)
        eventually(lambda: is_durable(broker))
        client.close()


def held_nacks(broker: BrokerProcess) -> int:
    (told,) = query_stats(TOPIC, url=broker.admin_url).subscriptions
    assert told.stats is not None
    return told.stats.delayed.nacks.pending
