"""Floods of messages: what the broker holds has a bound in bytes, and others are served."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.persistence.messages.frame import seal_entry
from ackgate.testing import BrokerProcess
from tests.support.wire_client import EARLIEST, WireClient, WireProducer

MEBIBYTE = 1024 * 1024
MESSAGE_BYTES = MEBIBYTE // 2
LIMIT_BYTES = 4 * MEBIBYTE


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "maxMessageSize": MESSAGE_BYTES,
        "maxMessagePublishBufferSizeInMB": LIMIT_BYTES // MEBIBYTE,
    }
    with BrokerProcess(tmp_path_factory.mktemp("small"), settings=settings) as broker:
        yield broker


def large_entry() -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return seal_entry(metadata.SerializeToString(), bytes(MESSAGE_BYTES - 1_000))


async def connect(broker: BrokerProcess) -> WireClient:
    return await WireClient.connect("127.0.0.1", broker.port)


async def held_bytes(broker: BrokerProcess) -> int:
    def read() -> str:
        with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    lines = (await asyncio.to_thread(read)).splitlines()
    return next(
        int(float(line.split()[-1]))
        for line in lines
        if line.startswith("ackgate_publish_buffer_bytes")
    )


async def send_large(producer: WireProducer, entry: bytes, count: int) -> None:
    for number in range(count):
        await producer.client.send_bulk(producer.raw_frame(entry, number))
    await producer.until_receipts(count)


async def test_a_flood_is_held_back_and_small_senders_are_not(broker, fresh_ackgate_topic) -> None:
    entry = large_entry()
    most_held = 0
    async with AsyncExitStack() as stack:
        producers = []
        for _ in range(20):
            client = await stack.enter_async_context(await connect(broker))
            producers.append(await client.producer(fresh_ackgate_topic()))
        healthy = await stack.enter_async_context(await connect(broker))
        small = await healthy.producer(fresh_ackgate_topic())
        flood = asyncio.gather(*(send_large(producer, entry, 12) for producer in producers))
        sent = 0
        while not flood.done():
            began = time.perf_counter()
            await small.send(b"x")
            sent += 1
            assert time.perf_counter() - began < 5
            most_held = max(most_held, await held_bytes(broker))
        await flood
    assert sent > 3
    read_at_a_time = 256 * 1024
    assert LIMIT_BYTES / 2 < most_held <= LIMIT_BYTES + MESSAGE_BYTES + 20 * read_at_a_time
    assert await held_bytes(broker) == 0
    assert "memory for messages" in broker.log


async def test_half_frames_that_nobody_completes_keep_nobody_out(
    broker, ackgate_topic, fresh_ackgate_topic
) -> None:
    entry = large_entry()
    async with AsyncExitStack() as stack:
        for _ in range(12):
            client = await stack.enter_async_context(await connect(broker))
            stuck = await client.producer(fresh_ackgate_topic())
            client.send_bytes(stuck.raw_frame(entry, 0)[: MESSAGE_BYTES * 3 // 4])
        client = await stack.enter_async_context(await connect(broker))
        producer = await client.producer(ackgate_topic)
        await send_large(producer, entry, 6)
        consumer = await client.subscribe(ackgate_topic, "s", initial_position=EARLIEST)
        consumer.flow(6)
        assert len(await consumer.receive_many(6)) == 6
