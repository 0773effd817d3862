"""A broker that is told to stop ends, whatever its clients and its topics do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ackgate.broker.server import BrokerServer
from ackgate.config.settings import Given, Settings
from tests.support.wire_client import EARLIEST, WireClient

TOPIC = "persistent://public/default/t"


def settings(**given: object) -> Settings:
    ports = {"brokerServicePort": 0, "webServicePort": 0}
    return Settings().with_given(
        {key: Given(str(value), "test") for key, value in {**ports, **given}.items()}
    )


async def test_clients_that_read_nothing_are_cut_off(tmp_path: Path) -> None:
    broker = await BrokerServer.start(settings(), tmp_path / "data")
    async with await WireClient.connect("127.0.0.1", broker.protocol_port) as client:
        producer = await client.producer(TOPIC)
        for _ in range(10):
            await producer.send(bytes(1_000_000))
        consumer = await client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        client.pause_reading()
        consumer.flow(10)
        session = next(iter(broker._protocol.sessions))
        while not session._transport.get_write_buffer_size():
            await asyncio.sleep(0)
        assert await broker.stop()
        assert not broker._protocol.sessions


@pytest.mark.slow
async def test_a_topic_that_cannot_be_closed_is_left_to_the_next_start(tmp_path: Path) -> None:
    broker = await BrokerServer.start(settings(brokerShutdownTimeoutMs=2_000), tmp_path / "data")
    never = asyncio.Event()
    async with await WireClient.connect("127.0.0.1", broker.protocol_port) as client:
        position = await (await client.producer(TOPIC)).send(b"kept")
        (topic,) = broker.registry
        topic.settle = never.wait  # type: ignore[assignment,method-assign]
        assert not await broker.stop()
    assert "closing topics" in broker._stopping.cut_short
    again = await BrokerServer.start(settings(), tmp_path / "data")
    async with await WireClient.connect("127.0.0.1", again.protocol_port) as client:
        consumer = await client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        consumer.flow(1)
        assert (await consumer.receive()).position == position
    assert await again.stop()
