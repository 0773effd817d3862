"""A set of positions: a Roaring bitmap of entry ids for each ledger.

Pure. The one set of positions in the package: what is acked, what a tracker holds, what is to be
offered again. It knows its size, its memory and, if asked for, its ranges at any time.

A **range** is a maximal run of entries inside one ledger. How many ranges of acked entries there
are (Pulsar: *individually deleted messages*) decides whether the ack state can be persisted, so the
count is kept with every change and never computed by a walk:

    before   . # # . # . .       3 -> the neighbours of a new entry say what it does to the count
    add      . # # + # . .       both there: -1     (two ranges become one)
    add      . # # . # + .       one there:   0     (a range grows)
    add      + . .               none there: +1     (a range is born)

Adding and removing many does the same for all of them at once (`run_count_change`).

A Roaring bitmap does not look for runs by itself: after every few hundred changes of a ledger its
bitmap is run-optimised and its size measured. So the memory is known in O(1), to within a few
hundred entries of each ledger. Where ranges are counted runs are soon absorbed by the mark-delete:
bitmaps stay as they are, because an add to a container of runs costs twice as much.

Invariants: no empty bitmap is kept; `entry_count` and `range_count` are the sums over the ledgers;
ledger ids are kept ascending.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from ackgate.cursor.bitmaps import (
    lowest_runs,
    run_bounds,
    run_count,
    run_count_change,
    run_stop,
)
from ackgate.cursor.position import ENTRY_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LEDGER_BYTES: Final = 450
"""A ledger without its containers: bitmap, record, place in the table. Measured."""

CONTAINER_BYTES: Final = 48
"""A container without its members: header, pointer, key, type."""

ENTRY_BYTES: Final = 2
"""An entry that was not weighed yet: as a member of an array container."""

CHANGES_PER_CONTAINER: Final = 256
"""Changes after which a ledger is weighed: enough that a weighing costs them little."""

_LEDGER_ID: Final = itemgetter(0)


class _Ledger:
    """The entries of one ledger, and its size when it was last weighed."""

    __slots__ = ("bitmap", "bytes", "changes_left", "entries_weighed")

    def __init__(self, bitmap: BitMap) -> None:
        self.bitmap = bitmap
        self.bytes = 0
        self.entries_weighed = 0
        self.changes_left = 0


class PositionSet:
    """A set of positions that knows at any time how large it is."""

    __slots__ = (
        "_bytes",
        "_counts_ranges",
        "_entries_weighed",
        "_ids",
        "_ledgers",
        "entry_count",
        "range_count",
    )

    entry_count: int
    """Positions in the set. O(1)."""

    range_count: int
    """Ranges of all ledgers, O(1); always 0 if the set does not count them."""

    def __init__(self, *, counts_ranges: bool = False) -> None:
        """An empty set. Counting ranges costs a single change two probes of a bitmap."""
        self._counts_ranges = counts_ranges
        self._ledgers: dict[int, _Ledger] = {}
        self._ids: list[int] = []
        self.clear()

    def clear(self) -> None:
        self._ledgers.clear()
        self._ids.clear()
        self.entry_count = 0
        self.range_count = 0
        self._bytes = 0
        self._entries_weighed = 0

    # -- reading

    def __contains__(self, position: Position) -> bool:
        ledger_id, entry_id = position
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return False
        try:
            return entry_id in ledger.bitmap
        except OverflowError:  # no id of an entry
            return False

    def __iter__(self) -> Iterator[Position]:
        """All positions, ascending. The set must not change during the iteration."""
        for ledger_id, bitmap in self.bitmaps():
            for entry_id in bitmap:
                yield Position(ledger_id, entry_id)

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory, to within a fifth. O(1)."""
        return self._bytes + ENTRY_BYTES * max(0, self.entry_count - self._entries_weighed)

    @property
    def ledger_ids(self) -> Sequence[int]:
        """Ledgers with entries, ascending. Not a copy."""
        return self._ids

    def bitmap(self, ledger_id: int) -> BitMap | None:
        """The entries of one ledger. Live: read it, keep it not."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.bitmap

    def bitmaps(self) -> Iterator[tuple[int, BitMap]]:
        """Ledgers ascending, each with its live bitmap."""
        for ledger_id in self._ids:
            yield ledger_id, self._ledgers[ledger_id].bitmap

    def copies(self) -> dict[int, BitMap]:
        """A copy of every bitmap, ledgers ascending. O(containers)."""
        return {ledger_id: bitmap.copy() for ledger_id, bitmap in self.bitmaps()}

    def first(self, entries_max: int) -> tuple[Position, ...]:
        """The `entries_max` lowest positions, or all if there are fewer."""
        return tuple(islice(self, entries_max))

    def last(self) -> Position | None:
        """The highest position; None if the set is empty. O(1)."""
        if not self._ids:
            return None
        ledger_id = self._ids[-1]
        return Position(ledger_id, self._ledgers[ledger_id].bitmap.max())

    def count_from(self, position: Position) -> int:
        """Entries at or after the position. O(ledgers after it)."""
        ledger_id, entry_id = position
        count = 0
        for later in self._ids[bisect_left(self._ids, ledger_id) :]:
            bitmap = self._ledgers[later].bitmap
            is_cut = later == ledger_id and entry_id > 0
            count += bitmap.range_cardinality(entry_id, ENTRY_ID_MAX + 1) if is_cut else len(bitmap)
        return count

    # -- growing

    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Add one entry, with an id in 0..`ENTRY_ID_MAX`. Returns whether it is new."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            self._insert(ledger_id, BitMap((entry_id,)))
            return True
        bitmap = ledger.bitmap
        if entry_id in bitmap:
            return False
        if self._counts_ranges:
            if not entry_id or entry_id - 1 not in bitmap:
                if entry_id == ENTRY_ID_MAX or entry_id + 1 not in bitmap:
                    self.range_count += 1
            elif entry_id != ENTRY_ID_MAX and entry_id + 1 in bitmap:
                self.range_count -= 1
        bitmap.add(entry_id)
        self.entry_count += 1
        left = ledger.changes_left - 1
        ledger.changes_left = left
        if left < 0:
            self._weigh(ledger)
        return True

    def add_many(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Add many entries. Takes `entries` over; returns those that are new (read only)."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if entries:
                self._insert(ledger_id, entries.copy())
            return entries
        entries -= ledger.bitmap
        if entries:
            if self._counts_ranges:
                self.range_count += run_count_change(ledger.bitmap, entries)
            ledger.bitmap |= entries
            self.entry_count += len(entries)
            self._changed(ledger, len(entries))
        return entries

    def add_positions(self, positions: Iterable[Position]) -> None:
        """Add positions; quick where those of one ledger follow one another."""
        for ledger_id, entry_ids in _by_ledger(positions):
            if len(entry_ids) == 1:
                self.add(ledger_id, entry_ids[0])
            else:
                self.add_many(ledger_id, BitMap(entry_ids))

    # -- shrinking

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Remove one entry. Returns whether it was there."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or not 0 <= entry_id <= ENTRY_ID_MAX or entry_id not in ledger.bitmap:
            return False
        bitmap = ledger.bitmap
        bitmap.remove(entry_id)
        if self._counts_ranges:
            self.range_count -= run_count_change(bitmap, BitMap((entry_id,)))
        self.entry_count -= 1
        if not bitmap:
            self._remove(ledger_id)
            return True
        left = ledger.changes_left - 1
        ledger.changes_left = left
        if left < 0:
            self._weigh(ledger)
        return True

    def discard_many(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Remove many entries. Returns those that were there."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return BitMap()
        gone: BitMap = ledger.bitmap & entries
        if len(gone) == len(ledger.bitmap):
            return self.take_ledger(ledger_id)
        if gone:
            ledger.bitmap -= gone
            if self._counts_ranges:
                self.range_count -= run_count_change(ledger.bitmap, gone)
            self.entry_count -= len(gone)
            self._changed(ledger, len(gone))
        return gone

    def discard_positions(self, positions: Iterable[Position]) -> None:
        """Remove positions; quick where those of one ledger follow one another."""
        for ledger_id, entry_ids in _by_ledger(positions):
            if len(entry_ids) == 1:
                self.discard(ledger_id, entry_ids[0])
            elif ledger_id in self._ledgers:
                self.discard_many(ledger_id, BitMap(entry_ids))

    def pop_run_at(self, ledger_id: int, start: int, stop_max: int) -> int:
        """Remove the ledger's lowest run if it begins at `start`. Returns its stop, else `start`.

        Only of a set that counts its ranges.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or start not in ledger.bitmap:
            return start
        bitmap = ledger.bitmap
        if self.range_count == 1:
            stop = start + self.entry_count
            self.clear()
            return stop
        if start == ENTRY_ID_MAX or start + 1 not in bitmap:
            # A run of one: by far the most frequent, and a remove_range costs a microsecond.
            stop = start + 1
            bitmap.remove(start)
        else:
            stop = run_stop(bitmap, start, stop_max)
            bitmap.remove_range(start, stop)
        self.range_count -= 1
        popped = stop - start
        self.entry_count -= popped
        left = ledger.changes_left - popped
        ledger.changes_left = left
        if not bitmap:
            self._remove(ledger_id)
        elif left < 0:
            self._weigh(ledger)
        return stop

    def take_ledger(self, ledger_id: int) -> BitMap:
        """Remove all entries of one ledger. Returns them."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return BitMap()
        bitmap = ledger.bitmap
        if self._counts_ranges:
            self.range_count -= run_count(bitmap)
        self.entry_count -= len(bitmap)
        self._remove(ledger_id)
        return bitmap

    def take_through(self, position: Position) -> list[tuple[int, BitMap]]:
        """Remove everything at or before a position. Returns it, ledgers ascending."""
        ledger_id, entry_id = position
        if not self._ids or self._ids[0] > ledger_id:
            return []
        lower_ids = self._ids[: bisect_left(self._ids, ledger_id)]
        taken = [(lower, self.take_ledger(lower)) for lower in reversed(lower_ids)]
        taken.reverse()
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None and entry_id >= ledger.bitmap.min():
            through = BitMap()
            through.add_range(0, min(entry_id, ENTRY_ID_MAX) + 1)
            taken.append((ledger_id, self.discard_many(ledger_id, through)))
        return taken

    # -- bookkeeping

    def _insert(self, ledger_id: int, bitmap: BitMap) -> None:
        ledger = _Ledger(bitmap)
        self._ledgers[ledger_id] = ledger
        insort(self._ids, ledger_id)
        self.entry_count += len(bitmap)
        if self._counts_ranges:
            self.range_count += run_count(bitmap)
        self._weigh(ledger)

    def _remove(self, ledger_id: int) -> None:
        """Remove a ledger whose entries are counted out already."""
        ledger = self._ledgers.pop(ledger_id)
        self._bytes -= ledger.bytes
        self._entries_weighed -= ledger.entries_weighed
        del self._ids[bisect_left(self._ids, ledger_id)]

    def _changed(self, ledger: _Ledger, changes: int) -> None:
        ledger.changes_left -= changes
        if ledger.changes_left < 0:
            self._weigh(ledger)

    def _weigh(self, ledger: _Ledger) -> None:
        """Find runs, give back spare room, and note the size. O(containers)."""
        bitmap = ledger.bitmap
        if not self._counts_ranges:
            bitmap.run_optimize()
            bitmap.shrink_to_fit()
        figures = bitmap.get_statistics()
        containers: int = figures["n_containers"]
        weight: int = (
            LEDGER_BYTES
            + CONTAINER_BYTES * containers
            + figures["n_bytes_array_containers"]
            + figures["n_bytes_run_containers"]
            + figures["n_bytes_bitset_containers"]
        )
        entries = len(bitmap)
        self._bytes += weight - ledger.bytes
        self._entries_weighed += entries - ledger.entries_weighed
        ledger.bytes, ledger.entries_weighed = weight, entries
        ledger.changes_left = CHANGES_PER_CONTAINER * containers

    def check(self) -> None:
        assert self._ids == sorted(self._ledgers), self._ids
        for ledger_id, ledger in self._ledgers.items():
            assert ledger.bitmap, f"empty bitmap kept for ledger {ledger_id}"
        ledgers = self._ledgers.values()
        assert self.entry_count == sum(len(ledger.bitmap) for ledger in ledgers)
        assert self._bytes == sum(ledger.bytes for ledger in ledgers)
        assert self._entries_weighed == sum(ledger.entries_weighed for ledger in ledgers)
        ranges = sum(run_count(ledger.bitmap) for ledger in ledgers) if self._counts_ranges else 0
        assert self.range_count == ranges, (self.range_count, ranges)


def _by_ledger(positions: Iterable[Position]) -> Iterator[tuple[int, list[int]]]:
    """Neighbours of one ledger together: its id, their entry ids."""
    for ledger_id, group in groupby(positions, _LEDGER_ID):
        yield ledger_id, [entry_id for _, entry_id in group]


def ranges_text(positions: PositionSet, ranges_max: int) -> str:
    """The lowest `ranges_max` ranges as Pulsar writes them; ``...`` stands for the rest."""
    texts: list[str] = []
    for ledger_id, bitmap in positions.bitmaps():
        wanted = ranges_max - len(texts)
        if wanted <= 0:
            break
        starts, stops = run_bounds(lowest_runs(bitmap, wanted))
        texts.extend(
            f"({ledger_id}:{start - 1}..{ledger_id}:{stop - 1}]"
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        )
    if len(texts) < positions.range_count:
        texts.append("...")
    return f"[{','.join(texts)}]"
