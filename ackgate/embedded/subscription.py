"""A subscription of an embedded topic and its consumers.

Edge. The machine (`ackgate.subscription.Subscription`, here `core`) decides, and `SubscriptionRuntime` takes
its turns: what they deliver goes to a consumer's queue, and so to `async for`; a receipt ends `ack`.

It holds nothing of an ack. A consumer's queue is bounded by its permits: those that it took come back to the
machine as the host takes messages out. What was acked, moved over or sent back while it lay in the queue is
not handed out, and its permit is returned.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from ackgate.embedded.checks import check_position, is_count
from ackgate.embedded.message import Message, TopicEntry
from ackgate.embedded.runtime import SubscriptionRuntime, TopicReads
from ackgate.errors import (
    CallerError,
    ClosedHandleError,
    CursorClosedError,
    InternalError,
    OwnershipError,
)
from ackgate.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from ackgate.cursor import MessageLedgers, Position
    from ackgate.dispatcher import Gate, SubscriptionKind
    from ackgate.errors import AckGateError
    from ackgate.persistence import CursorStore, CursorStoreStats, PersistOutcome
    from ackgate.subscription import Delivery, Ready, SubscriptionSettings, SubscriptionStatistics

log = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 5 * 1024 * 1024
"""Aim of one read, by the average size of the topic's entries."""

TAKEN_PER_TURN_MAX: Final = 64
"""Messages handed out of a queue in a row before other tasks get their turn."""

PERMITS_MAX: Final = 1_000_000
"""Most messages that one consumer may hold in its queue."""


class TopicPort(TopicReads, Protocol):
    """What a subscription needs of its topic."""

    name: str
    message_ledgers: MessageLedgers

    @property
    def average_entry_bytes(self) -> int:
        """Mean bytes of the entries that are read."""

    def now_ms(self) -> int:
        """The current time, in ms since 1970."""

    def trim_soon(self) -> None:
        """Delete ledgers that are not needed, soon: more may be acked by all."""

    def closed(self, subscription: EmbeddedSubscription, *, is_deleted: bool = False) -> None:
        """Note that a subscription is not open any more."""

    def check_loop(self) -> None:
        """Raise `CallerError` on another event loop."""

    def check(self) -> None:
        """Raise if the topic is closed or has failed, or on another event loop."""

    def fail(self, error: AckGateError) -> None:
        """Close the topic with this error, since another owner has opened it."""


class EmbeddedSubscription:
    """One open subscription. Made by `EmbeddedTopic.subscribe`."""

    def __init__(
        self,
        topic: TopicPort,
        name: str,
        store: CursorStore,
        *,
        kind: SubscriptionKind,
        settings: SubscriptionSettings,
    ) -> None:
        self.topic = topic
        self.name = name
        self._store = store
        self._core: Subscription[EmbeddedConsumer, Any] = Subscription(
            topic.message_ledgers,
            kind=kind,
            settings=settings,
            cursor=store.cursor,
            nacks=store.recovered_nacks,
            chance=random.random,
            now_ms=topic.now_ms(),
        )
        self._runtime = SubscriptionRuntime(
            core=self._core,
            store=store,
            reads=topic,
            name=name,
            topic_name=topic.name,
            now_ms=topic.now_ms,
            read_entries_max=lambda: READ_BYTES_MAX // topic.average_entry_bytes,
            carry_out=self._carry_out,
            on_outcome=self._on_outcome,
            on_bug=self._on_bug,
        )
        self._consumers: list[EmbeddedConsumer] = []
        self._ended: asyncio.Future[None] | None = None
        """Done when it is closed or deleted; None: that has not begun."""
        self._error: AckGateError | None = None
        """Why it ended by itself."""
        self.ask_turn()

    # ---------------------------------------------------------------- what is known

    @property
    def kind(self) -> SubscriptionKind | None:
        """How messages are shared out."""
        return self._core.kind

    @property
    def gate(self) -> Gate:
        """Whether messages that were not delivered before are, and why not."""
        return self._core.gate

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acked."""
        return self._core.cursor.mark_delete

    @property
    def persisted_mark_delete(self) -> Position:
        """The mark-delete as far as it is surely durable: messages up to it may be deleted."""
        return self._store.persisted_mark_delete

    @property
    def backlog(self) -> int:
        """Messages that are not acked."""
        return self._core.cursor.backlog_entries

    @property
    def consumers(self) -> tuple[EmbeddedConsumer, ...]:
        """Attached consumers, in the order of `attach`."""
        return tuple(self._consumers)

    @property
    def active_consumer(self) -> EmbeddedConsumer | None:
        """Exclusive and Failover: the one that gets everything. None for other kinds."""
        return self._core.active_consumer

    def is_acked(self, position: Position) -> bool:
        """Whether the message is acked, durably or not yet."""
        return self._core.cursor.is_acked(position)

    def _is_wanted(self, queued: _Queued) -> bool:
        """Whether a message in a queue is neither acked nor sent back since it was put there."""
        position, core = queued.entry.position, self._core
        return (
            not core.cursor.is_acked(position)
            and core.redelivery_count(position) == queued.redelivery_count
        )

    def statistics(self) -> SubscriptionStatistics:
        """Cursor, gate, dispatcher, consumers and what is held back; frozen. O(consumers)."""
        return self._core.statistics()

    def store_statistics(self) -> CursorStoreStats:
        """How the ack state is kept: the last write, what recovery found, failures."""
        return self._store.statistics()

    # ---------------------------------------------------------------- consumers

    def attach(
        self,
        name: str,
        *,
        permits: int = 1_000,
        priority: int = 0,
        hash_ranges: tuple[tuple[int, int], ...] = (),
    ) -> EmbeddedConsumer:
        """Attach a consumer, which gets up to `permits` messages ahead of what it has taken.

        `priority`: Shared serves the lowest first. `hash_ranges`: of a sticky Key_Shared consumer.
        Raises `CallerError`, `ConsumerBusyError` (Exclusive, and taken), `ConsumerAssignError`.
        """
        self._check()
        if not isinstance(name, str) or not name:
            raise CallerError(f"a consumer's name is text, not {name!r}")
        if not is_count(permits) or not 1 <= permits <= PERMITS_MAX:
            raise CallerError(f"permits are a number from 1 to {PERMITS_MAX}, not {permits!r}")
        if not is_count(priority):
            raise CallerError(f"a priority is a number from 0 on, not {priority!r}")
        if any(consumer.name == name for consumer in self._consumers):
            raise CallerError(f"consumer {name!r} is attached already")
        consumer = EmbeddedConsumer(self, name, permits)
        self._core.attach(
            consumer,
            permits=permits,
            name=name,
            priority=priority,
            hash_ranges=hash_ranges,
            epoch=0,
            now_ms=self.topic.now_ms(),
        )
        self._consumers.append(consumer)
        self.ask_turn()
        return consumer

    def _detach(self, consumer: EmbeddedConsumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            consumer._end(None)
            if not self._runtime.is_over:
                self._core.detach(consumer, now_ms=self.topic.now_ms())
                self.ask_turn()

    async def _ack(
        self, consumer: EmbeddedConsumer, positions: Sequence[Position], *, is_cumulative: bool
    ) -> PersistOutcome:
        receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        now_ms = self.topic.now_ms()
        if is_cumulative:
            self._core.ack_cumulative(consumer, positions[0], receipt=receipt, now_ms=now_ms)
        else:
            self._core.ack(consumer, positions, receipt=receipt, now_ms=now_ms)
        self.ask_turn()
        await receipt
        return self._store.durable_outcome

    def _redeliver(
        self, consumer: EmbeddedConsumer, positions: Sequence[Position] | None, delay_ms: int | None
    ) -> None:
        self._check()
        rewinds = self._core.active_consumer is not None
        self._core.redeliver(
            consumer,
            positions,
            delay_ms=delay_ms,
            epoch=consumer._next_epoch() if rewinds else None,
            now_ms=self.topic.now_ms(),
        )
        if rewinds or positions is None:
            self._core.flow(consumer, consumer._clear(), now_ms=self.topic.now_ms())
        self.ask_turn()

    def _took(self, consumer: EmbeddedConsumer, messages: int) -> None:
        if not self._runtime.is_over and not consumer._has_ended:
            self._core.flow(consumer, messages, now_ms=self.topic.now_ms())
            self.ask_turn()

    # ---------------------------------------------------------------- moves

    async def seek(self, position: Position) -> None:
        """Read from `position` next (`EARLIEST`, `LATEST` too): everything from it on is unacked.

        What consumers hold in their queues is dropped. Returns when it is durable. Raises `PositionError`
        beyond the end, `PersistTimeoutError`.
        """
        self._check()
        check_position(position)
        self._core.seek(position, now_ms=self.topic.now_ms())
        for consumer in self._consumers:
            self._core.flow(consumer, consumer._clear(), now_ms=self.topic.now_ms())
        await self._until_durable()

    async def skip(self, messages: int) -> int:
        """Ack the next unacked messages, durably. Returns how many there were."""
        self._check()
        if not is_count(messages):
            raise CallerError(f"messages to skip are a number from 0 on, not {messages!r}")
        skipped = self._core.skip(messages, now_ms=self.topic.now_ms())
        await self._until_durable()
        return skipped

    async def clear_backlog(self) -> int:
        """Ack everything, durably. Returns how many messages were not acked."""
        self._check()
        cleared = self._core.clear_backlog(now_ms=self.topic.now_ms())
        await self._until_durable()
        return cleared

    async def _until_durable(self) -> PersistOutcome:
        self.ask_turn()
        return await self._store.until_durable()

    # ---------------------------------------------------------------- what the topic calls

    def ask_turn(self) -> None:
        """Have one turn run soon: messages were added."""
        self._runtime.ask_turn()

    def ledger_trimmed(self, ledger_id: int) -> None:
        """Forget the acks of a message ledger that is gone."""
        self._core.ledger_trimmed(ledger_id, now_ms=self.topic.now_ms())
        self.ask_turn()

    # ---------------------------------------------------------------- what the runtime calls

    def _carry_out(self, ready: Ready[EmbeddedConsumer, Any]) -> None:
        for delivery in ready.deliveries:
            stale = delivery.consumer._take_in(delivery)
            if stale:
                self._core.flow(delivery.consumer, stale, now_ms=self.topic.now_ms())
        for receipt in ready.receipts:
            done = receipt.token
            assert isinstance(done, asyncio.Future)
            if not done.done():
                if receipt.error is None:
                    done.set_result(None)
                else:
                    done.set_exception(receipt.error)

    def _on_outcome(self) -> None:
        lost = self._store.why_stopped
        if isinstance(lost, OwnershipError) and not self._is_closed:
            self.topic.fail(lost)
        else:
            self.topic.trim_soon()

    def _on_bug(self, error: Exception) -> None:
        """Fail, so that nothing waits forever."""
        log.error("subscription %s of %s failed", self.name, self.topic.name, exc_info=error)
        self.fail(InternalError(f"subscription {self.name!r} failed: {error!r}"))

    # ---------------------------------------------------------------- the end

    @property
    def _is_closed(self) -> bool:
        return self._ended is not None

    def _check(self) -> None:
        self.topic.check()
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise ClosedHandleError(f"subscription {self.name!r} is closed")

    async def close(self) -> None:
        """Detach all consumers and write what is dirty. Twice is fine."""
        self.topic.check_loop()
        if self._ended is None:
            await self._end_with(self._store.close())
        else:
            await asyncio.shield(self._ended)

    async def delete(self) -> None:
        """Remove the subscription for good: its ack state is deleted.

        Raises `StorageError`: then it is closed. Open it again to repeat.
        """
        self._check()
        await self._end_with(self._store.delete(), is_deleted=True)

    async def _end_with(self, last_step: Awaitable[object], *, is_deleted: bool = False) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        for consumer in list(self._consumers):
            self._detach(consumer)
        self._runtime.stop(cancels_read=True)
        try:
            await last_step
        except BaseException:
            is_deleted = False
            raise
        finally:
            why = self._error or self._store.why_stopped
            self._runtime.fail_receipts(why or CursorClosedError(f"{self.name!r} is closed"))
            self.topic.closed(self, is_deleted=is_deleted)
            self._ended.set_result(None)

    def fail(self, error: AckGateError) -> None:
        """End at once, and write no more: everybody who waits gets this error."""
        if self._error is None and not self._is_closed:
            self._error = error
            self._runtime.stop()
            for consumer in self._consumers:
                consumer._end(error)
            if isinstance(error, OwnershipError):
                self._store.abandon(error)
            self._runtime.fail_receipts(error)


class _Queued(NamedTuple):
    entry: Any
    redelivery_count: int


class EmbeddedConsumer:
    """A consumer of a subscription: `async for message in consumer`. Made by `attach`.

    Iteration pauses while there is nothing to deliver or the gate is shut, and ends when the consumer, its
    subscription or the storage is closed. It raises when another owner has taken the topic over. Several
    tasks may iterate over one consumer: each message goes to one of them.
    """

    def __init__(self, subscription: EmbeddedSubscription, name: str, permits: int) -> None:
        self.subscription = subscription
        self.name = name
        self._queue: deque[_Queued] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._flow_at = max(1, permits // 2)
        self._taken = 0
        """Taken out of the queue since permits were returned last."""
        self._in_a_row = 0
        self._epoch = 0
        self._has_ended = False
        self._error: AckGateError | None = None

    # ---------------------------------------------------------------- what hosts call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self.subscription.topic.check_loop()
        while True:
            self._in_a_row += 1
            if self._in_a_row >= TAKEN_PER_TURN_MAX:
                self._in_a_row = 0
                await asyncio.sleep(0)
            if (message := self._take()) is not None:
                return message
            if self._error is not None:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._in_a_row = 0
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                else:
                    self._wake_one()  # the message goes to another one
                raise

    async def ack(self, *messages: Message | Position) -> PersistOutcome:
        """Ack these, all or none, and return when that is durable.

        The outcome is of the write: `is_complete`, and what a limit left out. Raises `PositionError` (no
        such message; nothing was changed), `PersistTimeoutError` (acked, not durable yet), `OwnershipError`,
        `ClosedHandleError`, `CursorClosedError`.
        """
        self._check()
        positions = _positions(messages)
        return await self.subscription._ack(self, positions, is_cumulative=False)

    async def ack_cumulative(self, message: Message | Position) -> PersistOutcome:
        """Ack everything up to this message. Returns and raises as `ack`."""
        self._check()
        positions = _positions((message,))
        return await self.subscription._ack(self, positions, is_cumulative=True)

    def nack(self, *messages: Message | Position, delay_ms: int | None = None) -> None:
        """Have these delivered again, to any consumer, now or after a delay.

        None: the backoff of the settings decides, else at once. Delays survive a restart. Exclusive and
        Failover go back to the first unacked message at once, whatever the messages and the delay.
        """
        self._check()
        if delay_ms is not None and not is_count(delay_ms):
            raise CallerError(f"a delay is a number of ms from 0 on, not {delay_ms!r}")
        self.subscription._redeliver(self, _positions(messages), delay_ms)

    def redeliver_unacked(self) -> None:
        """Have everything that this consumer got and did not ack delivered again."""
        self._check()
        self.subscription._redeliver(self, None, None)

    def close(self) -> None:
        """Detach: what was not acked goes to the others. Twice is fine."""
        self.subscription.topic.check_loop()
        self.subscription._detach(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        self.subscription._check()
        if self._has_ended:
            raise ClosedHandleError(f"consumer {self.name!r} is closed")

    # ---------------------------------------------------------------- what its subscription calls

    def _take_in(self, delivery: Delivery[EmbeddedConsumer, Any]) -> int:
        """Put messages into the queue.

        Returns how many are from before the last rewind: not wanted.
        """
        if delivery.epoch is not None and delivery.epoch < self._epoch:
            return delivery.message_count
        counts = delivery.redelivery_counts or (0,) * len(delivery.entries)
        self._queue.extend(map(_Queued, delivery.entries, counts))
        for _ in range(len(delivery.entries)):
            self._wake_one()
        return 0

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def _clear(self) -> int:
        """Drop what is in the queue. Returns the permits that come free."""
        dropped = len(self._queue)
        self._queue.clear()
        return dropped

    def _end(self, error: AckGateError | None) -> None:
        self._has_ended = True
        self._error = error
        self._queue.clear()
        while self._waiters:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # else it is cancelled, and its task has not run yet
                waiter.set_result(None)
                return

    def _take(self) -> Message | None:
        queue, subscription = self._queue, self.subscription
        message = None
        while queue and message is None:
            queued = queue.popleft()
            self._taken += 1
            if subscription._is_wanted(queued):
                message = _message(*queued)
        if self._taken >= self._flow_at or (self._taken and not queue):
            taken, self._taken = self._taken, 0
            subscription._took(self, taken)
        return message


def _message(entry: Any, redelivery_count: int) -> Message:  # noqa: ANN401 - the host's, or ours
    if isinstance(entry, TopicEntry):
        return Message(
            entry.position,
            entry.content,
            entry.key_text,
            redelivery_count,
            entry.published_ms,
            None,
        )
    return Message(entry.position, b"", "", redelivery_count, 0, entry)


def _positions(messages: Sequence[Message | Position]) -> list[Position]:
    positions = [each.position if isinstance(each, Message) else each for each in messages]
    if not positions:
        raise CallerError("no message was named")
    for position in positions:
        check_position(position)
    return positions
