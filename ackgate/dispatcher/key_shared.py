"""Key_Shared: all messages of a key go to one consumer, in order.

Pure. The key's hash chooses the consumer (`keys`); `key_order` keeps the order and the single owner of
each key. An entry whose owner cannot take it waits, and so do later entries of the same key, while
other keys go on: reads look ahead past blocked keys until too much waits
(``key_shared_look_ahead_*``).

Invariants: those of Shared; entries of one key hash are in flight with one consumer only, and are
delivered in order of position, except what a consumer itself gives back (`redeliver`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ackgate.dispatcher.key_order import KeyOrder
from ackgate.dispatcher.keys import HashRing, KeyRanges, StickyRanges, key_hasher
from ackgate.dispatcher.port import (
    Assignment,
    EntriesRead,
    KeySharedMode,
    KeySharedPolicy,
    ReadKind,
    Rewind,
)
from ackgate.dispatcher.several_active import SeveralActive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ackgate.cursor import Position
    from ackgate.dispatcher.port import ConsumerSpec, DispatchLimits, Effect, Read


class KeySharedDispatcher(SeveralActive):
    """The `Dispatcher` of a Key_Shared subscription; the methods are described there."""

    def __init__(self, limits: DispatchLimits, policy: KeySharedPolicy) -> None:
        super().__init__(limits)
        self.policy = policy
        self._ranges: KeyRanges = (
            StickyRanges()
            if policy.mode is KeySharedMode.STICKY
            else HashRing(limits.key_shared_ring_points)
        )
        self._order = KeyOrder(self._ranges, is_ordered=not policy.allow_out_of_order)
        self._key_hash = key_hasher(policy.mode)

    # -- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: int, spec: ConsumerSpec, now_ms: int) -> tuple[Effect, ...]:
        """A consumer subscribed and takes its share of the keys; the first one rewinds."""
        del now_ms
        is_first = not self._book.recipients
        self._ranges.add(consumer, spec.name, spec.hash_ranges)
        self._book.add_consumer(consumer, spec)
        self._order.owners_changed()
        return (Rewind(),) if is_first else ()

    def remove_consumer(self, consumer: int, now_ms: int) -> tuple[Effect, ...]:
        """A consumer is gone; what it had waits for the new owners, or is read again."""
        del now_ms
        if consumer not in self._book.recipients:
            return ()
        returned = self._book.remove_consumer(consumer)
        self._ranges.remove(consumer)
        if self._book.recipients:
            self._order.returned(returned)
            self._order.owners_changed()
        else:
            self.reset()
        return ()

    def add_permits(self, consumer: int, messages: int) -> None:
        """A consumer takes so many more messages."""
        self._book.add_permits(consumer, messages)

    def set_writable(self, consumer: int, *, is_writable: bool) -> None:
        """A consumer's connection does or does not take bytes."""
        self._book.set_writable(consumer, is_writable=is_writable)

    # -- reading --------------------------------------------------------------------------------

    @property
    def key_hash(self) -> Callable[[bytes], int] | None:
        """The hash of the policy's mode, with a memory of recent keys."""
        return self._key_hash

    def next_read(
        self,
        *,
        has_unread: bool,
        gate_open: bool,
        entry_budget: int | None = None,
        holes_up_to: Position | None = None,
        is_acked: Callable[[Position], bool] | None = None,
    ) -> Read | None:
        """Replays that can be given first, then what gate, acks and look-ahead allow."""
        del is_acked  # holes do not overtake keys
        book = self._book
        if self._reading.current is not None or not book.ready.count:
            return None
        limits = book.limits
        look_ahead = self._look_ahead_max() - self._order.waiting_entries
        if self._order.waiting_entries or self._order.due.entry_count:
            waiting = self._replayable(look_ahead)
            if waiting:
                return self._reading.begin_replay(tuple(waiting), book.room())
        if not has_unread or book.is_blocked or look_ahead <= 0:
            return None
        return self._reading.begin_normal(
            entries_max=min(limits.read_entries_max, look_ahead),
            messages_max=book.room(),
            gate_open=gate_open,
            entry_budget=entry_budget,
            holes_up_to=holes_up_to,
        )

    def assign(self, read: Read, entries: EntriesRead) -> list[Assignment]:
        """Give each entry to its key's owner, if it may be given now."""
        if not self._reading.end(read):
            return []
        assert entries.key_hashes is not None, "Key_Shared needs key hashes"
        is_replay = read.kind is ReadKind.REPLAY
        order = self._order
        if is_replay:
            if len(entries.positions) < len(read.positions):
                for position in set(read.positions).difference(entries.positions):
                    order.gone(position)
            order.due_read(entries.positions, entries.key_hashes)
        recipients = self._book.recipients
        owner_of = self._ranges.owner
        counts = entries.message_counts
        rooms: dict[int | None, int] = {None: 0}
        given: dict[int, list[int]] = {}
        for index, (position, key_hash) in enumerate(
            zip(entries.positions, entries.key_hashes, strict=True)
        ):
            owner = owner_of(key_hash)
            room = rooms.get(owner)
            if room is None:
                assert owner is not None
                room = rooms[owner] = recipients[owner].room()
            if (
                owner is not None
                and room > 0
                and (
                    order.may_give_again(position, key_hash, owner)
                    if is_replay
                    else order.may_give_new(key_hash, owner)
                )
            ):
                order.given(position, key_hash, owner)
                rooms[owner] = room - (1 if counts is None else counts[index])
                given.setdefault(owner, []).append(index)
            elif not is_replay:
                order.waits(position, key_hash)
        return [
            self._deliver(owner, entries, indexes, counted=is_replay)
            for owner, indexes in given.items()
        ]

    # -- answers --------------------------------------------------------------------------------

    def acked(self, consumer: int | None, position: Position) -> bool:
        """One whole entry is acked."""
        self._book.take(consumer, position)
        freed = self._order.gone(position)
        if len(self._redeliveries):
            self._redeliveries.forget(position)
        return self._book.pop_unblocked() or freed

    def acked_many(self, consumer: int | None, positions: Sequence[Position]) -> bool:
        self._book.take_many(consumer, positions)
        freed = False
        for position in positions:
            freed |= self._order.gone(position)
        if len(self._redeliveries):
            for position in positions:
                self._redeliveries.forget(position)
        return self._book.pop_unblocked() or freed

    def acked_through(self, position: Position) -> bool:
        """All positions up to this one are acked or skipped."""
        self._book.take_through(position)
        self._order.gone_through(position)
        self._redeliveries.forget_through(position)
        return self._book.pop_unblocked() or self._order.waiting_entries > 0

    def redeliver(
        self, consumer: int, positions: Sequence[Position] | None, *, epoch: int | None = None
    ) -> tuple[Effect, ...]:
        """The consumer's unacked entries (None: all) wait, each before the later of its key."""
        del epoch
        returned = self._book.take_back(consumer, positions)
        self._order.returned(returned)
        self._redeliveries.increment(returned)
        return ()

    # -- what others hold -----------------------------------------------------------------------

    def hold(self, consumer: int, positions: Sequence[Position] | None) -> list[Position]:
        """The consumer's unacked entries, counted; they wait elsewhere and their keys go on."""
        returned = self._book.take_back(consumer, positions)
        for position in returned:
            self._order.gone(position)
        self._redeliveries.increment(returned)
        return returned

    def queue_due(self, positions: Sequence[Position]) -> None:
        """What is not in flight waits for replay, and for its key to be read."""
        if self._book.recipients:
            self._order.fell_due(positions)

    @property
    def waiting_entries(self) -> int:
        """Entries that wait for replay."""
        return self._order.waiting_entries + self._order.due.entry_count

    # -- the rest -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Nothing is in flight, waiting, counted or under way."""
        self._book.clear()
        self._order.clear()
        self._redeliveries.clear()
        self._reading.abandon()

    def configure(self, limits: DispatchLimits) -> None:
        """New limits. Points on the ring stay as they are."""
        self._book.configure(limits)

    def check(self) -> None:
        super().check()
        self._ranges.check()
        self._order.check()

    def _hash_ranges(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        return self._ranges.ranges()

    # -- leaves ---------------------------------------------------------------------------------

    def _replayable(self, look_ahead: int) -> list[Position]:
        """What one replay read may bring: the lowest that may be given, or whose keys are unknown.

        Of the latter no more than may wait if none of them can be given.
        """
        entries_max = self._book.limits.read_entries_max
        waiting: list[Position] = []
        if self._order.waiting_entries:
            for recipient in self._book.ready:
                room = min(entries_max, recipient.room())
                waiting += self._order.replayable(recipient.consumer, room)
        if self._order.due.entry_count and look_ahead > 0:
            room = min(entries_max, look_ahead, self._book.room())
            waiting += self._order.due.first(room)
        waiting.sort()
        return waiting[:entries_max]

    def _look_ahead_max(self) -> int:
        """How many entries may wait before reads stop looking ahead (as Pulsar)."""
        limits = self._book.limits
        consumers = len(self._book.recipients)
        per_subscription = limits.key_shared_look_ahead_per_subscription_max or sys.maxsize
        per_consumer = limits.key_shared_look_ahead_per_consumer_max * consumers or sys.maxsize
        look_ahead = min(per_subscription, per_consumer)
        if look_ahead < sys.maxsize:
            return look_ahead
        return min(
            limits.unacked_messages_per_subscription_max or sys.maxsize,
            limits.unacked_messages_per_consumer_max * consumers or sys.maxsize,
        )

    def _deliver(
        self, owner: int, entries: EntriesRead, indexes: list[int], *, counted: bool
    ) -> Assignment:
        positions = [entries.positions[index] for index in indexes]
        counts = entries.message_counts
        column = None if counts is None else [counts[index] for index in indexes]
        return Assignment(
            owner,
            indexes,
            self._redeliveries.column(positions) if counted else None,
            self._book.give(self._book.recipients[owner], positions, column),
            None,
        )
