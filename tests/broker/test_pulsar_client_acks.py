"""Acks in every form that the client has, negative ones, and what comes again."""

from __future__ import annotations

import random
from typing import Any

import pulsar
import pytest

from tests.broker.target import (
    Target,
    eventually,
    numbered,
    payloads,
    receive,
    send_all,
)

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


def batching(count: int) -> dict:
    return {
        "batching_enabled": True,
        "batching_max_messages": count,
        "batching_max_publish_delay_ms": 60_000,
    }


@pytest.fixture
def batch_index_acks(target: Target) -> None:
    """Needs acknowledgmentAtBatchIndexLevelEnabled: on by default here, off in Pulsar."""
    if not target.is_ackgate:
        pytest.skip("a stock Pulsar has batch index acks switched off")


def test_shuffled_acks_leave_exactly_the_rest(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send_all(client.create_producer(topic), numbered(500))
    messages = receive(consumer, 500)
    shuffled = random.Random(3).sample(messages, 300)
    for message in shuffled:
        consumer.acknowledge(message)
    consumer.close()
    acked = {message.data() for message in shuffled}
    again = client.subscribe(topic, "s", consumer_type=SHARED)
    rest = receive(again, 200)
    assert payloads(rest) == [payload for payload in numbered(500) if payload not in acked]


def test_acking_twice_is_fine(client, topic, target: Target):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send_all(client.create_producer(topic), numbered(10))
    messages = receive(consumer, 10)
    for message in messages[:5] * 3:
        consumer.acknowledge(message)
    eventually(lambda: target.backlog(topic, "s") == 5)
    consumer.acknowledge(messages[5].message_id())
    eventually(lambda: target.backlog(topic, "s") == 4)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_a_cumulative_ack_takes_everything_up_to_it(client, topic, kind, target: Target):
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    send_all(client.create_producer(topic), numbered(100))
    messages = receive(consumer, 100)
    consumer.acknowledge_cumulative(messages[59])
    eventually(lambda: target.backlog(topic, "s") == 40)
    consumer.acknowledge_cumulative(messages[29])  # behind: changes nothing
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=kind)
    assert payloads(receive(again, 40)) == numbered(100)[60:]


def test_cumulative_acks_are_not_for_shared_subscriptions(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    client.create_producer(topic).send(b"x")
    message = receive(consumer, 1)[0]
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(message)


def test_a_cumulative_ack_over_individual_ones(client, topic, target: Target):
    consumer = client.subscribe(topic, "s")
    send_all(client.create_producer(topic), numbered(20))
    messages = receive(consumer, 20)
    for number in (10, 11, 12, 17):
        consumer.acknowledge(messages[number])
    consumer.acknowledge_cumulative(messages[9])
    eventually(lambda: target.backlog(topic, "s") == 6)
    consumer.close()
    again = client.subscribe(topic, "s")
    assert payloads(receive(again, 6)) == [numbered(20)[n] for n in (13, 14, 15, 16, 18, 19)]


# ---------------------------------------------------------------- batches


def test_single_messages_of_a_batch_are_acked_for_good(client, topic, batch_index_acks):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, batch_index_ack_enabled=True)
    send_all(client.create_producer(topic, **batching(10)), numbered(30))
    messages = receive(consumer, 30)
    acked = [0, 1, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 29]
    for number in random.Random(5).sample(acked, len(acked)):
        consumer.acknowledge(messages[number])
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=SHARED, batch_index_ack_enabled=True)
    rest = [number for number in range(30) if number not in acked]
    assert payloads(receive(again, len(rest))) == [numbered(30)[number] for number in rest]


def test_without_batch_index_acks_a_batch_comes_again_whole(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send_all(client.create_producer(topic, **batching(10)), numbered(20))
    messages = receive(consumer, 20)
    for message in messages[:15]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=SHARED)
    assert payloads(receive(again, 10)) == numbered(20)[10:]


def test_a_cumulative_ack_inside_a_batch(client, topic, batch_index_acks):
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    send_all(client.create_producer(topic, **batching(10)), numbered(30))
    messages = receive(consumer, 30)
    consumer.acknowledge_cumulative(messages[13])
    consumer.close()
    again = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert payloads(receive(again, 16)) == numbered(30)[14:]


# ---------------------------------------------------------------- again, please


def test_a_nacked_message_comes_again_with_its_count(client, topic):
    consumer = client.subscribe(
        topic, "s", consumer_type=SHARED, negative_ack_redelivery_delay_ms=100
    )
    send_all(client.create_producer(topic), numbered(10))
    messages = receive(consumer, 10)
    for number, message in enumerate(messages):
        (consumer.negative_acknowledge if number in (3, 7) else consumer.acknowledge)(message)
    for count in (1, 2, 3):
        again = receive(consumer, 2)
        assert sorted(payloads(again)) == [b"m3", b"m7"]
        assert {message.redelivery_count() for message in again} == {count}
        for message in again:
            consumer.negative_acknowledge(message)


@pytest.mark.slow  # 10 s is the shortest timeout that the client takes
def test_what_is_not_acked_in_time_comes_again(client, topic):
    consumer = client.subscribe(
        topic, "s", consumer_type=SHARED, unacked_messages_timeout_ms=10_000
    )
    send_all(client.create_producer(topic), numbered(3))
    messages = receive(consumer, 3)
    consumer.acknowledge(messages[1])
    again = [consumer.receive(25_000) for _ in range(2)]
    assert sorted(payloads(again)) == [b"m0", b"m2"]


@pytest.mark.parametrize("kind", [SHARED, pulsar.ConsumerType.Exclusive], ids=lambda k: k.name)
def test_redeliver_unacknowledged_brings_all_that_is_not_acked(client, topic, kind):
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    send_all(client.create_producer(topic), numbered(20))
    messages = receive(consumer, 20)
    for message in messages[:5]:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert payloads(receive(consumer, 15)) == numbered(20)[5:]


def test_a_dead_letter_topic_gets_what_was_refused_too_often(client, topic):
    dead = client.subscribe(f"{topic}-dead", "d")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=SHARED,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, dead_letter_topic=f"{topic}-dead"
        ),
    )
    client.create_producer(topic).send(b"poison")
    for count in range(3):
        message = receive(consumer, 1)[0]
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    assert payloads(receive(dead, 1)) == [b"poison"]


def test_holes_are_told_in_the_internal_stats(client, topic, target: Target):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send_all(client.create_producer(topic), numbered(10))
    messages = receive(consumer, 10)
    for number in (0, 1, 4, 5, 8):
        consumer.acknowledge(messages[number])
    ledger_id = messages[0].message_id().ledger_id()

    def cursor() -> Any:
        return target.admin("GET", topic.replace("://", "/") + "/internalStats")["cursors"]["s"]

    holes = f"[({ledger_id}:3..{ledger_id}:5],({ledger_id}:7..{ledger_id}:8]]"
    eventually(lambda: cursor()["individuallyDeletedMessages"] == holes)
    assert cursor()["markDeletePosition"] == f"{ledger_id}:1"
    assert cursor()["messagesConsumedCounter"] == 5
    assert target.subscription_stats(topic, "s")["nonContiguousDeletedMessagesRanges"] == 2
