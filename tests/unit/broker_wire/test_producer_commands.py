"""PRODUCER, SEND, CLOSE_PRODUCER: states of a producer id, and who hears what."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ackgate.broker.wire.errors import ProducerBusyError, ServerError
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.errors import MetadataDiskFullError
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.records.envelope import Compression, compressed
from tests.support.memory_topics import LEDGER_ID, MemoryProducer, MemoryTopic
from tests.support.wire_client import RefusedError, WireClient
from tests.unit.broker_wire.wire_server import WireServer, eventually, serving

Type = pb.BaseCommand.Type


def topic_of(server: WireServer) -> MemoryTopic:
    return server.registry.topics["persistent://public/default/t"]


def producer_command(producer_id: int, request_id: int, **fields: object) -> pb.BaseCommand:
    command = pb.BaseCommand(type=Type.PRODUCER)
    command.producer.CopyFrom(
        pb.CommandProducer(topic="t", producer_id=producer_id, request_id=request_id, **fields)  # type: ignore[arg-type]
    )
    return command


def close_command(producer_id: int, request_id: int) -> pb.BaseCommand:
    closing = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return pb.BaseCommand(type=Type.CLOSE_PRODUCER, close_producer=closing)


async def test_entries_arrive_as_they_were_sent_and_are_confirmed_in_order() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t", "p")
        assert producer.success.producer_name == "p"
        assert producer.success.producer_ready
        positions = [await producer.send(f"{index}".encode()) for index in range(3)]
        assert positions == [(LEDGER_ID, 0), (LEDGER_ID, 1), (LEDGER_ID, 2)]
        entry = topic_of(server).entries[0]
        assert entry[:2] == b"\x0e\x01"
        assert entry.endswith(b"0")
        assert producer.last_receipt is not None
        assert producer.last_receipt.highest_sequence_id == 2


async def test_a_batch_is_confirmed_with_its_highest_sequence_id() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        command = pb.BaseCommand(type=Type.SEND)
        command.send.CopyFrom(
            pb.CommandSend(
                producer_id=producer.producer_id,
                sequence_id=10,
                highest_sequence_id=19,
                num_messages=10,
            )
        )
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=10, publish_time=1, num_messages_in_batch=10
        )
        client.send(command, seal_entry(metadata.SerializeToString(), bytes(60)))
        await producer.until_receipts(1)
        assert producer.last_receipt is not None
        assert producer.last_receipt.sequence_id == 10
        assert producer.last_receipt.highest_sequence_id == 19


ZIPPED = compressed(bytes(120_000), Compression.ZSTD)


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (bytes(59), {"num_messages_in_batch": 10}),
        (b"payload", {"num_messages_in_batch": 10**9}),
        (b"zip", {"num_messages_in_batch": 11, "compression": 3, "uncompressed_size": 65}),
        (ZIPPED, {"num_messages_in_batch": 20_001, "compression": 3, "uncompressed_size": 2**30}),
        (b"x", {"num_messages_in_batch": 10**8, "encryption_algo": "AES"}),
    ],
    ids=["a byte short", "a billion", "compressed", "a lie about compression", "encrypted"],
)
async def test_an_entry_that_cannot_hold_its_messages_is_refused(
    payload: bytes, fields: dict[str, int]
) -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        with pytest.raises(RefusedError, match="NOT_ALLOWED: An entry of"):
            await producer.send(payload, **fields)
        await producer.send(b"goes on")
        assert len(topic_of(server).entries) == 1


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (bytes(60), {"num_messages_in_batch": 10}),
        (b"zip", {"num_messages_in_batch": 10, "compression": 3, "uncompressed_size": 60}),
        (ZIPPED, {"num_messages_in_batch": 9_999, "compression": 3, "uncompressed_size": 120_000}),
        (b"x", {"num_messages_in_batch": -5}),
    ],
    ids=["as many as there is room", "compressed", "very well compressed", "below zero"],
)
async def test_an_entry_that_may_hold_its_messages_is_taken(
    payload: bytes, fields: dict[str, int]
) -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        await producer.send(payload, **fields)


async def test_a_batch_above_what_clients_send_is_looked_into() -> None:
    single = pb.SingleMessageMetadata(payload_size=0).SerializeToString()
    batch = (len(single).to_bytes(4, "big") + single) * 20_000
    fields = {"compression": 1, "uncompressed_size": len(batch)}
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        zipped = compressed(batch, Compression.LZ4)
        await producer.send(zipped, num_messages_in_batch=20_000, **fields)
        with pytest.raises(RefusedError):
            await producer.send(zipped, num_messages_in_batch=20_001, **fields)


async def test_a_wrong_checksum_fails_that_entry_only() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        entry = bytearray(seal_entry(b"", b"payload"))
        entry[-1] ^= 1
        client.send_bytes(producer.raw_frame(bytes(entry), 0))
        await client.until(lambda: producer.errors)
        assert producer.errors[0].error == ServerError.CHECKSUM
        assert producer.errors[0].sequence_id == 0
        await producer.send(b"next", sequence_id=1)
        assert len(topic_of(server).entries) == 1


@pytest.mark.parametrize("entry", [b"", b"\x0e\x01", b"\xff\xff\xff\xff", b"\x0e\x02" + bytes(40)])
async def test_a_malformed_entry_ends_the_connection(entry: bytes) -> None:
    async with serving() as server:
        client = await server.connect()
        producer = await client.producer("t")
        client.send_bytes(producer.raw_frame(entry, 0))
        await client.wait_closed()
        assert "malformed entry" in client.events[-1].error.message
        assert not topic_of(server).entries


async def test_the_largest_message_passes_and_a_larger_one_does_not() -> None:
    async with serving(max_message_size=100_000) as server:
        client = await server.connect()
        producer = await client.producer("t")
        await producer.send(bytes(100_000))
        client.send_bytes(producer.frame(bytes(100_000 + 11 * 1024)))
        await client.wait_closed()
        assert "above the limit" in client.events[-1].error.message


async def test_a_send_without_sequence_id_breaks_the_protocol() -> None:
    async with serving() as server:
        client = await server.connect()
        producer = await client.producer("t")
        body = b"\x08\x06\x32\x02\x08" + bytes([producer.producer_id])
        entry = seal_entry(b"", b"")
        total = 4 + len(body) + len(entry)
        client.send_bytes(total.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + entry)
        await client.wait_closed()
        assert "without a sequence id" in client.events[-1].error.message


async def test_a_message_of_a_transaction_is_refused() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        command = pb.BaseCommand(type=Type.SEND)
        command.send.CopyFrom(
            pb.CommandSend(
                producer_id=producer.producer_id,
                sequence_id=0,
                txnid_least_bits=0,
                txnid_most_bits=0,
            )
        )
        client.send(command, seal_entry(b"", b""))
        await client.until(lambda: producer.errors)
        assert producer.errors[0].error == ServerError.NOT_ALLOWED
        assert not topic_of(server).entries


async def test_asking_twice_for_the_same_id_gives_the_same_producer() -> None:
    async with serving() as server, await server.connect() as client:
        first = await client.producer("t", "p")
        again = await client.request(producer_command(first.producer_id, 900), 900)
        assert again.producer_success.producer_name == "p"
        assert len(topic_of(server).producers) == 1


async def test_asking_again_while_it_is_being_made_is_told_to_wait() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        first = asyncio.create_task(client.request(producer_command(5, 900), 900))
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            await client.request(producer_command(5, 901), 901)
        assert refused.value.code is ServerError.SERVICE_NOT_READY
        server.registry.gate.set()
        await first
        assert len(topic_of(server).producers) == 1


async def test_closing_before_it_was_made_leaves_nothing_behind() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        client.send(producer_command(5, 900))
        await client.request(close_command(5, 901), 901)
        second = asyncio.create_task(client.request(producer_command(5, 902), 902))
        await asyncio.sleep(0)
        server.registry.gate.set()
        await second
        await eventually(lambda: len(topic_of(server).producers) == 1)


async def test_closing_waits_for_the_receipts() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        topic = topic_of(server)
        topic.holds_receipts = True
        client.send_bytes(producer.frame(b"x"))
        closing = asyncio.create_task(producer.close())
        await client.partitions("other")
        assert not closing.done()
        topic.release_receipts()
        await closing
        assert producer.receipts == 1
        assert not topic.producers


async def test_closing_a_producer_that_is_not_there_succeeds() -> None:
    async with serving() as server, await server.connect() as client:
        await client.request(close_command(77, 900), 900)


async def test_a_failed_creation_frees_the_id() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.failure = ProducerBusyError("taken")
        with pytest.raises(RefusedError, match="PRODUCER_BUSY: taken"):
            await client.request(producer_command(5, 900), 900)
        server.registry.failure = None
        await client.request(producer_command(5, 901), 901)


async def test_a_client_may_not_know_yet_that_the_broker_closed_its_producer() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        topic = topic_of(server)
        session = topic.producers[0].session
        session.close_producer(producer.producer_id)
        await topic.producers[0].close()
        for _ in range(3):
            client.send_bytes(producer.frame(b"late"))
        await client.partitions("still connected")
        assert client.events[-1].type == Type.CLOSE_PRODUCER
        assert client.events[-1].close_producer.producer_id == producer.producer_id
        assert not topic.entries
        await client.request(producer_command(producer.producer_id, 900), 900)
        await producer.send(b"again", sequence_id=0)
        assert len(topic.entries) == 1


async def test_a_producer_that_waits_for_exclusive_access_is_told_twice() -> None:
    async with serving() as server, await server.connect() as client:
        await client.producer("t", "first")
        waiting = await client.producer("t", "second", producer_access_mode=2)
        assert not waiting.success.producer_ready
        memory = topic_of(server).producers[1]
        memory.is_ready = True
        memory.topic_epoch = 4
        memory.session.send_producer_ready(waiting.producer_id)
        await client.until(lambda: client.events)
        ready = client.events[-1].producer_success
        assert ready.producer_ready
        assert ready.request_id == waiting.success.request_id
        assert ready.topic_epoch == 4
        await waiting.send(b"mine")


async def test_who_asked_again_while_it_waited_is_told_by_its_last_request() -> None:
    """The client has given the first one up."""
    async with serving() as server, await server.connect() as client:
        await client.producer("t", "first")
        waiting = await client.producer("t", "second", producer_access_mode=2)
        await client.request(producer_command(waiting.producer_id, 900), 900)
        memory = topic_of(server).producers[1]
        memory.is_ready = True
        memory.session.send_producer_ready(waiting.producer_id)
        await client.until(lambda: client.events)
        assert client.events[-1].producer_success.request_id == 900


async def test_a_producer_that_loses_its_right_while_it_is_made_is_refused() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        creating = asyncio.create_task(client.request(producer_command(5, 900), 900))
        (session,) = cast("Any", server.protocol.sessions)
        await eventually(lambda: session.producers._creating)
        session.producers.keep(lambda _: False)
        server.registry.gate.set()
        with pytest.raises(RefusedError, match="SERVICE_NOT_READY"):
            await creating
        assert not topic_of(server).producers


async def test_a_lost_connection_gives_its_messages_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing a producer may wait for the metadata store."""
    stores = asyncio.Event()

    async def close_slowly(producer: MemoryProducer) -> None:
        await stores.wait()
        producer.topic.producers.remove(producer)

    monkeypatch.setattr(MemoryProducer, "close", close_slowly)
    async with serving() as server:
        client = await server.connect()
        await client.producer("t")
        await client.subscribe("t", "s")
        client.abort()
        await eventually(lambda: not topic_of(server).consumers)
        stores.set()
        await eventually(lambda: not topic_of(server).producers)


async def test_a_waiting_producer_may_not_publish() -> None:
    async with serving() as server:
        client = await server.connect()
        await client.producer("t", "first")
        waiting = await client.producer("t", "second", producer_access_mode=2)
        client.send_bytes(waiting.frame(b"too early"))
        await client.wait_closed()
        assert "is not open" in client.events[-1].error.message


async def test_what_a_topic_sends_for_an_id_that_is_gone_is_dropped() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        session = topic_of(server).producers[0].session
        await producer.close()
        session.send_receipts(producer.producer_id, [(0, 0, 1, 1)])
        session.send_error(producer.producer_id, 0, ServerError.PERSISTENCE, "late")
        session.close_producer(producer.producer_id)
        await client.partitions("other")
        assert producer.receipts == 0
        assert not producer.errors
        assert not client.events


async def test_send_errors_of_a_topic_arrive() -> None:
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        topic = topic_of(server)
        topic.holds_receipts = True
        sending = asyncio.create_task(producer.send(b"x"))
        await eventually(lambda: topic.entries)
        session = topic.producers[0].session
        session.send_error(producer.producer_id, 0, ServerError.PERSISTENCE, "disk full")
        with pytest.raises(RefusedError, match="PERSISTENCE: disk full"):
            await sending


async def test_producers_of_one_connection_do_not_mix() -> None:
    async with serving() as server, await server.connect() as client:
        producers = [await client.producer(f"t{index}") for index in range(5)]
        for round_ in range(10):
            client.send_bytes(b"".join(each.frame(b"%d" % round_) for each in producers))
        for index, producer in enumerate(producers):
            await producer.until_receipts(10)
            assert (
                len(server.registry.topics[f"persistent://public/default/t{index}"].entries) == 10
            )


async def test_any_bytes_in_a_frame_are_kept_apart_from_the_next() -> None:
    """Frames cut at every place give the same entries."""
    async with serving() as server:
        client: WireClient
        async with await server.connect() as client:
            producer = await client.producer("t")
            stream = producer.frame(b"one") + producer.frame(b"two")
            for cut in range(1, len(stream)):
                client.send_bytes(stream[:cut])
                await asyncio.sleep(0)
                client.send_bytes(stream[cut:])
                await producer.until_receipts(2 * cut)
        entries = topic_of(server).entries
        assert len(entries) == 2 * (len(stream) - 1)
        assert len(set(entries)) == 2


async def test_a_topic_that_a_full_disk_cannot_begin_blocks_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client passes that on at once; of a failed metadata store it would say nothing clear."""

    async def full(*_: object, **__: object) -> None:
        raise MetadataDiskFullError("the disk is full: no ledger can be begun")

    async with serving() as server, await server.connect() as client:
        monkeypatch.setattr(server.registry, "topic", full)
        with pytest.raises(RefusedError, match="the disk is full") as caught:
            await client.producer("t")
    assert caught.value.code == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
