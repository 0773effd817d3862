"""The consumers of one connection: SUBSCRIBE and all that names a consumer id afterwards.

Edge: owns the connection's consumer ids. An id is unknown, being subscribed, or attached. FLOW and
REDELIVER for an id that is not attached are ignored, as in Pulsar: they cross with a CLOSE_CONSUMER
of the broker's. An ACK for one is answered with an error if it asks for a receipt (Pulsar leaves
the client waiting). Requests for one fail with `ConsumerNotFound` or Pulsar's `MetadataError`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ackgate.broker.wire import replies, requests
from ackgate.broker.wire.errors import (
    BrokerError,
    ConsumerNotFoundError,
    MetadataFailedError,
    ServerError,
    ServiceNotReadyError,
)
from ackgate.broker.wire.requests import SubscriptionType
from ackgate.cursor import Position
from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ackgate.broker.wire.names import TopicName
    from ackgate.broker.wire.ports import Connection, ConsumerPort
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.replies import MessageOut
    from ackgate.broker.wire.requests import SubscribeRequest
    from ackgate.network import Urls

log = logging.getLogger(__name__)

_ONE_BY_ONE = frozenset({SubscriptionType.SHARED, SubscriptionType.KEY_SHARED})
"""Subscription types whose consumers can ask for single entries again; others always ask for
all."""


class _Consumer(NamedTuple):
    """A consumer of the connection, with its topic and its port."""

    port: ConsumerPort
    topic: TopicName
    subscription: str
    subscription_type: SubscriptionType

    @property
    def partition(self) -> int:
        return self.topic.partition_index


class Consumers:
    """The consumers of one connection."""

    def __init__(self, session: Connection) -> None:
        self._session = session
        self._attached: dict[int, _Consumer] = {}
        self._creating: dict[int, SubscribeRequest] = {}
        """An entry that is taken out meanwhile is not wanted any more."""

    def __len__(self) -> int:
        return len(self._attached)

    def __contains__(self, consumer_id: int) -> bool:
        """Whether a consumer of this id is attached."""
        return consumer_id in self._attached

    # ---- SUBSCRIBE

    def subscribe(self, command: pb.CommandSubscribe) -> None:
        consumer_id, request_id = command.consumer_id, command.request_id
        if consumer_id in self._attached:
            # After a timeout a client asks again, and gets the same answer.
            self._session.send(replies.success(request_id))
            return
        if consumer_id in self._creating:
            raise ServiceNotReadyError("Consumer is already present on the connection")
        request = self._creating[consumer_id] = requests.subscribe_request(command)
        self._session.run(request_id, self._subscribe(request, request_id))

    async def _subscribe(self, request: SubscribeRequest, request_id: int) -> bytes:
        consumer_id = request.consumer_id
        session = self._session
        try:
            topic = await session.context.registry.topic(request.topic, create=request.create_topic)
            await session.context.schemas.check_consumer(request, topic, session.settings)
            port = await topic.subscribe(session, request)
        finally:
            is_wanted = self._creating.get(consumer_id) is request
            if is_wanted:
                del self._creating[consumer_id]
        if not is_wanted or not session.is_open:
            await port.close()
            raise ServiceNotReadyError("Consumer was closed before it was subscribed")
        self._attached[consumer_id] = _Consumer(
            port, request.topic, request.subscription, request.subscription_type
        )
        session.note(
            log, "consumer %d of %s subscribed to %s on %s",
            consumer_id, session.peer, request.subscription, request.topic,
        )  # fmt: skip
        return replies.success(request_id)

    # ---- hot

    def acks(self, gathered: Mapping[int, Sequence[pb.CommandAck]]) -> None:
        """Pass on the ACKs that one chunk held, by consumer id."""
        for consumer_id, commands in gathered.items():
            consumer = self._attached.get(consumer_id)
            if consumer is not None:
                consumer.port.acks(commands)
                continue
            for command in commands:
                if command.HasField("request_id"):
                    self._session.send(
                        replies.ack_error(
                            consumer_id,
                            command.request_id,
                            ServerError.CONSUMER_NOT_FOUND,
                            f"Consumer {consumer_id} not found",
                        )
                    )

    def flow(self, command: pb.CommandFlow) -> None:
        consumer = self._attached.get(command.consumer_id)
        if consumer is not None:
            consumer.port.flow(command.messagePermits)

    def send_messages(
        self, consumer_id: int, partition: int, messages: Sequence[MessageOut], epoch: int | None
    ) -> None:
        if consumer_id in self._attached:
            self._session.send_many(replies.messages(consumer_id, partition, messages, epoch))

    def on_writable(self) -> None:
        """The connection takes output again: let deliveries go on."""
        for consumer in list(self._attached.values()):
            consumer.port.on_writable()

    # ---- requests

    def redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self._attached.get(command.consumer_id)
        if consumer is None:
            return
        positions = None
        if command.message_ids and consumer.subscription_type in _ONE_BY_ONE:
            positions = [Position(each.ledgerId, each.entryId) for each in command.message_ids]
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        consumer.port.redeliver(positions, epoch)

    def seek(self, command: pb.CommandSeek) -> None:
        consumer = self._require(command.consumer_id)
        if command.HasField("message_id"):
            position = requests.position(command.message_id)
            seeking = consumer.port.seek(position, requests.unacked_mask(command.message_id))
        elif command.HasField("message_publish_time"):
            seeking = consumer.port.seek_to_time(command.message_publish_time)
        else:
            raise MetadataFailedError("Message id and message publish time were not present")

        async def answer() -> bytes:
            await seeking
            return replies.success(command.request_id)

        self._session.run(command.request_id, answer())

    def last_message_id(self, command: pb.CommandGetLastMessageId) -> None:
        consumer = self._require(command.consumer_id)

        async def answer() -> bytes:
            last = await consumer.port.last_message_id()
            return replies.last_message_id(command.request_id, consumer.partition, last)

        self._session.run(command.request_id, answer())

    def stats(self, command: pb.CommandConsumerStats) -> None:
        consumer = self._attached.get(command.consumer_id)
        if consumer is None:
            raise ConsumerNotFoundError(f"Consumer {command.consumer_id} not found")
        stats = consumer.port.stats()
        self._session.send(replies.consumer_stats(command.request_id, stats, self._session.peer))

    def _require(self, consumer_id: int) -> _Consumer:
        consumer = self._attached.get(consumer_id)
        if consumer is None:
            raise MetadataFailedError("Consumer not found")  # Pulsar's code and words
        return consumer

    # ---- closing

    def unsubscribe(self, command: pb.CommandUnsubscribe) -> None:
        consumer = self._require(command.consumer_id)

        async def answer() -> bytes:
            await consumer.port.unsubscribe(force=command.force)
            self._forget(command.consumer_id, consumer)
            return replies.success(command.request_id)

        self._session.run(command.request_id, answer())

    def close(self, command: pb.CommandCloseConsumer) -> None:
        """Close a consumer. Succeeds whatever the state of its id, as in Pulsar."""
        consumer_id, request_id = command.consumer_id, command.request_id
        self._creating.pop(consumer_id, None)
        consumer = self._attached.pop(consumer_id, None)
        if consumer is None:
            self._session.send(replies.success(request_id))
            return

        async def answer() -> bytes:
            await consumer.port.close()
            return replies.success(request_id)

        self._session.run(request_id, answer())

    def closed_by_broker(self, consumer_id: int, urls: Urls) -> None:
        """Send CLOSE_CONSUMER, after which the client subscribes again."""
        if self._attached.pop(consumer_id, None) is not None:
            self._session.send(replies.close_consumer(consumer_id, urls))

    def keep(self, is_allowed: Callable[[TopicName, str], bool]) -> None:
        """Close the consumers that are no longer allowed. Their clients subscribe again."""
        for consumer_id, request in list(self._creating.items()):
            if not is_allowed(request.topic, request.subscription):
                del self._creating[consumer_id]
        for consumer_id, consumer in list(self._attached.items()):
            if not is_allowed(consumer.topic, consumer.subscription):
                self.closed_by_broker(consumer_id, NOWHERE)
                self._session.run(replies.NO_REQUEST_ID, consumer.port.close())

    def _forget(self, consumer_id: int, consumer: _Consumer) -> None:
        # The id may have been given to a new consumer while the old one was being detached.
        if self._attached.get(consumer_id) is consumer:
            del self._attached[consumer_id]

    async def close_all(self) -> None:
        """Detach every consumer after the connection was lost. Others get what it has not acked."""
        self._creating.clear()
        consumers = list(self._attached.items())
        self._attached.clear()
        for consumer_id, consumer in consumers:
            try:
                await consumer.port.close()
            except BrokerError as error:
                log.warning("closing consumer %d of %s: %s", consumer_id, self._session.peer, error)
            except Exception:
                log.exception("closing consumer %d of %s", consumer_id, self._session.peer)
