"""The broker's side of a dispatcher in twenty lines, for tests that tell a short story."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ackgate.cursor import Position
from ackgate.dispatcher import (
    Assignment,
    ConsumerSpec,
    Dispatcher,
    EntriesRead,
    MessageChunk,
    Read,
    ReadKind,
)


def at(entry_id: int) -> Position:
    return Position(0, entry_id)


class Host:
    """Entries 0.. of ledger 0; knows sizes, keys and chunks of some, and who got what."""

    def __init__(self, dispatcher: Dispatcher, entries: int = 0) -> None:
        self.dispatcher = dispatcher
        self.entries = entries
        self.unread = 0
        self.acked: set[int] = set()
        self.sizes: dict[int, int] = {}
        self.hashes: dict[int, int] = {}
        self.chunks: dict[int, MessageChunk] = {}
        self.got: list[tuple[int, list[int]]] = []
        self.counts: dict[int, int] = {}
        """Entry -> redelivery count it came with last."""

    def join(self, consumer: int, permits: int = 0, *, name: str = "", priority: int = 0) -> None:
        self.dispatcher.add_consumer(consumer, ConsumerSpec(name or f"c{consumer}", priority), 0)
        if permits:
            self.dispatcher.add_permits(consumer, permits)

    def next_read(self, *, gate_open: bool = True, **facts: Any) -> Read | None:
        return self.dispatcher.next_read(
            has_unread=self.unread < self.entries, gate_open=gate_open, **facts
        )

    def answer(self, read: Read) -> list[Assignment]:
        if read.kind is ReadKind.REPLAY:
            numbers = [position.entry_id for position in read.positions]
        else:
            numbers = list(range(self.unread, min(self.unread + read.entries_max, self.entries)))
            self.unread += len(numbers)
        numbers = [number for number in numbers if number not in self.acked]
        entries = EntriesRead(
            [at(number) for number in numbers],
            [self.sizes.get(number, 1) for number in numbers] if self.sizes else None,
            [self.hashes.get(number, 1) for number in numbers],
            [self.chunks.get(number) for number in numbers] if self.chunks else None,
        )
        deliveries = self.dispatcher.assign(read, entries)
        for delivery in deliveries:
            given = [numbers[index] for index in delivery.indexes]
            self.got.append((delivery.consumer, given))
            counts: Sequence[int] = delivery.redelivery_counts or [0] * len(given)
            self.counts.update(zip(given, counts, strict=True))
        self.dispatcher.check()
        return deliveries

    def pump(
        self, *, gate_open: bool = True, is_acked: Callable[[Position], bool] | None = None
    ) -> list[tuple[int, list[int]]]:
        """Read until there is nothing to read. Returns who got what since the last call."""
        for _ in range(1_000):
            read = self.next_read(gate_open=gate_open, is_acked=is_acked)
            if read is None:
                break
            self.answer(read)
        else:
            raise AssertionError("reads for ever")
        got, self.got = self.got, []
        return got

    def given_to(self, consumer: int) -> list[int]:
        """`pump`, and what this consumer got of it."""
        return [number for to, numbers in self.pump() if to == consumer for number in numbers]

    def ack(self, consumer: int, *numbers: int) -> bool:
        self.acked.update(numbers)
        return self.dispatcher.acked_many(consumer, [at(number) for number in numbers])

    def unacked(self, consumer: int) -> int:
        statistics = self.dispatcher.consumer_statistics(consumer)
        assert statistics is not None
        return statistics.unacked_messages
