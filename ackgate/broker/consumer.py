"""The broker's side of one consumer: what its client asks for, told to the subscription.

Acks are the hottest path of the broker. What one received chunk holds is validated and applied in
one go; only if that fails is every command tried by itself, so that each gets its own answer.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.ack_sets import mask_of_words
from ackgate.broker.errors import ServerError, server_error
from ackgate.broker.journal.notes import PartialAck
from ackgate.broker.wire_types import ConsumerStats, LastMessageId
from ackgate.cursor.position import Position
from ackgate.dispatcher.dispatcher import ConsumerSpec
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.ports import SessionPort
    from ackgate.broker.proto import pulsar_pb2 as pb
    from ackgate.broker.subscription import Subscription
    from ackgate.broker.wire_types import MessageOut, SubscribeRequest

_CUMULATIVE: Final = 1  # CommandAck.AckType


class _Acks(NamedTuple):
    """Individual acks of some commands: whole entries apart from parts of batches."""

    whole: list[Position]
    parts: list[tuple[Position, int]]
    request_ids: list[int]


class Consumer:
    """A consumer that is attached to a subscription."""

    def __init__(
        self, subscription: Subscription, session: SessionPort, request: SubscribeRequest, key: int
    ) -> None:
        self.subscription = subscription
        self.session = session
        self.consumer_id = request.consumer_id
        self.key = key
        """The consumer as its dispatcher knows it."""
        self.name = request.consumer_name or f"consumer-{key}"
        self.label = f"{self.name}#{key}"
        """As the delivery journal calls it: connections of one name are told apart."""
        self.metadata = request.metadata
        self.connected_since = time.time()
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_acked = 0
        self.last_flow_ms = 0
        self.last_sent_ms = 0
        self.last_acked_ms = 0
        self.is_closed = False
        self.knows_end = False
        """Whether it was told that the topic is terminated and read to its end."""
        key_shared = request.key_shared
        self.spec = ConsumerSpec(
            name=self.name,
            priority=request.priority,
            hash_ranges=tuple(
                (start, stop - 1) for start, stop in (key_shared.hash_ranges if key_shared else ())
            ),
            epoch=request.epoch,
        )

    @property
    def messages_redelivered(self) -> int:
        """Messages that this consumer asked for again."""
        dispatcher = self.subscription.dispatcher
        known = dispatcher.consumer_statistics(self.key) if dispatcher is not None else None
        return known.messages_redelivered if known is not None else 0

    # ---------------------------------------------------------------- sending

    def send(
        self, messages: list[MessageOut], message_count: int, size_bytes: int, epoch: int | None
    ) -> None:
        """Give the client these entries."""
        self.messages_out += message_count
        self.bytes_out += size_bytes
        subscription = self.subscription
        self.last_sent_ms = subscription.last_sent_ms = subscription.topic.parts.clock_ms()
        self.session.send_messages(
            self.consumer_id, self.subscription.topic.partition, messages, epoch
        )

    def on_writable(self) -> None:
        """The session's output has drained."""
        dispatcher = self.subscription.dispatcher
        if dispatcher is not None and not self.is_closed:
            dispatcher.set_writable(self.key, is_writable=True)
            self.subscription.ask_round()

    def flow(self, permits: int) -> None:
        """The client takes `permits` more messages."""
        dispatcher = self.subscription.dispatcher
        if dispatcher is not None and not self.is_closed:
            subscription = self.subscription
            self.last_flow_ms = subscription.last_flow_ms = subscription.topic.parts.clock_ms()
            dispatcher.add_permits(self.key, permits)
            subscription.ask_round()

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
        subscription = self.subscription
        self.last_acked_ms = subscription.last_acked_ms = subscription.topic.parts.clock_ms()
        subscription.on_acked()

    def _apply_individual(self, acks: _Acks, commands: list[pb.CommandAck]) -> None:
        if not commands:
            return
        try:
            self._apply(acks)
        except CallerError as error:
            if len(commands) == 1:
                self._refuse(acks.request_ids, error)
                return
            for command in commands:
                alone = _Acks([], [], [])
                _gather(command, alone)
                self._apply_individual(alone, [command])
        else:
            self._answer(acks.request_ids)

    def _apply(self, acks: _Acks) -> None:
        """Raises `PositionError`, and has changed nothing then."""
        subscription = self.subscription
        cursor, dispatcher = subscription.cursor, subscription.dispatcher
        if acks.parts:
            self._ack_mixed(acks)
        elif len(acks.whole) == 1:
            cursor.ack(acks.whole[0])
        else:
            cursor.ack_individual(acks.whole)
        if subscription.journal is not None and not acks.parts:
            subscription.notes.acked(self.label, acks.whole)
        subscription.held.discard(acks.whole)
        self.messages_acked += len(acks.whole) + len(acks.parts)
        subscription.messages_acked += len(acks.whole) + len(acks.parts)
        if dispatcher is None:
            return
        if acks.whole:
            dispatcher.acked_many(self.key, acks.whole)
        for position, _ in acks.parts:
            mask = cursor.unacked_mask(position)
            if mask is not None:
                dispatcher.acked_partly(self.key, position, mask.bit_count())
            elif cursor.is_acked(position):
                subscription.held.discard((position,))
                dispatcher.acked(self.key, position)

    def _ack_mixed(self, acks: _Acks) -> None:
        subscription = self.subscription
        cursor, journal = subscription.cursor, subscription.journal
        mixed = [*((position, None) for position in acks.whole), *acks.parts]
        if journal is None or not subscription.acks_batch_indexes:
            cursor.ack_mixed(mixed)
            if journal is not None:
                subscription.notes.acked(self.label, acks.whole)
            return
        parts = [
            PartialAck(position, mask, cursor.unacked_mask(position), cursor.is_acked(position))
            for position, mask in acks.parts
        ]
        cursor.ack_mixed(mixed)
        journal.note_acked_mixed(subscription.name, self.label, acks.whole, parts, cursor.version)

    def _apply_cumulative(self, command: pb.CommandAck) -> None:
        request_ids = _request_ids(command)
        cursor, dispatcher = self.subscription.cursor, self.subscription.dispatcher
        before = cursor.backlog_entries
        try:
            if len(command.message_id) != 1:
                raise PositionError(
                    f"a cumulative ack names one position, not {len(command.message_id)}"
                )
            message_id = command.message_id[0]
            position = Position(message_id.ledgerId, message_id.entryId)
            mask = mask_of_words(message_id.ack_set) if message_id.ack_set else None
            if position > cursor.mark_delete:
                self._ack_through(position, mask)
        except CallerError as error:
            self._refuse(request_ids, error)
            return
        self.messages_acked += before - cursor.backlog_entries
        self.subscription.messages_acked += before - cursor.backlog_entries
        if dispatcher is not None:
            dispatcher.acked_through(cursor.mark_delete)
        self._answer(request_ids)

    def _ack_through(self, position: Position, mask: int | None) -> None:
        subscription = self.subscription
        cursor, journal = subscription.cursor, subscription.journal
        is_partial = mask is not None and mask != 0 and not cursor.is_acked(position)
        before = subscription.topic.ledger.facts.previous(position)
        cursor.ack_cumulative(position, unacked_mask=mask)
        if journal is None:
            return
        name, version = subscription.name, cursor.version
        left = cursor.unacked_mask(position)
        if not is_partial or left is not None:
            journal.note_acked_through(name, self.label, position, version, unacked_mask=left)
        elif cursor.is_acked(position):  # what was left of the batch is acked by this
            journal.note_acked_through_batch(name, self.label, before, position, version)
        else:
            journal.note_acked_through(name, self.label, before, version)

    def _answer(self, request_ids: list[int]) -> None:
        if request_ids:
            version = self.subscription.cursor.version
            self.subscription.when_durable(partial(self._on_durable, request_ids, version))

    def _on_durable(
        self, request_ids: list[int], version: int, error: BaseException | None
    ) -> None:
        if error is None:
            self.session.send_ack_responses(self.consumer_id, request_ids)
            subscription = self.subscription
            if subscription.journal is not None:
                subscription.journal.note_receipt(subscription.name, self.label, version)
        else:
            self._refuse(request_ids, error)

    def _refuse(self, request_ids: list[int], error: BaseException) -> None:
        code = ServerError.NOT_ALLOWED if isinstance(error, CallerError) else server_error(error)
        for request_id in request_ids:
            self.session.send_ack_error(self.consumer_id, request_id, code, str(error))

    def redeliver(self, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver these again (None: everything this consumer has not acked)."""
        self.subscription.redeliver(self, positions, epoch)

    # ---------------------------------------------------------------- requests

    async def seek(self, position: Position, unacked_mask: int | None) -> None:
        """Move the subscription so that `position` is read next."""
        await self.subscription.moves.reset(position, unacked_mask)

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Move the subscription to the first entry published at or after this time."""
        await self.subscription.moves.reset_to_time(publish_time_ms)

    async def last_message_id(self) -> LastMessageId:
        """The end of the topic and the mark-delete position of this subscription."""
        ledger = self.subscription.topic.ledger
        last = ledger.facts.last_confirmed
        batch_index = -1
        if last.entry_id >= 0:
            metadata = (await ledger.reads.read_one(last)).metadata
            if metadata.HasField("num_messages_in_batch"):
                batch_index = metadata.num_messages_in_batch - 1
        return LastMessageId(last, batch_index, self.subscription.cursor.mark_delete)

    def stats(self) -> ConsumerStats:
        """Answer to CONSUMER_STATS."""
        subscription = self.subscription
        dispatcher = subscription.dispatcher
        known = dispatcher.consumer_statistics(self.key) if dispatcher is not None else None
        if known is None or subscription.type is None:
            raise CallerError(f"consumer {self.name} is closed")
        return ConsumerStats(
            consumer_name=self.name,
            subscription_type=subscription.type,
            permits=max(0, known.permits),
            unacked_messages=known.unacked_messages,
            is_blocked_on_unacked=known.is_blocked_on_unacked_messages,
            connected_since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.connected_since)),
            backlog_messages=subscription.cursor.backlog_entries,
        )

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription. Raises `ConsumerBusyError`."""
        await self.subscription.unsubscribe(self, force=force)
        self.is_closed = True

    async def close(self) -> None:
        """Detach; what was not acked is offered to others. Twice is fine."""
        if not self.is_closed:
            self.is_closed = True
            self.subscription.remove_consumer(self)

    def disconnect(self, service_url: str = "") -> None:
        """Detach from the broker's side: the client subscribes again, at this address if given."""
        if not self.is_closed:
            self.is_closed = True
            self.session.close_consumer(self.consumer_id, service_url)
            self.subscription.remove_consumer(self)


def _gather(command: pb.CommandAck, acks: _Acks) -> None:
    """Add a command's acks. Raises `PositionError`, and has added nothing then."""
    whole_before, parts_before = len(acks.whole), len(acks.parts)
    try:
        for message_id in command.message_id:
            position = Position(message_id.ledgerId, message_id.entryId)
            words = message_id.ack_set
            if words:
                acks.parts.append((position, mask_of_words(words)))
            else:
                acks.whole.append(position)
    except PositionError:
        del acks.whole[whole_before:], acks.parts[parts_before:]
        raise
    if command.HasField("request_id"):
        acks.request_ids.append(command.request_id)


def _request_ids(command: pb.CommandAck) -> list[int]:
    return [command.request_id] if command.HasField("request_id") else []
