"""What a broker answers, frame by frame.

Like the tests with the real client, these describe Pulsar: with `ACKGATE_TEST_SERVICE_URL` they run
against the real one (see ``tests/broker/conftest.py``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.lookups import topics_hash
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import PING, encode
from ackgate.broker.wire.requests import SubscriptionType
from ackgate.cursor import EARLIEST, LATEST
from ackgate.persistence.messages.frame import seal_entry
from ackgate.testing import AdminRefusedError
from tests.broker.target import Target
from tests.support import wire_client
from tests.support.wire_client import RefusedError, WireClient

Type = pb.BaseCommand.Type

AVRO = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
OTHER = b'{"type":"record","name":"R","fields":[{"name":"b","type":"int"}]}'


async def connect(target: Target) -> WireClient:
    address = urlsplit(target.service_url)
    return await WireClient.connect(cast("str", address.hostname), cast("int", address.port))


async def refusal(asking: Any) -> ServerError:
    with pytest.raises(RefusedError) as refused:
        await asking
    return refused.value.code


@pytest.fixture
def topic(fresh_topic: Callable[[], str]) -> str:
    return fresh_topic()


async def test_the_handshake(target: Target) -> None:
    async with await connect(target) as client:
        assert client.connected is not None
        assert client.connected.protocol_version == 21
        assert client.connected.max_message_size == 5 * 1024 * 1024
        flags = client.connected.feature_flags
        assert flags.supports_get_partitioned_metadata_without_auto_creation


async def test_finding_a_topic(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        assert await client.partitions(topic) == 0
        assert await client.lookup(topic) == target.service_url
        absent = topic + "-absent"
        assert await refusal(client.partitions(absent, create=False)) is ServerError.TOPIC_NOT_FOUND
        await client.lookup(absent)
        missing = client.subscribe(absent, "s", force_topic_creation=False)
        assert await refusal(missing) is ServerError.TOPIC_NOT_FOUND


@pytest.mark.parametrize("name", ["", "a/b", "persistent://a/b", "http://a/b/c", "a b/c/d"])
async def test_bad_topic_names(target: Target, name: str) -> None:
    async with await connect(target) as client:
        for asking in (
            client.partitions(name),
            client.lookup(name),
            client.producer(name),
            client.subscribe(name, "s"),
        ):
            assert await refusal(asking) is ServerError.INVALID_TOPIC_NAME


async def test_topic_lists_and_their_hash(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        await client.producer(topic)
        namespace, _, local_name = topic.removeprefix("persistent://").rpartition("/")
        everything = await client.topics(namespace)
        assert topic in everything.topics
        assert everything.topics_hash == topics_hash(list(everything.topics))
        pattern = f"{namespace}/.*{local_name[-20:]}"
        some = await client.topics(namespace, pattern=pattern)
        assert some.filtered
        assert list(some.topics) == [topic]
        again = await client.topics(namespace, pattern=pattern, topics_hash=some.topics_hash)
        assert not again.changed
        assert not again.topics


async def test_a_producer(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        producer = await client.producer(topic)
        success = producer.success
        assert success.producer_name
        assert success.last_sequence_id == -1
        assert success.schema_version == b""
        assert success.producer_ready
        again = pb.CommandProducer(topic=topic, producer_id=producer.producer_id, request_id=900)
        reply = await client.request(pb.BaseCommand(type=Type.PRODUCER, producer=again), 900)
        assert reply.producer_success.producer_name == success.producer_name
        await producer.close()


async def test_a_wrong_checksum_fails_one_entry(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        producer = await client.producer(topic)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        entry = bytearray(seal_entry(metadata.SerializeToString(), b"payload"))
        entry[-1] ^= 1
        client.send_bytes(producer.raw_frame(bytes(entry), 0))
        await client.until(lambda: producer.errors)
        assert producer.errors[0].error == pb.ServerError.ChecksumError
        assert producer.errors[0].message == "Checksum failed on the broker"
        await producer.send(b"fine", sequence_id=1)


async def test_closing_what_is_not_there_succeeds(target: Target) -> None:
    async with await connect(target) as client:
        producer = pb.CommandCloseProducer(producer_id=77, request_id=900)
        await client.request(pb.BaseCommand(type=Type.CLOSE_PRODUCER, close_producer=producer), 900)
        consumer = pb.CommandCloseConsumer(consumer_id=77, request_id=901)
        await client.request(pb.BaseCommand(type=Type.CLOSE_CONSUMER, close_consumer=consumer), 901)


async def test_a_consumer(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        producer = await client.producer(topic)
        consumer = await client.subscribe(
            topic, "s", SubscriptionType.EXCLUSIVE, wire_client.EARLIEST, consumer_name="c"
        )
        for wanted in (SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED):
            second = client.subscribe(topic, "s", wanted)
            assert await refusal(second) is ServerError.CONSUMER_BUSY
        sent = [await producer.send(payload) for payload in (b"a", b"b")]
        last = await consumer.last_message_id()
        assert (last.last_message_id.ledgerId, last.last_message_id.entryId) == sent[1]
        assert last.last_message_id.partition == last.last_message_id.batch_index == -1
        mark_delete = last.consumer_mark_delete_position
        assert (mark_delete.ledgerId, mark_delete.entryId) == (sent[0].ledger_id, 2**64 - 1)
        stats = await consumer.stats()
        assert (stats.consumerName, stats.type, stats.msgBacklog) == ("c", "Exclusive", 2)
        consumer.flow(1)
        message = await consumer.receive()
        assert (message.payload, message.redelivery_count) == (b"a", 0)
        assert message.metadata.producer_name == producer.success.producer_name
        await consumer.ack(message)
        await consumer.ack(message, is_cumulative=True)
        consumer.flow(1)
        assert (await consumer.receive()).payload == b"b"


async def test_an_empty_topic_ends_before_everything(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        consumer = await client.subscribe(topic, "s")
        last = (await consumer.last_message_id()).last_message_id
        assert last.ledgerId == last.entryId == 2**64 - 1
        assert last.batch_index == -1


async def test_a_seek_sends_the_consumer_back_to_subscribing(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        consumer = await client.subscribe(topic, "s")
        await consumer.seek(LATEST)
        assert [each.type for each in client.events] == [Type.CLOSE_CONSUMER]
        for gone in (consumer.last_message_id(), consumer.seek(EARLIEST), consumer.unsubscribe()):
            with pytest.raises(RefusedError, match="METADATA: Consumer not found"):
                await gone
        again = await client.subscribe(topic, "s")
        nowhere = pb.CommandSeek(consumer_id=again.consumer_id, request_id=900)
        seeking = client.request(pb.BaseCommand(type=Type.SEEK, seek=nowhere), 900)
        assert await refusal(seeking) is ServerError.METADATA
        await again.unsubscribe()


async def test_transactions_are_not_enabled(target: Target) -> None:
    async with await connect(target) as client:
        tc = pb.CommandTcClientConnectRequest(request_id=900, tc_id=0)
        for command in (
            pb.BaseCommand(type=Type.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=tc),
            pb.BaseCommand(type=Type.NEW_TXN, newTxn=pb.CommandNewTxn(request_id=900)),
        ):
            with pytest.raises(RefusedError, match=r"NOT_ALLOWED: Transactions are not enabled\."):
                await client.request(command, 900)


def schema(definition: bytes, schema_type: int = 4) -> pb.Schema:
    return pb.Schema(name="R", type=cast("Any", schema_type), schema_data=definition)


async def test_schemas(target: Target, topic: str) -> None:
    incompatible = ServerError.INCOMPATIBLE_SCHEMA
    async with await connect(target) as client:
        await client.lookup(topic)

        async def ask(command: pb.BaseCommand) -> pb.BaseCommand:
            return await client.request(command, 900)

        def get(**version: Any) -> pb.BaseCommand:
            asking = pb.CommandGetSchema(request_id=900, topic=topic, **version)
            return pb.BaseCommand(type=Type.GET_SCHEMA, getSchema=asking)

        def create(definition: bytes) -> pb.BaseCommand:
            body = pb.CommandGetOrCreateSchema(
                request_id=900, topic=topic, schema=schema(definition)
            )
            return pb.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA, getOrCreateSchema=body)

        assert await refusal(ask(create(AVRO))) is ServerError.TOPIC_NOT_FOUND
        assert await refusal(ask(get())) is ServerError.TOPIC_NOT_FOUND
        assert await refusal(ask(get(schema_version=b""))) is incompatible
        producer = await client.producer(topic, schema=schema(AVRO))
        assert producer.success.schema_version == bytes(8)
        found = (await ask(get())).getSchemaResponse
        assert found.schema.schema_data == AVRO
        assert found.schema.name == topic.removeprefix("persistent://")
        assert found.schema_version == bytes(8)
        version_9 = get(schema_version=(9).to_bytes(8, "big"))
        assert await refusal(ask(version_9)) is ServerError.TOPIC_NOT_FOUND
        for bad in (schema(OTHER), schema(b"", 1), schema(b"{")):
            assert await refusal(client.producer(topic, schema=bad)) is incompatible
        for bad in (schema(OTHER), schema(b"", 1)):
            assert await refusal(client.subscribe(topic, "s", schema=bad)) is incompatible
        assert await refusal(ask(create(OTHER))) is incompatible
        assert (await ask(create(AVRO))).getOrCreateSchemaResponse.schema_version == bytes(8)
        await client.subscribe(topic, "s", schema=schema(b"", 21))


async def test_a_topic_in_use_takes_no_schema_of_a_consumer(target: Target, topic: str) -> None:
    async with await connect(target) as client:
        await client.lookup(topic)
        await client.producer(topic)
        consuming = client.subscribe(topic, "s", schema=schema(AVRO))
        assert await refusal(consuming) is ServerError.INCOMPATIBLE_SCHEMA


@pytest.mark.parametrize(
    "data",
    [
        encode(
            pb.BaseCommand(type=Type.SEND, send=pb.CommandSend(producer_id=99, sequence_id=1)),
            seal_entry(b"", b""),
        ),
        struct.pack(">II", 2**30, 10),
        struct.pack(">II", 7, 3) + b"\xff\xff\xff",
        struct.pack(">II", 6, 2) + b"\x08\x7f",
        struct.pack(">II", 6, 2) + b"\x08\x46",
        encode(
            pb.BaseCommand(
                type=Type.CONNECT,
                connect=pb.CommandConnect(client_version="x", protocol_version=20),
            )
        ),
        encode(
            pb.BaseCommand(
                type=Type.SEND_RECEIPT,
                send_receipt=pb.CommandSendReceipt(producer_id=1, sequence_id=1),
            )
        ),
        encode(pb.BaseCommand(type=Type.AUTH_RESPONSE, authResponse=pb.CommandAuthResponse())),
    ],
    ids=[
        "SEND of nobody",
        "huge frame",
        "no protobuf",
        "unknown type",
        "later protocol",
        "second CONNECT",
        "a broker's command",
        "no challenge",
    ],
)
async def test_what_breaks_the_protocol_ends_the_connection(target: Target, data: bytes) -> None:
    client = await connect(target)
    client.send_bytes(data)
    await client.wait_closed()


async def test_before_connect_there_is_only_ping(target: Target) -> None:
    address = urlsplit(target.service_url)
    client = await WireClient.open(cast("str", address.hostname), cast("int", address.port))
    client.send_bytes(PING)
    await client.until(lambda: client.events)
    assert client.events[-1].type == Type.PONG
    asking = pb.CommandLookupTopic(topic="t", request_id=1)
    client.send(pb.BaseCommand(type=Type.LOOKUP, lookupTopic=asking))
    await client.wait_closed()


async def test_many_producers_and_consumers_on_one_connection(
    target: Target, fresh_topic: Callable[[], str]
) -> None:
    topics = [fresh_topic() for _ in range(20)]
    async with await connect(target) as client:
        await asyncio.gather(*map(client.lookup, topics))
        producers = await asyncio.gather(*map(client.producer, topics))
        consumers = await asyncio.gather(*(client.subscribe(each, "s") for each in topics))
        for consumer in consumers:
            consumer.flow(10)
        for index, producer in enumerate(producers):
            client.send_bytes(b"".join(producer.frame(b"%d" % index) for _ in range(10)))
        for index, (producer, consumer) in enumerate(zip(producers, consumers, strict=True)):
            await producer.until_receipts(10)
            messages = await consumer.receive_many(10)
            assert {message.payload for message in messages} == {b"%d" % index}
            client.send_bytes(consumer.ack_frames([each.position for each in messages], 10_000))
        await client.until(lambda: client.acks_answered == 200)


@pytest.mark.parametrize("namespace", ["public/absent", "absent/absent"])
async def test_topics_are_not_created_in_a_namespace_that_is_not_there(
    target: Target, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    async with await connect(target) as client:
        for asking in (client.partitions(topic), client.lookup(topic)):
            assert await refusal(asking) is ServerError.TOPIC_NOT_FOUND
        # Pulsar's broker does not own what it was not asked for before, and says that instead.
        codes = {ServerError.TOPIC_NOT_FOUND, ServerError.SERVICE_NOT_READY}
        assert await refusal(client.producer(topic)) in codes
        assert await refusal(client.subscribe(topic, "s")) in codes
        assert not (await client.topics(namespace)).topics
    for method, path, body in (
        ("PUT", f"persistent/{namespace}/t", None),
        ("PUT", f"persistent/{namespace}/t/partitions", 2),
        ("GET", f"persistent/{namespace}/t/stats", None),
        ("GET", f"namespaces/{namespace}", None),
    ):
        with pytest.raises(AdminRefusedError) as refused:
            target.admin(method, path, body)
        assert refused.value.status == 404


async def test_a_namespace_that_was_made_takes_topics_until_it_is_deleted(
    target: Target, topic: str
) -> None:
    namespace = "public/" + topic.rpartition("/")[2][-40:]
    name = f"persistent://{namespace}/t"
    target.admin("PUT", f"namespaces/{namespace}")
    async with await connect(target) as client:
        await client.lookup(name)
        producer = await client.producer(name)
        await producer.send(b"x")
        await producer.close()
        assert (await client.topics(namespace)).topics == [name]
        target.admin("DELETE", f"persistent/{namespace}/t")
        target.admin("DELETE", f"namespaces/{namespace}")
        assert await refusal(client.partitions(name)) is ServerError.TOPIC_NOT_FOUND
        assert await refusal(client.producer(name)) in {
            ServerError.TOPIC_NOT_FOUND,
            ServerError.SERVICE_NOT_READY,
        }
