"""What one consumer may be given: permits, what it owes, and whether its connection takes more.

Pure. Rules as Pulsar's:

- A permit is one message. An entry is given while a permit is left and takes as many as it has
  unacked messages: a batch may overshoot, and permits then go below zero.
- A consumer that owes ``unacked_max`` messages is blocked: it gets nothing until it owes no more
  than half, or gives something back (`unblock`). What it is given never passes the limit by more
  than one batch. 0 = no limit.

`ReadyConsumers` is the round robin: the consumers that may be given something now, by priority.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.dispatcher import ConsumerStatistics
from ackgate.dispatcher.in_flight import InFlight

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.cursor.position import Position
    from ackgate.dispatcher.dispatcher import ConsumerSpec

_AVERAGE_MEMORY: Final = 0.9
"""Weight of the past in the average messages per entry, as Pulsar's."""


class MessageAverage:
    """Messages per entry of what a consumer was given, recent deliveries weighing most."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, messages: int, entries: int) -> None:
        """A delivery of so many messages in so many entries."""
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
        """The entries go to it. Returns their messages."""
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
        """The limit is another one from now on."""
        self.unacked_max = unacked_max
        if unacked_max and self.in_flight.messages >= unacked_max:
            self.is_blocked = True
        else:
            self.ease()

    def statistics(self, hash_ranges: tuple[tuple[int, int], ...]) -> ConsumerStatistics:
        """A frozen description."""
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
        """Assert every invariant."""
        self.in_flight.check()
        if self.is_blocked:
            assert self.unacked_max
            assert self.in_flight.messages > self.unacked_max // 2


class ReadyConsumers:
    """The consumers with room, each priority a queue of its own; the lowest number goes first."""

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
        """Whose turn it is. It goes to the end of its queue."""
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
        """Assert every invariant."""
        assert self.count == sum(map(len, self._levels.values()))
        for priority, level in self._levels.items():
            assert level, priority
            for recipient in level:
                assert recipient.is_ready, recipient.consumer
                assert recipient.room() > 0, recipient.consumer
                assert recipient.spec.priority == priority
