"""The entries that one consumer was given and has not acked: position -> unacked messages in it.

Pure. A plain dict underneath, filled and emptied by the hundred without a Python loop. Order of
delivery is kept.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ackgate.cursor.position import Position


class InFlight:
    """Entries in flight with one consumer. ``messages`` is the sum over all of them."""

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
        """The entries were given (None: one message each). Returns their messages."""
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
        """`take` for each."""
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
        """Assert every invariant."""
        assert self.messages == sum(self._counts.values())
        assert all(count > 0 for count in self._counts.values())
