"""The broker's side of one producer: passes its messages to the topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from ackgate.broker.wire import ProducerRequest, SessionPort
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.config.delayed import DelayedDeliveryPolicy
    from ackgate.network import Urls


class PublishedTopic(Protocol):
    """What a producer needs of its topic."""

    delays_refused: int
    """Number of entries rejected because their delay was too long."""

    @property
    def producers(self) -> ProducersOfTopic:
        """All producers of the topic."""

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        """The delayed delivery policy in effect."""

    def publish(
        self,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        num_messages: int,
        entry: bytes,
        metadata: pb.MessageMetadata,
        deliver_at_ms: int = 0,
    ) -> None:
        """Store one entry of a producer."""


class ProducersOfTopic(Protocol):
    """The producers that publish to a topic, or wait for access."""

    async def remove(self, producer: Producer) -> None: ...


class Producer:
    """A producer that is attached to a topic, or waits for exclusive access to it."""

    def __init__(
        self, topic: PublishedTopic, session: SessionPort, request: ProducerRequest, name: str
    ) -> None:
        self.topic = topic
        self.session = session
        self.producer_id = request.producer_id
        self.name = name
        self.epoch = request.epoch
        self.is_name_from_user = request.is_name_from_user
        self.access_mode = request.access_mode
        self.properties = request.properties
        self.schema_version = request.schema_version
        self.topic_epoch = request.topic_epoch
        self.last_sequence_id = -1
        self.is_ready = True
        self.is_closed = False
        self.connected_since = time.time()
        self.messages_in = 0
        self.bytes_in = 0

    @property
    def max_delay_ms(self) -> int:
        """The longest delay that an entry may have, in ms. 0: no limit."""
        policy = self.topic.delayed_delivery
        return policy.max_delay_ms if policy.is_active else 0

    def delay_refused(self) -> None:
        """Count an entry that was rejected for its delay."""
        self.topic.delays_refused += 1

    def publish(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        num_messages: int,
        entry: bytes,
        metadata: pb.MessageMetadata,
        deliver_at_ms: int = 0,
    ) -> None:
        """Hand one entry to the topic; the session gets a receipt or a send error."""
        self.messages_in += num_messages
        self.bytes_in += len(entry)
        self.topic.publish(
            self, sequence_id, highest_sequence_id, num_messages, entry, metadata, deliver_at_ms
        )

    def is_successor_of(self, other: Producer) -> bool:
        """Whether this is the same client producer, reconnected on the same connection."""
        return (
            self.name == other.name
            and self.producer_id == other.producer_id
            and self.session is other.session
            and self.epoch > other.epoch
        )

    async def close(self) -> None:
        """Leave the topic. May be called twice."""
        if not self.is_closed:
            self.is_closed = True
            await self.topic.producers.remove(self)

    def disconnect(self, urls: Urls = NOWHERE) -> None:
        """Close the producer by the broker.

        The client reconnects to this address, or looks up again.
        """
        if not self.is_closed:
            self.is_closed = True
            self.session.close_producer(self.producer_id, urls)
