"""A subscription of the broker: its driver, and its consumers.

Edge. The driver owns the machine (`ackgate.subscription.Subscription`, here `core`) and its `runtime`, which
takes the turns: it reads, and writes by the cursor's store. Consumers, settings and administrators call the
core, then `changed`; what a turn wants of the clients, the driver carries out::

    Consumer: acks, flow, redeliver --> core --> changed --> a turn --> MESSAGE, ACK_RESPONSE

When there is nothing to do it waits: for entries or for the gate as an operation of the broker's
purgatory, else for the core's next deadline. It holds nothing of an ack.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from ackgate.broker.delayed import SharedTracking, TrackerHome
from ackgate.broker.journal import SubscriptionRecorder
from ackgate.broker.topic.kinds import TopicRules, kind_of_request, subscription_settings
from ackgate.broker.wire import (
    ConsumerStatsReply,
    IndividualAcks,
    LastMessageId,
    MessageOut,
    NotAllowedError,
    PersistenceFailedError,
    ServerError,
    ServiceNotReadyError,
    server_error,
    unacked_mask,
)
from ackgate.cursor import EARLIEST, NO_NACKS, ManagedCursor, Position
from ackgate.embedded.runtime import SubscriptionRuntime
from ackgate.errors import (
    CallerError,
    ConsumerBusyError,
    CursorClosedError,
    OwnershipError,
    PersistTimeoutError,
    PositionError,
)
from ackgate.network import NOWHERE
from ackgate.persistence.nodes.paths import cursor_path
from ackgate.persistence.records.outcome import RecoverySource
from ackgate.subscription import Awaited
from ackgate.subscription import Subscription as Core

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.broker.delayed import CancelledMessages, SharedDelays
    from ackgate.broker.journal import TopicJournal
    from ackgate.broker.topic.tracing import SubscriptionTracing
    from ackgate.broker.wire import Entry, SessionPort, SubscribeRequest, SubscriptionType
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.dispatcher import Gate
    from ackgate.dispatcher.timing import Timer
    from ackgate.errors import AckGateError
    from ackgate.network import Urls
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.messages.managed_ledger import ManagedLedger
    from ackgate.persistence.records.outcome import PersistOutcome
    from ackgate.subscription import Delivery, Ready, Receipt

log = logging.getLogger(__name__)

READER_RETURN_MS: Final = 30_000
"""How long a reader's subscription waits for its reader after a seek, which disconnects it: clients'
default operation timeout."""

_CUMULATIVE: Final = 1  # CommandAck.AckType


class SubscribedTopic(TopicRules, Protocol):
    """What a subscription needs of its topic, its consumers' needs included."""

    @property
    def partition(self) -> int:
        """Index of this partition, -1 for a topic that is not a partition."""

    @property
    def ledger(self) -> ManagedLedger[Entry]: ...

    @property
    def path(self) -> str: ...

    @property
    def journal(self) -> TopicJournal | None:
        """The delivery journal; None: it is off."""

    @property
    def cancelled(self) -> CancelledMessages: ...

    @property
    def shared_delays(self) -> SharedDelays:
        """The index of delayed entries that its subscriptions may share."""

    @property
    def is_closing(self) -> bool:
        """Whether the topic is being closed."""

    def on_fenced(self, error: AckGateError) -> None:
        """Another broker owns the topic now: close it here."""

    def load_again(self, why: str) -> None:
        """Drop the topic here, without a write: the next request loads it from storage."""

    def on_persisted(self, subscription: SubscriptionDriver) -> None:
        """A subscription's state became durable: ledgers before it may be trimmed."""

    def remove_subscription(self, subscription: SubscriptionDriver) -> None: ...

    async def until_trimmed(self) -> None:
        """Wait until no message ledger is being deleted."""


class _Waiting(NamedTuple):
    """What the next turn waits for."""

    key: ManagedLedger[Entry] | Gate | None
    """None: the turn waits only for its deadline."""
    deadline_ms: int | None
    timer: Timer


class SubscriptionDriver:
    """A subscription of a loaded topic."""

    def __init__(
        self, topic: SubscribedTopic, name: str, cursor: ManagedCursor, store: CursorStore | None
    ) -> None:
        """`store` None: a reader's subscription, which is not stored."""
        self.topic = topic
        self.name = name
        self.store = store
        self.consumers: list[Consumer] = []
        self.type: SubscriptionType | None = None
        self.bytes_out = 0
        self._recorder = (
            None if topic.journal is None else SubscriptionRecorder(topic.journal, name)
        )
        tracing = topic.services.tracing
        self.tracing: SubscriptionTracing | None = (
            None if tracing is None else tracing.of_subscription(topic.name, name)
        )
        own = TrackerHome(
            topic.services,
            cursor_path(topic.path, name),
            cursor,
            store,
            on_change=self.ask_turn,
            on_lost=self.on_lost,
        )
        self.tracking: TrackerHome | SharedTracking = own
        if topic.shared_delays.is_on and store is not None:
            self.tracking = SharedTracking(self, topic.shared_delays, own)
        self.core: Core[Consumer, Entry] = Core(
            topic.ledger.ledgers,
            kind=None,
            settings=subscription_settings(topic, is_durable=store is not None),
            cursor=cursor,
            nacks=NO_NACKS if store is None else store.recovered_nacks,
            is_durable=store is not None,
            make_tracker=self.tracking.make,
            chance=random.random,
            keeps_notes=self._recorder is not None,
            now_ms=topic.services.clock_ms(),
        )
        self.runtime = SubscriptionRuntime(
            core=self.core,
            store=store,
            reads=topic.ledger.reads,
            name=name,
            topic_name=topic.name,
            now_ms=topic.services.clock_ms,
            read_entries_max=self._read_entries_max,
            carry_out=self._carry_out,
            on_outcome=self._on_outcome,
            may_deliver=self._may_deliver,
            wait=self._wait,
        )
        self._next_key = 0
        self._since: float | None = None
        """When it could go on, to measure its latency; None: it waits."""
        self._observed: PersistOutcome | None = None
        """The last durable write that was counted in the latencies."""
        self._waiting: _Waiting | None = None
        self._is_busy = False
        self._return_timer: Timer | None = None
        """When a reader's subscription no longer waits for its reader."""
        if store is not None and self._recorder is not None:
            store.report_attempts(self._recorder)
        self._begin(store)
        if self.tracking.remembers and topic.delayed_delivery.is_active:
            self.core.start_tracker()

    @classmethod
    def for_reader(
        cls, topic: SubscribedTopic, name: str, first_read: Position
    ) -> SubscriptionDriver:
        """Make a reader's subscription, which is not stored."""
        cursor = ManagedCursor(
            topic.ledger.ledgers,
            topic.ledger.ledgers.previous(first_read),
            batch_index_acks=topic.services.settings.cursor.acknowledgment_at_batch_index_level_enabled,
            track_growth=False,
        )
        return cls(topic, name, cursor, None)

    def _begin(self, store: CursorStore | None) -> None:
        """Ack cancelled messages, and note in the journal in which state this begins."""
        recorder = self._recorder
        is_new = store is None or store.report.source is RecoverySource.NEW
        if recorder is not None and is_new:
            recorder.subscribed(self.cursor.mark_delete, is_durable=store is not None)
        self.ack_cancelled()
        if recorder is not None and not is_new and store is not None:
            self.core.take_notes()  # they are part of the recovered state
            recorder.recovered(store.report, self.cursor.snapshot())
        self.changed()

    # ---------------------------------------------------------------- what is known

    @property
    def cursor(self) -> ManagedCursor:
        """The ack state. Only the core changes it."""
        return self.core.cursor

    @property
    def is_durable(self) -> bool:
        """Whether its ack state is persisted; a reader's subscription ends with the reader."""
        return self.store is not None

    @property
    def persisted_mark_delete(self) -> Position:
        """Everything up to here is durably acked, so earlier message ledgers may be trimmed."""
        return self.cursor.mark_delete if self.store is None else self.store.persisted_mark_delete

    def holder_name(self, position: Position) -> str | None:
        """The consumer that has an entry and has not acked it, or None."""
        holder = self.core.holder(position)
        return None if holder is None else holder.name

    def _check_idle(self) -> None:
        if self.runtime.is_over or self._is_busy:
            raise ServiceNotReadyError(f"subscription {self.name} is being moved or closed")

    def now_ms(self) -> int:
        return self.topic.services.clock_ms()

    # ---------------------------------------------------------------- consumers

    def add_consumer(self, session: SessionPort, request: SubscribeRequest) -> Consumer:
        """Attach a consumer. Raises `ConsumerBusyError`, `ConsumerAssignError`."""
        self._check_idle()
        consumer = Consumer(self, session, request, self._next_key)
        self._next_key += 1
        self.core.attach(
            consumer,
            kind=kind_of_request(self.topic, request, present=self.core.kind),
            name=consumer.name,
            priority=request.priority,
            hash_ranges=consumer.hash_ranges,
            epoch=request.epoch,
            now_ms=self.now_ms(),
        )
        self.type = request.subscription_type
        self.consumers.append(consumer)
        self.changed()
        return consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer. The others get what it has not acked."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self.core.detach(consumer, now_ms=self.now_ms())
        self.changed()
        self.end_if_unread()

    def end_if_unread(self) -> None:
        """End a reader's subscription that has no reader. Does nothing to others, or while `paused`."""
        if not self.is_durable and not self.consumers and not self._is_busy:
            self._stop()
            self.topic.remove_subscription(self)

    def disconnect_consumers(self, urls: Urls = NOWHERE) -> None:
        """Close all consumers. Clients subscribe again, at this address or after a lookup."""
        for consumer in list(self.consumers):
            consumer.disconnect(urls)

    def report_end_if_reached(self) -> None:
        """Send REACHED_END_OF_TOPIC if the topic is terminated and everything is acked."""
        if self.topic.ledger.is_terminated and self.cursor.backlog_entries == 0:
            for consumer in self.consumers:
                consumer.session.send_reached_end_of_topic(consumer.consumer_id)

    # ---------------------------------------------------------------- other facts

    def ack_elsewhere(self, positions: Sequence[Position]) -> int:
        """Ack whole entries of a cancel, all or none, on no consumer's behalf.

        Returns how many were not acked before. Raises `PositionError`.
        """
        acked = self.core.ack(None, positions, now_ms=self.now_ms())
        self.changed()
        return acked

    def ack_cancelled(self) -> None:
        """Ack all cancelled messages of the topic."""
        now_ms = self.now_ms()
        mark_delete = self.cursor.mark_delete
        for ledger_id, entry_ids in self.topic.cancelled.by_ledger(mark_delete.ledger_id):
            self.core.ack_many(None, ledger_id, entry_ids, now_ms=now_ms)

    def ledger_trimmed(self, ledger_id: int) -> None:
        """Forget what was acked in a message ledger that was deleted."""
        self.core.ledger_trimmed(ledger_id, now_ms=self.now_ms())
        self.changed()

    def on_lost(self, entries: Mapping[int, BitMap]) -> None:
        """Read delayed entries again that the tracker lost with an unreadable snapshot."""
        log.warning(
            "subscription %s of %s: %d delayed entries are read again: their snapshot is lost",
            self.name,
            self.topic.name,
            sum(map(len, entries.values())),
        )
        self.core.lost(entries)
        self.ask_turn()

    def configure(self) -> None:
        """Apply changed settings and policies."""
        settings = subscription_settings(self.topic, is_durable=self.is_durable)
        self.core.configure(settings, now_ms=self.now_ms())
        if self.store is not None:
            self.store.configure(self.topic.services.settings.persistence)
        self.changed()

    def changed(self) -> None:
        """Ask for a turn, and do what else follows when the core has changed."""
        self._record()
        if (waiting := self._waiting) is not None and waiting.key is self.core.gate:
            self.topic.services.waits.came(self.core.gate)
        if self.topic.ledger.is_terminated:
            self.report_end_if_reached()
        self.tracking.pump()
        self.ask_turn()

    def _record(self) -> None:
        if self._recorder is not None and (notes := self.core.take_notes()):
            self._recorder.record(notes)

    # ---------------------------------------------------------------- the turn

    def ask_turn(self) -> None:
        """Run one turn soon. Cheap; several calls before it cause one turn."""
        if self._since is None:
            self._since = perf_counter()
        self.runtime.ask_turn()

    def _may_deliver(self) -> bool:
        if self._is_busy:
            return False
        lease = self.topic.services.lease
        if lease.holds():
            return True
        lease.when_held(self, self.ask_turn)
        return False

    def _read_entries_max(self) -> int:
        settings = self.topic.services.settings.dispatcher
        return settings.dispatcher_max_read_size_bytes // self.topic.ledger.average_entry_bytes

    def _carry_out(self, ready: Ready[Consumer, Entry]) -> None:
        if ready.notes and self._recorder is not None:
            self._recorder.record(ready.notes)
        for consumer, is_active in ready.active_changes:
            consumer.session.send_active_consumer_change(consumer.consumer_id, is_active=is_active)
        if ready.deliveries:
            self._deliver(ready.deliveries)
        if ready.receipts:
            self._answer(ready.receipts)

    def _on_outcome(self) -> None:
        store, topic = self.store, self.topic
        assert store is not None
        if store.failing_since_ms is None and store.outcome is not self._observed:
            self._observed = store.outcome
            topic.services.latencies.persist.observe(store.write_seconds)
        self._record()
        lost = store.why_stopped
        if isinstance(lost, OwnershipError) and not topic.is_closing:
            topic.on_fenced(lost)
            return
        topic.on_persisted(self)
        self.ask_turn()

    def _deliver(self, deliveries: Sequence[Delivery[Consumer, Entry]]) -> None:
        count = 0
        for delivery in deliveries:
            delivery.consumer.send(delivery)
            count += len(delivery.entries)
        now = perf_counter()
        if self.tracing is not None:
            since = now if self._since is None else self._since
            for delivery in deliveries:
                self.tracing.dispatched(delivery.consumer.name, delivery.entries, since)
        if self._since is not None:
            self.topic.services.latencies.dispatch.observe(now - self._since, count)
        self._since = now  # the next read begins here

    def _answer(self, receipts: Sequence[Receipt[Consumer]]) -> None:
        services = self.topic.services
        waits, now = services.waits, perf_counter()
        for consumer, token, _, error in receipts:
            asked = cast("AskedReceipt", token)
            if error is None:
                services.latencies.receipt.observe(now - asked.received_at, len(asked.request_ids))
                waits.receipts_sent += 1
                consumer.session.send_ack_responses(consumer.consumer_id, asked.request_ids)
            else:
                waits.receipts_overdue += isinstance(error, PersistTimeoutError)
                consumer.refuse(asked.request_ids, error)
            if self.tracing is not None:
                self.tracing.answered(token, error)

    # ---------------------------------------------------------------- waiting

    def _wait(self, ready: Ready[Consumer, Entry]) -> None:
        """Wait for what the next read needs (entries or the gate), and for the next deadline.

        All other events (permits, acks, due entries) ask for a turn themselves. A wait that has not
        changed stays as it is.
        """
        if not self.core.is_reading:
            self._since = None
        self.tracking.pump()
        key: ManagedLedger[Entry] | Gate | None = None
        has_come: Callable[[], bool] | None = None
        if ready.awaited is Awaited.ENTRIES and self.consumers:
            key, has_come = self.topic.ledger, self._has_unread
        elif ready.awaited is Awaited.GATE and self.consumers:
            key, has_come = self.core.gate, self._is_gate_open
        waiting, deadline_ms = self._waiting, ready.wake_at_ms
        if waiting is not None and waiting.key is key and waiting.deadline_ms == deadline_ms:
            return
        self._stop_waiting()
        waits, delay_ms = self.topic.services.waits, self.runtime.delay_ms(ready)
        timer = None
        if has_come is not None:
            timer = waits.park(key, has_come, self._wake, delay_ms=delay_ms, expire=self._wake)
        elif delay_ms is not None:
            timer = waits.wake_in(delay_ms, self._wake)
        if timer is not None:
            self._waiting = _Waiting(key, deadline_ms, timer)
        elif has_come is not None:
            self.ask_turn()

    def _has_unread(self) -> bool:
        return self.core.has_unread

    def _is_gate_open(self) -> bool:
        return self.core.gate.is_open

    def _wake(self) -> None:
        self._waiting = None
        self.ask_turn()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            waits = self.topic.services.waits
            end = waits.cancel if self._waiting.key is None else waits.unpark
            end(self._waiting.timer)
            self._waiting = None

    # ---------------------------------------------------------------- moves
    #
    # All return when the new state is durable. They raise `PersistenceFailedError` when it is not yet,
    # although the cursor has moved. Moves forward keep the consumers. Moves that may go back disconnect
    # them first, as Pulsar does, and they reconnect by themselves.

    async def seek(self, position: Position, unacked_mask: int | None = None) -> None:
        """Read from `position` next. Of a batch, the indexes of `unacked_mask` are unacked.

        Raises `ServiceNotReadyError` while another move is under way.
        """
        async with self.paused():
            await self.topic.until_trimmed()
            target = self.topic.ledger.ledgers.readable_at(position)
            mask = unacked_mask if target == position else None
            self.core.seek(target, unacked_mask=mask, now_ms=self.now_ms())
            self.ack_cancelled()
            self.changed()
            await self._until_durable()

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Seek to the first entry published at or after this time."""
        await self.seek(await self.topic.ledger.reads.first_published_at(publish_time_ms))

    async def skip(self, entries: int) -> int:
        """Ack the next `entries` unacked entries. Returns how many were acked."""
        skipped = self.core.skip(entries, now_ms=self.now_ms())
        self.changed()
        await self._until_durable()
        return skipped

    async def clear_backlog(self) -> int:
        """Ack everything that the topic holds. Returns how many entries were not acked before."""
        cleared = self.core.clear_backlog(now_ms=self.now_ms())
        self.changed()
        await self._until_durable()
        return cleared

    async def expire_older_than(self, seconds: int) -> int:
        """Ack everything published longer ago. Returns how many entries were not acked before."""
        ledger = self.topic.ledger
        first_kept = await ledger.reads.first_published_at(self.now_ms() - seconds * 1000)
        return await self.expire_through(ledger.ledgers.previous(first_kept))

    async def expire_through(self, position: Position) -> int:
        """Ack everything up to this entry. Returns how many entries were not acked before."""
        expired = self.core.expire(position, now_ms=self.now_ms())
        if expired:
            self.changed()
            await self._until_durable()
        return expired

    async def clear_delayed(self) -> None:
        """Drop the index of delayed entries and its snapshots; reads rebuild it.

        No entry is lost. Raises `PersistenceFailedError` if not all snapshots could be deleted.
        """
        async with self.paused():
            self.drop_delayed()
        await self.tracking.until_cleared()

    def drop_delayed(self) -> None:
        """Drop all delayed entries, and read again from the first unacked one.

        Only while `paused`.
        """
        self.core.drop_delayed(now_ms=self.now_ms())

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Disconnect all consumers, and wait for a read under way.

        They may return after the context. A reader finds its subscription where it was moved to.
        """
        self._check_idle()
        self._is_busy = True
        try:
            self.disconnect_consumers()
            await self.runtime.settle()
            yield
        finally:
            self._is_busy = False
            self.ask_turn()
            if not self.is_durable and not self.runtime.is_over:
                self._forget_return()
                self._return_timer = self.topic.services.waits.wake_in(
                    READER_RETURN_MS, self.end_if_unread
                )

    async def _until_durable(self) -> None:
        store = self.store
        if store is not None:
            await store.flush()
            if store.failing_since_ms is not None:
                raise PersistenceFailedError(
                    f"subscription {self.name} has moved, but this is not durable yet: "
                    f"{store.last_failure}"
                )

    # ---------------------------------------------------------------- the end

    async def flush(self) -> None:
        if self.store is not None:
            await self.store.flush()

    async def close(self) -> None:
        """Deliver no more, and persist what is dirty. The topic disconnects the consumers."""
        self._stop()
        await self.runtime.settle()
        await self.tracking.close()
        await self.runtime.close()

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more: the topic may have another owner."""
        self._stop()
        self.tracking.abandon()
        if self.store is not None:
            self.store.abandon(error)
            self.runtime.fail_receipts(error)

    async def delete(self) -> None:
        """Remove the subscription for good.

        If storage fails, whether it still exists is unknown: the topic is loaded again.
        """
        self._stop()
        self.disconnect_consumers()
        try:
            await self.tracking.close(is_kept=False)
            if self.store is not None:
                await self.store.delete()
                await self.tracking.delete()
        except BaseException:
            self.topic.load_again(f"subscription {self.name} was not deleted")
            raise
        self.topic.remove_subscription(self)

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        """Delete the subscription for a consumer. Raises `ConsumerBusyError` if there are others.

        Raises `NotAllowedError` for a reader's subscription.
        """
        if not self.is_durable:
            raise NotAllowedError(f"subscription {self.name} is that of a reader")
        if len(self.consumers) > 1 and not force:
            raise ConsumerBusyError(f"subscription {self.name} has other consumers")
        if consumer in self.consumers:
            consumer.is_closed = True
            self.consumers.remove(consumer)
            self.core.detach(consumer, now_ms=self.now_ms())
            self._record()
        try:
            await self.delete()
        except BaseException:
            consumer.session.close_consumer(consumer.consumer_id)  # it may subscribe again
            raise

    def _stop(self) -> None:
        self.runtime.stop()
        self._stop_waiting()
        self._forget_return()

    def _forget_return(self) -> None:
        if self._return_timer is not None:
            self.topic.services.waits.cancel(self._return_timer)
            self._return_timer = None


class AskedReceipt(NamedTuple):
    """The token of a `Receipt`: which requests to answer, and when they arrived."""

    request_ids: list[int]
    received_at: float


class Consumer:
    """A consumer that is attached to a subscription: its client's commands, handed to the machine.

    Acks are the hottest path of the broker. What one received chunk holds is validated and applied in
    one go; only if that fails is every command tried by itself, so that each gets its own answer.
    """

    def __init__(
        self,
        subscription: SubscriptionDriver,
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

    def send(self, delivery: Delivery[Consumer, Entry]) -> None:
        """Send entries to the client."""
        counts, masks = delivery.redelivery_counts, delivery.unacked_masks
        messages = []
        size_bytes = 0
        for place, entry in enumerate(delivery.entries):
            payload = entry.payload
            size_bytes += len(payload)
            messages.append(
                MessageOut(
                    *entry.position,
                    counts[place] if counts is not None else 0,
                    masks[place] if masks is not None else None,
                    payload,
                )
            )
        session, subscription = self.session, self.subscription
        self.bytes_out += size_bytes
        subscription.bytes_out += size_bytes
        partition = subscription.topic.partition
        session.send_messages(self.consumer_id, partition, messages, delivery.epoch)
        if not session.is_writable:
            subscription.core.writable(self, is_writable=False)

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
        gathered = IndividualAcks()
        gathered_commands: list[pb.CommandAck] = []
        for command in commands:
            if command.ack_type == _CUMULATIVE:
                self._apply_individual(gathered, gathered_commands)
                gathered, gathered_commands = IndividualAcks(), []
                self._apply_cumulative(command)
            else:
                try:
                    gathered.add(command)
                except CallerError as error:
                    self.refuse(_request_ids(command), error)
                else:
                    gathered_commands.append(command)
        self._apply_individual(gathered, gathered_commands)

    def _apply_individual(self, acks: IndividualAcks, commands: list[pb.CommandAck]) -> None:
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
                self.refuse(acks.request_ids, error)
                return
            for command in commands:
                alone = IndividualAcks()
                alone.add(command)
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
            mask = unacked_mask(message_id)
            subscription.core.ack_cumulative(
                self, position, unacked_mask=mask, receipt=receipt, now_ms=subscription.now_ms()
            )
        except CallerError as error:
            self.refuse(request_ids, error)
            return
        if subscription.tracing is not None and mask is None:
            since = self.session.received_at
            subscription.tracing.acked_through(self.name, position, since, receipt)
        subscription.changed()

    def _asked(self, request_ids: list[int]) -> AskedReceipt | None:
        return AskedReceipt(request_ids, self.session.received_at) if request_ids else None

    def refuse(self, request_ids: list[int], error: BaseException) -> None:
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


def _request_ids(command: pb.CommandAck) -> list[int]:
    return [command.request_id] if command.HasField("request_id") else []
