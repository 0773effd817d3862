"""The handles of the wire client: a producer, a consumer, a message, and their failures.

Edge: they send through their `WireClient`, which tells them what has come for them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ackgate.broker.ack_sets import words_of_mask
from ackgate.broker.errors import ServerError
from ackgate.broker.frames import seal_entry
from ackgate.broker.proto import pulsar_pb2 as pb
from ackgate.broker.replies import encode
from ackgate.cursor.position import Position
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.testing.wire_client import WireClient

REPLY_SECONDS: Final = 30.0
"""How long a reply may take before the test fails."""

Type = pb.BaseCommand.Type


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

    def frame(self, payload: bytes, *, sequence_id: int | None = None, **metadata: Any) -> bytes:  # noqa: ANN401 - of MessageMetadata
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

    async def send(self, payload: bytes, **metadata: Any) -> Position:  # noqa: ANN401 - of MessageMetadata
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

    def ack_without_receipt(self, *messages: Message | Position, **how: Any) -> None:  # noqa: ANN401 - of ack_command
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
