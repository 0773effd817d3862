"""Topics that exist in memory only: the far side of a session, without anything behind it.

A fake of ``ackgate/broker/wire/ports.py`` for tests and measurements of the wire. Entries are kept in a
list; receipts go out at the end of the tick, in bulk, unless `MemoryTopic.holds_receipts`; every
consumer gets every entry from the one it started with, as permits and its connection allow; acks
are written down and answered at once. What is asked of it is kept, so that a test can look.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from ackgate.broker.wire.errors import TopicNotFoundError
from ackgate.broker.wire.replies import ConsumerStatsReply, LastMessageId, MessageOut
from ackgate.broker.wire.requests import ConsumerRates, InitialPosition, SubscriptionType
from ackgate.cursor import Position
from ackgate.network import NOWHERE, Urls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.wire.names import NamespaceName, TopicName
    from ackgate.broker.wire.ports import SessionPort
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.requests import ProducerRequest, SentEntry, SubscribeRequest

LEDGER_ID = 7


class MemoryRegistry:
    """Topics by name, made when asked for."""

    def __init__(self, *, keeps_acks: bool = True) -> None:
        self.keeps_acks = keeps_acks
        self.topics: dict[str, MemoryTopic] = {}
        self.partition_counts: dict[str, int] = {}
        self.failure: Exception | None = None
        """Raised instead of the next answers."""
        self.gate: asyncio.Event | None = None
        """Awaited before answering: lets a test do things while a request is under way."""

    async def topic(self, name: TopicName, *, create: bool) -> MemoryTopic:
        """Find or make a topic."""
        await self._before_answering()
        found = self.topics.get(str(name))
        if found is None:
            if not create:
                raise TopicNotFoundError(f"Topic {name} does not exist")
            found = self.topics[str(name)] = MemoryTopic(name, keeps_acks=self.keeps_acks)
        return found

    async def partition_count(self, name: TopicName, *, create: bool) -> int:
        """What `partition_counts` says."""
        await self._before_answering()
        return self.partition_counts.get(str(name), 0)

    async def topic_names(self, namespace: NamespaceName) -> list[str]:
        """All topics of a namespace."""
        await self._before_answering()
        prefix = f"persistent://{namespace}/"
        return sorted(name for name in self.topics if name.startswith(prefix))

    async def _before_answering(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure


class ServedHere:
    """The owner of every topic, at one address, which is also what a lookup finds."""

    is_here = is_owner = True

    def __init__(self, service: Urls = NOWHERE) -> None:
        self.service = service

    def location_now(self, topic: TopicName) -> Self:
        """Every topic is served here."""
        del topic
        return self

    async def locate(self, topic: TopicName, *, is_authoritative: bool = False) -> Self:
        """Every topic is served here."""
        del topic, is_authoritative
        return self

    def reached_by(self, located: Self, listener: str) -> Urls:
        """One address for all listeners."""
        del located, listener
        return self.service


class MemoryTopic:
    """Entries in a list."""

    def __init__(self, name: TopicName, *, keeps_acks: bool) -> None:
        self.name = name
        self.keeps_acks = keeps_acks
        self.entries: list[bytes] = []
        self.producers: list[MemoryProducer] = []
        self.consumers: list[MemoryConsumer] = []
        self.requests: list[ProducerRequest | SubscribeRequest] = []
        self.holds_receipts = False
        self._unanswered: list[tuple[MemoryProducer, tuple[int, int, int, int]]] = []
        self._is_round_due = False

    @property
    def is_idle(self) -> bool:
        """Nobody here, nothing written."""
        return not (self.producers or self.consumers or self.entries)

    async def add_producer(self, session: SessionPort, request: ProducerRequest) -> MemoryProducer:
        """Attach a producer."""
        self.requests.append(request)
        producer = MemoryProducer(self, session, request)
        self.producers.append(producer)
        return producer

    async def subscribe(self, session: SessionPort, request: SubscribeRequest) -> MemoryConsumer:
        """Attach a consumer."""
        self.requests.append(request)
        consumer = MemoryConsumer(self, session, request)
        self.consumers.append(consumer)
        return consumer

    def append(self, producer: MemoryProducer, sequence: tuple[int, int], entry: bytes) -> None:
        """Keep an entry; confirm and deliver it at the end of the tick."""
        self._unanswered.append((producer, (*sequence, LEDGER_ID, len(self.entries))))
        self.entries.append(entry)
        self._ask_round()

    def release_receipts(self) -> None:
        """Confirm what was held back, and go on confirming."""
        self.holds_receipts = False
        self._ask_round()

    def _ask_round(self) -> None:
        if not self._is_round_due:
            self._is_round_due = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._is_round_due = False
        if not self.holds_receipts:
            unanswered, self._unanswered = self._unanswered, []
            by_producer: dict[MemoryProducer, list[tuple[int, int, int, int]]] = {}
            for producer, receipt in unanswered:
                by_producer.setdefault(producer, []).append(receipt)
            for producer, receipts in by_producer.items():
                producer.session.send_receipts(producer.producer_id, receipts)
        for consumer in self.consumers:
            consumer.deliver()


class MemoryProducer:
    """A producer that is ready when it is there, unless told otherwise."""

    def __init__(self, topic: MemoryTopic, session: SessionPort, request: ProducerRequest) -> None:
        self.topic = topic
        self.session = session
        self.producer_id = request.producer_id
        self.name = request.name or f"memory-{len(topic.producers)}"
        self.last_sequence_id = -1
        self.schema_version = request.schema_version
        self.topic_epoch: int | None = request.topic_epoch
        self.is_ready = request.access_mode != 2 or not topic.producers  # WAIT_FOR_EXCLUSIVE
        self.is_closed = False

    @property
    def max_delay_ms(self) -> int:
        """Any delay is fine."""
        return 0

    def delay_refused(self) -> None:
        """None is."""

    def publish(self, sent: SentEntry) -> None:
        """Keep the entry."""
        assert sent.message_count >= 1
        self.topic.append(self, (sent.sequence_id, sent.highest_sequence_id), sent.entry)

    async def close(self) -> None:
        """Detach."""
        if not self.is_closed:
            self.is_closed = True
            self.topic.producers.remove(self)


class MemoryConsumer:
    """A consumer that reads on as permits allow."""

    def __init__(self, topic: MemoryTopic, session: SessionPort, request: SubscribeRequest) -> None:
        self.topic = topic
        self.session = session
        self.request = request
        self.consumer_id = request.consumer_id
        self.permits = 0
        is_earliest = request.initial_position is InitialPosition.EARLIEST
        self.next_entry = 0 if is_earliest else len(topic.entries)
        self.ack_batches: list[int] = []
        """Commands in each call of `acks`."""
        self.acked: list[pb.CommandAck] = []
        self.calls: list[object] = []
        """Everything else that was asked, as (name, arguments...)."""
        self.delivery_max: int | None = None
        self.is_closed = False

    def flow(self, permits: int) -> None:
        """More permits."""
        self.permits += permits
        self.deliver()

    def deliver(self) -> None:
        """Send what permits and the connection allow."""
        count = min(self.permits, len(self.topic.entries) - self.next_entry)
        while count > 0 and self.session.is_writable and not self.is_closed:
            batch = min(count, 1000)
            start = self.next_entry
            self.session.send_messages(
                self.consumer_id,
                self.topic.name.partition_index,
                [
                    MessageOut(LEDGER_ID, index, 0, None, self.topic.entries[index])
                    for index in range(start, start + batch)
                ],
                self.request.epoch,
            )
            self.next_entry += batch
            self.permits -= batch
            count -= batch

    def acks(self, commands: Sequence[pb.CommandAck]) -> None:
        """Write down, answer."""
        self.ack_batches.append(len(commands))
        if self.topic.keeps_acks:
            self.acked.extend(commands)
        asking = [each.request_id for each in commands if each.HasField("request_id")]
        if asking:
            self.session.send_ack_responses(self.consumer_id, asking)

    def redeliver(self, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Write down."""
        self.calls.append(("redeliver", positions, epoch))

    def on_writable(self) -> None:
        """Go on."""
        self.calls.append(("on_writable",))
        self.deliver()

    def stats(self) -> ConsumerStatsReply:
        """Some figures."""
        return ConsumerStatsReply(
            self.request.consumer_name,
            SubscriptionType(self.request.subscription_type),
            self.permits,
            unacked_messages=self.next_entry,
            is_blocked_on_unacked=False,
            connected_since=1_577_836_800.5,
            backlog_messages=3,
            rates=ConsumerRates(messages_out=0.5),
        )

    async def last_message_id(self) -> LastMessageId:
        """The last entry."""
        if not self.topic.entries:
            return LastMessageId(Position(-1, -1), -1, None)
        last = Position(LEDGER_ID, len(self.topic.entries) - 1)
        return LastMessageId(last, -1, Position(LEDGER_ID, -1))

    async def seek(self, position: Position, unacked_mask: int | None) -> None:
        """Write down; the client has to subscribe again, as with Pulsar."""
        self.calls.append(("seek", position, unacked_mask))
        self.session.close_consumer(self.consumer_id)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Write down."""
        self.calls.append(("seek_to_time", publish_time_ms))

    async def unsubscribe(self, *, force: bool) -> None:
        """Detach."""
        self.calls.append(("unsubscribe", force))
        await self.close()

    async def close(self) -> None:
        """Detach."""
        if not self.is_closed:
            self.is_closed = True
            self.topic.consumers.remove(self)
