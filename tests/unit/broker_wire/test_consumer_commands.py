"""SUBSCRIBE and what names a consumer id afterwards."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import MessageOut
from ackgate.broker.wire.requests import SubscribeRequest, SubscriptionType
from ackgate.cursor import EARLIEST, LATEST, Position
from ackgate.errors import ConsumerBusyError
from tests.support import wire_client
from tests.support.memory_topics import LEDGER_ID, MemoryConsumer, MemoryTopic
from tests.support.wire_client import RefusedError
from tests.unit.broker_wire.wire_server import WireServer, eventually, serving

Type = pb.BaseCommand.Type


def topic_of(server: WireServer, name: str = "t") -> MemoryTopic:
    return server.registry.topics[f"persistent://public/default/{name}"]


def consumer_of(server: WireServer) -> MemoryConsumer:
    return topic_of(server).consumers[0]


def subscribe_command(consumer_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=Type.SUBSCRIBE)
    command.subscribe.CopyFrom(
        pb.CommandSubscribe(
            topic="t",
            subscription="s",
            subType=cast("Any", 1),
            consumer_id=consumer_id,
            request_id=request_id,
        )
    )
    return command


async def test_messages_arrive_as_they_were_published_and_only_as_permits_allow() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        consumer = await client.subscribe("t", "s", initial_position=wire_client.EARLIEST)
        for index in range(5):
            await producer.send(f"{index}".encode(), partition_key="k")
        consumer.flow(2)
        first = await consumer.receive_many(2)
        assert [message.payload for message in first] == [b"0", b"1"]
        assert first[0].metadata.partition_key == "k"
        assert first[0].entry == topic_of(server).entries[0]
        await client.partitions("other")
        assert len(consumer.received) == 2
        consumer.flow(10)
        assert [each.position.entry_id for each in await consumer.receive_many(3)] == [2, 3, 4]


async def test_a_consumer_that_loses_its_right_while_it_subscribes_is_refused() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        subscribing = asyncio.create_task(client.request(subscribe_command(5, 900), 900))
        (session,) = cast("Any", server.protocol.sessions)
        await eventually(lambda: session.consumers._creating)
        session.consumers.keep(lambda *_: False)
        server.registry.gate.set()
        with pytest.raises(RefusedError, match="SERVICE_NOT_READY"):
            await subscribing
        assert not topic_of(server).consumers


async def test_everything_of_a_message_frame_arrives() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t-partition-3", "s")
        session = topic_of(server, "t-partition-3").consumers[0].session
        messages = [
            MessageOut(1, 2, 3, None, b"\x0e\x01" + bytes(20)),
            MessageOut(1, 3, 0, (1 << 100) | 1, b"\x0e\x01" + bytes(21)),
            MessageOut(2, 4, 0, None, b""),
        ]
        session.send_messages(consumer.consumer_id, 3, messages, 7)
        got = await consumer.receive_many(3)
        assert [each.position for each in got] == [(1, 2), (1, 3), (2, 4)]
        assert [each.redelivery_count for each in got] == [3, 0, 0]
        assert [each.unacked_mask for each in got] == [None, (1 << 100) | 1, None]
        assert [each.epoch for each in got] == [7, 7, 7]
        assert [each.entry for each in got] == [each.entry for each in messages]


async def test_acks_of_one_chunk_are_handed_over_and_answered_together() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        positions = [Position(1, index) for index in range(100)]
        client.send_bytes(consumer.ack_frames(positions, 1_000))
        await client.until(lambda: client.acks_answered == 100)
        memory = consumer_of(server)
        assert [each.message_id[0].entryId for each in memory.acked] == list(range(100))
        assert len(memory.ack_batches) <= 3


async def test_acks_come_before_what_came_after_them() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s", SubscriptionType.SHARED)
        memory = consumer_of(server)
        order: list[str] = []
        memory.acks = lambda commands: order.append(f"acks {len(commands)}")  # type: ignore[method-assign]
        memory.redeliver = lambda *_: order.append("redeliver")  # type: ignore[method-assign]
        frames = consumer.ack_frames([Position(1, 1), Position(1, 2)], None)
        client.pause_reading()
        client.send_bytes(frames)
        consumer.redeliver()
        client.send_bytes(frames)
        client.resume_reading()
        await client.partitions("other")
        assert order == ["acks 2", "redeliver", "acks 2"]


async def test_batch_index_and_cumulative_acks_keep_their_form() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        await consumer.ack(Position(1, 2), unacked_mask=0b1010)
        await consumer.ack(Position(1, 3), is_cumulative=True)
        first, second = consumer_of(server).acked
        assert list(first.message_id[0].ack_set) == [0b1010]
        assert second.ack_type == pb.CommandAck.Cumulative


async def test_an_ack_of_nobody_is_answered_only_if_it_asks() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        await consumer.close()
        consumer.ack_without_receipt(Position(1, 1))
        consumer.flow(10)
        consumer.redeliver(Position(1, 1))
        with pytest.raises(RefusedError) as refused:
            await consumer.ack(Position(1, 1))
        assert refused.value.code is ServerError.CONSUMER_NOT_FOUND


async def test_ack_errors_of_a_topic_arrive() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        memory = consumer_of(server)

        def refuse(commands: Any) -> None:
            for command in commands:
                memory.session.send_ack_error(
                    memory.consumer_id, command.request_id, ServerError.PERSISTENCE, "too late"
                )

        memory.acks = refuse  # type: ignore[method-assign]
        with pytest.raises(RefusedError, match="PERSISTENCE: too late"):
            await consumer.ack(Position(1, 1))


async def test_redelivery_of_single_entries_is_for_shared_subscriptions() -> None:
    async with serving() as server, await server.connect() as client:
        wanted = [
            (SubscriptionType.SHARED, [Position(1, 2)]),
            (SubscriptionType.KEY_SHARED, [Position(1, 2)]),
            (SubscriptionType.FAILOVER, None),
            (SubscriptionType.EXCLUSIVE, None),
        ]
        for index, (subscription_type, positions) in enumerate(wanted):
            consumer = await client.subscribe("t", f"s{index}", subscription_type)
            consumer.redeliver(Position(1, 2), epoch=3)
            consumer.redeliver()
            await client.partitions("other")
            calls = topic_of(server).consumers[index].calls
            assert calls == [("redeliver", positions, 3), ("redeliver", None, None)]


async def test_seeking_by_position_and_time() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        memory = consumer_of(server)
        await consumer.seek_to_time(123)
        await consumer.seek(Position(3, 4), 0b110)
        assert memory.calls == [("seek_to_time", 123), ("seek", (3, 4), 0b110)]
        assert [each.type for each in client.events] == [Type.CLOSE_CONSUMER]
        with pytest.raises(RefusedError, match="METADATA: Consumer not found"):
            await consumer.seek(EARLIEST)
        for special in (EARLIEST, LATEST):
            other = await client.subscribe("t", f"s{special}")
            await other.seek(special)
            assert topic_of(server).consumers[-1].calls == [("seek", special, None)]


async def test_a_seek_to_nowhere_is_refused() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        command = pb.BaseCommand(type=Type.SEEK)
        command.seek.consumer_id, command.seek.request_id = consumer.consumer_id, 900
        with pytest.raises(RefusedError, match="were not present"):
            await client.request(command, 900)


async def test_an_endless_ack_set_is_refused() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        with pytest.raises(RefusedError, match="longer than"):
            await consumer.seek(Position(1, 1), (1 << 70_000) - 1)
        assert await client.partitions("still connected") == 0


async def test_the_end_of_a_topic() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t-partition-2", "s")
        empty = await consumer.last_message_id()
        assert empty.last_message_id.ledgerId == empty.last_message_id.entryId == 2**64 - 1
        producer = await client.producer("t-partition-2")
        await producer.send(b"x")
        last = await consumer.last_message_id()
        assert (last.last_message_id.ledgerId, last.last_message_id.entryId) == (LEDGER_ID, 0)
        assert last.last_message_id.partition == 2
        assert last.consumer_mark_delete_position.entryId == 2**64 - 1


async def test_stats_of_a_consumer() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s", consumer_name="c")
        consumer.flow(5)
        stats = await consumer.stats()
        assert (stats.consumerName, stats.availablePermits, stats.type) == ("c", 5, "Shared")
        assert stats.address.startswith("/127.0.0.1:")
        assert (stats.connectedSince, stats.msgRateOut) == ("2020-01-01T00:00:00.500Z", 0.5)
        await consumer.close()
        with pytest.raises(RefusedError) as refused:
            await consumer.stats()
        assert refused.value.code is ServerError.CONSUMER_NOT_FOUND


async def test_unsubscribing_forgets_the_consumer() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s")
        memory = consumer_of(server)
        await consumer.unsubscribe(force=True)
        assert memory.calls == [("unsubscribe", True)]
        for gone in (consumer.unsubscribe(), consumer.last_message_id(), consumer.seek_to_time(1)):
            with pytest.raises(RefusedError, match="Consumer not found"):
                await gone
        await consumer.close()  # succeeds, as in Pulsar


async def test_subscribing_twice_with_one_id() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        first = asyncio.create_task(client.request(subscribe_command(5, 900), 900))
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="SERVICE_NOT_READY: Consumer is already present"):
            await client.request(subscribe_command(5, 901), 901)
        server.registry.gate.set()
        await first
        await client.request(subscribe_command(5, 902), 902)
        assert len(topic_of(server).consumers) == 1


async def test_closing_before_it_was_attached_leaves_nothing_behind() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        client.send(subscribe_command(5, 900))
        closing = pb.CommandCloseConsumer(consumer_id=5, request_id=901)
        command = pb.BaseCommand(type=Type.CLOSE_CONSUMER, close_consumer=closing)
        await client.request(command, 901)
        server.registry.gate.set()
        await eventually(lambda: server.registry.topics)
        await eventually(lambda: not topic_of(server).consumers)


async def test_a_refused_subscription_frees_the_id() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.failure = ConsumerBusyError("Exclusive consumer is already connected")
        with pytest.raises(RefusedError, match="CONSUMER_BUSY: Exclusive consumer is already"):
            await client.request(subscribe_command(5, 900), 900)
        server.registry.failure = None
        await client.request(subscribe_command(5, 901), 901)


async def test_a_topic_that_is_not_to_be_made_is_not_found() -> None:
    async with serving() as server, await server.connect() as client:
        with pytest.raises(RefusedError, match="TOPIC_NOT_FOUND"):
            await client.subscribe("t", "s", force_topic_creation=False)


async def test_notices_of_a_topic_arrive() -> None:
    async with serving() as server, await server.connect() as client:
        consumer = await client.subscribe("t", "s", SubscriptionType.FAILOVER)
        session = consumer_of(server).session
        session.send_active_consumer_change(consumer.consumer_id, is_active=True)
        session.send_reached_end_of_topic(consumer.consumer_id)
        session.close_consumer(consumer.consumer_id)
        session.close_consumer(consumer.consumer_id)
        await client.partitions("other")
        assert [each.type for each in client.events] == [
            Type.ACTIVE_CONSUMER_CHANGE,
            Type.REACHED_END_OF_TOPIC,
            Type.CLOSE_CONSUMER,
        ]
        assert client.events[0].active_consumer_change.is_active
        session.send_messages(consumer.consumer_id, -1, [MessageOut(1, 1, 0, None, b"late")])
        await client.partitions("other")
        assert not consumer.received


async def test_requests_reach_the_topic_checked() -> None:
    async with serving() as server, await server.connect() as client:
        await client.subscribe("t", "s", SubscriptionType.KEY_SHARED, priority_level=2)
        request = topic_of(server).requests[0]
        assert isinstance(request, SubscribeRequest)
        assert request.subscription == "s"
        assert request.priority == 2
        assert request.subscription_type is SubscriptionType.KEY_SHARED


# ---- schemas

AVRO = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
OTHER = b'{"type":"record","name":"R","fields":[{"name":"b","type":"int"}]}'


def schema(definition: bytes, schema_type: int = 4) -> pb.Schema:
    return pb.Schema(name="R", type=cast("Any", schema_type), schema_data=definition)


async def test_a_producers_schema_is_versioned_and_found() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t", schema=schema(AVRO))
        assert producer.success.schema_version == bytes(8)
        asking = pb.CommandGetSchema(request_id=900, topic="t")
        reply = await client.request(pb.BaseCommand(type=Type.GET_SCHEMA, getSchema=asking), 900)
        assert reply.getSchemaResponse.schema.schema_data == AVRO
        assert reply.getSchemaResponse.schema_version == bytes(8)
        with pytest.raises(RefusedError, match="INCOMPATIBLE_SCHEMA"):
            await client.producer("t", schema=schema(OTHER))
        with pytest.raises(RefusedError, match="INCOMPATIBLE_SCHEMA"):
            await client.subscribe("t", "s", schema=schema(OTHER))
        await client.subscribe("t", "s", schema=schema(AVRO))
        await client.subscribe("t", "s2", schema=schema(b"", 21))


async def test_a_consumer_brings_the_schema_of_a_topic_that_nobody_uses() -> None:
    async with serving() as server, await server.connect() as client:
        await client.subscribe("t", "s", schema=schema(AVRO))
        assert len(await server.protocol.context.schemas.all(topic_of(server).name)) == 1
        await client.producer("bare")
        with pytest.raises(RefusedError, match="active topic with empty"):
            await client.subscribe("bare", "s", schema=schema(AVRO))


@pytest.mark.parametrize("brings_none", ["producer", "consumer"])
async def test_bytes_of_a_client_that_names_their_schema_are_a_schema(brings_none: str) -> None:
    """The Go client's bytes are a schema of type NONE; Pulsar 4.0.7 answers the same."""
    none, text = schema(b"", 0), schema(b"", 1)
    async with serving() as server, await server.connect() as client:
        if brings_none == "producer":
            producer = await client.producer("t", schema=none)
            assert producer.success.schema_version == bytes(8)
        else:
            await client.subscribe("t", "first", schema=none)
        asking = pb.CommandGetSchema(request_id=900, topic="t", schema_version=bytes(8))
        reply = await client.request(pb.BaseCommand(type=Type.GET_SCHEMA, getSchema=asking), 900)
        assert reply.getSchemaResponse.schema.type == pb.Schema.NoSchema
        assert (await client.producer("t", schema=none)).success.schema_version == bytes(8)
        await client.subscribe("t", "s", schema=none)
        with pytest.raises(RefusedError, match="exists schema type NONE, new schema type STRING"):
            await client.producer("t", schema=text)
        with pytest.raises(RefusedError, match="exists schema type NONE, new schema type STRING"):
            await client.subscribe("t", "s2", schema=text)
        await client.producer("typed", schema=text)
        with pytest.raises(RefusedError, match="exists schema type STRING, new schema type NONE"):
            await client.producer("typed", schema=none)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "t"}, ServerError.TOPIC_NOT_FOUND),
        ({"topic": "t", "schema_version": b""}, ServerError.INCOMPATIBLE_SCHEMA),
        ({"topic": "t", "schema_version": b"xx"}, ServerError.TOPIC_NOT_FOUND),
        ({"topic": "a/b"}, ServerError.INVALID_TOPIC_NAME),
    ],
)
async def test_a_schema_that_is_not_there(fields: dict[str, Any], code: ServerError) -> None:
    async with serving() as server, await server.connect() as client:
        asking = pb.CommandGetSchema(request_id=900, **fields)
        with pytest.raises(RefusedError) as refused:
            await client.request(pb.BaseCommand(type=Type.GET_SCHEMA, getSchema=asking), 900)
        assert refused.value.code is code


async def test_get_or_create_schema() -> None:
    async with serving() as server, await server.connect() as client:

        async def create(definition: bytes, schema_type: int = 4) -> bytes:
            creating = pb.CommandGetOrCreateSchema(
                request_id=900, topic="t", schema=schema(definition, schema_type)
            )
            command = pb.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA, getOrCreateSchema=creating)
            reply = await client.request(command, 900)
            return reply.getOrCreateSchemaResponse.schema_version

        with pytest.raises(RefusedError, match="TOPIC_NOT_FOUND"):
            await create(AVRO)
        await client.producer("t")
        assert await create(AVRO) == bytes(8)
        assert await create(AVRO) == bytes(8)
        with pytest.raises(RefusedError, match="INCOMPATIBLE_SCHEMA"):
            await create(OTHER)
        assert await create(b"", 0) == b""
