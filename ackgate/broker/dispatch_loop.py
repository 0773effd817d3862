"""The loop that gives a subscription's messages out: one round at a time, on the event loop.

Edge. A round asks the dispatcher what to read, reads it (from the cache at once, from a ledger in
a task of its own), hands the entries over and sends what comes of it, until there is nothing to
read or others have waited long enough. Then it waits: for entries or for the gate as an operation of
the broker's purgatory, else for its next deadline. Whoever changes anything asks for a round; since
rounds and changes never overlap, no wake-up is lost between them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.delayed.delivery_times import any_delayed
from ackgate.broker.dispatchers import DUE_WAITING_MAX
from ackgate.broker.reads import PendingRead, SubscriptionReader
from ackgate.broker.wire_types import MessageOut, SubscriptionType
from ackgate.dispatcher.dispatcher import ReadKind
from ackgate.errors import AckGateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.broker.entry import Entry
    from ackgate.broker.managed_ledger import ManagedLedger
    from ackgate.broker.subscription import Subscription
    from ackgate.dispatcher.dispatcher import Delivery, Dispatcher, Read
    from ackgate.dispatcher.gate import Gate
    from ackgate.dispatcher.timing.wheel import Timer

log = logging.getLogger(__name__)

READS_PER_ROUND_MAX: Final = 20
"""Reads of one round before other connections get their turn."""

READ_RETRY_MS: Final = 1_000
"""Pause after a failed read."""

DUE_TAKEN_MAX: Final = 1_000
"""Entries that have fallen due and are taken at once: enough that taking them costs nothing."""

DUE_RETRY_MS: Final = 10
"""Pause before what is said to be due, and cannot be had, is asked for again."""

TIMER_MS_MAX: Final = 60_000
"""No timer is longer, so that a clock that was set forward is noticed."""


class DispatchLoop:
    """The rounds of one subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        topic = subscription.topic
        self._reader = SubscriptionReader(
            topic.ledger,
            subscription.cursor,
            topic.parts.settings.dispatcher.dispatcher_max_read_size_bytes,
        )
        self._is_asked = False
        self._reading: asyncio.Task[None] | None = None
        self._waiting: _Waiting | None = None
        self._finds_delayed = False
        """Whether most of what the last normal read brought was not to be delivered yet."""
        self._told = ""
        """Why the last read failed, as the log has it already."""

    @property
    def is_reading(self) -> bool:
        """Whether entries are being read from storage."""
        return self._reading is not None

    def ask(self) -> None:
        """Have one round run soon."""
        if not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._round)

    async def settle(self) -> None:
        """Wait until no read is under way."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def stop(self) -> None:
        """Wake up no more."""
        if self._waiting is not None:
            waits = self._subscription.topic.parts.waits
            end = waits.cancel if self._waiting.key is None else waits.unpark
            end(self._waiting.timer)
            self._waiting = None

    def _round(self) -> None:
        subscription = self._subscription
        self._is_asked = False
        if self._reading is not None or not self._subscription.may_dispatch:
            return
        lease = subscription.topic.parts.lease
        for _ in range(READS_PER_ROUND_MAX):
            if not lease.holds():  # each time: the process may have been stopped in between
                lease.when_held(self, self.ask)
                return
            read = self._next_read()
            if read is None:
                self._wait()
                return
            # A strict budget is of neighbours: those held back are read through, and count in it.
            hops = subscription.held.is_used and subscription.holds and not self._is_strict
            left_out = subscription.held.left_out if hops else None
            pending = self._reader.begin(read, left_out, scans=hops and self._finds_delayed)
            entries = self._reader.read_cached(pending)
            if entries is None:
                self._reading = asyncio.get_running_loop().create_task(self._read(pending))
                return
            try:
                self._deliver(pending, entries)
            except AckGateError as error:
                self._on_failed(pending, error)
                return
        subscription.ask_round()

    def _next_read(self) -> Read | None:
        subscription = self._subscription
        dispatcher, cursor = subscription.dispatcher, subscription.cursor
        if dispatcher is None:
            return None
        has_unread = self._has_unread()
        held = subscription.held
        if held.is_used and subscription.holds and held.entry_count:
            now_ms = subscription.topic.parts.clock_ms()
            self._queue_due(dispatcher, now_ms)
            has_unread = has_unread and not held.pauses_reads(now_ms, cursor.read_position)
        if not subscription.pauses:
            return dispatcher.next_read(has_unread=has_unread, gate_open=True)
        budget = None
        if subscription.gate.settings.is_strict:
            budget = cursor.entry_budget(
                subscription.gate.settings.ranges_max,
                entries_enough=subscription.topic.parts.settings.dispatcher.dispatcher_max_read_batch_size,
            )
            subscription.gate.budget(budget, subscription.topic.parts.clock_ms())
            subscription.notes.gate()
        if subscription.gate.is_open:
            return dispatcher.next_read(has_unread=has_unread, gate_open=True, entry_budget=budget)
        last_acked = cursor.last_acked_position()
        return dispatcher.next_read(
            has_unread=has_unread,
            gate_open=False,
            entry_budget=budget,
            holes_up_to=last_acked
            if last_acked is not None and last_acked > cursor.read_position
            else None,
            is_acked=cursor.is_acked,
        )

    def _queue_due(self, dispatcher: Dispatcher, now_ms: int) -> None:
        """What has fallen due waits for replay from here on, in bounded numbers."""
        if self._takes_due(dispatcher):
            subscription = self._subscription
            due = subscription.held.take_due(
                now_ms,
                DUE_TAKEN_MAX,
                subscription.cursor.read_position,
                in_order=self._is_strict,
            )
            if due:
                dispatcher.queue_due(due)

    @property
    def _is_strict(self) -> bool:
        """Whether the gate is a budget that nothing may exceed."""
        return self._subscription.pauses and self._subscription.gate.settings.is_strict

    def _takes_due(self, dispatcher: Dispatcher) -> bool:
        subscription_type = self._subscription.type
        return subscription_type is not None and dispatcher.waiting_entries < DUE_WAITING_MAX.get(
            subscription_type, 0
        )

    async def _read(self, pending: PendingRead) -> None:
        try:
            entries = await self._reader.read(pending)
            if self._subscription.topic.parts.lease.holds():
                self._deliver(pending, entries)
            else:  # it ran out meanwhile; the next round waits for it
                self._give_back(pending)
        except AckGateError as error:
            self._on_failed(pending, error)
        else:
            if self._reader.succeeded():
                self._told = ""
            self._subscription.ask_round()
        finally:
            self._reading = None

    def _on_failed(self, pending: PendingRead, error: AckGateError) -> None:
        subscription = self._subscription
        if str(error) != self._told:  # it is tried again every second
            self._told = str(error)
            log.warning(
                "subscription %s of %s: read failed: %s",
                subscription.name,
                subscription.topic.name,
                error,
            )
        self._reader.failed()
        self._give_back(pending)
        subscription.topic.parts.waits.wake_in(READ_RETRY_MS, subscription.ask_round)

    def _give_back(self, pending: PendingRead) -> None:
        subscription = self._subscription
        if subscription.dispatcher is not None:
            subscription.carry_out(
                subscription.dispatcher.read_failed(pending.read, pending.passed_over)
            )

    def _deliver(self, pending: PendingRead, entries: list[Entry]) -> None:
        subscription = self._subscription
        read = pending.read
        dispatcher = subscription.dispatcher
        if dispatcher is None:
            return
        if (
            read.kind is ReadKind.NORMAL
            and (subscription.held.is_used or any_delayed(entries))
            and subscription.holds
        ):
            entries = self._sift(pending, entries)
        columns = self._reader.columns(
            entries,
            key_hash=dispatcher.key_hash,
            with_chunks=subscription.type is SubscriptionType.SHARED,
        )
        for delivery in dispatcher.assign(read, columns):
            self._send(delivery, entries, read.kind)

    def _sift(self, pending: PendingRead, entries: list[Entry]) -> list[Entry]:
        """What of a normal read is to be delivered now."""
        subscription = self._subscription
        prompt = subscription.held.sift(
            entries,
            subscription.topic.parts.clock_ms(),
            is_active=subscription.topic.delayed_delivery.is_active,
        )
        self._finds_delayed = 2 * len(prompt) < len(entries)
        return self._reader.keep_first(pending, prompt)

    def _send(self, delivery: Delivery, entries: list[Entry], kind: ReadKind) -> None:
        subscription = self._subscription
        consumer = subscription.consumers.get(delivery.consumer)
        if consumer is None:
            return
        has_masks = subscription.cursor.partly_acked_count > 0
        unacked_mask = subscription.cursor.unacked_mask
        counts = delivery.redelivery_counts
        messages = []
        size = 0
        for place, index in enumerate(delivery.indexes):
            entry = entries[index]
            payload = entry.payload
            size += len(payload)
            messages.append(
                MessageOut(
                    *entry.position,
                    counts[place] if counts is not None else 0,
                    unacked_mask(entry.position) if has_masks else None,
                    payload,
                )
            )
        subscription.messages_out += delivery.message_count
        subscription.bytes_out += size
        consumer.send(messages, delivery.message_count, size, delivery.epoch)
        if subscription.journal is not None:
            given = [entries[index] for index in delivery.indexes]
            subscription.journal.note_dispatched(
                subscription.name,
                consumer.label,
                [entry.position for entry in given],
                [entry.message_count for entry in given],
                redelivery_counts=counts,
                unacked_masks=[message.unacked_mask for message in messages] if has_masks else None,
                deliver_at_ms=[entry.deliver_at_ms for entry in given]
                if kind is ReadKind.REPLAY
                else None,
            )
        if not consumer.session.is_writable and subscription.dispatcher is not None:
            subscription.dispatcher.set_writable(consumer.key, is_writable=False)

    # ---------------------------------------------------------------- waiting

    def _wait(self) -> None:
        """For entries or for the gate, if it is these that a read needs, and for the next deadline.

        What brings anything else (permits, acks, entries to be delivered again) asks for a round. A
        wait that is as it was stays where it is.
        """
        subscription = self._subscription
        subscription.tracking.pump()
        now_ms = subscription.topic.parts.clock_ms()
        deadline_ms = self._deadline_ms(now_ms)
        key, has_come = self._awaited()
        waiting = self._waiting
        if waiting is not None and waiting.key is key and waiting.deadline_ms == deadline_ms:
            return
        self.stop()
        waits = subscription.topic.parts.waits
        delay_ms = None
        if deadline_ms is not None:
            delay_ms = min(max(0, deadline_ms - now_ms), TIMER_MS_MAX)
        timer = None
        if has_come is not None:
            timer = waits.park(
                key, has_come, self._on_come, delay_ms=delay_ms, expire=self._on_deadline
            )
        elif delay_ms is not None:
            timer = waits.wake_in(delay_ms, self._on_deadline)
        if timer is not None:
            self._waiting = _Waiting(key, deadline_ms, timer)

    def _awaited(self) -> tuple[ManagedLedger | Gate | None, Callable[[], bool] | None]:
        """What a normal read waits for, and how to see that it has come."""
        subscription = self._subscription
        if subscription.dispatcher is None:
            return None, None
        if not self._has_unread():
            return subscription.topic.ledger, self._has_unread
        if subscription.pauses and not subscription.gate.is_open:
            return subscription.gate, self._is_gate_open
        return None, None

    def _has_unread(self) -> bool:
        subscription = self._subscription
        return subscription.cursor.read_position <= subscription.topic.ledger.facts.last_confirmed

    def _is_gate_open(self) -> bool:
        return self._subscription.gate.is_open

    def _deadline_ms(self, now_ms: int) -> int | None:
        """The dispatcher's, the gate's, or that of what is held."""
        subscription = self._subscription
        deadlines = [subscription.gate.next_deadline_ms]
        if subscription.dispatcher is not None:
            deadlines.append(subscription.dispatcher.next_deadline_ms)
            # Who makes room where too much waits already asks for a round.
            held = subscription.held
            if held.is_used and subscription.holds and self._takes_due(subscription.dispatcher):
                held_ms = held.next_deadline_ms
                is_overdue = held_ms is not None and held_ms <= now_ms
                deadlines.append(now_ms + DUE_RETRY_MS if is_overdue else held_ms)
        return min((known for known in deadlines if known is not None), default=None)

    def _on_come(self) -> None:
        self._waiting = None
        self._subscription.ask_round()

    def _on_deadline(self) -> None:
        subscription = self._subscription
        self._waiting = None
        now_ms = subscription.topic.parts.clock_ms()
        subscription.gate.advance(now_ms)
        subscription.notes.gate()
        if subscription.dispatcher is not None:
            subscription.carry_out(subscription.dispatcher.advance(now_ms))
        subscription.ask_round()


class _Waiting(NamedTuple):
    """What the next round waits for."""

    key: ManagedLedger | Gate | None
    """None: for its deadline only."""
    deadline_ms: int | None
    timer: Timer
