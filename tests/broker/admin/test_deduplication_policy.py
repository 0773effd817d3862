"""The policy for de-duplication: its values, and that it applies to topics that are in use."""

from __future__ import annotations

from functools import partial

import pulsar
import pytest

from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually

NAMESPACE = "namespaces/public/twice"
TOPIC = "persistent/public/twice/orders"
OF_NAMESPACE = f"{NAMESPACE}/deduplication"
OF_TOPIC = f"{TOPIC}/deduplicationEnabled"


@pytest.fixture(autouse=True)
def _made(broker: InProcessBroker) -> None:
    broker.ask("PUT", NAMESPACE)
    broker.ask("PUT", TOPIC)
    for path in (OF_NAMESPACE, OF_TOPIC):
        assert broker.ask("DELETE", path).status == 204


def is_told(broker: InProcessBroker, status: str) -> bool:
    stats = broker.ask("GET", f"{TOPIC}/stats")
    return stats.status == 200 and stats.value["deduplicationStatus"] == status


def stored(broker: InProcessBroker) -> int:
    return int(broker.get(f"{TOPIC}/internalStats")["numberOfEntries"])


def test_values_at_both_levels(broker: InProcessBroker) -> None:
    applied = f"{OF_TOPIC}?applied=true"
    assert broker.get(OF_NAMESPACE) is broker.get(OF_TOPIC) is None
    assert broker.get(applied) is False
    assert broker.ask("POST", OF_NAMESPACE, True).status == 204
    assert broker.get(OF_NAMESPACE) is broker.get(applied) is True
    assert broker.get(NAMESPACE)["deduplicationEnabled"] is True
    assert broker.ask("POST", OF_TOPIC, False).status == 204
    assert broker.get(OF_TOPIC) is broker.get(applied) is False
    assert broker.ask("POST", OF_TOPIC).status == 204
    assert broker.get(OF_TOPIC) is None
    assert broker.ask("POST", OF_NAMESPACE).status == 400
    for path in (OF_NAMESPACE, OF_TOPIC):
        assert broker.ask("POST", path, "x").status == 400
    assert broker.ask("GET", f"{TOPIC}/deduplication").status == 404


@pytest.mark.slow
def test_it_applies_to_a_topic_in_use(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    producer = pulsar_client.create_producer(
        "persistent://public/twice/orders", producer_name="p", batching_enabled=False
    )
    send = partial(producer.send, b"x")
    before = stored(broker)
    for sequence_id in (1, 1):
        send(sequence_id=sequence_id)
    assert stored(broker) == before + 2

    assert broker.ask("POST", OF_NAMESPACE, True).status == 204
    eventually(lambda: is_told(broker, "Enabled"))
    for sequence_id in (1, 2, 2, 1):  # the same producer; 1 is known from the stored messages
        send(sequence_id=sequence_id)
    assert stored(broker) == before + 3

    assert broker.ask("POST", OF_TOPIC, False).status == 204
    eventually(lambda: is_told(broker, "Disabled"))
    send(sequence_id=2)
    assert stored(broker) == before + 4

    assert broker.ask("POST", OF_TOPIC, True).status == 204
    eventually(lambda: is_told(broker, "Enabled"))
    send(sequence_id=2)
    assert stored(broker) == before + 4
    producer.close()
