"""A small client that speaks raw frames, for what the real client libraries hide.

Edge: owns one connection. It does what it is told and nothing by itself: no reconnecting, no
permits of its own, no acks, no pings (a PING is answered, unless told otherwise). What the broker
sends is sorted: replies go to their request, receipts to their producer, messages to their
consumer, the rest to `events`. Frames can be prepared beforehand and sent in bulk, and any bytes
can be sent at all.

    async with await WireClient.connect("127.0.0.1", 6650) as client:
        producer = await client.producer("orders")
        receipt = await producer.send(b"hello")
        consumer = await client.subscribe("orders", "audit", initial_position=EARLIEST)
        consumer.flow(10)
        message = await consumer.receive()
        await consumer.ack(message)            # waits for the broker's receipt
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.intake import FrameDecoder
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import PONG, encode
from ackgate.broker.wire.requests import InitialPosition, SubscriptionType, mask_of_words
from ackgate.cursor import Position
from ackgate.errors import AckGateError
from ackgate.persistence.messages.frame import seal_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024

EARLIEST: Final = InitialPosition.EARLIEST
LATEST: Final = InitialPosition.LATEST

Type = pb.BaseCommand.Type


REPLY_SECONDS: Final = 30.0
"""How long a reply may take before the test fails."""


def words_of_mask(mask: int) -> list[int]:
    """The words of an `ack_set`, signed; none for 0. Bit i of the mask stands for message i."""
    words = []
    while mask:
        word = mask & (2**64 - 1)
        words.append(word - 2**64 if word >= 2**63 else word)
        mask >>= 64
    return words


class RefusedError(AckGateError):
    """The broker answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{ServerError(code).name}: {message}")
        self.code = ServerError(code)
        self.message = message


class DisconnectedError(AckGateError):
    """The broker closed the connection."""


class Message(NamedTuple):
    """A MESSAGE as it came."""

    position: Position
    redelivery_count: int
    unacked_mask: int | None
    entry: bytes
    epoch: int | None

    @property
    def metadata(self) -> pb.MessageMetadata:
        """Parsed anew with every use."""
        return pb.MessageMetadata.FromString(self.entry[10 : self._payload_start])

    @property
    def payload(self) -> bytes:
        """What lies behind the metadata: a message, or the messages of a batch."""
        return self.entry[self._payload_start :]

    @property
    def _payload_start(self) -> int:
        return 10 + int.from_bytes(self.entry[6:10], "big")


class WireProducer:
    """A producer."""

    def __init__(self, client: WireClient, producer_id: int) -> None:
        self.client = client
        self.producer_id = producer_id
        self.success = pb.CommandProducerSuccess()
        self.receipts = 0
        """SEND_RECEIPTs so far."""
        self.last_receipt: pb.CommandSendReceipt | None = None
        self.errors: list[pb.CommandSendError] = []
        self.sequence_id = -1
        self._waiting: dict[int, asyncio.Future[Position]] = {}

    def frame(self, payload: bytes, *, sequence_id: int | None = None, **metadata: Any) -> bytes:
        """A SEND frame. `metadata` are `MessageMetadata`'s fields."""
        if sequence_id is None:
            self.sequence_id += 1
            sequence_id = self.sequence_id
        described = pb.MessageMetadata(
            producer_name=self.success.producer_name,
            sequence_id=sequence_id,
            publish_time=time.time_ns() // 1_000_000,
            **metadata,
        )
        return self.raw_frame(
            seal_entry(described.SerializeToString(), payload),
            sequence_id,
            described.num_messages_in_batch,
        )

    def raw_frame(self, entry: bytes, sequence_id: int, num_messages: int = 1) -> bytes:
        """A SEND frame of any entry."""
        command = pb.BaseCommand(type=Type.SEND)
        command.send.producer_id = self.producer_id
        command.send.sequence_id = sequence_id
        command.send.num_messages = num_messages
        return encode(command, entry)

    async def send(self, payload: bytes, **metadata: Any) -> Position:
        """Publish, and wait for the receipt. Raises `RefusedError`, `DisconnectedError`."""
        if self.client.closed.done():
            raise DisconnectedError("the connection is closed")
        frame = self.frame(payload, **metadata)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[metadata.get("sequence_id", self.sequence_id)] = waiting
        self.client.send_bytes(frame)
        async with asyncio.timeout(REPLY_SECONDS):
            return cast("Position", await waiting)

    async def until_receipts(self, count: int) -> None:
        """Wait until this many receipts have come in all."""
        await self.client.until(lambda: self.receipts >= count)

    async def close(self) -> None:
        """CLOSE_PRODUCER."""
        command = pb.BaseCommand(type=Type.CLOSE_PRODUCER)
        body = command.close_producer
        body.producer_id, body.request_id = self.producer_id, self.client.next_id()
        await self.client.request(command, body.request_id)

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """A SEND_RECEIPT came."""
        self.receipts += 1
        self.last_receipt = receipt
        waiting = self._waiting.pop(receipt.sequence_id, None)
        if waiting is not None and not waiting.done():
            message_id = receipt.message_id
            waiting.set_result(Position(message_id.ledgerId, message_id.entryId))

    def on_error(self, error: pb.CommandSendError) -> None:
        """A SEND_ERROR came."""
        self.errors.append(error)
        waiting = self._waiting.pop(error.sequence_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(RefusedError(error.error, error.message))

    def on_connection_lost(self) -> None:
        """No receipt will come any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(DisconnectedError("the broker closed the connection"))
        self._waiting.clear()


class WireConsumer:
    """A consumer."""

    def __init__(self, client: WireClient, consumer_id: int) -> None:
        self.client = client
        self.consumer_id = consumer_id
        self.received: list[Message] = []
        """Everything that came, in order."""
        self._taken = 0

    def flow(self, permits: int) -> None:
        """FLOW."""
        command = pb.BaseCommand(type=Type.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = self.consumer_id, permits
        self.client.send(command)

    async def receive(self) -> Message:
        """The next message that was not taken yet."""
        return (await self.receive_many(1))[0]

    async def receive_many(self, count: int) -> list[Message]:
        """The next `count` messages that were not taken yet."""
        start, stop = self._taken, self._taken + count
        await self.client.until(lambda: len(self.received) >= stop)
        self._taken = stop
        return self.received[start:stop]

    # ---- acks

    def ack_command(
        self,
        positions: Iterable[Position],
        *,
        request_id: int | None = None,
        is_cumulative: bool = False,
        unacked_mask: int | None = None,
    ) -> pb.BaseCommand:
        """An ACK. `unacked_mask` makes it a batch-index ack."""
        command = pb.BaseCommand(type=Type.ACK)
        body = command.ack
        body.consumer_id = self.consumer_id
        body.ack_type = pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual
        if request_id is not None:
            body.request_id = request_id
        for ledger_id, entry_id in positions:
            message_id = body.message_id.add(ledgerId=ledger_id, entryId=entry_id)
            if unacked_mask is not None:
                message_id.ack_set.extend(words_of_mask(unacked_mask))
        return command

    async def ack(
        self,
        *messages: Message | Position,
        is_cumulative: bool = False,
        unacked_mask: int | None = None,
    ) -> None:
        """ACK with a request id; return when the receipt has come. Raises `RefusedError`."""
        request_id = self.client.next_id()
        command = self.ack_command(
            _positions(messages),
            request_id=request_id,
            is_cumulative=is_cumulative,
            unacked_mask=unacked_mask,
        )
        await self.client.request(command, request_id)

    def ack_without_receipt(self, *messages: Message | Position, **how: Any) -> None:
        """ACK without a request id."""
        self.client.send(self.ack_command(_positions(messages), **how))

    def ack_frames(self, positions: Iterable[Position], first_request_id: int | None) -> bytes:
        """One ACK frame each, for `WireClient.send_bulk`.

        Their answers count in `WireClient.acks_answered`.
        """
        frames = []
        for index, position in enumerate(positions):
            request_id = None if first_request_id is None else first_request_id + index
            frames.append(encode(self.ack_command((position,), request_id=request_id)))
        return b"".join(frames)

    # ---- the rest

    def redeliver(self, *messages: Message | Position, epoch: int | None = None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES; without messages: everything unacked."""
        command = pb.BaseCommand(type=Type.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        body = command.redeliverUnacknowledgedMessages
        body.consumer_id = self.consumer_id
        for ledger_id, entry_id in _positions(messages):
            body.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        if epoch is not None:
            body.consumer_epoch = epoch
        self.client.send(command)

    async def seek(self, position: Position, unacked_mask: int | None = None) -> None:
        """SEEK to a position."""
        command = pb.BaseCommand(type=Type.SEEK)
        body = command.seek
        body.consumer_id, body.request_id = self.consumer_id, self.client.next_id()
        body.message_id.ledgerId = position.ledger_id & (2**64 - 1)
        body.message_id.entryId = position.entry_id & (2**64 - 1)
        if unacked_mask is not None:
            body.message_id.ack_set.extend(words_of_mask(unacked_mask))
        await self.client.request(command, body.request_id)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """SEEK to a publish time."""
        command = pb.BaseCommand(type=Type.SEEK)
        body = command.seek
        body.consumer_id, body.request_id = self.consumer_id, self.client.next_id()
        body.message_publish_time = publish_time_ms
        await self.client.request(command, body.request_id)

    async def last_message_id(self) -> pb.CommandGetLastMessageIdResponse:
        """GET_LAST_MESSAGE_ID."""
        command = pb.BaseCommand(type=Type.GET_LAST_MESSAGE_ID)
        body = command.getLastMessageId
        body.consumer_id, body.request_id = self.consumer_id, self.client.next_id()
        reply = await self.client.request(command, body.request_id)
        return reply.getLastMessageIdResponse

    async def stats(self) -> pb.CommandConsumerStatsResponse:
        """CONSUMER_STATS."""
        command = pb.BaseCommand(type=Type.CONSUMER_STATS)
        body = command.consumerStats
        body.consumer_id, body.request_id = self.consumer_id, self.client.next_id()
        reply = await self.client.request(command, body.request_id)
        return reply.consumerStatsResponse

    async def unsubscribe(self, *, force: bool = False) -> None:
        """UNSUBSCRIBE."""
        command = pb.BaseCommand(type=Type.UNSUBSCRIBE)
        body = command.unsubscribe
        body.consumer_id, body.request_id = self.consumer_id, self.client.next_id()
        body.force = force
        await self.client.request(command, body.request_id)

    async def close(self) -> None:
        """CLOSE_CONSUMER."""
        command = pb.BaseCommand(type=Type.CLOSE_CONSUMER)
        body = command.close_consumer
        body.consumer_id, body.request_id = self.consumer_id, self.client.next_id()
        await self.client.request(command, body.request_id)


def _positions(messages: Sequence[Message | Position]) -> list[Position]:
    return [each.position if isinstance(each, Message) else each for each in messages]


class WireClient(asyncio.Protocol):
    """One connection to a broker."""

    def __init__(self) -> None:
        self.events: list[pb.BaseCommand] = []
        """What came and belongs to nobody (CLOSE_PRODUCER, ACTIVE_CONSUMER_CHANGE, ERROR, ...)."""
        self.pings = 0
        self.answers_pings = True
        self.connected: pb.CommandConnected | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.producers: dict[int, WireProducer] = {}
        self.consumers: dict[int, WireConsumer] = {}
        self.acks_answered = 0
        """ACK_RESPONSEs that nobody waits for singly (see `send_acks`)."""
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[pb.BaseCommand]] = {}
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport

    # ---- life

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Open a connection and say nothing."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, host, port)
        return client

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_version: str = "wire",
        protocol_version: int = 21,
        token: str | None = None,
        **fields: Any,
    ) -> Self:
        """Open a connection and shake hands. `fields` are `CommandConnect`'s.

        Raises `RefusedError` when the broker says why it refuses, `DisconnectedError`.
        """
        client = await cls.open(host, port)
        connect = pb.CommandConnect(
            client_version=client_version, protocol_version=protocol_version, **fields
        )
        if token is not None:
            connect.auth_method_name, connect.auth_data = "token", token.encode()
        client.send(pb.BaseCommand(type=Type.CONNECT, connect=connect))
        try:
            await client.until(lambda: client.connected is not None)
        except BaseException:
            client.abort()
            for event in client.events:
                _raise_refusal(event)
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Twice is fine."""
        self._transport.close()
        await self.closed

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Read nothing more: be a slow consumer."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    async def wait_closed(self) -> None:
        """Wait until the broker has closed the connection."""
        async with asyncio.timeout(REPLY_SECONDS):
            await asyncio.shield(self.closed)

    # ---- sending

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._transport.write(data)

    async def send_bulk(self, data: bytes) -> None:
        """Send prepared frames, and wait until most of them are on their way."""
        await self._writable.wait()
        self._transport.write(data)

    def send(self, command: pb.BaseCommand, payload: bytes = b"") -> None:
        """Send a command."""
        self._transport.write(encode(command, payload))

    async def request(self, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        """Send a command and wait for its reply. Raises `RefusedError`, `DisconnectedError`."""
        if self.closed.done():
            raise DisconnectedError("the connection is closed")
        reply = asyncio.get_running_loop().create_future()
        self._replies[request_id] = reply
        self.send(command)
        async with asyncio.timeout(REPLY_SECONDS):
            answered = cast("pb.BaseCommand", await reply)
        _raise_refusal(answered)
        return answered

    def next_id(self) -> int:
        """A request, producer or consumer id that was not used yet."""
        return next(self._ids)

    # ---- requests

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """PARTITIONED_METADATA."""
        command = pb.BaseCommand(type=Type.PARTITIONED_METADATA)
        body = command.partitionMetadata
        body.topic, body.request_id = topic, self.next_id()
        body.metadata_auto_creation_enabled = create
        reply = await self.request(command, body.request_id)
        return reply.partitionMetadataResponse.partitions

    async def lookup(self, topic: str) -> str:
        """LOOKUP: the URL of the topic's broker."""
        return (await self.lookup_answer(topic)).brokerServiceUrl

    async def lookup_answer(
        self, topic: str, *, is_authoritative: bool = False
    ) -> pb.CommandLookupTopicResponse:
        """LOOKUP: the whole answer, which may be a redirect (see `wire_lookup.py`)."""
        command = pb.BaseCommand(type=Type.LOOKUP)
        body = command.lookupTopic
        body.topic, body.request_id = topic, self.next_id()
        body.authoritative = is_authoritative
        reply = await self.request(command, body.request_id)
        return reply.lookupTopicResponse

    async def topics(
        self, namespace: str = "public/default", *, pattern: str = "", topics_hash: str = ""
    ) -> pb.CommandGetTopicsOfNamespaceResponse:
        """GET_TOPICS_OF_NAMESPACE."""
        command = pb.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE)
        body = command.getTopicsOfNamespace
        body.namespace, body.request_id = namespace, self.next_id()
        if pattern:
            body.topics_pattern = pattern
        if topics_hash:
            body.topics_hash = topics_hash
        reply = await self.request(command, body.request_id)
        return reply.getTopicsOfNamespaceResponse

    async def producer(self, topic: str, name: str | None = None, **fields: Any) -> WireProducer:
        """PRODUCER. `fields` are `CommandProducer`'s."""
        command = pb.BaseCommand(type=Type.PRODUCER)
        body = command.producer
        body.CopyFrom(pb.CommandProducer(topic=topic, **fields))
        body.producer_id, body.request_id = self.next_id(), self.next_id()
        if name is not None:
            body.producer_name = name
        producer = self.producers[body.producer_id] = WireProducer(self, body.producer_id)
        try:
            reply = await self.request(command, body.request_id)
        except BaseException:
            del self.producers[body.producer_id]
            raise
        producer.success = reply.producer_success
        return producer

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        subscription_type: SubscriptionType = SubscriptionType.SHARED,
        initial_position: InitialPosition = LATEST,
        **fields: Any,
    ) -> WireConsumer:
        """SUBSCRIBE. `fields` are `CommandSubscribe`'s."""
        command = pb.BaseCommand(type=Type.SUBSCRIBE)
        body = command.subscribe
        body.CopyFrom(
            pb.CommandSubscribe(
                topic=topic,
                subscription=subscription,
                subType=cast("Any", int(subscription_type)),
                initialPosition=cast("Any", int(initial_position)),
                **fields,
            )
        )
        body.consumer_id, body.request_id = self.next_id(), self.next_id()
        consumer = self.consumers[body.consumer_id] = WireConsumer(self, body.consumer_id)
        try:
            await self.request(command, body.request_id)
        except BaseException:
            del self.consumers[body.consumer_id]
            raise
        return consumer

    # ---- receiving

    async def until(self, condition: Any) -> None:
        """Wait until `condition()` is true; it is asked whenever something came.

        Raises `DisconnectedError`.
        """
        async with asyncio.timeout(REPLY_SECONDS):
            while not condition():
                if self.closed.done():
                    raise DisconnectedError("the broker closed the connection")
                self._changed.clear()
                await self._changed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Requests that wait for a reply will not get it."""
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(DisconnectedError("the broker closed the connection"))
        self._replies.clear()
        for producer in self.producers.values():
            producer.on_connection_lost()
        self._changed.set()
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The broker reads more slowly than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    def data_received(self, chunk: bytes) -> None:
        """Sort what came."""
        for serialized, payload in self._decoder.feed(chunk):
            command = pb.BaseCommand.FromString(serialized)
            kind = command.type
            if kind == Type.MESSAGE:
                self._on_message(command.message, payload)
            elif kind == Type.SEND_RECEIPT:
                self._on_receipt(command.send_receipt)
            elif kind == Type.ACK_RESPONSE:
                self._on_ack_response(command)
            elif kind == Type.SEND_ERROR:
                producer = self.producers[command.send_error.producer_id]
                producer.on_error(command.send_error)
            else:
                self._on_other(command)
        if self._decoder.error is not None:
            raise self._decoder.error
        self._changed.set()

    def _on_message(self, message: pb.CommandMessage, entry: bytes) -> None:
        consumer = self.consumers.get(message.consumer_id)
        if consumer is not None:
            message_id = message.message_id
            consumer.received.append(
                Message(
                    Position(message_id.ledgerId, message_id.entryId),
                    message.redelivery_count,
                    mask_of_words(message.ack_set) if message.ack_set else None,
                    entry,
                    message.consumer_epoch if message.HasField("consumer_epoch") else None,
                )
            )

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        self.producers[receipt.producer_id].on_receipt(receipt)

    def _on_ack_response(self, command: pb.BaseCommand) -> None:
        reply = self._replies.pop(command.ackResponse.request_id, None)
        if reply is None:
            self.acks_answered += 1
        elif not reply.done():
            reply.set_result(command)

    def _on_other(self, command: pb.BaseCommand) -> None:
        if command.type == Type.PING:
            self.pings += 1
            if self.answers_pings:
                self.send_bytes(PONG)
            return
        if command.type == Type.CONNECTED:
            self.connected = command.connected
            return
        reply = self._replies.pop(_request_id(command), None)
        if reply is None:
            self.events.append(command)
        elif not reply.done():
            reply.set_result(command)


def _body(command: pb.BaseCommand) -> Any:
    bodies = [value for field, value in command.ListFields() if field.name != "type"]
    return bodies[0] if bodies else None


def _request_id(command: pb.BaseCommand) -> int:
    return cast("int", getattr(_body(command), "request_id", -1))


def _raise_refusal(command: pb.BaseCommand) -> None:
    """Errors come in `error` and `message`, or in `error_code` and `error_message`."""
    body = _body(command)
    names = {field.name for field, _ in body.ListFields()}
    if "error" in names:
        raise RefusedError(body.error, body.message)
    if "error_code" in names:
        raise RefusedError(body.error_code, body.error_message)
