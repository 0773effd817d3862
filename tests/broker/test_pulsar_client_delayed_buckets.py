"""Delayed messages whose index is kept in buckets: through crashes, deletion, other settings.

Small buckets, so that 2,000 messages make many: sealed, stored, merged, loaded and deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from ackgate.commands.cli import main
from ackgate.testing import BrokerProcess
from tests.broker.target import Target, eventually

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest

BUCKETS = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
IN_MEMORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": BUCKETS,
    "isDelayedDeliveryDeliverAtTimeStrict": True,
    "delayedDeliveryTickTimeMillis": 100,
    "delayedDeliveryMinIndexCountPerBucket": 100,
    "delayedDeliveryMaxIndexCountPerBucket": 150,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 40,
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": 1,
    "delayedDeliveryMaxNumBuckets": 8,
    "managedLedgerMaxEntriesPerLedger": 130,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
TOPIC = "persistent://public/default/delayed"
MESSAGES = 2_000


@pytest.fixture
def broker(tmp_path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        yield process


@pytest.fixture
def look(broker, capsys) -> Look:
    return Look(broker, capsys)


class Look:
    """What there is, as the admin interface and the offline tools see it."""

    def __init__(self, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self._broker = broker
        self._capsys = capsys

    def subscription(self, name: str = "s") -> Any:
        target = Target(self._broker.service_url, self._broker.admin_url, is_ackgate=True)
        path = TOPIC.replace("://", "/")
        return target.admin("GET", f"{path}/delayed")["subscriptions"][name]

    def entries(self) -> int:
        return int(self.subscription()["delayedEntries"])

    def snapshots(self) -> list[int]:
        """Ledgers that hold snapshots, named by a cursor or by none."""
        self._capsys.readouterr()
        main(["ledgers", "list", "--json", "--data-dir", str(self._broker.data_directory)])
        listed = json.loads(self._capsys.readouterr().out)
        return [ledger["ledgerId"] for ledger in listed if ledger["kind"] == "delayed"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def publish(client: pulsar.Client, due_ms: Callable[[int], int]) -> dict[bytes, int]:
    """When each is due, which is not the order of publishing."""
    producer = client.create_producer(TOPIC, batching_enabled=False, max_pending_messages=5_000)
    due: dict[bytes, int] = {}
    for number in range(MESSAGES):
        payload = b"%d" % number
        due[payload] = due_ms(number)
        producer.send_async(payload, lambda *_: None, deliver_at=due[payload])
    producer.flush()
    producer.close()
    return due


def take(consumer: pulsar.Consumer, due: dict[bytes, int]) -> dict[bytes, int]:
    """All of them, each once and none early. Answers how late each was."""
    late: dict[bytes, int] = {}
    while len(late) < len(due):
        message = consumer.receive(20_000)
        payload = message.data()
        assert payload not in late, "twice"
        late[payload] = now_ms() - due[payload]
        consumer.acknowledge(message)
    assert min(late.values()) >= 0, "early"
    return late


def settled(look: Look) -> bool:
    """Nothing is on its way into storage."""
    buckets = look.subscription()["buckets"]
    return (
        buckets["bucketsStoring"] == buckets["bucketsMerging"] == buckets["snapshotsToDelete"] == 0
    )


@pytest.mark.slow
def test_killed_in_the_middle_the_index_is_recovered_and_not_read_again(broker, make_client, look):
    client = make_client(broker.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED, receiver_queue_size=200)
    began = now_ms()
    due = publish(client, lambda number: began + 8_000 + (number * 7919) % 2_000)
    eventually(lambda: look.entries() == MESSAGES)
    eventually(lambda: settled(look))
    before = look.subscription()["buckets"]
    assert before["buckets"] > 2
    assert len(look.snapshots()) == before["buckets"] - 1
    assert before["loadedEntries"] < MESSAGES

    broker.kill()
    broker.start()
    eventually(lambda: look.entries() == MESSAGES)
    after = look.subscription()
    assert after["tracking"]["step"] == "buckets"
    assert after["buckets"]["entriesLost"] == 0
    # Only what was in memory is read again, and what lay between, before the index was there.
    assert after["entriesOffered"] < MESSAGES / 2, after

    late = take(consumer, due)
    assert max(late.values()) < 3_000
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    eventually(lambda: look.entries() == 0)
    eventually(lambda: look.snapshots() == [])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unsubscribe", "delete the topic", "delete it after a restart"])
def test_nothing_is_left_of_what_is_deleted(broker, make_client, look, way):
    client = make_client(broker.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    began = now_ms()
    publish(client, lambda number: began + 3_600_000 + number)
    eventually(lambda: look.entries() == MESSAGES)
    eventually(lambda: len(look.snapshots()) > 2)
    target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
    path = TOPIC.replace("://", "/")
    if way == "unsubscribe":
        consumer.unsubscribe()
    else:
        consumer.close()
        if way != "delete the topic":
            broker.stop()
            broker.start()
        target.admin("DELETE", f"{path}?force=true")
    eventually(lambda: look.snapshots() == [])


@pytest.mark.slow
def test_other_settings_leave_no_snapshots_and_lose_no_message(broker, make_client, look):
    client = make_client(broker.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    began = now_ms()
    due = publish(client, lambda number: began + 6_000 + number % 50)
    eventually(lambda: look.entries() == MESSAGES)
    eventually(lambda: len(look.snapshots()) > 2)
    consumer.close()
    broker.stop()
    broker.settings["delayedDeliveryTrackerFactoryClassName"] = IN_MEMORY
    broker.start()
    consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
    eventually(lambda: look.entries() == MESSAGES)
    assert look.subscription()["tracking"]["step"] == "time buckets"
    eventually(lambda: look.snapshots() == [])
    take(consumer, due)
