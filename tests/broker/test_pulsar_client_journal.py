"""The delivery journal of a real broker, of what real clients did, through ``kill -9``."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from ackgate.cursor import Position
from ackgate.persistence.deliveries.columns import DeliveryEvent, EventKind
from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.testing import BrokerProcess
from tests.support.delivery_journals import read_events
from tests.support.topic_replay import TopicReplay

TOPIC = "persistent://public/default/journaled"
PATH = delivery_journal_path("public", "default", "journaled")
COUNT = 150
BLOCK_SECONDS = 20
TIMEOUT_MS = 10_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"deliveryJournalEnabled": "true", "deliveryJournalLingerMs": "20"}
    with BrokerProcess(tmp_path / "data", settings=settings) as running:
        yield running


def connect(broker: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def position(message_id: pulsar.MessageId) -> Position:
    return Position(message_id.ledger_id(), message_id.entry_id())


def internal_stats(broker: BrokerProcess) -> dict[str, Any]:
    url = f"{broker.admin_url}/admin/v2/{TOPIC.replace('://', '/')}/internalStats"
    with urllib.request.urlopen(url, timeout=60) as answer:
        stats: dict[str, Any] = json.load(answer)
    return stats


def until_written(broker: BrokerProcess) -> dict[str, Any]:
    """Internal stats once all events are in the journal. Asking often is the only way to know."""
    for _ in range(BLOCK_SECONDS * 100):
        stats = internal_stats(broker)
        if stats["deliveryJournal"]["eventsPending"] == 0:
            return stats
    raise AssertionError(stats["deliveryJournal"])


def of(events: list[DeliveryEvent], kind: EventKind) -> set[Position]:
    return {
        Position(event.ledger_id or 0, event.entry_id or 0)
        for event in events
        if event.kind is kind
    }


def work(broker: BrokerProcess, name: str) -> tuple[set[Position], set[Position]]:
    """Publish, receive all, ack every second one. Returns what was published, and what acked."""
    client = connect(broker)
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, producer_name=name, batching_enabled=False)
    published: set[Position] = set()
    for number in range(COUNT):
        producer.send_async(
            b"%d" % number,
            lambda _, message_id: published.add(position(message_id)),
            partition_key=str(number % 5),
        )
    producer.flush()
    acked = set()
    seen: set[Position] = set()
    while not published <= seen:
        message = consumer.receive(TIMEOUT_MS)
        at = position(message.message_id())
        seen.add(at)
        if at.entry_id % 2 == 0:
            consumer.acknowledge(message)
            acked.add(at)
    client.close()  # which sends the acks that were gathered
    return published, acked


def test_everything_that_clients_did_is_there_and_a_replay_leads_to_the_cursor(
    broker: BrokerProcess,
) -> None:
    published, acked = work(broker, "first")
    until_written(broker)
    broker.kill()
    broker.start()
    more, acked_more = work(broker, "second")
    stats = until_written(broker)

    events = asyncio.run(read_events(broker.data_directory, PATH))
    assert [event.kind for event in events].count(EventKind.OPENED) == 2
    assert of(events, EventKind.PUBLISHED) == published | more
    assert of(events, EventKind.DISPATCHED) >= published | more
    assert of(events, EventKind.ACKED) == acked | acked_more
    keys = {event.key for event in events if event.kind is EventKind.PUBLISHED}
    assert keys == {str(number) for number in range(5)}

    replay = TopicReplay()
    replay.feed(events)
    replay.finish()
    assert replay.versions_compared > 0
    cursor, told = replay.cursors["s"], stats["cursors"]["s"]
    assert str(cursor.mark_delete) == told["markDeletePosition"]
    assert cursor.ranges_text(10_000) == told["individuallyDeletedMessages"]
    assert cursor.range_count == told["totalNonContiguousDeletedMessagesRange"] > COUNT // 2

    assert stats["deliveryJournal"]["eventsDropped"] == 0
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    assert "ackgate_delivery_journal_events_dropped_total" in metrics
    assert "ackgate_delivery_journal_bytes_total" in metrics
