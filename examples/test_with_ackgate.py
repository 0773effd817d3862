"""Tests of an application against a real broker: one for the whole run, a topic for each test.

pytest examples/test_with_ackgate.py
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pulsar
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.testing import BrokerProcess

pytest_plugins = ["ackgate.testing"]


@pytest.fixture
def client(ackgate_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A Pulsar client of the session's broker."""
    with closing(pulsar.Client(ackgate_broker.service_url)) as client:
        yield client


def bill_orders(client: pulsar.Client, topic: str, orders: int) -> list[str]:
    """The application under test: bills this many orders; one that is not for us stays there."""
    bills = []
    with closing(client.subscribe(topic, "billing", pulsar.ConsumerType.Shared)) as consumer:
        for _ in range(orders):
            message = consumer.receive(timeout_millis=5_000)
            if message.data().startswith(b"order"):
                bills.append(f"bill for {message.data().decode()}")
                consumer.acknowledge(message)
    return bills


def send(client: pulsar.Client, topic: str, *texts: str) -> None:
    """The other side."""
    client.subscribe(topic, "billing", pulsar.ConsumerType.Shared).close()  # it begins here
    with closing(client.create_producer(topic)) as producer:
        for text in texts:
            producer.send(text.encode())


def test_bills_every_order(client: pulsar.Client, ackgate_topic: str) -> None:
    """Each test has a topic that no other test uses."""
    send(client, ackgate_topic, "order 1", "order 2")
    assert bill_orders(client, ackgate_topic, 2) == ["bill for order 1", "bill for order 2"]


def test_leaves_to_others_what_is_not_an_order(client: pulsar.Client, ackgate_topic: str) -> None:
    """What was acked does not come again, what was not does: here to another consumer."""
    send(client, ackgate_topic, "order 1", "complaint", "order 2")
    assert len(bill_orders(client, ackgate_topic, 3)) == 2
    with closing(
        client.subscribe(ackgate_topic, "billing", pulsar.ConsumerType.Shared)
    ) as consumer:
        assert consumer.receive(timeout_millis=5_000).data() == b"complaint"


def test_survives_a_broker_that_is_killed(
    client: pulsar.Client, ackgate_broker: BrokerProcess, ackgate_topic: str
) -> None:
    """The broker is a process like any other: `kill -9` it and start it again, on the same port."""
    send(client, ackgate_topic, "order 1")
    ackgate_broker.kill()
    ackgate_broker.start()
    assert bill_orders(client, ackgate_topic, 1) == ["bill for order 1"]
