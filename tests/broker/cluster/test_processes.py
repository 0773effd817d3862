"""Real brokers on a real ZooKeeper: killed, stopped and continued, cut off.

Orders of events are asserted, never times: how long a takeover takes is `make bench`'s.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pulsar
import pytest

from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.requests import InitialPosition
from ackgate.cursor import Position
from ackgate.testing import BrokerCluster, BrokerProcess
from ackgate.testing.proxy import ProxyMode
from ackgate.testing.pytest_plugin import (  # noqa: F401 - fixtures
    ackgate_admin_token,
    ackgate_cluster,
    zookeeper,
)
from tests.broker.target import eventually
from tests.support.wire_client import (
    DisconnectedError,
    RefusedError,
    WireClient,
    WireConsumer,
    WireProducer,
)
from tests.support.wire_lookup import Owner, find_owner

TOPIC = "persistent://public/default/moved"
MESSAGES = 20
SECONDS_MAX = 40.0


@pytest.fixture(scope="session")
def ackgate_settings() -> Mapping[str, object]:
    """Nobody is missed for long, and every message is kept to be looked at."""
    return {
        "metadataStoreSessionTimeoutMillis": 1500,
        "defaultRetentionTimeInMinutes": -1,
        "defaultRetentionSizeInMB": -1,
    }


class Story:
    """A topic with messages, half of them acked with receipts, and clients at its owner."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.addresses = [f"127.0.0.1:{broker.port}" for broker in cluster.brokers]
        self.positions: list[Position] = []
        self.acked: set[Position] = set()
        self.client: WireClient
        self.producer: WireProducer
        self.consumer: WireConsumer
        self.first: BrokerProcess
        self.second: BrokerProcess

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the story, within bounds, and leave no connection behind."""

        async def bounded() -> None:
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    await work
            finally:
                if not self.client.closed.done():
                    self.client.abort()
                await self.client.closed

        asyncio.run(bounded())

    async def begin(self) -> None:
        """Publish, and ack every other one."""
        owner = await find_owner(self.addresses, TOPIC)
        self.first = next(b for b in self.cluster.brokers if b.port == owner.port)
        self.second = next(b for b in self.cluster.brokers if b.port != owner.port)
        self.client = await WireClient.connect(*owner)
        self.producer = await self.client.producer(TOPIC)
        self.consumer = await self.client.subscribe(
            TOPIC, "s", initial_position=InitialPosition.EARLIEST
        )
        for number in range(MESSAGES):
            self.positions.append(await self.producer.send(b"%d" % number))
        self.consumer.flow(1000)
        messages = await self.consumer.receive_many(MESSAGES)
        await self.consumer.ack(*messages[::2])
        self.acked = set(self.positions[::2])

    async def owner_is(self, broker: BrokerProcess) -> None:
        """Wait until lookups at the broker that was not the first lead to this one."""
        asked = f"127.0.0.1:{self.second.port}"
        while (await find_owner([asked], TOPIC)).port != broker.port:
            await asyncio.sleep(0.05)

    async def _subscribe_at(self, broker: BrokerProcess) -> tuple[WireClient, WireConsumer]:
        """Until it is let in: who has just come back says that it is not ready, and clients try again."""
        while True:
            client = await WireClient.connect(*Owner("127.0.0.1", broker.port))
            try:
                return client, await client.subscribe(TOPIC, "s")
            except RefusedError as refused:
                await client.close()
                if refused.code is not ServerError.SERVICE_NOT_READY:
                    raise
                await asyncio.sleep(0.05)

    async def goes_on_at(self, broker: BrokerProcess) -> None:
        """Publish there, and take what is not acked: exactly that, in order, and the new one."""
        client, consumer = await self._subscribe_at(broker)
        position = await (await client.producer(TOPIC)).send(b"after")
        consumer.flow(1000)
        expected = [each for each in self.positions if each not in self.acked]
        received = await consumer.receive_many(len(expected) + 1)
        assert [message.position for message in received] == [*expected, position]
        await consumer.ack(*received)
        self.positions.append(position)
        self.acked = set(self.positions)
        await client.close()

    async def until_told(self) -> None:
        """Wait until the first clients know that they are closed."""
        try:
            await self.client.until(
                lambda: (
                    any(event.HasField("close_producer") for event in self.client.events)
                    and any(event.HasField("close_consumer") for event in self.client.events)
                )
            )
        except DisconnectedError:
            return


def brokers(broker: BrokerProcess) -> list[str]:
    """Who is alive, says this one."""
    url = f"{broker.admin_url}/admin/v2/brokers/standalone"
    with urllib.request.urlopen(url, timeout=10) as response:
        listed: list[str] = json.load(response)
    return listed


def test_a_killed_owner_is_followed_by_the_other(ackgate_cluster: BrokerCluster) -> None:  # noqa: F811
    story = Story(ackgate_cluster)

    async def tell() -> None:
        await story.begin()
        story.first.kill()
        await story.owner_is(story.second)
        await story.goes_on_at(story.second)
        story.first.start()
        await story.owner_is(story.second)  # what is owned stays where it is
        eventually(lambda: len(brokers(story.first)) == 2)

    story.run(tell())


def test_a_broker_that_is_started_again_at_once_is_one_of_two(
    ackgate_cluster: BrokerCluster,  # noqa: F811
) -> None:
    """Its earlier life's nodes may still be there."""
    story = Story(ackgate_cluster)

    async def tell() -> None:
        await story.begin()
        story.first.kill()
        story.first.start()
        owner = await find_owner(story.addresses, TOPIC)
        await story.goes_on_at(next(b for b in ackgate_cluster.brokers if b.port == owner.port))

    story.run(tell())


def test_an_owner_that_was_stopped_and_continued_writes_nothing(
    ackgate_cluster: BrokerCluster,  # noqa: F811
) -> None:
    story = Story(ackgate_cluster)

    async def tell() -> None:
        await story.begin()
        story.first.pause()
        await story.owner_is(story.second)
        await story.goes_on_at(story.second)
        story.client.send_bytes(story.producer.frame(b"too late"))
        story.consumer.ack_without_receipt(*story.positions[1::2])
        received_before = len(story.consumer.received)
        story.first.resume()
        await story.until_told()
        assert story.producer.receipts == MESSAGES
        assert len(story.consumer.received) == received_before
        await asyncio.to_thread(eventually, lambda: len(brokers(story.second)) == 2)
        await story.owner_is(story.second)

        client = await WireClient.connect(*Owner("127.0.0.1", story.second.port))
        reader = await client.subscribe(
            TOPIC, "all", initial_position=InitialPosition.EARLIEST, durable=False
        )
        reader.flow(1000)
        await (await client.producer(TOPIC)).send(b"end")
        received = await reader.receive_many(MESSAGES + 2)
        assert [message.payload for message in received] == [
            *(b"%d" % number for number in range(MESSAGES)),
            b"after",
            b"end",
        ]
        await client.close()

    story.run(tell())


@pytest.mark.parametrize("cut_off", ["owner", "everybody"])
def test_brokers_that_were_cut_off_from_zookeeper_join_again(
    ackgate_cluster: BrokerCluster,  # noqa: F811
    cut_off: str,
) -> None:
    story = Story(ackgate_cluster)

    async def tell() -> None:
        await story.begin()
        concerned = [
            number
            for number, broker in enumerate(ackgate_cluster.brokers)
            if cut_off == "everybody" or broker is story.first
        ]
        for number in concerned:
            ackgate_cluster.partition(number, ProxyMode.DROP)
        await story.until_told()
        if cut_off == "owner":
            await story.owner_is(story.second)
            await story.goes_on_at(story.second)
        for number in concerned:
            ackgate_cluster.heal(number)
        owner = await find_owner(story.addresses, TOPIC)
        broker = next(b for b in ackgate_cluster.brokers if b.port == owner.port)
        if cut_off == "everybody":
            await story.goes_on_at(broker)
        for each in ackgate_cluster.brokers:
            await asyncio.to_thread(eventually, lambda each=each: len(brokers(each)) == 2)

    story.run(tell())


def test_a_broker_that_is_told_to_stop_hands_over(
    ackgate_cluster: BrokerCluster,  # noqa: F811
    connect: Callable[[str], pulsar.Client],
) -> None:
    story = Story(ackgate_cluster)
    story.run(story.begin())
    client = connect(ackgate_cluster.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC)
    producer.send(b"before")
    assert story.first.stop() == 0
    producer.send(b"after")
    received: list[bytes] = []
    while b"after" not in received:
        message = consumer.receive(10_000)
        received.append(message.data())
        consumer.acknowledge(message)
    assert set(received) == {
        *(b"%d" % number for number in range(1, MESSAGES, 2)),
        b"before",
        b"after",
    }
    story.run(story.owner_is(story.second))
