"""Cancelled delayed messages across `kill -9`, with the real client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pulsar
import pytest

from ackgate.commands.terminal.admin_client import AdminClient
from ackgate.testing import BrokerProcess
from tests.broker.target import position

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


def test_what_was_answered_as_cancelled_arrives_nowhere(
    own_broker, make_client, fresh_ackgate_topic
):
    client = make_client(own_broker.service_url)
    for delay_seconds in (6, 30, 150, 600):  # on a slow machine the first may be over too soon
        due_at = time.monotonic() + delay_seconds
        topic = fresh_ackgate_topic()
        consumers, outcomes = cancelled_across_a_kill(client, own_broker, topic, delay_seconds)
        if time.monotonic() < due_at:
            break
    assert outcomes == ["alreadyCancelled", "cancelled", "alreadyCancelled"]
    consumers.append(
        client.subscribe(topic, "later", consumer_type=SHARED, initial_position=EARLIEST)
    )
    for consumer in consumers:
        left = max(due_at - time.monotonic(), 0)
        arrived = {int(consumer.receive(int(left * 1000) + 10_000).data()) for _ in range(49)}
        assert arrived == set(range(3, 100, 2))
    for consumer in consumers:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)


def cancelled_across_a_kill(client, broker, topic, delay_seconds):
    """Cancel every other one of 100 messages, kill the broker, cancel the first three again."""
    consumers = [
        client.subscribe(topic, "shared", consumer_type=SHARED),
        client.subscribe(topic, "keyed", consumer_type=KEY_SHARED),
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    delay = timedelta(seconds=delay_seconds)
    ids = [
        producer.send(b"%d" % number, deliver_after=delay, partition_key=str(number))
        for number in range(100)
    ]
    positions = [f"{ledger_id}:{entry_id}" for ledger_id, entry_id in map(position, ids)]
    admin = AdminClient(broker.admin_url)
    path = f"persistent/public/default/{topic.rpartition('/')[2]}/delayed"
    first = admin.ask("POST", path, "cancel", body={"positions": positions[::2]})
    broker.kill()
    broker.start()
    listed = admin.get(path)["cancelled"]
    again = admin.ask("POST", path, "cancel", body={"positions": positions[:3]})
    outcomes = [each["outcome"] for each in again["outcomes"]]
    if outcomes[1] == "cancelled":  # nothing was due by then
        assert (first["cancelled"], listed) == (50, 50)
    return consumers, outcomes
