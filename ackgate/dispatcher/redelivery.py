"""What is offered again: how often it was, and which replays go first.

Pure. The replay queue itself is a `PositionSet`, lowest position first.

While the gate is shut, replays that close holes go first (`holes_first`): every run of waiting
entries between two acked neighbours merges two ack ranges once it is acked, and the shorter it is
the sooner. ::

    acked  #### ## ## . . ####        waiting  w
           ####w##ww##.ww.####
               1   2    no: its neighbours are in flight or unread

"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


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


def holes_first(
    waiting: Sequence[Position], entries_max: int, is_acked: Callable[[Position], bool]
) -> tuple[Position, ...]:
    """The same positions (ascending), those that close whole holes first, shortest hole first.

    Costs two calls of ``is_acked`` per run of neighbouring positions.
    """
    closing: list[tuple[int, int, int]] = []  # length, start, stop (places in `waiting`)
    others: list[Position] = []
    singles = 0
    start = 0
    total = len(waiting)
    # Holes of one entry cannot be beaten: with enough of them the rest need not be looked at.
    while start < total and singles < entries_max:
        ledger_id, entry_id = waiting[start]
        stop = start + 1
        while stop < total and waiting[stop] == (ledger_id, entry_id + stop - start):
            stop += 1
        # Entry 0 has no neighbour below: ack ranges do not cross ledgers.
        if (
            entry_id > 0
            and is_acked(Position(ledger_id, entry_id - 1))
            and is_acked(Position(ledger_id, entry_id + stop - start))
        ):
            closing.append((stop - start, start, stop))
            singles += stop - start == 1
        else:
            others.extend(waiting[start:stop])
        start = stop
    closing.sort()
    chosen: list[Position] = []
    for _, start, stop in closing:
        if len(chosen) >= entries_max:
            break
        chosen.extend(waiting[start:stop])
    chosen.extend(others)
    return tuple(chosen[:entries_max])
