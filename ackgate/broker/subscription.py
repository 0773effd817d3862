"""One subscription: cursor, store, gate and dispatcher, and the loop that joins them.

Edge, and the one place where the pure parts meet. It owns a `ManagedCursor` (with its `CursorStore`
unless it is a reader's), a `Gate`, a `Dispatcher` and its `HeldEntries`; everybody else reads.
Whatever happens (acks, permits, entries, outcomes) is told to them at once, and one dispatch round
is asked for; rounds run on the event loop, one at a time, so no wake-up is lost between them::

    acks ---> cursor ---> gate.observe           permits, redeliveries ---> dispatcher
                |                                                               |
                +--> store.notify ... outcome ---> gate.persisted               |
                                                        |                       v
                            round: dispatcher.next_read(gate) -> entries -> assign -> MESSAGE
"""

from __future__ import annotations

import logging
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ackgate.broker.consumer import Consumer
from ackgate.broker.cursor_moves import CursorMoves
from ackgate.broker.delayed.held import HeldEntries
from ackgate.broker.delayed.lost_entries import LostEntries
from ackgate.broker.delayed.nacks import HeldNacks
from ackgate.broker.delayed.shared import SharedTracking
from ackgate.broker.delayed.statistics import NackStatistics
from ackgate.broker.delayed.trackers import TrackerHome
from ackgate.broker.dispatch_loop import DispatchLoop
from ackgate.broker.dispatchers import (
    HOLDING_TYPES,
    delay_settings,
    dispatch_limits,
    gate_settings,
    make_dispatcher,
)
from ackgate.broker.errors import NotAllowedError, ServiceNotReadyError
from ackgate.broker.journal.store_witness import StoreWitness
from ackgate.broker.journal.subscription_notes import SubscriptionNotes
from ackgate.cursor.managed_cursor import ManagedCursor
from ackgate.dispatcher.dispatcher import ActiveConsumerChanged, ReadFrom, Rewind
from ackgate.dispatcher.gate import Gate
from ackgate.errors import CallerError, ConsumerBusyError, OwnershipError
from ackgate.persistence.outcome import RecoverySource
from ackgate.persistence.paths import cursor_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ackgate.broker.ports import SessionPort
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire_types import SubscribeRequest, SubscriptionType
    from ackgate.cursor.position import Position
    from ackgate.dispatcher.dispatcher import Dispatcher, Effect
    from ackgate.persistence.cursor_store import CursorStore

log = logging.getLogger(__name__)


class Subscription:
    """A subscription of a loaded topic."""

    def __init__(
        self, topic: Topic, name: str, cursor: ManagedCursor, store: CursorStore | None
    ) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.store = store
        self.journal = topic.journal
        self.type: SubscriptionType | None = None
        self.consumers: dict[int, Consumer] = {}
        self.dispatcher: Dispatcher | None = None
        self.gate = Gate(gate_settings(topic, None), topic.parts.clock_ms())
        self.lost = LostEntries(self)
        own = TrackerHome(
            topic.parts,
            cursor_path(topic.path, name),
            cursor,
            store,
            on_change=self.ask_round,
            on_lost=self.lost.add,
        )
        self.tracking: TrackerHome | SharedTracking = own
        if topic.shared_delays.is_on and store is not None:
            self.tracking = SharedTracking(self, topic.shared_delays, own)
        self.held = HeldEntries(self.tracking.make, delay_settings(topic))
        self.nacks: HeldNacks | None = None
        """What was given back and is held back. None: a reader's, or there never was a policy."""
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_acked = 0
        self.last_flow_ms = 0
        self.last_sent_ms = 0
        self.last_acked_ms = 0
        self.last_mark_delete_ms = 0
        self.gate_opened_at_ms: int | None = None
        self.moves = CursorMoves(self)
        self.notes = SubscriptionNotes(self)
        self._dispatch_loop = DispatchLoop(self)
        self._next_key = 0
        self._messages_redelivered = 0  # for consumers that have left
        self._mark_delete_seen = cursor.mark_delete
        self._is_busy = False
        self._is_closed = False
        if store is not None:
            store.on_outcome(self._on_outcome)
            if self.journal is not None:
                store.tell_attempts(StoreWitness(self.journal, name))
            if store.outcome is not None:
                self._on_outcome()
        self._configure_nacks()
        self._begin(cursor, store)
        self._observe()
        if self.tracking.remembers and topic.delayed_delivery.is_active:
            self.held.start()

    @classmethod
    def for_reader(cls, topic: Topic, name: str, first_read: Position) -> Subscription:
        """A reader's subscription: nothing of it is kept."""
        cursor = ManagedCursor(
            topic.ledger.facts,
            topic.ledger.facts.previous(first_read),
            batch_index_acks=topic.parts.settings.cursor.acknowledgment_at_batch_index_level_enabled,
            track_growth=False,
        )
        return cls(topic, name, cursor, None)

    def _begin(self, cursor: ManagedCursor, store: CursorStore | None) -> None:
        """Ack what is cancelled, and tell the journal where this begins."""
        is_new = store is None or store.report.source is RecoverySource.NEW
        if is_new:
            self.notes.new()
        tell = self.notes.tell_cancelled if is_new else None
        if self.topic.cancelled.ack_in(cursor, tell) and store is not None:
            store.notify()
        if not is_new:
            self.notes.recovered()

    @property
    def acks_batch_indexes(self) -> bool:
        """Whether a part of a batch can be acked."""
        return self.topic.parts.settings.cursor.acknowledgment_at_batch_index_level_enabled

    @property
    def is_durable(self) -> bool:
        """False for a reader's."""
        return self.store is not None

    @property
    def persisted_mark_delete(self) -> Position:
        """Everything up to here is acked, durably: message ledgers below may be trimmed."""
        return self.cursor.mark_delete if self.store is None else self.store.persisted_mark_delete

    @property
    def is_reading(self) -> bool:
        """Whether entries are being read from storage."""
        return self._dispatch_loop.is_reading

    @property
    def messages_redelivered(self) -> int:
        """Messages that consumers asked for again."""
        present = sum(consumer.messages_redelivered for consumer in self.consumers.values())
        return self._messages_redelivered + present

    @property
    def pauses(self) -> bool:
        """Whether the gate may shut: the feature is on, and the type is Shared or Key_Shared."""
        return self.gate.settings.enabled

    @property
    def holds(self) -> bool:
        """Whether delayed entries wait for their time: they do for Shared and Key_Shared.

        For the other types what is held is read like anything else, and stays in the index.
        """
        return self.store is not None and self.type in HOLDING_TYPES

    # ---------------------------------------------------------------- consumers

    async def add_consumer(self, session: SessionPort, request: SubscribeRequest) -> Consumer:
        """Attach a consumer. Raises `ConsumerBusyError`, `ConsumerAssignError`."""
        self._check_idle()
        if self.consumers and request.subscription_type is not self.type:
            raise ConsumerBusyError(
                f"subscription {self.name} has consumers of another type than "
                f"{request.subscription_type.name}"
            )
        now_ms = self.topic.parts.clock_ms()
        if (
            self.dispatcher is None
            or request.subscription_type is not self.type
            or (not self.consumers and request.key_shared is not None)
        ):
            self.type = request.subscription_type
            self.dispatcher = make_dispatcher(self.topic, request)
            self.gate.configure(gate_settings(self.topic, self.type), now_ms)
        key = self._next_key
        self._next_key += 1
        consumer = Consumer(self, session, request, key)
        effects = self.dispatcher.add_consumer(key, consumer.spec, now_ms)
        self.consumers[key] = consumer
        self.notes.consumer_added(consumer, request)
        self.carry_out(effects)
        self.ask_round()
        return consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer left; what it did not ack goes to the others."""
        if self.consumers.pop(consumer.key, None) is None or self.dispatcher is None:
            return
        self.notes.consumer_left(consumer)
        self._messages_redelivered += consumer.messages_redelivered
        self.carry_out(self.dispatcher.remove_consumer(consumer.key, self.topic.parts.clock_ms()))
        if not self.consumers and not self.is_durable:
            self._is_closed = True
            self.topic.remove_subscription(self)
            return
        self.ask_round()

    def disconnect_consumers(self, service_url: str = "") -> None:
        """Send all consumers away; clients subscribe again, at this address or by a lookup."""
        for consumer in list(self.consumers.values()):
            consumer.disconnect(service_url)

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Do what the dispatcher says must be done at once, in its order."""
        for effect in effects:
            match effect:
                case Rewind():
                    self.cursor.rewind()
                    self.held.rewound()
                case ReadFrom(position=position):
                    self.cursor.seek(position)
                case ActiveConsumerChanged(consumer=key, is_active=is_active):
                    consumer = self.consumers.get(key)
                    if consumer is not None:
                        consumer.session.send_active_consumer_change(
                            consumer.consumer_id, is_active=is_active
                        )

    # ---------------------------------------------------------------- facts

    def on_acked(self) -> None:
        """The cursor's state has changed: by acks, a skip, a reset."""
        self._observe()
        if self.store is not None:
            self.store.notify()
        if self.topic.ledger.is_terminated:
            self.tell_end_if_reached()
        self.tracking.pump()
        self.ask_round()

    def ack_elsewhere(self, positions: Sequence[Position]) -> int:
        """Ack whole entries on behalf of nobody here, all or none: of a cancel, say.

        Returns how many were unacked. Raises `PositionError`.
        """
        acked = self.cursor.ack_individual(positions)
        self.notes.acked(None, positions)
        self.held.discard(positions)
        if self.dispatcher is not None:
            self.dispatcher.acked_many(None, positions)
        self.on_acked()
        return acked

    def ledger_trimmed(self, ledger_id: int) -> None:
        """A message ledger is gone, and what was acked in it."""
        self.cursor.ledger_trimmed(ledger_id)
        self.on_acked()

    def tell_end_if_reached(self) -> None:
        """Tell consumers when the topic takes no more messages and all there are are acked."""
        if self.topic.ledger.is_terminated and self.cursor.backlog_entries == 0:
            for consumer in self.consumers.values():
                consumer.session.send_reached_end_of_topic(consumer.consumer_id)

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None
    ) -> None:
        """A consumer wants these again (None: all that it has not acked)."""
        if self.dispatcher is None or consumer.is_closed:
            return
        self.notes.asked_again(consumer, positions)
        if self.nacks is not None and self.nacks.is_active and self.holds:
            self._hold_back(self.dispatcher, self.nacks, consumer.key, positions)
        else:
            self.carry_out(self.dispatcher.redeliver(consumer.key, positions, epoch=epoch))
        self.ask_round()

    def _hold_back(
        self,
        dispatcher: Dispatcher,
        nacks: HeldNacks,
        consumer: int,
        positions: Sequence[Position] | None,
    ) -> None:
        """By the policy `redeliveryBackoff`: not at once, and later each time."""
        given_back = dispatcher.hold(consumer, positions)
        if given_back:
            times_before = [dispatcher.redelivery_count(position) - 1 for position in given_back]
            now_ms = self.topic.parts.clock_ms()
            dispatcher.queue_due(nacks.hold(given_back, times_before, now_ms, random.random))
            if self.store is not None:
                self.store.notify()

    def _configure_nacks(self) -> None:
        """Entries are held back where a policy says so, and where some are held back already."""
        store, policy = self.store, self.topic.policies.redelivery_backoff()
        if self.nacks is None and store is not None and (policy or store.recovered_nacks):
            self.nacks = HeldNacks(store.recovered_nacks)
            store.keep_nacks(self.nacks)
            self.held.hold_nacks(self.nacks)
        if self.nacks is not None:
            self.nacks.configure(policy)

    def nack_statistics(self) -> NackStatistics:
        """What is held back after it was given back. O(1)."""
        if self.nacks is None or self.store is None:
            return NackStatistics()
        kept = self.store.statistics()
        return self.nacks.statistics(persisted=kept.nacks_persisted, dropped=kept.nacks_dropped)

    def when_durable(self, done: Callable[[BaseException | None], None]) -> None:
        """Call `done` when all acked so far is durable (at once where receipts mean applied)."""
        store = self.store
        if (
            store is None
            or self.topic.parts.settings.persistence.ack_receipt_durability == "applied"
        ):
            done(None)
        else:
            store.when_durable(self.cursor.version, done)

    def configure(self) -> None:
        """Settings or policies have changed."""
        now_ms = self.topic.parts.clock_ms()
        self.gate.configure(gate_settings(self.topic, self.type), now_ms)
        self.held.configure(delay_settings(self.topic))
        self._configure_nacks()
        if self.store is not None:
            self.store.configure(self.topic.parts.settings.persistence)
        if self.dispatcher is not None:
            self.dispatcher.configure(dispatch_limits(self.topic.parts.settings.dispatcher))
        self._observe()
        self.ask_round()

    def _observe(self) -> None:
        cursor = self.cursor
        was_open = self.gate.is_open
        now_ms = self.topic.parts.clock_ms()
        if cursor.mark_delete != self._mark_delete_seen:
            self._mark_delete_seen = cursor.mark_delete
            self.last_mark_delete_ms = now_ms
            self.held.forget_through(cursor.mark_delete)
        self.gate.observe(
            ranges_live=cursor.range_count,
            batch_indexes_live=cursor.partly_acked_count,
            now_ms=now_ms,
        )
        if self.gate.settings.is_strict and self.pauses:
            budget = cursor.entry_budget(self.gate.settings.ranges_max, entries_enough=1)
            self.gate.budget(budget, now_ms)
        self.notes.gate()
        if self.gate.is_open and not was_open:
            self.gate_opened_at_ms = now_ms
            self.topic.parts.waits.came(self.gate)

    def _on_outcome(self) -> None:
        store = self.store
        if store is None:
            return
        now_ms = self.topic.parts.clock_ms()
        outcome = store.outcome
        # While writes fail, the last one that succeeded is old news, and no end of the failure.
        if outcome is not None and store.failing_since_ms is None:
            self.gate.persisted(outcome, now_ms)
        self.gate.persist_failing(store.failing_since_ms, now_ms)
        self.notes.gate()
        if isinstance(store.why_stopped, OwnershipError) and not self.topic.is_closing:
            self.topic.on_fenced(store.why_stopped)
            return
        self.topic.on_persisted(self)
        self.ask_round()

    # ---------------------------------------------------------------- dispatch

    def ask_round(self) -> None:
        """Have one dispatch round run soon. Cheap; asking twice is one round."""
        if self.consumers and not self._is_closed:
            self._dispatch_loop.ask()

    @property
    def may_dispatch(self) -> bool:
        """False while the cursor is being moved, and after closing."""
        return not self._is_busy and not self._is_closed

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No consumer, and nothing under way; after it they may come back."""
        self._check_idle()
        self._is_busy = True
        try:
            self.disconnect_consumers()
            await self._dispatch_loop.settle()
            yield
        finally:
            self._is_busy = False
            self.ask_round()

    # ---------------------------------------------------------------- ending

    async def flush(self) -> None:
        """Persist what is dirty."""
        if self.store is not None:
            await self.store.flush()

    async def close(self) -> None:
        """Deliver no more and persist what is dirty. Consumers are sent away by the topic."""
        self._is_closed = True
        self._dispatch_loop.stop()
        self.lost.stop()
        await self._dispatch_loop.settle()
        await self.tracking.close()
        if self.store is not None:
            await self.store.close()

    def abandon(self, error: OwnershipError) -> None:
        """Deliver no more, and write no more: somebody else may own the topic."""
        self._is_closed = True
        self._dispatch_loop.stop()
        self.lost.stop()
        self.tracking.abandon()
        if self.store is not None:
            self.store.abandon(error)

    async def delete(self) -> None:
        """Remove the subscription for good."""
        self._stop()
        await self.tracking.close(is_kept=False)
        if self.store is not None:
            await self.store.delete()
            await self.tracking.delete()
        self.topic.remove_subscription(self)

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        """Delete on behalf of a consumer. Raises `ConsumerBusyError` if there are others."""
        if len(self.consumers) > 1 and not force:
            raise ConsumerBusyError(f"subscription {self.name} has other consumers")
        if self.consumers.pop(consumer.key, None) is not None:
            self.notes.consumer_left(consumer)
        if not self.is_durable:
            raise NotAllowedError(f"subscription {self.name} is that of a reader")
        await self.delete()

    def _stop(self) -> None:
        self._is_closed = True
        self.disconnect_consumers()
        self._dispatch_loop.stop()
        self.lost.stop()

    def _check_idle(self) -> None:
        if self._is_closed or self._is_busy:
            raise ServiceNotReadyError(f"subscription {self.name} is being moved or closed")

    def check_deletable(self) -> None:
        """Raises `CallerError` while consumers are connected."""
        if self.consumers:
            raise CallerError(f"subscription {self.name} has {len(self.consumers)} consumers")
