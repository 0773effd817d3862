"""Where reading begins and goes on: readers, seeks by id and by time, the last message id."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.broker.target import (
    Target,
    eventually,
    numbered,
    payloads,
    position,
    receive,
    send_all,
)

EARLIEST = pulsar.MessageId.earliest
LATEST = pulsar.MessageId.latest


def read(reader: pulsar.Reader, count: int) -> list[bytes]:
    return [reader.read_next(60_000).data() for _ in range(count)]


def read_all(reader: pulsar.Reader) -> list[bytes]:
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(60_000).data())
    return got


# ---------------------------------------------------------------- readers


def test_a_reader_from_the_earliest_reads_everything_there_is(client, topic):
    producer = client.create_producer(topic)
    send_all(producer, numbered(30))
    reader = client.create_reader(topic, EARLIEST)
    assert read_all(reader) == numbered(30)
    assert not reader.has_message_available()
    producer.send(b"more")
    assert reader.has_message_available()
    assert read_all(reader) == [b"more"]


def test_a_reader_from_the_latest_reads_what_comes(client, topic):
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    reader = client.create_reader(topic, LATEST)
    assert not reader.has_message_available()
    send_all(producer, numbered(3, "new"))
    assert read(reader, 3) == numbered(3, "new")


def test_a_reader_of_an_empty_topic(client, topic):
    reader = client.create_reader(topic, EARLIEST)
    assert not reader.has_message_available()
    with pytest.raises(pulsar.Timeout):
        reader.read_next(50)


@pytest.mark.parametrize("is_inclusive", [False, True])
def test_a_reader_from_a_message_id(client, topic, is_inclusive):
    ids = send_all(client.create_producer(topic), numbered(20))
    reader = client.create_reader(topic, ids[7], start_message_id_inclusive=is_inclusive)
    assert read_all(reader) == numbered(20)[7 if is_inclusive else 8 :]


@pytest.mark.parametrize("is_inclusive", [False, True])
def test_a_reader_from_inside_a_batch(client, topic, is_inclusive):
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=60_000,
    )
    ids = send_all(producer, numbered(20))
    reader = client.create_reader(topic, ids[4], start_message_id_inclusive=is_inclusive)
    assert read_all(reader) == numbered(20)[4 if is_inclusive else 5 :]


def test_an_inclusive_reader_from_the_latest_begins_with_the_last_message(client, topic):
    send_all(client.create_producer(topic), numbered(10))
    reader = client.create_reader(topic, LATEST, start_message_id_inclusive=True)
    assert read_all(reader) == [b"m9"]


def test_a_message_id_survives_serialisation(client, topic):
    ids = send_all(client.create_producer(topic), numbered(5))
    kept = pulsar.MessageId.deserialize(ids[2].serialize())
    assert read_all(client.create_reader(topic, kept)) == numbered(5)[3:]


def test_readers_leave_nothing_behind(client, topic, target: Target):
    send_all(client.create_producer(topic), numbered(5))
    reader = client.create_reader(topic, EARLIEST)
    read_all(reader)
    assert len(target.stats(topic)["subscriptions"]) == 1
    reader.close()
    eventually(lambda: not target.stats(topic)["subscriptions"])


def test_a_reader_does_not_move_a_subscription(client, topic):
    consumer = client.subscribe(topic, "s")
    send_all(client.create_producer(topic), numbered(10))
    assert read_all(client.create_reader(topic, EARLIEST)) == numbered(10)
    assert payloads(receive(consumer, 10)) == numbered(10)


def test_a_reader_seeks(client, topic):
    ids = send_all(client.create_producer(topic), numbered(20))
    reader = client.create_reader(topic, EARLIEST)
    assert read(reader, 20) == numbered(20)
    reader.seek(ids[14])
    assert read(reader, 5) == numbered(20)[15:]
    reader.seek(EARLIEST)
    assert read(reader, 20) == numbered(20)
    reader.seek(LATEST)
    assert not reader.has_message_available()


def test_a_reader_seeks_to_a_time(client, topic, target: Target):
    producer = client.create_producer(topic)
    send_all(producer, numbered(10, "before"))
    reader = client.create_reader(topic, EARLIEST)
    last = [reader.read_next(60_000) for _ in range(10)][-1]
    eventually(lambda: time.time() * 1000 > last.publish_timestamp() + 2)
    between_ms = int(time.time() * 1000)
    send_all(producer, numbered(10, "after"))
    reader.seek(between_ms)
    assert read(reader, 10) == numbered(10, "after")
    assert len(target.stats(topic)["subscriptions"]) == 1
    reader.close()
    eventually(lambda: not target.stats(topic)["subscriptions"])


# ---------------------------------------------------------------- seeks


@pytest.mark.parametrize("is_inclusive", [False, True])
def test_a_consumer_seeks_back_and_gets_what_it_had_acked(client, topic, is_inclusive):
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=is_inclusive)
    ids = send_all(client.create_producer(topic), numbered(20))
    messages = receive(consumer, 20)
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.acknowledge_cumulative(messages[15])
    consumer.seek(ids[10])
    expected = numbered(20)[10 if is_inclusive else 11 :]
    assert payloads(receive(consumer, len(expected))) == expected
    consumer.seek(EARLIEST)
    assert payloads(receive(consumer, 20)) == numbered(20)


def test_a_consumer_seeks_forward_over_messages(client, topic, target: Target):
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        start_message_id_inclusive=True,
    )
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(20))
    consumer.seek(ids[15])
    assert payloads(receive(consumer, 5)) == numbered(20)[15:]
    consumer.seek(LATEST)
    producer.send(b"next")
    assert payloads(receive(consumer, 1)) == [b"next"]
    assert target.backlog(topic, "s") == 1


def test_a_consumer_seeks_to_a_time(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    send_all(producer, numbered(10, "before"))
    last = receive(consumer, 10)[-1]
    # The client stamps milliseconds: the second half must not share one with the first.
    eventually(lambda: time.time() * 1000 > last.publish_timestamp() + 2)
    between_ms = int(time.time() * 1000)
    send_all(producer, numbered(10, "after"))
    receive(consumer, 10)
    consumer.seek(between_ms)
    assert payloads(receive(consumer, 10)) == numbered(10, "after")
    consumer.seek(0)
    assert payloads(receive(consumer, 20)) == numbered(10, "before") + numbered(10, "after")
    consumer.seek(int(time.time() * 1000) + 60_000)
    producer.send(b"beyond")
    assert payloads(receive(consumer, 1)) == [b"beyond"]


def test_a_seek_forgets_old_holes(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    send_all(client.create_producer(topic), numbered(10))
    messages = receive(consumer, 10)
    for number in (5, 7):
        consumer.acknowledge(messages[number])
    consumer.seek(EARLIEST)
    assert payloads(receive(consumer, 10)) == numbered(10)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert payloads(receive(again, 10)) == numbered(10)


# ---------------------------------------------------------------- the end of a topic


def test_the_last_message_id(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(7))
    assert position(consumer.get_last_message_id()) == position(ids[-1])
    message_id = producer.send(b"one more")
    assert position(consumer.get_last_message_id()) == position(message_id)


def test_the_last_message_id_tells_the_place_in_its_batch(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=5,
        batching_max_publish_delay_ms=60_000,
    )
    ids = send_all(producer, numbered(10))
    last = consumer.get_last_message_id()
    assert (*position(last), last.batch_index()) == (*position(ids[-1]), 4)


def test_the_last_message_id_of_an_empty_topic(client, topic):
    consumer = client.subscribe(topic, "s")
    assert consumer.get_last_message_id().entry_id() == -1
