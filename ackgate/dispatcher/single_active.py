"""Exclusive and Failover: one consumer gets everything, in order.

Pure. Order comes first, so there is no replay queue: for a redelivery everything is read again from
the first unacked entry on (`Rewind`). As in Pulsar, the dispatcher tracks no acks, messages in flight
or redelivery counts, and does not obey the gate.

When another Failover consumer becomes active, reading pauses for ``failover_delay_ms`` first, so
that acks of the old one can arrive; then the cursor is rewound, and every consumer is notified who is active:

::

      add/remove_consumer                       deadline
    READING -----------------> WAITING ---------------------------> READING
             another is active   no reads, redeliver is ignored       Rewind, ActiveConsumerChanged
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.delivery_book import MessageAverage
from ackgate.dispatcher.keys import StickyRanges, make_hash, sticky_hash
from ackgate.dispatcher.port import (
    ActiveConsumerChanged,
    Assignment,
    ConsumerStatistics,
    DispatcherStatistics,
    EntriesRead,
    Rewind,
)
from ackgate.dispatcher.reading import Reading
from ackgate.errors import ConsumerBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ackgate.cursor import Position
    from ackgate.dispatcher.port import ConsumerSpec, DispatchLimits, Effect, Read, ReadFrom


class _Candidate:
    """One consumer, active or waiting to be."""

    __slots__ = ("average", "epoch", "is_writable", "messages_delivered", "permits", "spec")

    def __init__(self, spec: ConsumerSpec) -> None:
        self.spec = spec
        self.epoch = spec.epoch
        self.permits = 0
        self.is_writable = True
        self.messages_delivered = 0
        self.average = MessageAverage()


class SingleActiveDispatcher:
    """The `Dispatcher` of an Exclusive or Failover subscription; it describes the methods."""

    def __init__(
        self,
        limits: DispatchLimits,
        *,
        is_exclusive: bool,
        topic: str,
        partition_index: int | None = None,
    ) -> None:
        """``topic``: its full name, with the partition's suffix if it is one."""
        self.is_exclusive = is_exclusive
        self._limits = limits
        self._topic = topic
        self._partition_index = partition_index
        self._candidates: dict[int, _Candidate] = {}
        self._active: int | None = None
        self._waits_until_ms: int | None = None
        self._reading = Reading()
        self._ranges: StickyRanges | None = None

    # -- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: int, spec: ConsumerSpec, now_ms: int) -> tuple[Effect, ...]:
        """A consumer subscribed; it may become the active one."""
        if self.is_exclusive:
            if self._candidates:
                raise ConsumerBusyError("Exclusive consumer is already connected")
            ranges = None
            if spec.hash_ranges:
                ranges = StickyRanges()
                ranges.add(consumer, spec.name, spec.hash_ranges)
            self._ranges = ranges
        self._candidates[consumer] = _Candidate(spec)
        if self._choose():
            return self._activate(now_ms)
        if self.is_exclusive:
            return ()
        return (ActiveConsumerChanged(consumer, is_active=False),)

    def remove_consumer(self, consumer: int, now_ms: int) -> tuple[Effect, ...]:
        """A consumer is gone; another may become the active one."""
        if self._candidates.pop(consumer, None) is None:
            return ()
        if not self._candidates:
            self._active = self._waits_until_ms = None
            self._reading.abandon()
            return ()
        return self._activate(now_ms) if self._choose() else ()

    def add_permits(self, consumer: int, messages: int) -> None:
        """A consumer takes so many more messages."""
        candidate = self._candidates.get(consumer)
        if candidate is not None:
            candidate.permits += messages

    def set_writable(self, consumer: int, *, is_writable: bool) -> None:
        """A consumer's connection does or does not take bytes."""
        candidate = self._candidates.get(consumer)
        if candidate is not None:
            candidate.is_writable = is_writable

    # -- reading --------------------------------------------------------------------------------

    @property
    def key_hash(self) -> Callable[[bytes], int] | None:
        """Only for an Exclusive consumer with hash ranges, otherwise None."""
        return None if self._ranges is None else sticky_hash

    def next_read(
        self,
        *,
        has_unread: bool,
        gate_open: bool,
        entry_budget: int | None = None,
        holes_up_to: Position | None = None,
        is_acked: Callable[[Position], bool] | None = None,
    ) -> Read | None:
        """Read on, as far as the active consumer's permits go."""
        del gate_open, entry_budget, holes_up_to, is_acked  # never paused
        if (
            not has_unread
            or self._active is None
            or self._reading.current is not None
            or self._waits_until_ms is not None
        ):
            return None
        active = self._candidates[self._active]
        if active.permits <= 0 or not active.is_writable:
            return None
        return self._reading.begin_normal(
            entries_max=self._limits.read_entries_max,
            messages_max=active.permits,
            gate_open=True,
            entry_budget=None,
            holes_up_to=None,
        )

    def assign(self, read: Read, entries: EntriesRead) -> list[Assignment]:
        """All to the active consumer, permits or not: holding back would break the order."""
        if not self._reading.end(read) or self._active is None:
            return []
        counts = entries.message_counts
        indexes: Sequence[int] = range(len(entries.positions))
        if self._ranges is not None:
            assert entries.key_hashes is not None, "this consumer's hash ranges need key hashes"
            owner_of = self._ranges.owner
            indexes = [i for i in indexes if owner_of(entries.key_hashes[i]) is not None]
        if not indexes:
            return []
        messages = len(indexes) if counts is None else sum(counts[index] for index in indexes)
        active = self._candidates[self._active]
        active.permits -= messages
        active.messages_delivered += messages
        active.average.add(messages, len(indexes))
        return [Assignment(self._active, indexes, None, messages, active.epoch)]

    def read_failed(self, read: Read, positions: Sequence[Position] = ()) -> tuple[ReadFrom, ...]:
        """What the read has passed over is read again."""
        return self._reading.fail(read, positions)

    # -- answers --------------------------------------------------------------------------------

    def acked(self, consumer: int | None, position: Position) -> bool:
        del consumer, position
        return False

    def acked_many(self, consumer: int | None, positions: Sequence[Position]) -> bool:
        del consumer, positions
        return False

    def acked_partly(self, consumer: int | None, position: Position, remaining: int) -> bool:
        del consumer, position, remaining
        return False

    def acked_through(self, position: Position) -> bool:
        del position
        return False

    def redeliver(
        self, consumer: int, positions: Sequence[Position] | None, *, epoch: int | None = None
    ) -> tuple[Effect, ...]:
        """Read again from the first unacked entry, if the active consumer asks."""
        del positions  # single entries cannot be given again without breaking the order
        candidate = self._candidates.get(consumer)
        if candidate is None:
            return ()
        if epoch is not None and (candidate.epoch is None or epoch > candidate.epoch):
            candidate.epoch = epoch
        if consumer != self._active or self._waits_until_ms is not None:
            return ()
        self._reading.abandon()
        return (Rewind(),)

    # -- what others hold -----------------------------------------------------------------------

    def hold(self, consumer: int, positions: Sequence[Position] | None) -> list[Position]:
        """Nothing can be held back without breaking the order."""
        del consumer, positions
        return []

    def queue_due(self, positions: Sequence[Position]) -> None:
        """Nothing waits here: what is due is read when the read position comes to it."""
        del positions

    @property
    def waiting_entries(self) -> int:
        return 0

    # -- the rest -------------------------------------------------------------------------------

    def reset(self) -> None:
        """What is under way is stale."""
        self._reading.abandon()

    def configure(self, limits: DispatchLimits) -> None:
        """New limits. A waiting that has begun keeps its deadline."""
        self._limits = limits

    @property
    def next_deadline_ms(self) -> int | None:
        """When the new active consumer may be served."""
        return self._waits_until_ms

    def advance(self, now_ms: int) -> tuple[Effect, ...]:
        """Serve the new active consumer if its time has come."""
        if self._waits_until_ms is None or now_ms < self._waits_until_ms:
            return ()
        self._waits_until_ms = None
        return self._rewind_and_report()

    @property
    def consumer_count(self) -> int:
        """How many consumers there are."""
        return len(self._candidates)

    @property
    def active_consumer(self) -> int | None:
        """The one that is served."""
        return self._active

    def holder(self, position: Position) -> int | None:
        del position
        return None

    def in_flight(self, consumer: int) -> Collection[Position]:
        del consumer
        return ()

    def redelivery_count(self, position: Position) -> int:
        del position
        return 0

    def messages_redelivered(self, consumer: int) -> int:
        del consumer
        return 0

    def consumer_statistics(self, consumer: int) -> ConsumerStatistics | None:
        is_known = consumer in self._candidates
        return self._described(consumer, self._hash_ranges()) if is_known else None

    def _hash_ranges(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        return {} if self._ranges is None else self._ranges.ranges()

    def _described(
        self, consumer: int, ranges: Mapping[int, tuple[tuple[int, int], ...]]
    ) -> ConsumerStatistics:
        candidate = self._candidates[consumer]
        return ConsumerStatistics(
            consumer=consumer,
            name=candidate.spec.name,
            priority=candidate.spec.priority,
            permits=candidate.permits,
            unacked_messages=0,
            in_flight_entries=0,
            is_blocked_on_unacked_messages=False,
            is_active=consumer == self._active,
            is_writable=candidate.is_writable,
            messages_delivered=candidate.messages_delivered,
            messages_redelivered=0,
            messages_per_entry_average=candidate.average.value,
            hash_ranges=ranges.get(consumer, ()),
        )

    def statistics(self) -> DispatcherStatistics:
        ranges = self._hash_ranges()
        return DispatcherStatistics(
            consumers=tuple(self._described(each, ranges) for each in self._candidates),
            unacked_messages=0,
            in_flight_entries=0,
            is_blocked_on_unacked_messages=False,
            replay_entries=0,
            redelivered_entries=0,
            active_consumer=self._active,
        )

    def check(self) -> None:
        assert (self._active is None) == (not self._candidates)
        assert self._active is None or self._active in self._candidates
        assert not self.is_exclusive or len(self._candidates) <= 1
        if self._waits_until_ms is not None:
            assert not self.is_exclusive
            assert self._active is not None
            assert self._reading.current is None

    # -- changing the active one ----------------------------------------------------------------

    def _choose(self) -> bool:
        """Choose the active consumer; is it another one now?"""
        chosen = choose_active(
            {consumer: candidate.spec for consumer, candidate in self._candidates.items()},
            topic=self._topic,
            partition_index=self._partition_index,
            by_hash_ring=self._limits.failover_consistent_hashing,
        )
        has_changed = chosen != self._active
        self._active = chosen
        return has_changed

    def _activate(self, now_ms: int) -> tuple[Effect, ...]:
        self._reading.abandon()
        if self.is_exclusive or not self._limits.failover_delay_ms:
            self._waits_until_ms = None
            return self._rewind_and_report()
        if self._waits_until_ms is None:
            self._waits_until_ms = now_ms + self._limits.failover_delay_ms
        return ()

    def _rewind_and_report(self) -> tuple[Effect, ...]:
        if self.is_exclusive:
            return (Rewind(),)
        return (
            Rewind(),
            *(ActiveConsumerChanged(each, each == self._active) for each in self._candidates),
        )


# ------------------------------------------------------------------------------ who is active
#
# As Pulsar 4: among the consumers of the lowest priority number, in order of their names,
#
# - a topic that is a partition takes the one at *partition index modulo their number*, so that the
#   partitions of a topic spread evenly;
# - any other topic (and every one with ``activeConsumerFailoverConsistentHashing``) takes the owner
#   of the topic name's hash on a ring with 100 points per consumer.


_RING_POINTS: Final = 100
"""Points of one consumer; Pulsar's ``CONSUMER_CONSISTENT_HASH_REPLICAS``."""


def choose_active(
    consumers: Mapping[int, ConsumerSpec],
    *,
    topic: str,
    partition_index: int | None,
    by_hash_ring: bool,
) -> int:
    """The consumer to serve. There must be one at least; in order of subscribing."""
    best = min(spec.priority for spec in consumers.values())
    # Sorting is stable: of equal names the earlier consumer comes first.
    candidates = sorted(
        (consumer for consumer, spec in consumers.items() if spec.priority == best),
        key=lambda consumer: consumers[consumer].name,
    )
    if partition_index is not None and not by_hash_ring:
        return candidates[partition_index % len(candidates)]
    ring = {
        make_hash(f"{consumers[consumer].name}{point}".encode()): consumer
        for consumer in candidates
        for point in range(_RING_POINTS)
    }
    topic_hash = make_hash(topic.encode())
    above = [point for point in ring if point >= topic_hash]
    return ring[min(above or ring)]
