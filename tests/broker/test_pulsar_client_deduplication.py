"""Duplicates that are discarded, and nothing else: what a client gets that reads everything.

The consumers are the real client's, which joins chunks only if each comes once and in order. The
producers are too, except where entries are cut in a way that a client does only when it is
interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import encode
from ackgate.persistence.messages.frame import seal_entry
from ackgate.testing import BrokerProcess
from tests.broker.target import RECEIVE_TIMEOUT_MS, eventually, payloads, receive
from tests.support.wire_client import WireClient, WireProducer

CHUNK_BYTES = 64 * 1024
NOWHERE = 2**64 - 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own that discards duplicates, and wants large messages in small chunks."""
    settings = {"brokerDeduplicationEnabled": True, "maxMessageSize": CHUNK_BYTES}
    with BrokerProcess(tmp_path_factory.mktemp("deduplicating"), settings=settings) as broker:
        yield broker


@pytest.fixture
def client(make_client, broker) -> pulsar.Client:
    return make_client(broker.service_url)


def produce(client: pulsar.Client, topic: str, name: str = "p", **how: Any) -> pulsar.Producer:
    return client.create_producer(topic, producer_name=name, **how)


def read(client: pulsar.Client, topic: str) -> list[bytes]:
    """Everything there is, by a subscription that has seen nothing, up to a mark sent now."""
    consumer = client.subscribe(topic, "reading", initial_position=pulsar.InitialPosition.Earliest)
    produce(client, topic, "marker").send(b"mark")
    found = []
    while (payload := consumer.receive(RECEIVE_TIMEOUT_MS).data()) != b"mark":
        found.append(payload)
    return found


# ---------------------------------------------------------------- single messages


def test_a_sequence_id_is_stored_once(client, ackgate_topic):
    producer = produce(client, ackgate_topic)
    for sequence_id in (0, 1, 1, 0, 2, 5, 4, 6):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    assert read(client, ackgate_topic) == [b"0", b"1", b"2", b"5", b"6"]


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_sequence_ids_are_remembered_over_a_restart(
    broker, client, make_client, ackgate_topic, is_killed
):
    consumer = client.subscribe(ackgate_topic, "s")
    producer = produce(client, ackgate_topic)
    for sequence_id in range(20):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    if is_killed:
        broker.kill()
        broker.start()
    else:
        broker.restart()
    eventually(producer.is_connected)
    for sequence_id in (10, 19, 20):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    got = receive(consumer, 21)
    assert sorted({int(payload) for payload in payloads(got)}) == list(range(21))
    produce(make_client(broker.service_url), ackgate_topic, "q").send(b"21")
    producer.close()
    again = produce(make_client(broker.service_url), ackgate_topic)
    assert again.last_sequence_id() == 20


def test_ids_may_be_below_zero(client, ackgate_topic):
    producer = produce(client, ackgate_topic, initial_sequence_id=-4)
    for number in range(4):
        producer.send(str(number).encode())
    producer.close()
    again = produce(client, ackgate_topic)
    assert again.last_sequence_id() == 0
    again.send(b"4")
    assert read(client, ackgate_topic) == [b"0", b"1", b"2", b"3", b"4"]


def test_producers_of_one_name_follow_each_other(client, ackgate_topic):
    for run in range(3):
        producer = produce(client, ackgate_topic)
        assert producer.last_sequence_id() == 2 * run - 1
        producer.send(f"{run} first".encode())
        producer.send(f"{run} second".encode())
        producer.close()
    expected = [f"{run} {which}".encode() for run in range(3) for which in ("first", "second")]
    assert read(client, ackgate_topic) == expected


# ---------------------------------------------------------------- chunks


def large(number: int, chunks: int = 3) -> bytes:
    return f"{number:04} ".encode() * (chunks * CHUNK_BYTES // 5 - CHUNK_BYTES // 10)


def test_chunked_messages_arrive(client, ackgate_topic):
    producer = produce(client, ackgate_topic, chunking_enabled=True)
    for number in range(3):
        producer.send(large(number))
    producer.send(b"small")
    producer.send(large(1), sequence_id=1)
    assert read(client, ackgate_topic) == [large(0), large(1), large(2), b"small"]


def test_chunked_messages_over_a_kill_are_there_once(broker, client, make_client, ackgate_topic):
    producer = produce(client, ackgate_topic, chunking_enabled=True, send_timeout_millis=0)
    count, done = 30, threading.Semaphore(0)
    for number in range(count):
        producer.send_async(large(number, 5), lambda *_: done.release())
    for _ in range(count // 3):
        assert done.acquire(timeout=60)
    broker.kill()
    broker.start()
    for _ in range(count - count // 3):
        assert done.acquire(timeout=60)
    found = read(make_client(broker.service_url), ackgate_topic)
    assert found == [large(number, 5) for number in range(count)]


async def connect(broker: BrokerProcess) -> WireClient:
    return await WireClient.connect("127.0.0.1", broker.port)


async def publish(producer: WireProducer, payload: bytes, **fields: Any) -> bool:
    """Publish with metadata of any kind; whether the receipt says that it was stored now."""
    metadata = pb.MessageMetadata(producer_name="p", publish_time=1, **fields)
    entry = seal_entry(metadata.SerializeToString(), payload)
    command = pb.BaseCommand(type=pb.BaseCommand.Type.SEND)
    command.send.producer_id = producer.producer_id
    command.send.sequence_id = metadata.sequence_id
    command.send.is_chunk = metadata.num_chunks_from_msg > 1
    receipts = producer.receipts
    producer.client.send_bytes(encode(command, entry))
    await producer.until_receipts(receipts + 1)
    assert producer.last_receipt is not None
    return producer.last_receipt.message_id.entryId != NOWHERE


async def chunk(producer: WireProducer, sequence_id: int, chunk_id: int, text: bytes) -> bool:
    """A chunk of four bytes of a text."""
    return await publish(
        producer,
        text[4 * chunk_id : 4 * chunk_id + 4],
        sequence_id=sequence_id,
        uuid=f"p-{sequence_id}",
        num_chunks_from_msg=-(-len(text) // 4),
        total_chunk_msg_size=len(text),
        chunk_id=chunk_id,
    )


@pytest.mark.parametrize("is_killed", [False, True], ids=["connected again", "killed"])
async def test_a_message_that_was_interrupted_between_its_chunks_arrives_once(
    broker, make_client, ackgate_topic, is_killed
):
    text = b"aaaabbbbcccc"
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        assert await publish(producer, b"before", sequence_id=0)
        assert await chunk(producer, 1, 0, text)
        assert await chunk(producer, 1, 1, text)
    if is_killed:
        broker.kill()
        broker.start()
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        assert producer.success.last_sequence_id == 0
        stored = [await chunk(producer, 1, number, text) for number in range(3)]
        assert stored == [False, False, True]
        assert not await chunk(producer, 1, 0, text)
        assert not await chunk(producer, 1, 2, text)
        assert await publish(producer, b"after", sequence_id=2)
    client = make_client(broker.service_url)
    assert read(client, ackgate_topic) == [b"before", text, b"after"]


# ---------------------------------------------------------------- batches


def test_a_batch_of_the_client_counts_whole(broker, client, make_client, ackgate_topic):
    producer = produce(
        client, ackgate_topic, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    for number in range(5):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    broker.kill()
    broker.start()
    again = make_client(broker.service_url)
    producer.close()
    resumed = produce(again, ackgate_topic)
    assert resumed.last_sequence_id() == 4
    for sequence_id in (1, 3, 4, 5):
        resumed.send(str(sequence_id).encode(), sequence_id=sequence_id)
    assert read(again, ackgate_topic) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_batches_by_key_whose_ids_interlock_arrive(broker, client, make_client, ackgate_topic):
    producer = produce(
        client,
        ackgate_topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=200,
    )
    for number, key in enumerate("ABBAACB"):
        producer.send_async(str(number).encode(), lambda *_: None, partition_key=key)
    producer.flush()
    broker.kill()
    broker.start()
    producer.close()
    again = make_client(broker.service_url)
    resumed = produce(again, ackgate_topic)
    assert resumed.last_sequence_id() == 6
    resumed.send(b"7")
    assert sorted(read(again, ackgate_topic)) == [str(number).encode() for number in range(8)]


async def batch(
    producer: WireProducer, first: int, last: int, *, has_ids: bool = True, **fields: Any
) -> bool:
    parts = []
    for sequence_id in range(first, last + 1):
        text = str(sequence_id).encode()
        single = pb.SingleMessageMetadata(payload_size=len(text))
        if has_ids:
            single.sequence_id = sequence_id
        head = single.SerializeToString()
        parts += [len(head).to_bytes(4, "big"), head, text]
    count = last - first + 1
    return await publish(
        producer, b"".join(parts), sequence_id=first, num_messages_in_batch=count, **fields
    )


@pytest.mark.parametrize("is_killed", [False, True], ids=["running", "killed"])
async def test_of_a_batch_cut_in_another_way_the_rest_is_stored(
    broker, make_client, ackgate_topic, is_killed
):
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        assert await batch(producer, 0, 4)
        if is_killed:
            broker.kill()
            broker.start()
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        assert not await batch(producer, 0, 4)
        assert await batch(producer, 0, 6)
        assert not await batch(producer, 1, 6)
        assert await batch(producer, 5, 9, highest_sequence_id=9)
        assert not await publish(producer, b"9", sequence_id=9)
    client = make_client(broker.service_url)
    assert read(client, ackgate_topic) == [str(number).encode() for number in range(10)]


async def test_batches_of_a_client_that_numbers_its_entries_arrive(
    broker, make_client, ackgate_topic
):
    """As those for Rust, and earlier ones for Go: ids of entries, and messages without any."""
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        for number in range(4):
            assert await batch(producer, number, number + 4, has_ids=False)
        assert not await batch(producer, 3, 7, has_ids=False)
    assert len(read(make_client(broker.service_url), ackgate_topic)) == 20


# ---------------------------------------------------------------- markers


async def test_a_marker_has_no_sequence_id(broker, make_client, ackgate_topic):
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        assert await publish(producer, b"0", sequence_id=0)
        assert await publish(producer, b"", sequence_id=7, marker_type=21)
        assert await publish(producer, b"", sequence_id=0, marker_type=21)
    broker.kill()
    broker.start()
    async with await connect(broker) as wire:
        producer = await wire.producer(ackgate_topic, "p")
        assert producer.success.last_sequence_id == 0
        assert await publish(producer, b"1", sequence_id=1)
