"""What Shared and Key_Shared have in common: several consumers, each with entries in flight.

Pure. The deliveries are in the `DeliveryBook`; the one read under way and the redelivery counts are
beside it. Who gets what, and what waits, is decided in the two subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ackgate.dispatcher.delivery_book import DeliveryBook
from ackgate.dispatcher.port import DispatcherStatistics
from ackgate.dispatcher.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ackgate.cursor import Position
    from ackgate.dispatcher.port import ConsumerStatistics, DispatchLimits, Effect, Read, ReadFrom


class RedeliveryCounts:
    """How often each unacked entry was redelivered; entries never redelivered take no room."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Position, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def increment(self, positions: Iterable[Position]) -> None:
        """Count one redelivery of each."""
        counts = self._counts
        for position in positions:
            counts[position] = counts.get(position, 0) + 1

    def of(self, position: Position) -> int:
        return self._counts.get(position, 0)

    def column(self, positions: Sequence[Position]) -> list[int] | None:
        """The counts of these, in order; None if all are 0."""
        if not self._counts:
            return None
        counts = [self._counts.get(position, 0) for position in positions]
        return counts if any(counts) else None

    def forget(self, position: Position) -> None:
        self._counts.pop(position, None)

    def forget_through(self, position: Position) -> None:
        """Forget the counts of everything up to the position."""
        if self._counts:
            self._counts = {at: count for at, count in self._counts.items() if at > position}

    def clear(self) -> None:
        self._counts.clear()


class SeveralActive(ABC):
    """The part of a `Dispatcher` that does not depend on who gets what; the methods are described there."""

    def __init__(self, limits: DispatchLimits) -> None:
        self._book = DeliveryBook(limits)
        self._redeliveries = RedeliveryCounts()
        self._reading = Reading()

    @property
    @abstractmethod
    def waiting_entries(self) -> int:
        """Entries that wait for replay."""

    @abstractmethod
    def acked(self, consumer: int | None, position: Position) -> bool:
        """One whole entry is acked."""

    def _pop_unblocked(self) -> bool:
        """Whether what was acked since the last call lets entries be given again."""
        return self._book.pop_unblocked()

    def _hash_ranges(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """Per consumer its ranges of key hashes; of all at once, since one costs as much."""
        return {}

    def read_failed(self, read: Read, positions: Sequence[Position] = ()) -> tuple[ReadFrom, ...]:
        """What a normal read has passed over is read again."""
        return self._reading.fail(read, positions)

    def acked_partly(self, consumer: int | None, position: Position, remaining: int) -> bool:
        """Some messages of a batch are acked."""
        if remaining <= 0:
            return self.acked(consumer, position)
        self._book.lower(consumer, position, remaining)
        return self._pop_unblocked()

    @property
    def next_deadline_ms(self) -> int | None:
        """Nothing here waits for time."""
        return None

    def advance(self, now_ms: int) -> tuple[Effect, ...]:
        """Nothing here waits for time."""
        del now_ms
        return ()

    @property
    def consumer_count(self) -> int:
        """How many consumers there are."""
        return len(self._book.recipients)

    @property
    def active_consumer(self) -> int | None:
        return None

    def holder(self, position: Position) -> int | None:
        """The consumer that the entry is in flight with."""
        return self._book.holder(position)

    def in_flight(self, consumer: int) -> Collection[Position]:
        """Entries in flight with the consumer."""
        return self._book.in_flight(consumer)

    def redelivery_count(self, position: Position) -> int:
        """How often the entry was redelivered so far."""
        return self._redeliveries.of(position)

    def messages_redelivered(self, consumer: int) -> int:
        """Messages that the consumer gave back by `redeliver`."""
        recipient = self._book.recipients.get(consumer)
        return 0 if recipient is None else recipient.messages_redelivered

    def consumer_statistics(self, consumer: int) -> ConsumerStatistics | None:
        recipient = self._book.recipients.get(consumer)
        if recipient is None:
            return None
        return recipient.statistics(self._hash_ranges().get(consumer, ()))

    def statistics(self) -> DispatcherStatistics:
        recipients = self._book.recipients
        ranges = self._hash_ranges()
        return DispatcherStatistics(
            consumers=tuple(
                recipient.statistics(ranges.get(consumer, ()))
                for consumer, recipient in recipients.items()
            ),
            unacked_messages=self._book.unacked_messages,
            in_flight_entries=sum(len(each.in_flight) for each in recipients.values()),
            is_blocked_on_unacked_messages=self._book.is_blocked,
            replay_entries=self.waiting_entries,
            redelivered_entries=len(self._redeliveries),
            active_consumer=None,
        )

    def check(self) -> None:
        self._book.check()
        if not self._book.recipients:
            assert not self.waiting_entries, "replays outlive the consumers"
            assert not len(self._redeliveries), "redelivery counts outlive the consumers"
