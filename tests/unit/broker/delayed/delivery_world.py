"""One topic on a broker without sockets, in virtual time: who is given what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import MessageOut
from ackgate.broker.wire.requests import (
    InitialPosition,
    ProducerRequest,
    SentEntry,
    SubscribeRequest,
    SubscriptionType,
)
from ackgate.config.settings import Given, Settings
from ackgate.cursor import Position
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker, loop_clock_ms
from tests.support.faults import FaultPlan
from tests.support.faulty_ledgers import FaultyLedgerClient

if TYPE_CHECKING:
    from ackgate.broker.topic import Producer
    from ackgate.broker.topic.registry import TopicRegistry
    from ackgate.broker.topic.subscription import Consumer, SubscriptionDriver
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.ports import SessionPort

NAME = TopicName.parse("persistent://public/default/t")
STRICT = {
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "delayedDeliveryTickTimeMillis": "1",
}


class Client:
    """A connection with one consumer: what it was given, by name, and at what time."""

    is_open = True
    is_writable = True
    peer = "test"
    received_at = 0.0
    client_version = "test"
    protocol_version = 19

    def __init__(self, world: DelayedWorld) -> None:
        self.world = world
        self.got: list[tuple[int, str]] = []
        """(ms, name)"""
        self.redeliveries: dict[str, int] = {}
        self.port = cast("Consumer", None)

    def send_messages(
        self, _: int, __: int, messages: Sequence[MessageOut], ___: int | None
    ) -> None:
        for message in messages:
            name = message.entry.rsplit(b"=", 1)[-1].decode()
            self.got.append((loop_clock_ms(), name))
            self.redeliveries[name] = message.redelivery_count

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def flow(self, permits: int) -> None:
        self.port.flow(permits)

    def ack(self, *names: str) -> None:
        command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        for name in names:
            ledger_id, entry_id = self.world.positions[name]
            command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self.port.acks([command])

    @property
    def names(self) -> list[str]:
        """What came since the last time this was asked."""
        names = [name for _, name in self.got]
        self.got.clear()
        return names


class DelayedWorld:
    """A broker whose storage outlives it."""

    def __init__(self, **keys: str) -> None:
        self.keys = {**STRICT, **keys}
        self.plan = FaultPlan()
        self.cache_bytes = 0
        """0: every read goes to the ledger."""
        self.tree = MemoryTree()
        self.ledgers = MemoryLedgers()
        self.positions: dict[str, Position] = {}
        self.names: list[str] = []
        self.registry = cast("TopicRegistry", None)
        self.topic = cast("Topic", None)
        self._producer: Producer | None = None

    async def start(self) -> None:
        """A broker on this storage; the one before it is as if killed."""
        settings = Settings().with_given(
            {key: Given(value, "test") for key, value in self.keys.items()}
        )
        self.registry = bare_broker(
            FaultyLedgerClient(MemoryLedgerClient(self.ledgers), self.plan),
            MemoryMetadataStore(self.tree),
            settings=settings,
        )
        self.topic = await self.registry.topic(NAME, create=True)
        self.topic.services.cache.bytes_max = self.cache_bytes
        self._producer = None

    async def publish(self, *names: str, delay_ms: int = 0, key: str = "") -> None:
        """Store messages with these names; they fall due so much later."""
        if self._producer is None:
            self._producer = await self.topic.add_producer(self, ProducerRequest(NAME, 1, "p"))
        now_ms = loop_clock_ms()
        for name in names:
            self.names.append(name)
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=now_ms)
            if key:
                metadata.partition_key = key
            deliver_at_ms = 0
            if delay_ms:
                deliver_at_ms = metadata.deliver_at_time = now_ms + delay_ms
            entry = seal_entry(metadata.SerializeToString(), b"=" + name.encode())
            self._producer.publish(SentEntry(1, 1, 1, entry, metadata, deliver_at_ms))
        while len(self.positions) < len(self.names):
            await asyncio.sleep(0)
        await settle()

    is_open = True
    peer = "producer"
    received_at = 0.0

    def send_receipts(self, _: int, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        for _, _, ledger_id, entry_id in receipts:
            self.positions[self.names[len(self.positions)]] = Position(ledger_id, entry_id)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    async def consumer(
        self,
        permits: int = 1_000,
        *,
        type: SubscriptionType = SubscriptionType.SHARED,  # noqa: A002
        name: str = "c",
        subscription: str = "s",
    ) -> Client:
        """Subscribe from the earliest message on."""
        client = Client(self)
        request = SubscribeRequest(
            NAME, subscription, 1, type, name, initial_position=InitialPosition.EARLIEST
        )
        client.port = await self.topic.subscribe(cast("SessionPort", client), request)
        if permits:
            client.flow(permits)
        await settle()
        return client

    def subscription(self, name: str = "s") -> SubscriptionDriver:
        return self.topic.subscriptions[name]

    def check(self) -> None:
        """Every held entry is unacked, and nobody has it."""
        for subscription in self.topic.subscriptions.values():
            subscription.core._held.check()
            subscription.cursor.check()
            if subscription.core._dispatcher is not None:
                subscription.core._dispatcher.check()
            for position in self.positions.values():
                if position in subscription.core._held:
                    assert not subscription.cursor.is_acked(position)


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(50):
        await asyncio.sleep(0)


async def at(ms: int) -> None:
    """Return at this time of the virtual clock."""
    await asyncio.sleep(ms / 1000 - asyncio.get_running_loop().time())
    await settle()
