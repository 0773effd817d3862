"""One index of delayed messages for all subscriptions of a topic, with the real client."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from ackgate.testing import BrokerProcess
from tests.broker.target import Target, eventually, receive

SHARED, EARLIEST = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
TOPIC = "persistent://public/default/delayed"
PACKAGE = "org.apache.pulsar.broker.delayed"
SETTINGS = {
    "delayedDeliverySharedIndexEnabled": True,
    "isDelayedDeliveryDeliverAtTimeStrict": True,
    "delayedDeliveryTickTimeMillis": 64,
    "delayedDeliveryMinIndexCountPerBucket": 40,
    "delayedDeliveryMaxIndexCountPerBucket": 60,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 20,
    "managedLedgerMaxEntriesPerLedger": 50,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


@pytest.fixture(params=["InMemory", "Bucket"])
def broker(tmp_path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    factory = f"{PACKAGE}.{request.param}DelayedDeliveryTrackerFactory"
    settings = {**SETTINGS, "delayedDeliveryTrackerFactoryClassName": factory}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        yield process


def connected(broker: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def subscribed(client: pulsar.Client, name: str) -> pulsar.Consumer:
    return client.subscribe(TOPIC, name, consumer_type=SHARED, initial_position=EARLIEST)


def listed(broker: BrokerProcess) -> dict[str, Any]:
    target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
    answer = target.admin("GET", f"{TOPIC.replace('://', '/')}/delayed")
    return dict(answer["subscriptions"])


def held(broker: BrokerProcess) -> dict[str, int]:
    return {name: each["delayedEntries"] for name, each in listed(broker).items()}


def publish(client: pulsar.Client, count: int, at_ms: int) -> set[str]:
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_at=at_ms + number)
        if number % 10 == 0:
            producer.send_async(b"now-%d" % number, lambda *_: None)
    producer.flush()
    producer.close()
    return {str(number) for number in range(count)}


def received(consumer: pulsar.Consumer, count: int) -> list[str]:
    messages = receive(consumer, count)
    for message in messages:
        consumer.acknowledge(message)
    return [message.data().decode() for message in messages]


def test_every_subscription_gets_all_and_none_takes_from_another(broker: BrokerProcess) -> None:
    client = connected(broker)
    first, second = subscribed(client, "first"), subscribed(client, "second")
    at_ms = int(time.time() * 1000) + 2_500
    delayed = publish(client, 200, at_ms)
    for consumer in (first, second):
        assert all(text.startswith("now-") for text in received(consumer, 20))
    eventually(lambda: held(broker) == {"first": 200, "second": 200})
    late = subscribed(client, "late")
    assert len(received(late, 20)) == 20
    assert held(broker)["late"] == 200
    assert time.time() * 1000 < at_ms, "too slow a machine for this test"
    for consumer in (first, late, second):
        texts = received(consumer, 200)
        assert time.time() * 1000 >= at_ms
        assert set(texts) == delayed
        assert len(texts) == 200
    eventually(lambda: held(broker) == {"first": 0, "second": 0, "late": 0})
    client.close()


def test_a_restart_loses_nothing_of_any_subscription(broker: BrokerProcess) -> None:
    client = connected(broker)
    first, second = subscribed(client, "first"), subscribed(client, "second")
    at_ms = int(time.time() * 1000) + 4_000
    delayed = publish(client, 200, at_ms)
    received(first, 20)
    received(second, 20)
    eventually(lambda: held(broker) == {"first": 200, "second": 200})
    second.unsubscribe()
    eventually(lambda: held(broker) == {"first": 200})
    client.shutdown()
    broker.kill()
    broker.start()
    client = connected(broker)
    first, third = subscribed(client, "first"), subscribed(client, "third")
    for consumer in (first, third):
        texts: set[str] = set()
        while not texts >= delayed:  # what was not delayed, and acked just before, may come again
            texts.update(received(consumer, 1))
        assert time.time() * 1000 >= at_ms
    client.close()


def test_one_subscription_clears_its_index_and_others_keep_theirs(broker: BrokerProcess) -> None:
    client = connected(broker)
    first, second = subscribed(client, "first"), subscribed(client, "second")
    producer = client.create_producer(TOPIC, batching_enabled=False)
    sent = [producer.send(b"%d" % n, deliver_after=dt.timedelta(seconds=2)) for n in range(5)]
    eventually(lambda: held(broker) == {"first": 5, "second": 5})
    target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
    path = TOPIC.replace("://", "/")
    target.admin("DELETE", f"{path}/subscription/first/delayedBucketSnapshots")
    eventually(lambda: held(broker) == {"first": 5, "second": 5})
    gone = f"{sent[2].ledger_id()}/{sent[2].entry_id()}"
    target.admin("DELETE", f"{path}/delayed/{gone}")
    assert held(broker) == {"first": 4, "second": 4}
    for consumer in (first, second):
        assert sorted(received(consumer, 4)) == ["0", "1", "3", "4"]
    client.close()
