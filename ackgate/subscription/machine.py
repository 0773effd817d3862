"""One subscription as a state machine: cursor, gate, dispatcher, and what is held back.

Pure. The host calls what happened, with the time; `ready` returns everything there is to do::

    attach, detach, flow, writable      consumers and their permits
    ack, ack_cumulative, ack_many       acks                              ready(now_ms)
    redeliver                           negative acks, time-outs      ->    .read
    read_done, read_failed              what a `Ready.read` brought         .deliveries
    persisted, persist_failed           what a `Ready.write` came to        .write
    seek, skip, clear_backlog, expire   moves by an administrator           .receipts
    hold, lost                          delayed entries                     .wake_at_ms

The message ledgers are the host's: it adds entries to them and then asks `ready`.

The one order of an ack: cursor, note, held entries, dispatcher, gate, receipt. A call is applied whole
or raises and changes nothing. The same calls with the same times give the same `Ready`s.

It refuses to read, write, send or wait, and knows no clock. Invariants (`check`): those of its parts; no
entry is both held and in flight; a receipt that waits is of a version that is not durable; one read is
under way at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic

import numpy as np
from pyroaring import BitMap

from ackgate.config import defaults
from ackgate.cursor import (
    ARRAY_PATH_POSITIONS_MIN,
    LATEST,
    NO_NACKS,
    Cleared,
    Expired,
    ManagedCursor,
    Position,
    Skipped,
    Sought,
    bitmap_of,
    run_of_positions,
)
from ackgate.dispatcher import (
    ActiveConsumerChanged,
    ConsumerSpec,
    DispatchLimits,
    Gate,
    GateSettings,
    ReadKind,
    Rewind,
    Shared,
)
from ackgate.dispatcher.delayed import DelaySettings, TimeBucketTracker
from ackgate.dispatcher.nacks import deadline_ms
from ackgate.errors import CallerError, ConsumerBusyError, PositionError
from ackgate.subscription import notes
from ackgate.subscription.entries import ConsumerT, EntryT
from ackgate.subscription.held import HeldEntries, HeldNacks
from ackgate.subscription.reading import CursorReads, joined
from ackgate.subscription.ready import (
    ActiveChange,
    Awaited,
    Delivery,
    ReadRequest,
    Ready,
    Receipt,
    ReceiptQueue,
    Write,
)
from ackgate.subscription.statistics import AttachedConsumer, ConsumerCounts, SubscriptionStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike

    from ackgate.cursor import CursorMove, MessageLedgers, PendingNacks, Span, WrittenCounts
    from ackgate.dispatcher import (
        Assignment,
        ConsumerStatistics,
        Dispatcher,
        DispatcherStatistics,
        Effect,
        SubscriptionKind,
    )
    from ackgate.dispatcher.delayed import DelayedTracker
    from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
    from ackgate.errors import AckGateError
    from ackgate.subscription.notes import Note, PartialAck

WRITE_RETRY_MS: Final = 1_000
"""Pause after a failed write, before the next one is offered."""

NEVER_OFFERED: Final = -1
"""No version of the held nacks: none is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """The settings of a subscription. Replaced as a whole by `Subscription.configure`."""

    gate: GateSettings = field(default_factory=GateSettings)
    """For the kinds that hold; the gate of the other kinds never shuts."""

    limits: DispatchLimits = field(default_factory=DispatchLimits)
    delays: DelaySettings = field(default_factory=DelaySettings)

    delays_enabled: bool = True
    """``delayedDeliveryEnabled``: off, delayed entries are delivered as they are read."""

    backoff: MultiplierRedeliveryBackoff | None = None
    """How long negatively acked entries wait. None: they are redelivered at once, unless the call
    names a delay."""

    receipts_mean_durable: bool = True
    """``ackReceiptDurability`` is ``persisted``. False: a receipt means applied, as Pulsar's."""

    receipt_timeout_ms: int = 1000 * defaults.RECEIPT_TIMEOUT_SECONDS
    """A receipt that waits longer is an error (``ackReceiptTimeoutSeconds``)."""


def _check_permits(permits: int) -> None:
    if permits < 0:
        raise CallerError(f"a consumer cannot take {permits} messages")


class Subscription(Generic[ConsumerT, EntryT]):
    """One subscription. One owner calls it; everybody else reads `statistics`.

    Consumers are whatever the host names them by: any hashable object, once at a time.
    """

    __slots__ = (
        "_active_changes",
        "_by_key",
        "_chance",
        "_consumers",
        "_cursor",
        "_deliveries",
        "_dispatcher",
        "_entries_expired",
        "_gate",
        "_gate_opened_at_ms",
        "_gate_reasons",
        "_held",
        "_is_durable",
        "_is_suspended",
        "_is_write_offered",
        "_kind",
        "_last_expired_ms",
        "_last_mark_delete_ms",
        "_ledgers",
        "_mark_delete_seen",
        "_nacks_offered",
        "_next_key",
        "_notes",
        "_reads",
        "_receipts",
        "_redelivered_by_gone",
        "_settings",
        "_total",
        "_version_at_assignment",
        "_was_gate_open",
        "_write_at_ms",
    )

    def __init__(
        self,
        ledgers: MessageLedgers,
        *,
        kind: SubscriptionKind | None = Shared(),  # noqa: B008 - frozen
        gate: GateSettings | None = None,
        settings: SubscriptionSettings | None = None,
        cursor: ManagedCursor | None = None,
        nacks: PendingNacks = NO_NACKS,
        is_durable: bool = True,
        make_tracker: Callable[[DelaySettings], DelayedTracker] = TimeBucketTracker,
        chance: Callable[[], float] = lambda: 0.0,
        keeps_notes: bool = False,
        now_ms: int = 0,
    ) -> None:
        """A subscription of the topic with these ledgers.

        `kind` None: the first consumer decides. `gate` replaces that of the settings. `cursor`: a
        recovered one; None: nothing is acked. `nacks`: what a recovered one held back. `is_durable`
        False: nothing is ever written. `chance`: a number from 0 to 1, for the jitter of a backoff.
        """
        settings = settings or SubscriptionSettings()
        self._settings = settings if gate is None else replace(settings, gate=gate)
        self._ledgers = ledgers
        self._cursor = (
            ManagedCursor(ledgers, ledgers.first_position, track_growth=is_durable)
            if cursor is None
            else cursor
        )
        self._kind: SubscriptionKind | None = kind
        self._dispatcher: Dispatcher | None = None
        self._gate = Gate(self._gate_settings(), now_ms)
        self._held = HeldEntries(make_tracker, self._settings.delays)
        self._reads = CursorReads(ledgers, self._cursor, self._gate, self._held)
        self._is_durable = is_durable
        if kind is not None:
            self._dispatcher = kind.dispatcher(self._settings.limits)
            self._reads.serve(self._dispatcher, kind, holds=self.holds)
        self._chance = chance
        self._consumers: dict[ConsumerT, AttachedConsumer[ConsumerT]] = {}
        self._by_key: dict[int, AttachedConsumer[ConsumerT]] = {}
        self._next_key = 0
        self._total: AttachedConsumer[None] = AttachedConsumer(None, -1)
        self._redelivered_by_gone = 0
        self._last_mark_delete_ms = 0
        self._gate_opened_at_ms: int | None = None
        self._entries_expired = 0
        self._last_expired_ms = 0

        self._is_suspended = False
        self._deliveries: list[Delivery[ConsumerT, EntryT]] = []
        self._version_at_assignment = 0
        """Of the oldest delivery that is not taken."""
        self._active_changes: list[ActiveChange[ConsumerT]] = []
        self._receipts: ReceiptQueue[ConsumerT] = ReceiptQueue(self._cursor.version)
        self._nacks_offered = 0
        self._is_write_offered = False
        self._write_at_ms = 0
        self._notes: list[Note] | None = [] if keeps_notes else None
        self._was_gate_open = True
        self._gate_reasons: list[str] = []
        self._mark_delete_seen = self._cursor.mark_delete

        if nacks:
            self._held.hold_nacks(HeldNacks(nacks))
        self._configure_nacks()
        self._observe(now_ms)

    # ---------------------------------------------------------------- to be read, not changed

    @property
    def cursor(self) -> ManagedCursor:
        """The ack state. A store may take snapshots and growth from it; only the machine changes it."""
        return self._cursor

    @property
    def gate(self) -> Gate:
        """Whether normal reads go on, and why not."""
        return self._gate

    @property
    def kind(self) -> SubscriptionKind | None:
        """How messages are shared out; None before the first consumer of a subscription without."""
        return self._kind

    @property
    def held_nacks(self) -> HeldNacks | None:
        """What is held back after negative acks, for persistence; None: nothing ever was."""
        return self._held.nacks

    @property
    def tracker(self) -> DelayedTracker | None:
        """The delayed tracker; None before the first delayed entry."""
        return self._held.tracker

    @property
    def holds(self) -> bool:
        """Whether delayed and nacked entries wait for their time: a durable one of such a kind."""
        return self._is_durable and self._kind is not None and self._kind.holds

    @property
    def counts(self) -> ConsumerCounts:
        """What all consumers did, those that have left included."""
        redelivered = sum(map(self._redelivered, self._by_key), self._redelivered_by_gone)
        return self._total.counts(redelivered)

    def counts_of(self, consumer: ConsumerT) -> ConsumerCounts:
        """What one attached consumer did. Raises `CallerError`."""
        known, _ = self._known(consumer)
        return known.counts(self._redelivered(known.key))

    def dispatch_of(self, consumer: ConsumerT) -> ConsumerStatistics | None:
        """The consumer as its dispatcher sees it: permits, unacked messages; None: not attached.

        Key_Shared: O(consumers). Of all consumers: `SubscriptionStatistics.dispatched`.
        """
        known = self._consumers.get(consumer)
        if known is None or self._dispatcher is None:
            return None
        return self._dispatcher.consumer_statistics(known.key)

    @property
    def dispatching(self) -> DispatcherStatistics | None:
        """What the dispatcher knows; None before the first consumer. O(consumers)."""
        return None if self._dispatcher is None else self._dispatcher.statistics()

    def first_in_flight(self, consumer: ConsumerT) -> Position | None:
        """The entry that the consumer has had for the longest time; None: it has none.

        Exclusive and Failover, which do not follow what they sent: the first that was read and is not acked.
        """
        known, dispatcher = self._consumers.get(consumer), self._dispatcher
        if known is None or dispatcher is None:
            return None
        if dispatcher.active_consumer is None:
            return next(iter(dispatcher.in_flight(known.key)), None)
        first = self._ledgers.next_valid(self._cursor.mark_delete)
        is_sent = dispatcher.active_consumer == known.key and first < self._cursor.read_position
        return first if is_sent else None

    @property
    def entries_expired(self) -> int:
        """Entries whose time to live was over."""
        return self._entries_expired

    @property
    def is_reading(self) -> bool:
        """Whether a `Ready.read` is not answered yet."""
        return self._reads.is_under_way

    @property
    def has_unread(self) -> bool:
        """Whether there are entries from the read position on."""
        return self._reads.has_unread

    @property
    def active_consumer(self) -> ConsumerT | None:
        """Exclusive and Failover: the one that is served. Else None."""
        key = None if self._dispatcher is None else self._dispatcher.active_consumer
        return None if key is None else self._by_key[key].identity

    def holder(self, position: Position) -> ConsumerT | None:
        """The consumer that has the entry; None: none. O(consumers).

        Exclusive and Failover: the active one, of everything that was read and is not acked.
        """
        dispatcher = self._dispatcher
        if dispatcher is None or self._cursor.is_acked(position):
            return None
        key = dispatcher.holder(position)
        if key is None and position < self._cursor.read_position:
            key = dispatcher.active_consumer
        return None if key is None else self._by_key[key].identity

    def is_held(self, position: Position) -> bool:
        """Whether the entry waits for its delivery time, or after a negative ack."""
        return position in self._held

    def redelivery_count(self, position: Position) -> int:
        """How often the entry was given back so far: what its next delivery will say."""
        return 0 if self._dispatcher is None else self._dispatcher.redelivery_count(position)

    # ---------------------------------------------------------------- consumers

    def attach(
        self,
        consumer: ConsumerT,
        *,
        now_ms: int,
        permits: int = 0,
        kind: SubscriptionKind | None = None,
        name: str | None = None,
        priority: int = 0,
        hash_ranges: tuple[tuple[int, int], ...] = (),
        epoch: int | None = None,
    ) -> None:
        """A consumer subscribed. `name` (else the consumer as text) decides ties; see `ConsumerSpec`.

        A subscription without consumers takes the `kind` of its first. Raises `ConsumerBusyError`
        (another kind, or Exclusive and taken), `ConsumerAssignError` (hash ranges), `CallerError`
        (attached already, or no kind).
        """
        if consumer in self._consumers:
            raise CallerError(f"consumer {consumer} is attached already")
        wanted = kind or self._kind
        if wanted is None:
            raise CallerError(f"consumer {consumer} names no kind, and the subscription has none")
        if self._consumers and type(wanted) is not type(self._kind):
            raise ConsumerBusyError(
                f"the subscription has consumers of another type than {type(wanted).__name__}"
            )
        _check_permits(permits)
        dispatcher = self._dispatcher
        if dispatcher is None or (not self._consumers and wanted != self._kind):
            dispatcher = wanted.dispatcher(self._settings.limits)
        key = self._next_key
        spec = ConsumerSpec(str(consumer) if name is None else name, priority, hash_ranges, epoch)
        effects = dispatcher.add_consumer(key, spec, now_ms)
        if dispatcher is not self._dispatcher:
            self._kind, self._dispatcher = wanted, dispatcher
            self._reads.serve(dispatcher, wanted, holds=self.holds)
            self._gate.configure(self._gate_settings(), now_ms)
        self._next_key += 1
        self._consumers[consumer] = self._by_key[key] = AttachedConsumer(consumer, key)
        if permits:
            dispatcher.add_permits(key, permits)
        if self._notes is not None:
            self._notes.append(notes.Attached(consumer, wanted))
        self._gate_moved(now_ms)
        self._carry_out(effects)

    def detach(self, consumer: ConsumerT, *, now_ms: int) -> bool:
        """A consumer left: what it did not ack goes to the others. Returns whether it was there."""
        known = self._consumers.get(consumer)
        if known is None:
            return False
        dispatcher = self._dispatcher
        assert dispatcher is not None
        if self._notes is not None:
            self._note_given_back(known, "consumer_closed", None)
            self._notes.append(notes.Detached(consumer))
        self._redelivered_by_gone += self._redelivered(known.key)
        del self._consumers[consumer], self._by_key[known.key]
        self._deliveries = [d for d in self._deliveries if d.consumer != consumer]
        self._active_changes = [c for c in self._active_changes if c.consumer != consumer]
        self._carry_out(dispatcher.remove_consumer(known.key, now_ms))
        return True

    def flow(self, consumer: ConsumerT, permits: int, *, now_ms: int) -> None:
        """Add permits: the consumer takes so many more messages.

        Raises `CallerError` for a negative number.
        """
        known, dispatcher = self._known(consumer)
        _check_permits(permits)
        known.last_flow_ms = self._total.last_flow_ms = now_ms
        dispatcher.add_permits(known.key, permits)

    def writable(self, consumer: ConsumerT, *, is_writable: bool) -> None:
        """Set whether the consumer's connection takes bytes.

        While it does not, it is assigned nothing.
        """
        known, dispatcher = self._known(consumer)
        dispatcher.set_writable(known.key, is_writable=is_writable)

    def _known(self, consumer: ConsumerT) -> tuple[AttachedConsumer[ConsumerT], Dispatcher]:
        known = self._consumers.get(consumer)
        if known is None or self._dispatcher is None:
            raise CallerError(f"consumer {consumer} is not attached")
        return known, self._dispatcher

    def _redelivered(self, key: int) -> int:
        assert self._dispatcher is not None
        return self._dispatcher.messages_redelivered(key)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out the dispatcher's effects, in their order."""
        for effect in effects:
            match effect:
                case Rewind():
                    self._cursor.rewind()
                    self._forget_reads()
                case ActiveConsumerChanged(consumer=key, is_active=is_active):
                    if (known := self._by_key.get(key)) is not None:
                        self._active_changes.append(ActiveChange(known.identity, is_active))

    def _forget_reads(self) -> None:
        """The read position went back: unheld entries are read again, unless they were assigned."""
        untaken, self._deliveries = self._deliveries, []
        for delivery in untaken:
            self._refund(delivery, 0)
        self._held.rewound()
        self._reads.rewound()

    # ---------------------------------------------------------------- acks

    def ack(
        self,
        consumer: ConsumerT | None,
        positions: Sequence[Position],
        *,
        now_ms: int,
        parts: Sequence[tuple[Position, int]] = (),
        receipt: object = None,
    ) -> int:
        """Ack whole entries and `parts` of batches, all or none. Returns how many entries became acked.

        `parts`: (position, mask of the batch indexes that stay *un*acked). `consumer` None: none of
        this subscription, a cancel for one. `receipt`: comes back in `Ready.receipts` when the acks
        are durable. Raises `PositionError` for an entry that does not exist.
        """
        cursor = self._cursor
        before = self._partial_acks(parts)
        if parts:
            acked = cursor.ack_mixed([*((position, None) for position in positions), *parts])
        elif len(positions) == 1:
            acked = int(cursor.ack(positions[0]))
        else:
            acked = cursor.ack_individual(positions)
        if self._notes is not None:
            if before:
                note = notes.AckedMixed(consumer, positions, before, cursor.version)
                self._notes.append(note)
            elif positions:
                at_once = not parts and len(positions) >= ARRAY_PATH_POSITIONS_MIN
                self._notes.append(notes.Acked(consumer, positions, cursor.version, at_once))
        whole = positions
        if parts:
            whole = [*positions, *(at for at, _ in parts if cursor.is_acked(at))]
        self._held.discard(whole)
        known = self._count_acks(consumer, len(positions) + len(parts), now_ms)
        dispatcher = self._dispatcher
        if dispatcher is not None:
            key = None if known is None else known.key
            if whole:
                dispatcher.acked_many(key, whole)
            for position, _ in parts:
                if (mask := cursor.unacked_mask(position)) is not None:
                    dispatcher.acked_partly(key, position, mask.bit_count())
        self._observe(now_ms)
        self._ask_receipt(consumer, receipt, now_ms)
        return acked

    def _partial_acks(self, parts: Sequence[tuple[Position, int]]) -> Sequence[PartialAck]:
        """The state of each batch before the ack, for a note; none without notes."""
        if self._notes is None or not parts or not self._cursor.acks_batch_indexes:
            return ()
        cursor = self._cursor
        return [
            notes.PartialAck(
                position, mask, cursor.unacked_mask(position), cursor.is_acked(position)
            )
            for position, mask in parts
        ]

    def _count_acks(
        self, consumer: ConsumerT | None, messages: int, now_ms: int
    ) -> AttachedConsumer[ConsumerT] | None:
        known = None if consumer is None else self._consumers.get(consumer)
        if known is not None:
            known.messages_acked += messages
            known.last_acked_ms = now_ms
            self._total.messages_acked += messages
            self._total.last_acked_ms = now_ms
        return known

    def ack_cumulative(
        self,
        consumer: ConsumerT | None,
        position: Position,
        *,
        now_ms: int,
        unacked_mask: int | None = None,
        properties: Mapping[str, int] | None = None,
        receipt: object = None,
    ) -> int:
        """Ack everything up to the position. Returns how many entries that acked.

        `unacked_mask`: the batch indexes of the entry itself that stay unacked. A position at or
        below the mark-delete changes nothing. Raises `PositionError` for one that does not exist.
        """
        cursor = self._cursor
        before = cursor.backlog_entries
        left = None
        if position > cursor.mark_delete:
            is_partial = bool(unacked_mask) and not cursor.is_acked(position)
            through = self._ledgers.previous(position) if is_partial else position
            cursor.ack_cumulative(position, unacked_mask=unacked_mask, properties=properties)
            left = cursor.unacked_mask(position)
            if self._notes is not None:
                and_whole = None
                if is_partial and left is None and cursor.is_acked(position):
                    and_whole = position
                if left is not None:
                    through = position
                note = notes.AckedThrough(consumer, through, left, and_whole, cursor.version)
                self._notes.append(note)
        acked = before - cursor.backlog_entries
        known = self._count_acks(consumer, acked, now_ms)
        if left is not None and self._dispatcher is not None:
            key = None if known is None else known.key
            self._dispatcher.acked_partly(key, position, left.bit_count())
        self._acked_through(now_ms)
        self._ask_receipt(consumer, receipt, now_ms)
        return acked

    def ack_many(
        self, consumer: ConsumerT | None, ledger_id: int, entry_ids: ArrayLike, *, now_ms: int
    ) -> int:
        """Ack entries of one ledger given as an array, all or none. Returns how many were unacked."""
        cursor = self._cursor
        before = cursor.acked_entries(ledger_id)
        known_before = BitMap() if before is None else before.copy()
        mark_delete = cursor.mark_delete
        acked = cursor.ack_many(ledger_id, entry_ids)
        if not acked:
            return 0
        new = bitmap_of(np.asarray(entry_ids, dtype=np.int64)) - known_before
        if ledger_id == mark_delete.ledger_id:
            new.remove_range(0, mark_delete.entry_id + 1)
        positions = [Position(ledger_id, entry_id) for entry_id in new]
        if self._notes is not None:
            self._notes.append(notes.Acked(consumer, positions, cursor.version, at_once=True))
        self._held.discard(positions)
        known = self._count_acks(consumer, acked, now_ms)
        if self._consumers and self._dispatcher is not None:
            self._dispatcher.acked_many(None if known is None else known.key, positions)
        self._observe(now_ms)
        return acked

    def _acked_through(self, now_ms: int) -> None:
        if self._dispatcher is not None:
            self._dispatcher.acked_through(self._cursor.mark_delete)
        self._observe(now_ms)

    # ---------------------------------------------------------------- redelivery

    def redeliver(
        self,
        consumer: ConsumerT,
        positions: Sequence[Position] | None = None,
        *,
        now_ms: int,
        delay_ms: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """The consumer wants unacked entries again (None: all it has), now or after a delay.

        Without a delay the backoff decides, if there is one. What the consumer does not have is
        passed over. Exclusive and Failover rewind at once, whatever the positions and the delay.
        Raises `CallerError`: not attached, or a delay that cannot be.
        """
        known, dispatcher = self._known(consumer)
        if delay_ms is not None:
            deadline_ms(now_ms, delay_ms)
        if self._deliveries:
            positions = self._less_untaken(known, dispatcher, positions)
        if self._notes is not None:
            self._note_given_back(known, "asked", positions)
        nacks = self._held.nacks
        if not self.holds or (delay_ms is None and (nacks is None or not nacks.is_active)):
            self._carry_out(dispatcher.redeliver(known.key, positions, epoch=epoch))
            return
        given_back = dispatcher.hold(known.key, positions)
        if given_back:
            nacks = nacks or self._held.hold_nacks(HeldNacks(NO_NACKS))
            times = [dispatcher.redelivery_count(position) - 1 for position in given_back]
            refused = nacks.hold(given_back, times, now_ms, self._chance, delay_ms)
            dispatcher.queue_due(refused)

    def _less_untaken(
        self,
        known: AttachedConsumer[ConsumerT],
        dispatcher: Dispatcher,
        positions: Sequence[Position] | None,
    ) -> Sequence[Position] | None:
        """What the consumer was sent of these: not what is assigned to it and still to be taken."""
        untaken = {
            entry.position
            for delivery in self._deliveries
            if delivery.consumer == known.identity
            for entry in delivery.entries
        }
        if not untaken:
            return positions
        given_back = dispatcher.in_flight(known.key) if positions is None else positions
        return [position for position in given_back if position not in untaken]

    def _configure_nacks(self) -> None:
        backoff, nacks = self._settings.backoff, self._held.nacks
        if nacks is None and backoff is not None and self._is_durable:
            nacks = self._held.hold_nacks(HeldNacks(NO_NACKS))
        if nacks is not None:
            nacks.configure(backoff)

    # ---------------------------------------------------------------- moves

    def seek(self, position: Position, *, now_ms: int, unacked_mask: int | None = None) -> None:
        """Read from `position` next: it and everything after it is unacked, all before it acked.

        `EARLIEST` and `LATEST` are understood; a position without an entry is the next that has one.
        `unacked_mask`: of a batch sought into, the indexes that are unacked. Consumers keep their
        permits, and nothing is in flight. Raises `PositionError` after the end.
        """
        cursor, ledgers = self._cursor, self._ledgers
        end = ledgers.next_valid(ledgers.last_confirmed)
        if end < position != LATEST:
            raise PositionError(f"cannot seek to {position}: the topic ends before {end}")
        if unacked_mask is not None and unacked_mask < 0:
            raise PositionError(f"a set of batch indexes cannot be negative: {unacked_mask}")
        target = ledgers.readable_at(position)
        cursor.reset(target)
        mask = unacked_mask or None if target == position and ledgers.exists(position) else None
        if mask is not None:
            cursor.ack_mixed([(position, mask)])
        self._note_move(Sought(cursor.mark_delete, target, mask))
        self._restart(now_ms)

    def _restart(self, now_ms: int) -> None:
        """Nothing is in flight or waiting; read from the cursor's position."""
        if self._dispatcher is not None:
            self._dispatcher.reset()
        self._forget_reads()
        self._observe(now_ms)

    def skip(self, entries: int, *, now_ms: int) -> int:
        """Ack the next `entries` unacked entries. Returns how many there were."""
        skipped = self._cursor.skip(entries)
        self._note_move(Skipped(self._cursor.mark_delete, skipped))
        self._acked_through(now_ms)
        return skipped

    def clear_backlog(self, *, now_ms: int) -> int:
        """Ack everything that the topic holds. Returns how many entries were not."""
        cleared = self._cursor.clear_backlog()
        self._note_move(Cleared(self._cursor.mark_delete, cleared))
        self._acked_through(now_ms)
        return cleared

    def expire(self, position: Position, *, now_ms: int) -> int:
        """Ack everything up to this entry: its time to live is over. Returns how many were not."""
        cursor = self._cursor
        before = cursor.backlog_entries
        position = min(position, self._ledgers.last_confirmed)
        is_ahead = position > cursor.mark_delete
        if is_ahead:
            cursor.ack_cumulative(position)
        self._last_expired_ms = now_ms
        if not is_ahead:
            return 0
        self._note_move(Expired(cursor.mark_delete, position))
        expired = before - cursor.backlog_entries
        self._entries_expired += expired
        self._acked_through(now_ms)
        return expired

    def ledger_trimmed(self, ledger_id: int, *, now_ms: int) -> None:
        """Forget the acks of a message ledger that is gone. Trim it in the ledgers first."""
        self._cursor.ledger_trimmed(ledger_id)
        if self._dispatcher is not None:
            for known in self._by_key.values():
                gone = [at for at in self._dispatcher.in_flight(known.key) if at[0] == ledger_id]
                self._dispatcher.acked_many(known.key, gone)
        self._acked_through(now_ms)

    # ---------------------------------------------------------------- delayed entries

    def hold(self, positions: Sequence[Position], *, until_ms: int, now_ms: int) -> int:
        """Deliver these no earlier than then. Returns how many are held now.

        For delivery times that the entries themselves do not carry. An entry that is already held keeps
        its time, one that is due is not held, and a kind that delivers in order holds nothing. Raises
        `PositionError`, and changes nothing, for an entry that does not exist or was read.
        """
        held, read_position = self._held, self._cursor.read_position
        for position in positions:
            if not self._ledgers.exists(position):
                raise PositionError(f"{position} is unknown and cannot be held")
            if position in held:
                continue
            if (
                position < read_position
                or self._cursor.is_acked(position)
                or held.was_given_ahead(position)
            ):
                raise PositionError(f"{position} was read already and cannot be held")
        if not self._is_durable or (self._kind is not None and not self._kind.holds):
            return 0
        tracker = held.start()
        new = [position for position in positions if position not in held]
        kept = sum(tracker.add(position, until_ms, now_ms) for position in new)
        return len(positions) - len(new) + kept

    def start_tracker(self) -> DelayedTracker:
        """Make the delayed tracker now: one with stored buckets begins to recover."""
        return self._held.start()

    def lost(self, entries: Mapping[int, BitMap]) -> None:
        """The delayed tracker lost these, by ledger: they are read again and offered to it again."""
        self._reads.lost(entries)

    def drop_delayed(self, *, now_ms: int) -> None:
        """Hold no delayed entry any more: reading from the first unacked entry finds them again."""
        self._held.clear_delayed()
        self._cursor.rewind()
        self._restart(now_ms)

    # ---------------------------------------------------------------- persistence

    def persisted(self, outcome: WrittenCounts, *, now_ms: int) -> None:
        """Take the outcome of a durable write, with what the write left out."""
        self._is_write_offered = False
        self._receipts.durable(outcome.version)
        self._gate.persisted(outcome, now_ms)
        self._gate_moved(now_ms)

    def persist_failed(self, since_ms: int, *, now_ms: int) -> None:
        """Note that nothing could be written since then. The write is offered again.

        `persisted` ends it.
        """
        self._is_write_offered = False
        self._nacks_offered = NEVER_OFFERED
        self._write_at_ms = now_ms + WRITE_RETRY_MS
        self._gate.persist_failing(since_ms, now_ms)
        self._gate_moved(now_ms)

    def _ask_receipt(self, consumer: ConsumerT | None, token: object, now_ms: int) -> None:
        if token is None or consumer is None:
            return
        receipt = Receipt(consumer, token, self._cursor.version)
        if self._is_durable and self._settings.receipts_mean_durable:
            self._receipts.ask(receipt, now_ms + self._settings.receipt_timeout_ms)
        else:
            self._receipts.answer(receipt)

    def fail_receipts(self, error: AckGateError) -> None:
        """Fail every receipt that waits: no write will ever come."""
        self._receipts.fail(error)

    # ---------------------------------------------------------------- settings

    def configure(self, settings: SubscriptionSettings, *, now_ms: int) -> None:
        """Use new settings, from now on."""
        self._settings = settings
        self._gate.configure(self._gate_settings(), now_ms)
        self._held.configure(settings.delays)
        self._configure_nacks()
        if self._dispatcher is not None:
            self._dispatcher.configure(settings.limits)
        self._observe(now_ms)

    def suspend(self) -> None:
        """Read and deliver nothing until `resume`: the host may not, for now. Acks go on."""
        self._is_suspended = True

    def resume(self) -> None:
        """Read and deliver again after `suspend`."""
        self._is_suspended = False

    def _gate_settings(self) -> GateSettings:
        wanted = self._settings.gate
        is_on = wanted.enabled and self._kind is not None and self._kind.holds
        return wanted if is_on == wanted.enabled else replace(wanted, enabled=is_on)

    # ---------------------------------------------------------------- the gate

    def _observe(self, now_ms: int) -> None:
        """Let the gate judge the ack state, which may have changed."""
        cursor, gate = self._cursor, self._gate
        if cursor.mark_delete != self._mark_delete_seen:
            self._mark_delete_seen = cursor.mark_delete
            self._last_mark_delete_ms = now_ms
            self._held.forget_through(cursor.mark_delete)
        gate.observe(
            ranges_live=cursor.range_count,
            batch_indexes_live=cursor.partly_acked_count,
            now_ms=now_ms,
        )
        if gate.keeps_budget:
            gate.budget(cursor.entry_budget(gate.settings.ranges_max, entries_enough=1), now_ms)
        self._gate_moved(now_ms)

    def _gate_moved(self, now_ms: int) -> None:
        """Note an edge, if the gate has crossed one since this was asked last."""
        gate = self._gate
        if gate.is_open is self._was_gate_open:
            return
        self._was_gate_open = gate.is_open
        if gate.is_open:
            self._gate_opened_at_ms = now_ms
        else:
            self._gate_reasons = [reason.value for reason in gate.reasons]
        if self._notes is not None:
            self._notes.append(notes.GateEdge(gate.is_open, self._gate_reasons))

    # ---------------------------------------------------------------- the turn

    def ready(
        self, *, now_ms: int, read_entries_max: int | None = None
    ) -> Ready[ConsumerT, EntryT]:
        """Everything there is to do now. Carry it out, then ask again until it is false.

        `read_entries_max`: no normal read is longer, so that a host can bound its bytes.
        """
        if self._gate.advance(now_ms):
            self._gate_moved(now_ms)
        if self._dispatcher is not None:
            self._carry_out(self._dispatcher.advance(now_ms))
        self._receipts.expire(now_ms)
        deliveries = self._take_deliveries(now_ms)  # first: it may give permits back
        request = None
        if not (self._is_suspended or self._reads.is_under_way) and self._consumers:
            request = self._reads.next(
                now_ms=now_ms,
                entries_enough=self._settings.limits.read_entries_max,
                entries_max=read_entries_max,
            )
            self._gate_moved(now_ms)  # a strict budget may have been used up
        receipts = self._receipts.take()
        active_changes, self._active_changes = self._active_changes, []
        if self._notes is not None:
            self._notes += [
                notes.ReceiptSent(receipt.consumer, receipt.version)
                for receipt in receipts
                if receipt.error is None
            ]
        return Ready(
            read=request,
            deliveries=deliveries,
            write=self._next_write(now_ms),
            receipts=receipts,
            active_changes=active_changes,
            notes=self.take_notes(),
            wake_at_ms=self._wake_at_ms(now_ms),
            awaited=self._awaited(),
        )

    def take_notes(self) -> Sequence[Note]:
        """The notes since the last call. The driver records them between turns."""
        if not self._notes:
            return ()
        taken, self._notes = self._notes, []
        return taken

    def _take_deliveries(self, now_ms: int) -> Sequence[Delivery[ConsumerT, EntryT]]:
        if self._is_suspended or not self._deliveries:
            return ()
        taken, self._deliveries = self._deliveries, []
        if self._cursor.version != self._version_at_assignment:
            taken = [left for each in taken if (left := self._less_acked(each)).entries]
        for delivery in taken:
            known = self._consumers[delivery.consumer]
            known.messages_out += delivery.message_count
            self._total.messages_out += delivery.message_count
            known.last_sent_ms = self._total.last_sent_ms = now_ms
        return taken

    def _less_acked(self, delivery: Delivery[ConsumerT, EntryT]) -> Delivery[ConsumerT, EntryT]:
        """Drop what was acked since it was assigned, and return the permits for it."""
        is_acked, unacked_mask = self._cursor.is_acked, self._cursor.unacked_mask
        places = [at for at, each in enumerate(delivery.entries) if not is_acked(each.position)]
        counts = delivery.redelivery_counts
        entries = [delivery.entries[at] for at in places]
        masks = [unacked_mask(entry.position) for entry in entries]
        messages = sum(
            entry.message_count if mask is None else mask.bit_count()
            for entry, mask in zip(entries, masks, strict=True)
        )
        self._refund(delivery, messages)
        return delivery._replace(
            entries=entries,
            redelivery_counts=None if counts is None else [counts[at] for at in places],
            unacked_masks=masks if self._cursor.partly_acked_count else None,
            message_count=messages,
        )

    def _refund(self, delivery: Delivery[ConsumerT, EntryT], messages: int) -> None:
        """Of an assigned delivery only so many messages are sent: its permits are the consumer's."""
        known = self._consumers.get(delivery.consumer)
        if known is not None and self._dispatcher is not None:
            self._dispatcher.add_permits(known.key, delivery.message_count - messages)

    def _next_write(self, now_ms: int) -> Write | None:
        if not self._is_durable or self._is_write_offered or now_ms < self._write_at_ms:
            return None
        nacks = self._held.nacks
        nacks_version = self._nacks_offered if nacks is None else nacks.version
        if (
            self._cursor.version <= self._receipts.durable_version
            and nacks_version == self._nacks_offered
        ):
            return None
        self._is_write_offered = True
        self._nacks_offered = nacks_version
        return Write(self._cursor, nacks)

    def _wake_at_ms(self, now_ms: int) -> int | None:
        """The earliest of the deadlines; what waits for a read or a fact of the host's has none."""
        deadlines = [self._gate.next_deadline_ms, self._receipts.next_deadline_ms]
        if self._write_at_ms > now_ms:
            deadlines.append(self._write_at_ms)
        if self._dispatcher is not None:
            deadlines.append(self._dispatcher.next_deadline_ms)
        if not self._is_suspended and self._consumers:
            deadlines += self._reads.deadlines_ms(now_ms)
        return min([known for known in deadlines if known is not None], default=None)

    def _awaited(self) -> Awaited | None:
        if self._dispatcher is None:
            return None
        if not self._reads.has_unread:
            return Awaited.ENTRIES
        return Awaited.GATE if not self._gate.is_open else None

    # ---------------------------------------------------------------- reads

    def read_done(self, request: ReadRequest, entries: Sequence[EntryT], *, now_ms: int) -> None:
        """The entries of a `Ready.read`, in its order; those that do not exist any more left out.

        Entries that cannot be (a key that is no bytes, a time after 2^63 - 1) raise, and the read is
        still to be answered.
        """
        given, assignments = self._reads.done(
            request, entries, now_ms=now_ms, delays_enabled=self._settings.delays_enabled
        )
        for assignment in assignments:
            self._deliver(assignment, given, request)

    def _deliver(
        self, assignment: Assignment, entries: Sequence[EntryT], request: ReadRequest
    ) -> None:
        consumer = self._by_key[assignment.consumer].identity
        given = [entries[index] for index in assignment.indexes]
        masks: list[int | None] | None = None
        if self._cursor.partly_acked_count:
            masks = [self._cursor.unacked_mask(entry.position) for entry in given]
        counts = assignment.redelivery_counts
        if not self._deliveries:
            self._version_at_assignment = self._cursor.version
        self._deliveries.append(
            Delivery(consumer, given, counts, masks, assignment.message_count, assignment.epoch)
        )
        if self._notes is not None:
            assert request.dispatched is not None
            is_replay = request.dispatched.kind is ReadKind.REPLAY
            self._notes.append(notes.Dispatched(consumer, given, counts, masks, is_replay))

    def read_failed(self, request: ReadRequest, *, now_ms: int) -> None:
        """A `Ready.read` failed. It is tried again after a pause, and then with fewer entries."""
        self._reads.failed(request, now_ms=now_ms)

    def read_cancelled(self, request: ReadRequest) -> None:
        """The host may not deliver what it read for a `Ready.read`: the read is offered again."""
        self._reads.cancelled(request)

    # ---------------------------------------------------------------- notes

    def _note_move(self, move: CursorMove) -> None:
        if self._notes is not None:
            self._notes.append(notes.Moved(move, self._cursor.version))

    def _note_given_back(
        self, known: AttachedConsumer[ConsumerT], reason: str, positions: Sequence[Position] | None
    ) -> None:
        """Note what the consumer has in flight, or some of it. To be called before the dispatcher's call.

        Exclusive and Failover: all that was read and is not acked, if this consumer is active.
        """
        dispatcher = self._dispatcher
        assert dispatcher is not None
        assert self._notes is not None
        spans: list[Span] = []
        if dispatcher.active_consumer is None:
            in_flight = dispatcher.in_flight(known.key)
            chosen = in_flight if positions is None else [p for p in positions if p in in_flight]
            spans = joined(list(chosen))
        elif dispatcher.active_consumer == known.key:
            spans = self._reads.unacked_spans()
        masks: dict[Position, int] = {}
        if self._cursor.partly_acked_count:
            for span in spans:
                for position in run_of_positions(span.ledger_id, span.start, span.stop):
                    if (mask := self._cursor.unacked_mask(position)) is not None:
                        masks[position] = mask
        if spans:
            self._notes.append(notes.GivenBack(known.identity, reason, spans, masks))

    # ---------------------------------------------------------------- statistics

    def statistics(self) -> SubscriptionStatistics:
        """Current counts and states, frozen. O(consumers)."""
        dispatching = self.dispatching
        seen = () if dispatching is None else dispatching.consumers
        return SubscriptionStatistics(
            kind=self._kind,
            cursor=self._cursor.statistics(),
            gate=self._gate.statistics(),
            dispatcher=dispatching,
            held=self._held.statistics(),
            consumers={consumer: self.counts_of(consumer) for consumer in self._consumers},
            dispatched={self._by_key[each.consumer].identity: each for each in seen},
            total=self.counts,
            receipts_waiting=len(self._receipts),
            durable_version=self._receipts.durable_version,
            last_mark_delete_ms=self._last_mark_delete_ms,
            gate_opened_at_ms=self._gate_opened_at_ms,
            entries_expired=self._entries_expired,
            last_expired_ms=self._last_expired_ms,
            entries_lost=self._reads.lost_count,
        )

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self._cursor.check()
        self._gate.check()
        self._held.check()
        if self._dispatcher is not None:
            self._dispatcher.check()
            assert self._dispatcher.consumer_count == len(self._consumers)
            for known in self._by_key.values():
                for position in self._dispatcher.in_flight(known.key):
                    assert position not in self._held, f"{position} is held and in flight"
                    assert not self._cursor.is_acked(position), f"{position} is acked and in flight"
        self._receipts.check()
        assert self._gate.is_open is self._was_gate_open
        assert {known.key for known in self._consumers.values()} == set(self._by_key)
        for delivery in self._deliveries:
            assert delivery.consumer in self._consumers
