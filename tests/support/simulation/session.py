"""The broker's end of a client's connection, without a wire: frames in, calls out.

Takes the place of `ackgate.broker.wire.session.Session` and keeps its rules: acks of a consumer that is
not attached are answered with an error, flow and redeliveries for one are ignored, what a topic
sends to a closed producer or consumer is dropped, and whatever goes wrong inside a request is told
to the client as an error. Everything that passes here is shown to the `Observer` first: this is the
last place where the broker's word and the broker's state can be compared.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ackgate.broker.wire.entry import entry_metadata
from ackgate.broker.wire.errors import BrokerError, ServerError, ServiceNotReadyError
from ackgate.broker.wire.requests import SentEntry
from ackgate.errors import AckGateError
from ackgate.network import NOWHERE, Urls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ackgate.broker.topic import Producer
    from ackgate.broker.topic.subscription import Consumer
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.names import TopicName
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.replies import MessageOut
    from ackgate.broker.wire.requests import ProducerRequest, SubscribeRequest
    from ackgate.cursor import Position
    from tests.support.simulation.network import Connection


class BrokerSide(Protocol):
    """What a session needs of its broker."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the broker's process."""

    async def topic(self, name: TopicName) -> Topic:
        """Find or load a topic."""

    async def look_up(self, name: TopicName, *, is_authoritative: bool) -> tuple[int, bool]:
        """Number of the broker that serves a topic, and whether it owns it already."""


class ClientSide(Protocol):
    """What a client is told."""

    def replied(self, request_id: int, error: BaseException | None, value: object) -> None:
        """A request was answered."""

    def receipts(self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        """Entries were stored: (sequence id, highest, ledger, entry)."""

    def send_failed(self, producer_id: int, sequence_id: int, message: str) -> None:
        """An entry was not stored."""

    def messages(self, consumer_id: int, messages: Sequence[MessageOut]) -> None:
        """Messages for a consumer."""

    def acks_answered(
        self, consumer_id: int, request_ids: Sequence[int], error: str | None
    ) -> None:
        """Acks are durable, or (error) are not."""

    def producer_closed(self, producer_id: int) -> None:
        """The broker has closed a producer."""

    def consumer_closed(self, consumer_id: int) -> None:
        """The broker has closed a consumer."""

    def connection_lost(self) -> None:
        """The connection is gone."""


class Observer(Protocol):
    """Sees what brokers promise and deliver, at the moment they do."""

    def confirming(self, producer: Producer, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        """Receipts are on their way to a producer."""

    def delivering(self, consumer: Consumer, messages: Sequence[MessageOut]) -> None:
        """Messages are on their way to a consumer."""

    def acks_durable(self, request_ids: Sequence[int]) -> None:
        """Receipts of acks are on their way."""

    def subscribed(self, consumer: Consumer) -> None:
        """A consumer was attached."""

    def acks_arrived(self, consumer: Consumer, commands: Sequence[pb.CommandAck]) -> None:
        """Acks are about to be applied."""

    def acks_applied(self, consumer: Consumer) -> None:
        """They were."""

    def given_back(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """A consumer wanted these again."""


class SimulatedSession:
    """Implements `SessionPort`."""

    peer = "client:1"
    client_version = "simulation"
    protocol_version = 21
    is_writable = True
    received_at = 0.0

    def __init__(
        self, broker: BrokerSide, connection: Connection, client: ClientSide, observer: Observer
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._client = client
        self._observer = observer
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[int, Consumer] = {}
        self.is_open = True

    # ---------------------------------------------------------------- from the client

    def look_up(self, request_id: int, topic: TopicName, is_authoritative: bool) -> None:
        """LOOKUP."""
        self._run(request_id, self._broker.look_up(topic, is_authoritative=is_authoritative))

    def create_producer(self, request_id: int, request: ProducerRequest) -> None:
        """PRODUCER."""
        self._run(request_id, self._create_producer(request))

    async def _create_producer(self, request: ProducerRequest) -> int:
        topic = await self._broker.topic(request.topic)
        producer = await topic.add_producer(self, request)
        if not self.is_open:
            await producer.close()
            raise ServiceNotReadyError("the connection is gone")
        self._producers[request.producer_id] = producer
        return producer.last_sequence_id

    def publish(self, producer_id: int, sequence_id: int, count: int, entry: bytes) -> None:
        """SEND."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            metadata = entry_metadata(entry)
            highest = sequence_id + count - 1
            deliver_at_ms = metadata.deliver_at_time
            producer.publish(SentEntry(sequence_id, highest, count, entry, metadata, deliver_at_ms))

    def subscribe(self, request_id: int, request: SubscribeRequest) -> None:
        """SUBSCRIBE."""
        self._run(request_id, self._subscribe(request))

    async def _subscribe(self, request: SubscribeRequest) -> None:
        topic = await self._broker.topic(request.topic)
        consumer = await topic.subscribe(self, request)
        self._observer.subscribed(consumer)
        if not self.is_open:
            await consumer.close()
            raise ServiceNotReadyError("the connection is gone")
        self._consumers[request.consumer_id] = consumer

    def flow(self, consumer_id: int, permits: int) -> None:
        """FLOW."""
        consumer = self._consumers.get(consumer_id)
        if consumer is not None:
            consumer.flow(permits)

    def acks(self, consumer_id: int, commands: Sequence[pb.CommandAck]) -> None:
        """ACK."""
        consumer = self._consumers.get(consumer_id)
        if consumer is not None:
            self._observer.acks_arrived(consumer, commands)
            consumer.acks(commands)
            self._observer.acks_applied(consumer)
            return
        asked = [command.request_id for command in commands if command.HasField("request_id")]
        if asked:
            self._tell(self._client.acks_answered, consumer_id, asked, "consumer not found")

    def redeliver(self, consumer_id: int, positions: Sequence[Position] | None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        consumer = self._consumers.get(consumer_id)
        if consumer is not None:
            consumer.redeliver(positions, None)
            self._observer.given_back(consumer, positions)

    def seek(self, request_id: int, consumer_id: int, position: Position) -> None:
        """SEEK."""
        self._with_consumer(request_id, consumer_id, lambda c: c.seek(position, None))

    def unsubscribe(self, request_id: int, consumer_id: int) -> None:
        """UNSUBSCRIBE."""
        self._with_consumer(request_id, consumer_id, lambda c: c.unsubscribe(force=False))

    def end_consumer(self, request_id: int, consumer_id: int) -> None:
        """CLOSE_CONSUMER."""
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is None:
            self._tell(self._client.replied, request_id, None, None)
        else:
            self._run(request_id, consumer.close())

    def connection_lost(self) -> None:
        """The client is gone."""
        if self.is_open:
            self.is_open = False
            producers, consumers = list(self._producers.values()), list(self._consumers.values())
            self._producers.clear()
            self._consumers.clear()
            self._broker.spawn(self._detach(producers, consumers))

    async def _detach(self, producers: list[Producer], consumers: list[Consumer]) -> None:
        for producer in producers:
            try:
                await producer.close()
            except BrokerError:
                continue
        for consumer in consumers:
            await consumer.close()

    def _with_consumer(
        self,
        request_id: int,
        consumer_id: int,
        work: Callable[[Consumer], Coroutine[Any, Any, None]],
    ) -> None:
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            error = ServiceNotReadyError("consumer not found")
            self._tell(self._client.replied, request_id, error, None)
        else:
            self._run(request_id, work(consumer))

    def _run(self, request_id: int, work: Coroutine[Any, Any, object]) -> None:
        self._broker.spawn(self._answer(request_id, work))

    async def _answer(self, request_id: int, work: Coroutine[Any, Any, object]) -> None:
        value: object = None
        error: AckGateError | None = None
        try:
            value = await work
        except AckGateError as refused:
            error = refused
        self._tell(self._client.replied, request_id, error, value)

    # ---------------------------------------------------------------- from topics

    def send_receipts(
        self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """See `SessionPort`."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            self._observer.confirming(producer, receipts)
            self._tell(self._client.receipts, producer_id, list(receipts))

    def send_error(self, producer_id: int, sequence_id: int, error: int, message: str) -> None:
        """See `SessionPort`."""
        if producer_id in self._producers:
            text = f"{ServerError(error).name}: {message}"
            self._tell(self._client.send_failed, producer_id, sequence_id, text)

    def send_messages(
        self,
        consumer_id: int,
        partition: int,
        messages: Sequence[MessageOut],
        epoch: int | None = None,
    ) -> None:
        """See `SessionPort`."""
        consumer = self._consumers.get(consumer_id)
        if consumer is not None:
            self._observer.delivering(consumer, messages)
            self._tell(self._client.messages, consumer_id, list(messages))

    def send_active_consumer_change(self, consumer_id: int, *, is_active: bool) -> None:
        """See `SessionPort`."""

    def send_reached_end_of_topic(self, consumer_id: int) -> None:
        """See `SessionPort`."""

    def send_ack_responses(self, consumer_id: int, request_ids: Sequence[int]) -> None:
        """See `SessionPort`."""
        self._observer.acks_durable(request_ids)
        self._tell(self._client.acks_answered, consumer_id, list(request_ids), None)

    def send_ack_error(self, consumer_id: int, request_id: int, error: int, message: str) -> None:
        """See `SessionPort`."""
        text = f"{ServerError(error).name}: {message}"
        self._tell(self._client.acks_answered, consumer_id, [request_id], text)

    def send_producer_ready(self, producer_id: int) -> None:
        """See `SessionPort`. Nobody waits for exclusive access here."""

    def close_producer(self, producer_id: int, urls: Urls = NOWHERE) -> None:
        """See `SessionPort`."""
        if self._producers.pop(producer_id, None) is not None:
            self._tell(self._client.producer_closed, producer_id)

    def close_consumer(self, consumer_id: int, urls: Urls = NOWHERE) -> None:
        """See `SessionPort`."""
        if self._consumers.pop(consumer_id, None) is not None:
            self._tell(self._client.consumer_closed, consumer_id)

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        if self.is_open:
            self._connection.to_client.send(partial(call, *args))
