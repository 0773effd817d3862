"""What is reported to come again after a crash comes again, and nothing else: a real Pulsar is killed.

Runs last of this directory: it leaves the broker with a pace of writing that other tests could not wait for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar as client_library
import pytest

from ackgate.cursor import Position
from ackgate.pulsar import PulsarCluster, PulsarTopic, TopicReport, live_topic, report_topic
from tests.support.real_pulsar import RealPulsar

TOPIC = PulsarTopic.parse("crashing")
MESSAGES = 60


def subscribed(client: client_library.Client) -> Any:
    shared = client_library.ConsumerType.Shared
    return client.subscribe("crashing", "worker", consumer_type=shared)


def position_of(message: Any) -> Position:
    found = message.message_id()
    return Position(found.ledger_id(), found.entry_id())


def received(consumer: Any, count: int) -> dict[Position, Any]:
    messages = [consumer.receive(30_000) for _ in range(count)]
    return {position_of(message): message for message in messages}


async def reported(real_pulsar: RealPulsar) -> TopicReport:
    async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
        report = await report_topic(cluster, TOPIC)
    return report.beside(live_topic(real_pulsar.admin_url, "crashing"))


async def test_acks_in_memory_only_come_again(real_pulsar: RealPulsar) -> None:
    # One write of a cursor, and the next in 1,000 s; by default it is one a second.
    real_pulsar.restart(managedLedgerDefaultMarkDeleteRateLimit="0.001")
    settings = real_pulsar.admin("brokers/configuration/runtime")
    assert float(settings["managedLedgerDefaultMarkDeleteRateLimit"]) == pytest.approx(0.001)
    client = real_pulsar.client()
    consumer = subscribed(client)
    producer = client.create_producer("crashing", batching_enabled=False)
    for number in range(MESSAGES):
        producer.send(b"%d" % number)
    messages = received(consumer, MESSAGES)
    order = sorted(messages)
    stored, lost = order[10], {*order[20:30], *order[40:60:2]}

    consumer.acknowledge(messages[stored])
    [subscription] = (await reported(real_pulsar)).subscriptions
    while subscription.cursor.acks.acked_count < 1:
        await asyncio.sleep(0.05)
        [subscription] = (await reported(real_pulsar)).subscriptions
    for at in lost:
        consumer.acknowledge(messages[at])
    while subscription.live is None or sum(map(len, subscription.live.acked.values())) < 21:
        await asyncio.sleep(0.05)
        [subscription] = (await reported(real_pulsar)).subscriptions
    assert subscription.cursor.acks.acked_count == 1
    assert subscription.crash_entries == len(lost) == 20
    assert subscription.close_entries == 0  # an orderly shutdown would write them

    real_pulsar.kill()
    client.close()
    real_pulsar.start()
    client = real_pulsar.client()
    again = received(subscribed(client), MESSAGES - 1)
    assert set(again) == set(order) - {stored}
    assert lost < set(again)
    [subscription] = (await reported(real_pulsar)).subscriptions
    assert subscription.crash_entries == 0
    client.close()
