"""The broker's side of producers: one producer, and all of a topic's with its access modes (PIP-68).

Edge only through the topic epoch, which is stored before a producer gets exclusive access, so that
a former holder that comes back with an older epoch is refused.

=======================  ============================================================
mode                     when others are connected
=======================  ============================================================
Shared                   refused while one holds or waits for exclusive access
Exclusive                refused
WaitForExclusive         waits for its turn
ExclusiveWithFencing     the others are thrown out, those that wait included
=======================  ============================================================
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.broker.wire import (
    AccessMode,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
)
from ackgate.errors import AckGateError
from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ackgate.broker.wire import ProducerRequest, SentEntry, SessionPort
    from ackgate.config.delayed import DelayedDeliveryPolicy
    from ackgate.network import Urls

WAITING_MAX: Final = 1000
"""Producers of one topic that may wait for exclusive access."""


class PublishedTopic(Protocol):
    """What a producer needs of its topic."""

    delays_refused: int
    """Number of entries rejected because their delay was too long."""

    @property
    def producers(self) -> TopicProducers:
        """All producers of the topic."""

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        """The delayed delivery policy in effect."""

    def publish(self, producer: Producer, sent: SentEntry) -> None:
        """Store one entry of a producer."""


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

    def publish(self, sent: SentEntry) -> None:
        """Hand one entry to the topic; the session gets a receipt or a send error."""
        self.messages_in += sent.message_count
        self.bytes_in += len(sent.entry)
        self.topic.publish(self, sent)

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


class TopicProducers:
    """The producers of one topic."""

    def __init__(
        self, topic_name: str, epoch: int | None, store_epoch: Callable[[int], Awaitable[None]]
    ) -> None:
        self._topic_name = topic_name
        self._epoch = epoch
        self._store_epoch = store_epoch
        self._by_name: dict[str, Producer] = {}
        self._holder: Producer | None = None
        self._waiting: list[Producer] = []

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def waiting_count(self) -> int:
        """How many producers wait for exclusive access."""
        return len(self._waiting)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    async def add(self, producer: Producer) -> None:
        """Admit a producer, or let it wait (`is_ready` False).

        Raises `ProducerBusyError` (name taken, exclusive holder), `ProducerFencedError`,
        `ServiceNotReadyError`.
        """
        try:
            await self._admit(producer)
        except BaseException:
            await self._admit_heirs()  # it may have kept them waiting, or taken its own old place
            raise

    async def _admit(self, producer: Producer) -> None:
        self._check_name(producer)
        match producer.access_mode:
            case AccessMode.SHARED:
                if self._holder is not None or self._waiting:
                    raise ProducerBusyError(
                        f"topic {self._topic_name} has an existing exclusive producer"
                    )
            case AccessMode.EXCLUSIVE:
                if self._by_name or self._holder is not None:
                    raise ProducerFencedError(f"topic {self._topic_name} has existing producers")
                await self._hold(producer)
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if self._by_name or self._holder is not None:
                    self._wait(producer)
                    return
                await self._hold(producer)
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                self._check_epoch(producer)  # who was fenced itself must not fence its successor
                self.disconnect_all()
                await self._hold(producer)
        self._by_name[producer.name] = producer

    async def remove(self, producer: Producer) -> None:
        """Remove a producer. The next one that waits for exclusive access gets it."""
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        elif producer in self._waiting:
            self._waiting.remove(producer)
        if self._holder is producer:
            self._holder = None
        await self._admit_heirs()

    async def _admit_heirs(self) -> None:
        """If the topic has no producer, give it to the first of those that wait."""
        while self._waiting and not self._by_name and self._holder is None:
            heir = self._waiting.pop(0)
            try:
                await self._hold(heir)
            except AckGateError:
                heir.disconnect()
                continue
            self._by_name[heir.name] = heir
            heir.is_ready = True
            heir.session.send_producer_ready(heir.producer_id)

    def disconnect_all(self, urls: Urls = NOWHERE) -> None:
        """Close all producers because the topic is being closed.

        They reconnect to `urls` if given.
        """
        for producer in [*self._by_name.values(), *self._waiting]:
            producer.disconnect(urls)
        self._by_name.clear()
        self._waiting.clear()
        self._holder = None

    def _check_name(self, producer: Producer) -> None:
        present = self._by_name.get(producer.name)
        if present is None:
            return
        if not producer.is_successor_of(present) and present.session.is_open:
            raise ProducerBusyError(
                f"producer {producer.name!r} is already connected to topic {self._topic_name}"
            )
        present.is_closed = True
        del self._by_name[producer.name]
        if self._holder is present:
            self._holder = None

    def _wait(self, producer: Producer) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise ProducerBusyError(
                f"{WAITING_MAX} producers wait for topic {self._topic_name} already"
            )
        producer.is_ready = False
        self._waiting.append(producer)

    def _check_epoch(self, producer: Producer) -> int:
        """Return the topic's epoch, -1 before the first. Raises `ProducerFencedError`."""
        current = -1 if self._epoch is None else self._epoch
        if producer.topic_epoch is not None and producer.topic_epoch < current:
            raise ProducerFencedError(
                f"topic epoch has moved to {current}, producer {producer.name} "
                f"had {producer.topic_epoch}"
            )
        return current

    async def _hold(self, producer: Producer) -> None:
        current = self._check_epoch(producer)
        self._holder = producer
        epoch = current + 1 if producer.topic_epoch is None else producer.topic_epoch
        try:
            await self._store_epoch(epoch)
        except BaseException:
            if self._holder is producer:
                self._holder = None
            raise
        if self._holder is not producer:
            raise ServiceNotReadyError(
                f"the producers of topic {self._topic_name} were sent away meanwhile"
            )
        self._epoch = producer.topic_epoch = epoch
