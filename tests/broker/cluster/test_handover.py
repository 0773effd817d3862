"""Topics change hands, in good order or not, and clients go on by themselves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pulsar
import pytest

from ackgate.broker.cluster.policies import namespace_policy_path
from ackgate.broker.server import BrokerServer
from ackgate.broker.wire.errors import ServiceNotReadyError
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import InitialPosition
from ackgate.cursor import Position
from tests.broker.cluster.conftest import MemoryCluster
from tests.broker.target import eventually
from tests.support.wire_client import DisconnectedError, WireClient, WireConsumer
from tests.support.wire_lookup import find_owner

Connect = Callable[[str], pulsar.Client]
TOPIC = "handed-over"
MESSAGES = 60
EARLIEST = pulsar.InitialPosition.Earliest


def unload(cluster: MemoryCluster, owner: BrokerServer) -> None:
    """Every bundle of the owner goes to the other broker."""
    destination = cluster.other(owner).broker_id
    for bundle in cluster.call(lambda: list(owner.ownership.owned)):
        path = f"namespaces/{bundle}/unload?destinationBroker={destination}"
        assert cluster.ask(owner, "PUT", path).status == 204


def stop(cluster: MemoryCluster, owner: BrokerServer) -> None:
    """As after SIGTERM."""
    cluster.run(owner.stop())


def expire(cluster: MemoryCluster, owner: BrokerServer) -> None:
    """The owner's session is over, and another broker has everything before it can blink."""
    cluster.call(cluster.session(owner).expire)


@pytest.mark.parametrize("change", [unload, stop, expire])
def test_clients_go_on_by_themselves(
    cluster: MemoryCluster,
    connect: Connect,
    change: Callable[[MemoryCluster, BrokerServer], None],
) -> None:
    urls = ",".join(broker.service_url.removeprefix("pulsar://") for broker in cluster.brokers)
    client = connect(f"pulsar://{urls}")
    producer = client.create_producer(TOPIC, batching_enabled=False)
    consumer = client.subscribe(
        TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=EARLIEST
    )
    owner = cluster.owner(TOPIC)
    assert owner is not None
    received: list[bytes] = []

    def produce() -> None:
        for number in range(MESSAGES):
            producer.send(b"%d" % number)

    def consume() -> None:
        while len(set(received)) < MESSAGES:
            message = consumer.receive(20_000)
            received.append(message.data())
            consumer.acknowledge(message)

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(produce), pool.submit(consume)]
        eventually(lambda: len(received) > MESSAGES // 4)
        change(cluster, owner)
        for each in running:
            each.result(30)
    assert set(received) == {b"%d" % number for number in range(MESSAGES)}
    assert cluster.owner(TOPIC) is not None
    if change is not expire:
        assert cluster.owner(TOPIC) is not owner


@pytest.mark.parametrize("change", [unload, stop, expire])
def test_what_was_acked_with_a_receipt_never_comes_again(
    cluster: MemoryCluster,
    change: Callable[[MemoryCluster, BrokerServer], None],
) -> None:
    owner, positions = cluster.run(published(cluster))
    acked = positions[::2]
    client = cluster.run(ack_with_receipts(owner, acked))
    change(cluster, owner)
    cluster.run(client.wait_until_told())

    async def delivered_now() -> list[Position]:
        heir = await found(cluster)
        consumer = await heir.subscribe(TOPIC, "s")
        consumer.flow(1000)
        messages = await consumer.receive_many(len(positions) - len(acked))
        await (await heir.producer(TOPIC)).send(b"last")  # whatever else there is comes before it
        last = await consumer.receive()
        await heir.close()
        assert last.payload == b"last"
        return [message.position for message in messages]

    assert cluster.run(delivered_now()) == [p for p in positions if p not in set(acked)]
    cluster.run(client.wire.close())


def test_clients_are_told_where_to_go(cluster: MemoryCluster) -> None:
    """PIP-307: no lookup is needed when the new owner is known."""
    owner, positions = cluster.run(published(cluster))
    client = cluster.run(ack_with_receipts(owner, positions))
    unload(cluster, owner)
    cluster.run(client.wait_until_told())
    closed = next(each for each in client.wire.events if each.HasField("close_consumer"))
    heir = cluster.other(owner)
    assert closed.close_consumer.assignedBrokerServiceUrl == heir.service_url
    assert cluster.owner(TOPIC) is heir
    cluster.run(client.wire.close())


def test_an_owner_whose_node_was_taken_lets_go(cluster: MemoryCluster) -> None:
    owner, _ = cluster.run(published(cluster))
    name = TopicName.parse(TOPIC)

    async def take() -> None:
        bundle = (await owner.ownership.bundles(name.namespace_name)).of(name)
        await cluster.other(owner).services.metadata.delete(bundle.owner_path)

    cluster.run(take())
    eventually(lambda: cluster.owner(TOPIC) is None)
    assert cluster.call(lambda: owner.registry.loaded(name)) is None


def test_a_suspended_owner_serves_on_and_acquires_nothing(cluster: MemoryCluster) -> None:
    owner, positions = cluster.run(published(cluster))
    client = cluster.run(ack_with_receipts(owner, positions[::2]))
    name = TopicName.parse("public/other/topic")
    cluster.run(owner.services.policies.create(namespace_policy_path(name.namespace_name), {}))
    cluster.call(cluster.session(owner).suspend)
    cluster.run(client.consumer.ack(*positions[1::2]))
    cluster.run(client.wire.close())

    async def elsewhere() -> None:
        await owner.ownership.locate(name)

    with pytest.raises(ServiceNotReadyError, match="StoreSuspendedError"):
        cluster.run(elsewhere())
    cluster.call(cluster.session(owner).resume)
    cluster.run(elsewhere())


async def found(cluster: MemoryCluster) -> WireClient:
    """A connection to the owner."""
    addresses = [
        broker.service_url.removeprefix("pulsar://")
        for broker in cluster.brokers
        if not broker.ownership.is_leaving
    ]
    owner = await find_owner(addresses, TOPIC)
    return await WireClient.connect(owner.host, owner.port)


async def published(cluster: MemoryCluster) -> tuple[BrokerServer, list[Position]]:
    """Messages on the topic, and its owner."""
    client = await found(cluster)
    producer = await client.producer(TOPIC)
    await client.subscribe(TOPIC, "s", initial_position=InitialPosition.EARLIEST)
    positions = [await producer.send(b"%d" % number) for number in range(20)]
    await client.close()
    name = TopicName.parse(TOPIC)
    return next(b for b in cluster.brokers if b.ownership.is_served_here(name)), positions


class Acker(NamedTuple):
    """A consumer on the wire."""

    wire: WireClient
    consumer: WireConsumer

    async def wait_until_told(self) -> None:
        """Until the broker has closed the consumer, or the connection."""
        try:
            await self.wire.until(
                lambda: any(each.HasField("close_consumer") for each in self.wire.events)
            )
        except DisconnectedError:
            return


async def ack_with_receipts(owner: BrokerServer, positions: list[Position]) -> Acker:
    """Take what there is and ack some of it; returns when the receipts are there."""
    client = await WireClient.connect("127.0.0.1", owner.protocol_port)
    consumer = await client.subscribe(TOPIC, "s")
    consumer.flow(1000)
    await consumer.receive_many(20)
    await consumer.ack(*positions)
    return Acker(client, consumer)
