"""Cancelled delayed messages across `kill -9`, with the real client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pulsar
import pytest

from ackgate.commands.terminal.admin_client import AdminClient
from ackgate.testing import BrokerProcess
from tests.broker.target import position, receive

SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
EARLIEST = pulsar.InitialPosition.Earliest

TRACKERS = ["InMemoryDelayedDeliveryTrackerFactory", "BucketDelayedDeliveryTrackerFactory"]


@pytest.fixture(params=TRACKERS)
def own_broker(tmp_path, request) -> Iterator[BrokerProcess]:
    """A broker of this test alone."""
    settings = {
        "delayedDeliveryTrackerFactoryClassName": f"org.apache.pulsar.broker.delayed.{request.param}",
        "delayedDeliveryMinIndexCountPerBucket": 10,
        "managedLedgerMaxEntriesPerLedger": 20,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        # Acks of subscriptions are written long after the cancel: the kill loses them.
        "ackPersistLingerMs": 1_000,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        yield broker


def test_what_was_answered_as_cancelled_arrives_nowhere(own_broker, make_client, ackgate_topic):
    client = make_client(own_broker.service_url)
    consumers = [
        client.subscribe(ackgate_topic, "shared", consumer_type=SHARED),
        client.subscribe(ackgate_topic, "keyed", consumer_type=KEY_SHARED),
    ]
    producer = client.create_producer(ackgate_topic, batching_enabled=False)
    ids = [
        producer.send(b"%d" % number, deliver_after=timedelta(seconds=6), partition_key=str(number))
        for number in range(100)
    ]
    positions = [f"{ledger_id}:{entry_id}" for ledger_id, entry_id in map(position, ids)]
    admin = AdminClient(own_broker.admin_url)
    path = f"persistent/public/default/{ackgate_topic.rpartition('/')[2]}/delayed"
    told = admin.ask("POST", path, "cancel", body={"positions": positions[::2]})
    assert told["cancelled"] == 50
    own_broker.kill()
    own_broker.start()
    assert admin.get(path)["cancelled"] == 50
    again = admin.ask("POST", path, "cancel", body={"positions": positions[:3]})
    outcomes = [each["outcome"] for each in again["outcomes"]]
    assert outcomes == ["alreadyCancelled", "cancelled", "alreadyCancelled"]
    consumers.append(
        client.subscribe(ackgate_topic, "later", consumer_type=SHARED, initial_position=EARLIEST)
    )
    for consumer in consumers:
        arrived = {int(message.data()) for message in receive(consumer, 49)}
        assert arrived == set(range(3, 100, 2))
    for consumer in consumers:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
