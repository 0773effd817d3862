"""What must be offered again: the replay queue, the redelivery counts, and which replays go first.

Pure. The queue is a Roaring bitmap per message ledger: ordered by position, a few bytes an entry.

While the gate is shut, replays that close holes go first (`holes_first`): every run of waiting
entries between two acked neighbours merges two ack ranges once it is acked, and the shorter it is
the sooner. ::

    acked  #### ## ## . . ####        waiting  w
           ####w##ww##.ww.####
               1   2    no: its neighbours are in flight or unread

"""

from __future__ import annotations

from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from pyroaring import BitMap

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_LEDGER_ID = itemgetter(0)


class ReplayQueue:
    """Positions waiting to be given again, lowest first."""

    __slots__ = ("_bitmaps", "_size")

    def __init__(self) -> None:
        self._bitmaps: dict[int, BitMap] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, position: Position) -> bool:
        bitmap = self._bitmaps.get(position[0])
        return bitmap is not None and position[1] in bitmap

    def __iter__(self) -> Iterator[Position]:
        for ledger_id in sorted(self._bitmaps):
            for entry_id in self._bitmaps[ledger_id]:
                yield Position(ledger_id, entry_id)

    def add_many(self, positions: Iterable[Position]) -> None:
        """Queue the positions; those already queued stay."""
        for ledger_id, group in groupby(positions, _LEDGER_ID):
            bitmap = self._bitmaps.get(ledger_id)
            if bitmap is None:
                bitmap = self._bitmaps[ledger_id] = BitMap()
            before = len(bitmap)
            bitmap.update([entry_id for _, entry_id in group])
            self._size += len(bitmap) - before

    def discard(self, position: Position) -> bool:
        """Remove one. Returns whether it was there."""
        ledger_id, entry_id = position
        bitmap = self._bitmaps.get(ledger_id)
        if bitmap is None or entry_id not in bitmap:
            return False
        bitmap.remove(entry_id)
        self._size -= 1
        if not bitmap:
            del self._bitmaps[ledger_id]
        return True

    def discard_many(self, positions: Iterable[Position]) -> None:
        for ledger_id, group in groupby(positions, _LEDGER_ID):
            bitmap = self._bitmaps.get(ledger_id)
            if bitmap is not None:
                before = len(bitmap)
                bitmap.difference_update(BitMap([entry_id for _, entry_id in group]))
                self._size += len(bitmap) - before
                if not bitmap:
                    del self._bitmaps[ledger_id]

    def discard_through(self, position: Position) -> None:
        """Take out everything up to and including the position."""
        ledger_id, entry_id = position
        for other in [other for other in self._bitmaps if other <= ledger_id]:
            bitmap = self._bitmaps[other]
            before = len(bitmap)
            if other < ledger_id:
                bitmap.clear()
            else:
                bitmap.remove_range(0, entry_id + 1)
            self._size += len(bitmap) - before
            if not bitmap:
                del self._bitmaps[other]

    def clear(self) -> None:
        self._bitmaps.clear()
        self._size = 0

    def first(self, entries_max: int) -> tuple[Position, ...]:
        """The lowest positions. They stay queued."""
        return tuple(islice(self, entries_max))

    def check(self) -> None:
        assert self._size == sum(map(len, self._bitmaps.values()))
        assert all(self._bitmaps.values()), "an empty bitmap was kept"


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
        """Everything up to the position is acked."""
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
