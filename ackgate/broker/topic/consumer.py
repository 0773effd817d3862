"""The broker's side of one consumer: its client's commands, handed to the subscription.

Acks are the hottest path of the broker. What one received chunk holds is validated and applied in
one go; only if that fails is every command tried by itself, so that each gets its own answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from ackgate.broker.wire import (
    ConsumerStatsReply,
    LastMessageId,
    ServerError,
    mask_of_words,
    server_error,
)
from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError, CursorClosedError, PositionError
from ackgate.network import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.topic.services import SharedServices
    from ackgate.broker.topic.tracing import SubscriptionTracing
    from ackgate.broker.wire import Entry, MessageOut, SessionPort, SubscribeRequest
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.network import Urls
    from ackgate.persistence.messages.managed_ledger import ManagedLedger
    from ackgate.subscription import Receipt, Subscription

_CUMULATIVE: Final = 1  # CommandAck.AckType


class ConsumedTopic(Protocol):
    """What a consumer needs of its topic."""

    @property
    def partition(self) -> int:
        """Index of this partition, -1 for a topic that is not a partition."""

    @property
    def services(self) -> SharedServices: ...

    @property
    def ledger(self) -> ManagedLedger[Entry]: ...


class ConsumedSubscription(Protocol):
    """What a consumer needs of its subscription: `SubscriptionDriver`."""

    @property
    def topic(self) -> ConsumedTopic: ...

    @property
    def core(self) -> Subscription[Consumer, Entry]:
        """The machine. Call `changed` after acks and redeliveries, else `ask_turn`."""

    @property
    def tracing(self) -> SubscriptionTracing | None:
        """None: tracing is off."""

    def now_ms(self) -> int: ...

    def changed(self) -> None:
        """Ask for a turn, and do what else follows when the ack state has changed."""

    def ask_turn(self) -> None: ...

    async def seek(self, position: Position, unacked_mask: int | None = None) -> None: ...

    async def seek_to_time(self, publish_time_ms: int) -> None: ...

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None: ...

    def remove_consumer(self, consumer: Consumer) -> None: ...


class _Acks(NamedTuple):
    """The individual acks of some commands: whole entries, and batches with their unacked mask."""

    whole: list[Position]
    partial: list[tuple[Position, int]]
    request_ids: list[int]


class AskedReceipt(NamedTuple):
    """The token of a `Receipt`: which requests to answer, and when they arrived."""

    request_ids: list[int]
    received_at: float


class Consumer:
    """A consumer that is attached to a subscription."""

    def __init__(
        self,
        subscription: ConsumedSubscription,
        session: SessionPort,
        request: SubscribeRequest,
        key: int,
    ) -> None:
        self.subscription = subscription
        self.session = session
        self.consumer_id = request.consumer_id
        self.name = request.consumer_name or f"consumer-{key}"
        self.label = f"{self.name}#{key}"
        """Name in the delivery journal; unique even if several connections use one consumer
        name."""
        self.metadata = request.metadata
        self.type = request.subscription_type
        self.connected_since = time.time()
        self.bytes_out = 0
        self.is_closed = False
        key_shared = request.key_shared
        self.hash_ranges = tuple(
            (start, stop - 1) for start, stop in (key_shared.hash_ranges if key_shared else ())
        )
        """First and last hash of each range, both included."""

    # ---------------------------------------------------------------- sending

    def send(self, messages: list[MessageOut], size_bytes: int, epoch: int | None) -> None:
        """Send entries to the client."""
        self.bytes_out += size_bytes
        self.session.send_messages(
            self.consumer_id, self.subscription.topic.partition, messages, epoch
        )

    def active_changed(self, *, is_active: bool) -> None:
        """Failover: tell the client whether it is the active consumer."""
        self.session.send_active_consumer_change(self.consumer_id, is_active=is_active)

    def answer(self, receipt: Receipt[Consumer]) -> None:
        """Answer the requests of acks that became durable, or failed to."""
        request_ids = cast("AskedReceipt", receipt.token).request_ids
        if receipt.error is None:
            self.session.send_ack_responses(self.consumer_id, request_ids)
        else:
            self._refuse(request_ids, receipt.error)

    def on_writable(self) -> None:
        """The connection takes output again."""
        if not self.is_closed:
            self.subscription.core.writable(self, is_writable=True)
            self.subscription.ask_turn()

    def flow(self, permits: int) -> None:
        """The client takes `permits` more messages."""
        if not self.is_closed:
            subscription = self.subscription
            subscription.core.flow(self, permits, now_ms=subscription.now_ms())
            subscription.ask_turn()

    # ---------------------------------------------------------------- acks

    def acks(self, commands: Sequence[pb.CommandAck]) -> None:
        """Apply ACK commands in order; those with a request id are answered."""
        gathered = _Acks([], [], [])
        gathered_commands: list[pb.CommandAck] = []
        for command in commands:
            if command.ack_type == _CUMULATIVE:
                self._apply_individual(gathered, gathered_commands)
                gathered, gathered_commands = _Acks([], [], []), []
                self._apply_cumulative(command)
            else:
                try:
                    _gather(command, gathered)
                except CallerError as error:
                    self._refuse(_request_ids(command), error)
                else:
                    gathered_commands.append(command)
        self._apply_individual(gathered, gathered_commands)

    def _apply_individual(self, acks: _Acks, commands: list[pb.CommandAck]) -> None:
        if not commands:
            return
        subscription, receipt = self.subscription, self._asked(acks.request_ids)
        try:
            now_ms = subscription.now_ms()
            subscription.core.ack(
                self, acks.whole, parts=acks.partial, receipt=receipt, now_ms=now_ms
            )
        except CallerError as error:
            if len(commands) == 1:
                self._refuse(acks.request_ids, error)
                return
            for command in commands:
                alone = _Acks([], [], [])
                _gather(command, alone)
                self._apply_individual(alone, [command])
            return
        if subscription.tracing is not None:
            since = self.session.received_at
            subscription.tracing.acked(self.name, acks.whole, since, receipt)
        subscription.changed()

    def _apply_cumulative(self, command: pb.CommandAck) -> None:
        subscription, request_ids = self.subscription, _request_ids(command)
        receipt = self._asked(request_ids)
        try:
            if len(command.message_id) != 1:
                raise PositionError(
                    f"a cumulative ack names one position, not {len(command.message_id)}"
                )
            message_id = command.message_id[0]
            position = Position(message_id.ledgerId, message_id.entryId)
            mask = mask_of_words(message_id.ack_set) if message_id.ack_set else None
            subscription.core.ack_cumulative(
                self, position, unacked_mask=mask, receipt=receipt, now_ms=subscription.now_ms()
            )
        except CallerError as error:
            self._refuse(request_ids, error)
            return
        if subscription.tracing is not None and mask is None:
            since = self.session.received_at
            subscription.tracing.acked_through(self.name, position, since, receipt)
        subscription.changed()

    def _asked(self, request_ids: list[int]) -> AskedReceipt | None:
        return AskedReceipt(request_ids, self.session.received_at) if request_ids else None

    def _refuse(self, request_ids: list[int], error: BaseException) -> None:
        is_wrong = isinstance(error, CallerError) and not isinstance(error, CursorClosedError)
        code = ServerError.NOT_ALLOWED if is_wrong else server_error(error)
        for request_id in request_ids:
            self.session.send_ack_error(self.consumer_id, request_id, code, str(error))

    def redeliver(self, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver these again. None: everything that this consumer has not acked."""
        if not self.is_closed:
            subscription = self.subscription
            subscription.core.redeliver(self, positions, epoch=epoch, now_ms=subscription.now_ms())
            subscription.changed()

    # ---------------------------------------------------------------- requests

    async def seek(self, position: Position, unacked_mask: int | None) -> None:
        """Move the subscription so that `position` is read next."""
        await self.subscription.seek(position, unacked_mask)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first entry published at or after this time."""
        await self.subscription.seek_to_time(publish_time_ms)

    async def last_message_id(self) -> LastMessageId:
        """The topic's last position and this subscription's mark-delete.

        As in Pulsar, a topic whose last entry was trimmed counts as empty.
        """
        ledger = self.subscription.topic.ledger
        last = ledger.ledgers.last_confirmed
        batch_index = -1
        if not ledger.ledgers.exists(last):
            last = EARLIEST
        else:
            metadata = (await ledger.reads.read_one(last)).metadata
            if metadata.HasField("num_messages_in_batch"):
                batch_index = metadata.num_messages_in_batch - 1
        return LastMessageId(last, batch_index, self.subscription.core.cursor.mark_delete)

    def stats(self) -> ConsumerStatsReply:
        subscription = self.subscription
        known = subscription.core.dispatch_of(self)
        if known is None:
            raise CallerError(f"consumer {self.name} is closed")
        return ConsumerStatsReply(
            consumer_name=self.name,
            subscription_type=self.type,
            permits=known.permits,
            unacked_messages=known.unacked_messages,
            is_blocked_on_unacked=known.is_blocked_on_unacked_messages,
            connected_since=self.connected_since,
            backlog_messages=subscription.core.cursor.backlog_entries,
            rates=subscription.topic.services.consumer_rates(self),
        )

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription. Raises `ConsumerBusyError`."""
        await self.subscription.unsubscribe(self, force=force)
        self.is_closed = True

    async def close(self) -> None:
        """Detach the consumer; others get what it has not acked. May be called twice."""
        if not self.is_closed:
            self.is_closed = True
            self.subscription.remove_consumer(self)

    def disconnect(self, urls: Urls = NOWHERE) -> None:
        """Close the consumer by the broker.

        The client subscribes again, at this address if given.
        """
        if not self.is_closed:
            self.is_closed = True
            self.session.close_consumer(self.consumer_id, urls)
            self.subscription.remove_consumer(self)


def _gather(command: pb.CommandAck, acks: _Acks) -> None:
    """Add the acks of a command. Raises `PositionError`, and adds nothing then."""
    whole_before, partial_before = len(acks.whole), len(acks.partial)
    try:
        for message_id in command.message_id:
            position = Position(message_id.ledgerId, message_id.entryId)
            words = message_id.ack_set
            if words:
                acks.partial.append((position, mask_of_words(words)))
            else:
                acks.whole.append(position)
    except PositionError:
        del acks.whole[whole_before:], acks.partial[partial_before:]
        raise
    if command.HasField("request_id"):
        acks.request_ids.append(command.request_id)


def _request_ids(command: pb.CommandAck) -> list[int]:
    return [command.request_id] if command.HasField("request_id") else []
