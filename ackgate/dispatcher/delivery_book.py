"""Who has which entries: the bookkeeping that Shared and Key_Shared have in common.

Pure. Consumers with their permits and entries in flight, the unacked messages of them all, and the
two kinds of blocking. The dispatchers decide where entries go and wait.

Blocking, as Pulsar: a consumer at its limit of unacked messages gets nothing (`permits`); a
subscription at its own gets no *normal* reads until it owes less than half; replays go on.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.port import ConsumerStatistics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ackgate.cursor import Position
    from ackgate.dispatcher.port import ConsumerSpec, DispatchLimits

READ_MESSAGES_MAX: Final = 10_000
"""Room beyond this is not looked for when a read is measured: with a thousand consumers that would
cost more than the read. Above what a read of 100 entries holds in batches of usual size."""


class DeliveryBook:
    """Consumers, what they may be given and what they owe."""

    __slots__ = ("_unblocked", "is_blocked", "limits", "ready", "recipients", "unacked_messages")

    def __init__(self, limits: DispatchLimits) -> None:
        self.limits = limits
        self.recipients: dict[int, Recipient] = {}
        self.ready = ReadyConsumers()
        self.unacked_messages = 0
        self.is_blocked = False
        """The subscription owes too many acks: no normal reads."""
        self._unblocked = False

    # -- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: int, spec: ConsumerSpec) -> None:
        assert consumer not in self.recipients, f"consumer {consumer} is known already"
        self.recipients[consumer] = Recipient(
            consumer, spec, self.limits.unacked_messages_per_consumer_max
        )

    def remove_consumer(self, consumer: int) -> list[Position]:
        """Remove a consumer. Returns what it had in flight."""
        recipient = self.recipients.pop(consumer)
        self.ready.remove(recipient)
        self._owe_less(recipient.in_flight.messages)
        return recipient.in_flight.take_all()

    def add_permits(self, consumer: int, messages: int) -> None:
        """Add permits: the consumer takes so many more messages."""
        recipient = self.recipients.get(consumer)
        if recipient is None:
            return
        recipient.permits += messages
        if recipient.unacked_max and recipient.in_flight.messages >= recipient.unacked_max:
            recipient.is_blocked = True
        self.ready.refresh(recipient)

    def set_writable(self, consumer: int, *, is_writable: bool) -> None:
        """Set whether the consumer's connection takes bytes."""
        recipient = self.recipients.get(consumer)
        if recipient is not None:
            recipient.is_writable = is_writable
            self.ready.refresh(recipient)

    def room(self) -> int:
        """Messages that all consumers together may be given now; enough of them for one read."""
        room = 0
        for recipient in self.ready:
            room += recipient.room()
            if room >= READ_MESSAGES_MAX:
                break
        return room

    def configure(self, limits: DispatchLimits) -> None:
        self.limits = limits
        for recipient in self.recipients.values():
            recipient.limit(limits.unacked_messages_per_consumer_max)
            self.ready.refresh(recipient)
        unacked_max = limits.unacked_messages_per_subscription_max
        if unacked_max and self.unacked_messages >= unacked_max:
            self.is_blocked = True
        else:
            self._owe_less(0)

    # -- what is in flight ----------------------------------------------------------------------

    def give(
        self,
        recipient: Recipient,
        positions: Sequence[Position],
        message_counts: Sequence[int] | None,
    ) -> int:
        """Put the entries in flight with the consumer. Returns the number of their messages."""
        messages = recipient.give(positions, message_counts)
        self.unacked_messages += messages
        unacked_max = self.limits.unacked_messages_per_subscription_max
        if unacked_max and self.unacked_messages >= unacked_max:
            self.is_blocked = True
        self.ready.refresh(recipient)
        return messages

    def take(self, consumer: int | None, position: Position) -> bool:
        """An entry is acked. Was it in flight, with this consumer or another?"""
        recipient = None if consumer is None else self.recipients.get(consumer)
        if recipient is None or not (messages := recipient.in_flight.take(position)):
            for recipient in self.recipients.values():
                if messages := recipient.in_flight.take(position):
                    break
            else:
                return False
        self._owe_less(messages)
        if recipient.is_blocked or (recipient.permits > 0 and not recipient.is_ready):
            self._settle(recipient)
        return True

    def take_many(self, consumer: int | None, positions: Sequence[Position]) -> Sequence[Position]:
        """`take` for each. Returns those that were not in flight."""
        recipient = None if consumer is None else self.recipients.get(consumer)
        if recipient is None:
            return [position for position in positions if not self.take(None, position)]
        counts = recipient.in_flight.take_many(positions)
        self._owe_less(sum(counts))
        self._settle(recipient)
        if all(counts):
            return ()
        return [
            position
            for position, count in zip(positions, counts, strict=True)
            if not count and not self.take(None, position)
        ]

    def holder(self, position: Position) -> int | None:
        """The consumer that has it in flight."""
        for consumer, recipient in self.recipients.items():
            if position in recipient.in_flight:
                return consumer
        return None

    def in_flight(self, consumer: int) -> Collection[Position]:
        """What the consumer has, in order of delivery. Live: to be read at once."""
        recipient = self.recipients.get(consumer)
        return () if recipient is None else recipient.in_flight.positions

    def lower(self, consumer: int | None, position: Position, remaining: int) -> None:
        """Lower the unacked messages of the entry to at most this many, for the consumer that has it."""
        recipient = None if consumer is None else self.recipients.get(consumer)
        if recipient is None or position not in recipient.in_flight:
            for recipient in self.recipients.values():
                if position in recipient.in_flight:
                    break
            else:
                return
        self._owe_less(recipient.in_flight.lower(position, remaining))
        self._settle(recipient)

    def take_through(self, position: Position) -> list[Position]:
        """All entries up to the position are acked. Returns those that were in flight."""
        taken: list[Position] = []
        for recipient in self.recipients.values():
            before = recipient.in_flight.messages
            taken += recipient.in_flight.take_through(position)
            self._owe_less(before - recipient.in_flight.messages)
            self._settle(recipient)
        return taken

    def take_back(self, consumer: int, positions: Sequence[Position] | None) -> list[Position]:
        """Take entries back from the consumer (None: all). Returns those it had. Unblocks it."""
        recipient = self.recipients.get(consumer)
        if recipient is None:
            return []
        before = recipient.in_flight.messages
        if positions is None:
            returned = recipient.in_flight.take_all()
        else:
            returned = [position for position in positions if recipient.in_flight.take(position)]
        messages = before - recipient.in_flight.messages
        recipient.messages_redelivered += messages
        self._owe_less(messages)
        recipient.is_blocked = False
        self.ready.refresh(recipient)
        return returned

    def clear(self) -> None:
        """Forget everything that is in flight."""
        for recipient in self.recipients.values():
            self._owe_less(recipient.in_flight.messages)
            recipient.in_flight.take_all()
            self._settle(recipient)

    def pop_unblocked(self) -> bool:
        """Was a consumer or the subscription unblocked since the last call?"""
        unblocked = self._unblocked
        self._unblocked = False
        return unblocked

    def check(self) -> None:
        self.ready.check()
        seen: set[Position] = set()
        for consumer, recipient in self.recipients.items():
            assert recipient.consumer == consumer
            recipient.check()
            assert recipient.is_ready == (recipient.room() > 0), consumer
            assert seen.isdisjoint(recipient.in_flight), f"{consumer}: given twice"
            seen.update(recipient.in_flight)
        unacked = sum(recipient.in_flight.messages for recipient in self.recipients.values())
        assert self.unacked_messages == unacked, (self.unacked_messages, unacked)
        unacked_max = self.limits.unacked_messages_per_subscription_max
        assert self.is_blocked or not unacked_max or unacked < unacked_max
        assert not self.is_blocked or (unacked_max and unacked and unacked >= unacked_max // 2)

    def _owe_less(self, messages: int) -> None:
        self.unacked_messages -= messages
        if self.is_blocked:
            unacked_max = self.limits.unacked_messages_per_subscription_max
            # At 0 in any case: with a limit of 1 Pulsar stays blocked for good.
            if self.unacked_messages < unacked_max // 2 or not (
                unacked_max and self.unacked_messages
            ):
                self.is_blocked = False
                self._unblocked = True

    def _settle(self, recipient: Recipient) -> None:
        """The recipient owes less than before."""
        recipient.ease()
        if self.ready.refresh(recipient):
            self._unblocked = True


# ------------------------------------------------------------------------------ one consumer
#
# What it may get: permits, what it owes, and whether its connection takes more. As Pulsar:
#
# - A permit is one message. An entry is assigned while a permit is left and takes as many as it has
#   unacked messages: a batch may overshoot, and permits then go below zero.
# - A consumer that owes ``unacked_max`` messages is blocked: it gets nothing until it owes no more
#   than half, or gives something back (`take_back`). What it owes never passes the limit by more
#   than one batch. 0 = no limit.
#
# `ReadyConsumers` is the round robin: the consumers that may get something now, by priority.


_AVERAGE_MEMORY: Final = 0.9
"""Weight of the past in the average messages per entry, as Pulsar's."""


class MessageAverage:
    """Messages per entry in a consumer's deliveries; recent ones weigh most."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, messages: int, entries: int) -> None:
        """Count a delivery of so many messages in so many entries."""
        latest = messages / entries
        self.value = (
            self.value * _AVERAGE_MEMORY + latest * (1 - _AVERAGE_MEMORY) if self.value else latest
        )


class Recipient:
    """One consumer of a Shared or Key_Shared subscription."""

    __slots__ = (
        "_average",
        "consumer",
        "in_flight",
        "is_blocked",
        "is_ready",
        "is_writable",
        "messages_delivered",
        "messages_redelivered",
        "permits",
        "spec",
        "unacked_max",
    )

    def __init__(self, consumer: int, spec: ConsumerSpec, unacked_max: int) -> None:
        self.consumer = consumer
        self.spec = spec
        self.unacked_max = unacked_max
        self.permits = 0
        self.in_flight = InFlight()
        self.is_blocked = False
        self.is_writable = True
        self.is_ready = False
        """Kept by `ReadyConsumers`: whether it is queued there."""
        self.messages_delivered = 0
        self.messages_redelivered = 0
        self._average = MessageAverage()

    def room(self) -> int:
        """Messages it may be given now; the last entry may overshoot."""
        if self.is_blocked or not self.is_writable:
            return 0
        if self.unacked_max:
            return min(self.permits, self.unacked_max - self.in_flight.messages)
        return self.permits

    def give(self, positions: Sequence[Position], message_counts: Sequence[int] | None) -> int:
        """Put the entries in flight. Returns the number of their messages."""
        messages = self.in_flight.add(positions, message_counts)
        self.permits -= messages
        self.messages_delivered += messages
        self._average.add(messages, len(positions))
        if self.unacked_max and self.in_flight.messages >= self.unacked_max:
            self.is_blocked = True
        return messages

    def ease(self) -> bool:
        """It may owe less now, or the limit has changed. Was it unblocked?"""
        if self.is_blocked and (
            not self.unacked_max or self.in_flight.messages <= self.unacked_max // 2
        ):
            self.is_blocked = False
            return True
        return False

    def limit(self, unacked_max: int) -> None:
        """Set the limit of unacked messages."""
        self.unacked_max = unacked_max
        if unacked_max and self.in_flight.messages >= unacked_max:
            self.is_blocked = True
        else:
            self.ease()

    def statistics(self, hash_ranges: tuple[tuple[int, int], ...]) -> ConsumerStatistics:
        return ConsumerStatistics(
            consumer=self.consumer,
            name=self.spec.name,
            priority=self.spec.priority,
            permits=self.permits,
            unacked_messages=self.in_flight.messages,
            in_flight_entries=len(self.in_flight),
            is_blocked_on_unacked_messages=self.is_blocked,
            is_active=True,
            is_writable=self.is_writable,
            messages_delivered=self.messages_delivered,
            messages_redelivered=self.messages_redelivered,
            messages_per_entry_average=self._average.value,
            hash_ranges=hash_ranges,
        )

    def check(self) -> None:
        self.in_flight.check()
        if self.is_blocked:
            assert self.unacked_max
            assert self.in_flight.messages > self.unacked_max // 2


class ReadyConsumers:
    """The consumers with room, in a queue for each priority; the lowest number goes first."""

    __slots__ = ("_levels", "count")

    def __init__(self) -> None:
        self._levels: dict[int, deque[Recipient]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[Recipient]:
        for priority in sorted(self._levels):
            yield from self._levels[priority]

    def refresh(self, recipient: Recipient) -> bool:
        """Its room may have changed: queue it at the end, or take it out. Was it queued?"""
        if (recipient.room() > 0) == recipient.is_ready:
            return False
        if recipient.is_ready:
            self.remove(recipient)
            return False
        recipient.is_ready = True
        self._levels.setdefault(recipient.spec.priority, deque()).append(recipient)
        self.count += 1
        return True

    def remove(self, recipient: Recipient) -> None:
        """Take it out if it is queued."""
        if recipient.is_ready:
            recipient.is_ready = False
            level = self._levels[recipient.spec.priority]
            level.remove(recipient)
            if not level:
                del self._levels[recipient.spec.priority]
            self.count -= 1

    def next(self) -> Recipient | None:
        """The consumer whose turn it is. It goes to the end of its queue."""
        if not self._levels:
            return None
        level = self._levels[min(self._levels)]
        recipient = level[0]
        level.rotate(-1)
        return recipient

    def peers(self, recipient: Recipient) -> int:
        """How many of its priority are ready, itself included."""
        return len(self._levels.get(recipient.spec.priority, ()))

    def check(self) -> None:
        assert self.count == sum(map(len, self._levels.values()))
        for priority, level in self._levels.items():
            assert level, priority
            for recipient in level:
                assert recipient.is_ready, recipient.consumer
                assert recipient.room() > 0, recipient.consumer
                assert recipient.spec.priority == priority


# ------------------------------------------------------------------------------ in flight


class InFlight:
    """The entries that one consumer has and has not acked: position -> unacked messages in it.

    A plain dict underneath, filled and emptied by the hundred without a Python loop. Order of
    delivery is kept.
    """

    __slots__ = ("_counts", "messages")

    def __init__(self) -> None:
        self._counts: dict[Position, int] = {}
        self.messages = 0

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, position: Position) -> bool:
        return position in self._counts

    def __iter__(self) -> Iterator[Position]:
        return iter(self._counts)

    @property
    def positions(self) -> Collection[Position]:
        """All of them, in order of delivery; a live view."""
        return self._counts.keys()

    def add(self, positions: Sequence[Position], message_counts: Sequence[int] | None) -> int:
        """Add delivered entries (None: one message each). Returns their messages."""
        if message_counts is None:
            self._counts.update(zip(positions, repeat(1)))
            messages = len(positions)
        else:
            self._counts.update(zip(positions, message_counts, strict=True))
            messages = sum(message_counts)
        self.messages += messages
        return messages

    def take(self, position: Position) -> int:
        """The entry is no longer in flight. Returns its messages; 0: it was not here."""
        messages = self._counts.pop(position, 0)
        self.messages -= messages
        return messages

    def take_many(self, positions: Sequence[Position]) -> list[int]:
        counts = list(map(self._counts.pop, positions, repeat(0)))
        self.messages -= sum(counts)
        return counts

    def others(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Those that are not here."""
        if self._counts.keys().isdisjoint(positions):
            return positions
        return [position for position in positions if position not in self._counts]

    def lower(self, position: Position, remaining: int) -> int:
        """No more than so many of the entry's messages are unacked. Returns by how many less."""
        lowered = self._counts.get(position, 0) - remaining
        if lowered <= 0:
            return 0
        self._counts[position] = remaining
        self.messages -= lowered
        return lowered

    def take_all(self) -> list[Position]:
        """Nothing is in flight any more. Returns what was, in order of delivery."""
        positions = list(self._counts)
        self._counts = {}
        self.messages = 0
        return positions

    def take_through(self, position: Position) -> list[Position]:
        """`take` everything up to and including the position. Returns what was there."""
        taken = [at for at in self._counts if at <= position]
        self.messages -= sum(map(self._counts.pop, taken))
        return taken

    def check(self) -> None:
        assert self.messages == sum(self._counts.values())
        assert all(count > 0 for count in self._counts.values())
