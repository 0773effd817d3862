"""Partitioned topics, several topics in one consumer, and subscriptions by regular expression."""

from __future__ import annotations

import re

import pulsar
import pytest

from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all

EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def partitioned(topic: str, target: Target) -> str:
    """A topic of four partitions."""
    target.admin("PUT", topic.replace("://", "/") + "/partitions", 4)
    return topic


def test_messages_go_to_all_partitions_and_come_back(client, partitioned):
    assert client.get_topic_partitions(partitioned) == [
        f"{partitioned}-partition-{index}" for index in range(4)
    ]
    consumer = client.subscribe(partitioned, "s", consumer_type=pulsar.ConsumerType.Shared)
    ids = send_all(client.create_producer(partitioned, batching_enabled=False), numbered(100))
    assert {message_id.partition() for message_id in ids} == {0, 1, 2, 3}
    messages = receive(consumer, 100)
    assert sorted(payloads(messages)) == sorted(numbered(100))
    assert {m.topic_name() for m in messages} == set(client.get_topic_partitions(partitioned))
    for message in messages:
        consumer.acknowledge(message)


def test_a_key_stays_in_its_partition_in_order(client, partitioned):
    consumer = client.subscribe(partitioned, "s")
    producer = client.create_producer(partitioned)
    for number in range(200):
        producer.send_async(str(number).encode(), None, partition_key=f"k{number % 20}")
    producer.flush()
    places: dict[str, set[str]] = {}
    order: dict[str, list[int]] = {}
    for message in receive(consumer, 200):
        places.setdefault(message.partition_key(), set()).add(message.topic_name())
        order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(len(place) == 1 for place in places.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_acks_on_partitions_are_kept(client, partitioned):
    consumer = client.subscribe(partitioned, "s", consumer_type=pulsar.ConsumerType.Shared)
    send_all(client.create_producer(partitioned), numbered(80))
    messages = receive(consumer, 80)
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(partitioned, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert sorted(payloads(receive(again, 40))) == sorted(payloads(messages[1::2]))


def test_partitions_can_be_added(client, partitioned, target: Target):
    target.admin("POST", partitioned.replace("://", "/") + "/partitions", 6)
    assert len(client.get_topic_partitions(partitioned)) == 6
    consumer = client.subscribe(partitioned, "s")
    ids = send_all(client.create_producer(partitioned, batching_enabled=False), numbered(60))
    assert {message_id.partition() for message_id in ids} == set(range(6))
    assert sorted(payloads(receive(consumer, 60))) == sorted(numbered(60))


def test_a_seek_by_time_on_a_partitioned_topic(client, partitioned):
    consumer = client.subscribe(partitioned, "s")
    send_all(client.create_producer(partitioned), numbered(40))
    receive(consumer, 40)
    consumer.seek(0)
    assert sorted(payloads(receive(consumer, 40))) == sorted(numbered(40))


def test_a_partition_is_a_topic_by_itself(client, partitioned):
    consumer = client.subscribe(f"{partitioned}-partition-2", "s")
    client.create_producer(f"{partitioned}-partition-2").send(b"x")
    assert payloads(receive(consumer, 1)) == [b"x"]


def test_one_consumer_of_several_topics(client, fresh_topic):
    topics = [fresh_topic() for _ in range(3)]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    for name in topics:
        client.create_producer(name).send(name.encode())
    assert sorted(payloads(receive(consumer, 3))) == sorted(name.encode() for name in topics)


def test_a_pattern_finds_its_topics(client, topic):
    stem = topic.removeprefix("persistent://public/default/")
    fruit = [f"{topic}-fruit-{name}" for name in ("apple", "pear")]
    for name in (*fruit, f"{topic}-nut-hazel"):
        client.create_producer(name).send(name.encode())
    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{re.escape(stem)}-fruit-.*"),
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=EARLIEST,
    )
    messages = receive(consumer, 2)
    assert sorted(payloads(messages)) == sorted(name.encode() for name in fruit)
    for message in messages:
        consumer.acknowledge(message)


def test_topics_are_listed(client, topic, target: Target):
    client.create_producer(topic).send(b"x")
    listed = eventually(lambda: target.admin("GET", "persistent/public/default"))
    assert topic in listed
