"""A topic with a delivery journal on memory stores, in virtual time; and what its journal has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import MessageOut
from ackgate.broker.wire.requests import (
    InitialPosition,
    KeySharedRequest,
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
from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker, loop_clock_ms
from tests.support.delivery_journals import blocks_of, events_of
from tests.support.faults import FaultPlan
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.topic_replay import TopicReplay

if TYPE_CHECKING:
    from ackgate.broker.journal.writer import JournalStatistics
    from ackgate.broker.topic import Producer
    from ackgate.broker.topic.registry import TopicRegistry
    from ackgate.broker.topic.subscription import Consumer, SubscriptionDriver
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.ports import SessionPort
    from ackgate.persistence.deliveries.columns import DeliveryEvent

NAME = TopicName.parse("persistent://public/default/t")
PATH = delivery_journal_path("public", "default", "t")
INDIVIDUAL = pb.CommandAck.Individual
CUMULATIVE = pb.CommandAck.Cumulative


class Client:
    """A connection with one consumer."""

    is_open = True
    is_writable = True
    peer = "test"
    received_at = 0.0
    client_version = "test"
    protocol_version = 19

    def __init__(self) -> None:
        self.got: list[Position] = []
        self.answered: list[int] = []
        self.refused: list[str] = []
        self.port = cast("Consumer", None)

    def send_messages(
        self, _: int, __: int, messages: Sequence[MessageOut], ___: int | None
    ) -> None:
        self.got += [Position(message.ledger_id, message.entry_id) for message in messages]

    def send_ack_responses(self, _: int, request_ids: Sequence[int]) -> None:
        self.answered += request_ids

    def send_ack_error(self, _: int, __: int, ___: int, message: str) -> None:
        self.refused.append(message)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def ack(self, *acks: tuple[Position, int | None], request_id: int | None = None) -> None:
        """Individually, in one chunk; a mask holds what stays unacked."""
        self.port.acks([_command(INDIVIDUAL, [each], request_id) for each in acks])

    def ack_through(self, position: Position, mask: int | None = None) -> None:
        self.port.acks([_command(CUMULATIVE, [(position, mask)], None)])


def _command(
    kind: pb.CommandAck.AckType,
    acks: Sequence[tuple[Position, int | None]],
    request_id: int | None,
) -> pb.CommandAck:
    command = pb.CommandAck(consumer_id=1, ack_type=kind, request_id=request_id)
    for (ledger_id, entry_id), mask in acks:
        message_id = command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        if mask is not None:
            message_id.ack_set.append(mask)
    return command


class JournalWorld:
    """A broker whose storage outlives it."""

    def __init__(self, **keys: str) -> None:
        self.keys = {"deliveryJournalEnabled": "true", **keys}
        self.plan = FaultPlan()
        self.tree = MemoryTree()
        self.ledgers = MemoryLedgers()
        self.published: list[Position] = []
        self.registry = cast("TopicRegistry", None)
        self.topic = cast("Topic", None)
        self._producer: Producer | None = None

    async def start(self) -> None:
        """A broker on this storage; the one before it is as if killed."""
        if self.topic is not None:
            self.registry.forget(self.topic)
        settings = Settings().with_given(
            {key: Given(value, "test") for key, value in self.keys.items()}
        )
        self.registry = bare_broker(
            FaultyLedgerClient(MemoryLedgerClient(self.ledgers), self.plan),
            MemoryMetadataStore(self.tree),
            settings=settings,
        )
        self.topic = await self.registry.topic(NAME, create=True)
        self._producer = None

    async def publish(
        self, count: int = 1, *, batch_size: int = 1, key: str = "", delay_ms: int = 0
    ) -> list[Position]:
        """Store entries, and wait for their receipts."""
        if self._producer is None:
            self._producer = await self.topic.add_producer(
                cast("SessionPort", self), ProducerRequest(NAME, 1, "p")
            )
        before = len(self.published)
        for _ in range(count):
            metadata = pb.MessageMetadata(
                producer_name="p",
                sequence_id=1,
                publish_time=loop_clock_ms(),
                num_messages_in_batch=batch_size,
            )
            if key:
                metadata.partition_key = key
            if delay_ms:
                metadata.deliver_at_time = loop_clock_ms() + delay_ms
            entry = seal_entry(metadata.SerializeToString(), b"payload")
            self._producer.publish(
                SentEntry(1, 1, batch_size, entry, metadata, metadata.deliver_at_time)
            )
        while len(self.published) < before + count:
            await asyncio.sleep(0)
        return self.published[before:]

    is_open = True
    peer = "producer"
    received_at = 0.0

    def send_receipts(self, _: int, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        self.published += [Position(*receipt[2:]) for receipt in receipts]

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    async def consumer(
        self,
        permits: int = 1_000,
        *,
        kind: SubscriptionType = SubscriptionType.SHARED,
        name: str = "c",
        subscription: str = "s",
        is_durable: bool = True,
        key_shared: KeySharedRequest | None = None,
    ) -> Client:
        """Subscribe from the earliest message on."""
        client = Client()
        request = SubscribeRequest(
            NAME,
            subscription,
            1,
            kind,
            name,
            initial_position=InitialPosition.EARLIEST,
            is_durable=is_durable,
            key_shared=key_shared,
        )
        client.port = await self.topic.subscribe(cast("SessionPort", client), request)
        client.port.flow(permits)
        await settle()
        return client

    def subscription(self, name: str = "s") -> SubscriptionDriver:
        return self.topic.subscriptions[name]

    @property
    def statistics(self) -> JournalStatistics:
        statistics = self.topic.journaling.statistics()
        assert statistics is not None
        return statistics

    async def events(self) -> list[DeliveryEvent]:
        """All that has been written by a moment from now."""
        await asyncio.sleep(5)
        client, metadata = MemoryLedgerClient(self.ledgers), MemoryMetadataStore(self.tree)
        return events_of(await blocks_of(client, metadata, PATH))

    async def check_replay(self) -> TopicReplay:
        """A replay of the journal leads to the cursors that there are."""
        replay = TopicReplay()
        replay.feed(await self.events())
        replay.finish()
        assert replay.cursors.keys() == self.topic.subscriptions.keys()
        for name, subscription in self.topic.subscriptions.items():
            assert replay.cursors[name].snapshot() == subscription.cursor.snapshot()
            replay.cursors[name].check()
        return replay


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(50):
        await asyncio.sleep(0)
