"""What a producer hands in, a consumer gets back: batches, compression, chunks, encryption."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pulsar
import pytest

from tests.broker.target import Target, numbered, payloads, position, receive, send_all

COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def test_a_message_arrives_with_everything_its_producer_gave_it(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="the-producer")
    before_ms = int(time.time() * 1000)
    message_id = producer.send(
        b"payload",
        properties={"colour": "red", "größe": "ü"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1234567,
        sequence_id=41,
    )
    message = receive(consumer, 1)[0]
    assert message.data() == b"payload"
    assert message.properties() == {"colour": "red", "größe": "ü"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 1234567
    assert message.producer_name() == "the-producer"
    assert before_ms <= message.publish_timestamp() <= int(time.time() * 1000)
    assert message.redelivery_count() == 0
    assert message.topic_name() == topic
    assert position(message.message_id()) == position(message_id)
    assert producer.last_sequence_id() == 41


def test_unbatched_messages_get_one_entry_each_in_order(client, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    ids = send_all(producer, numbered(200))
    ledger_id = ids[0].ledger_id()
    assert [position(message_id) for message_id in ids] == [(ledger_id, n) for n in range(200)]
    assert {message_id.batch_index() for message_id in ids} == {-1}


def test_a_batch_is_one_entry_and_its_messages_have_indexes(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=60_000,
    )
    ids = send_all(producer, numbered(30))
    assert [(*position(i), i.batch_index()) for i in ids] == [
        (ids[0].ledger_id(), number // 10, number % 10) for number in range(30)
    ]
    messages = receive(consumer, 30)
    assert payloads(messages) == numbered(30)
    assert [m.message_id().batch_index() for m in messages] == [n % 10 for n in range(30)]


@pytest.mark.parametrize("is_batched", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda c: c.name)
def test_compressed_payloads_pass_through(client, topic, compression, is_batched):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, compression_type=compression, batching_enabled=is_batched
    )
    sent = [bytes([number]) * 5000 for number in range(20)]
    send_all(producer, sent)
    assert payloads(receive(consumer, 20)) == sent


def test_an_empty_payload_is_a_message(client, topic):
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"")
    assert receive(consumer, 1)[0].data() == b""


def test_the_largest_message_passes_and_a_larger_one_is_refused(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    largest = bytes(5 * 1024 * 1024 - 1024)
    producer.send(largest)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 * 1024 * 1024 + 1))
    producer.send(b"after")
    assert payloads(receive(consumer, 2)) == [largest, b"after"]


def test_a_message_larger_than_an_entry_is_sent_in_chunks(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = b"".join(number.to_bytes(4, "big") for number in range(3_000_000))
    producer.send(large)
    producer.send(b"small")
    messages = receive(consumer, 2)
    assert payloads(messages) == [large, b"small"]
    for message in messages:
        consumer.acknowledge(message)


def test_encrypted_payloads_pass_through(client, topic, tmp_path: Path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a key pair")
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    for arguments in (
        ["genrsa", "-out", str(private), "2048"],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run([openssl, *arguments], check=True, capture_output=True)
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    blind = client.create_reader(topic, pulsar.MessageId.earliest)
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
    producer.send(b"nobody else shall read this")
    assert receive(consumer, 1)[0].data() == b"nobody else shall read this"
    blind.close()


def test_producers_are_given_distinct_names(client, topic):
    names = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(names) == 5


def test_a_topic_keeps_the_order_of_each_of_many_producers(client, topic):
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, batching_enabled=n % 2 == 0) for n in range(4)]
    for number in range(50):
        for which, producer in enumerate(producers):
            producer.send_async(f"{which}:{number}".encode(), None)
    for producer in producers:
        producer.flush()
    by_producer: dict[str, list[int]] = {}
    for payload in payloads(receive(consumer, 200)):
        name, place = payload.decode().split(":")
        by_producer.setdefault(name, []).append(int(place))
    assert by_producer == {str(which): list(range(50)) for which in range(4)}


def test_a_producer_that_has_closed_leaves_the_stats(client, topic, target: Target):
    producer = client.create_producer(topic)
    producer.send(b"x")
    assert len(target.stats(topic)["publishers"]) == 1
    producer.close()
    assert target.stats(topic)["publishers"] == []
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"y")
