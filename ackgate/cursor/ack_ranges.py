"""The acked entries above the mark-delete: one Roaring bitmap per message ledger, ranges counted.

Pure. Pulsar calls this set *individually deleted messages*. A **range** is a maximal run of acked
entries inside one ledger. How many there are decides whether the ack state can be persisted, so the
count is kept with every change and never computed by a walk:

    before   . # # . # . .       3 -> the neighbours of a new entry say what it does to the count
    add      . # # + # . .       both acked: -1     (two ranges become one)
    add      . # # . # + .       one acked:   0     (a range grows)
    add      + . .               none acked: +1     (a range is born)

Adding an array does the same for all its entries at once (`run_count_change`).

Invariants: no empty bitmap is kept; `range_count` and `acked_count` are the sums over the ledgers;
ledger ids are kept ascending.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from pyroaring import BitMap

from ackgate.cursor.bitmaps import lowest_runs, run_bounds, run_count, run_count_change, run_stop
from ackgate.cursor.position import ENTRY_ID_MAX, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class AckedInLedger:
    """The acked entries of one ledger."""

    __slots__ = ("bitmap", "range_count")

    def __init__(self, bitmap: BitMap, range_count: int) -> None:
        self.bitmap = bitmap
        self.range_count = range_count


class AckRanges:
    """A set of positions that knows at any time how many ranges it consists of."""

    __slots__ = ("_ids", "_ledgers", "acked_count", "range_count")

    range_count: int
    """Ranges of all ledgers. O(1)."""

    acked_count: int
    """Acked entries of all ledgers. O(1)."""

    def __init__(self) -> None:
        self._ledgers: dict[int, AckedInLedger] = {}
        self._ids: list[int] = []
        self.range_count = 0
        self.acked_count = 0

    # -- reading

    def __contains__(self, position: Position) -> bool:
        ledger_id, entry_id = position
        ledger = self._ledgers.get(ledger_id)
        return ledger is not None and 0 <= entry_id <= ENTRY_ID_MAX and entry_id in ledger.bitmap

    @property
    def ledger_ids(self) -> list[int]:
        """Ledgers with acked entries, ascending. Not a copy."""
        return self._ids

    def bitmap(self, ledger_id: int) -> BitMap | None:
        """The acked entries of one ledger. Live: read it, keep it not."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.bitmap

    def bitmaps(self) -> Iterator[tuple[int, BitMap]]:
        """Ledgers ascending, each with its live bitmap."""
        for ledger_id in self._ids:
            yield ledger_id, self._ledgers[ledger_id].bitmap

    def copies(self) -> Mapping[int, BitMap]:
        """A copy of every bitmap, ledgers ascending. O(containers)."""
        return {ledger_id: bitmap.copy() for ledger_id, bitmap in self.bitmaps()}

    def last(self) -> Position | None:
        """The highest acked entry: upper end of the last range."""
        if not self._ids:
            return None
        ledger_id = self._ids[-1]
        return Position(ledger_id, self._ledgers[ledger_id].bitmap.max())

    def count_from(self, position: Position) -> int:
        """Acked entries at or after the position. O(ledgers after it)."""
        ledger_id, entry_id = position
        first = bisect_left(self._ids, ledger_id)
        count = 0
        for later in self._ids[first:]:
            bitmap = self._ledgers[later].bitmap
            is_cut = later == ledger_id and entry_id > 0
            count += bitmap.range_cardinality(entry_id, ENTRY_ID_MAX + 1) if is_cut else len(bitmap)
        return count

    # -- growing

    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Add one entry. Returns whether it is new."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            self._insert(ledger_id, BitMap((entry_id,)), 1)
            return True
        bitmap = ledger.bitmap
        if entry_id in bitmap:
            return False
        change = 1
        if entry_id and entry_id - 1 in bitmap:
            change -= 1
        if entry_id != ENTRY_ID_MAX and entry_id + 1 in bitmap:
            change -= 1
        bitmap.add(entry_id)
        ledger.range_count += change
        self.range_count += change
        self.acked_count += 1
        return True

    def add_bitmap(self, ledger_id: int, added: BitMap) -> BitMap:
        """Add many entries. Owns `added` from then on; returns those that are new (read only)."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if added:
                self._insert(ledger_id, added.copy(), run_count(added))
            return added
        added -= ledger.bitmap
        if added:
            change = run_count_change(ledger.bitmap, added)
            ledger.bitmap |= added
            ledger.range_count += change
            self.range_count += change
            self.acked_count += len(added)
        return added

    # -- shrinking, because the mark-delete covers it now

    def pop_run_at(self, ledger_id: int, start: int, stop_max: int) -> int:
        """Remove the lowest run if it begins at `start`. Returns its stop, else `start`."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or start not in ledger.bitmap:
            return start
        bitmap = ledger.bitmap
        if ledger.range_count == 1:
            stop = start + len(bitmap)
            self._remove(ledger_id)
            return stop
        if start + 1 not in bitmap:
            # A run of one: by far the most frequent, and a remove_range costs a microsecond.
            stop = start + 1
            bitmap.remove(start)
        else:
            stop = run_stop(bitmap, start, stop_max)
            bitmap.remove_range(start, stop)
        ledger.range_count -= 1
        self.range_count -= 1
        self.acked_count -= stop - start
        return stop

    def drop_through(self, position: Position) -> None:
        """Remove everything at or before the position. O(containers removed)."""
        ledger_id, entry_id = position
        for lower in self._ids[: bisect_left(self._ids, ledger_id)]:
            self._remove(lower)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or entry_id < 0:
            return
        bitmap = ledger.bitmap
        dropped = bitmap & BitMap(range(entry_id + 1))
        if not dropped:
            return
        if len(dropped) == len(bitmap):
            self._remove(ledger_id)
            return
        is_cut = entry_id in dropped and entry_id + 1 in bitmap
        change = is_cut - run_count(dropped)
        bitmap.remove_range(0, entry_id + 1)
        ledger.range_count += change
        self.range_count += change
        self.acked_count -= len(dropped)

    def drop_ledger(self, ledger_id: int) -> bool:
        """Remove one ledger. Returns whether anything was acked in it."""
        if ledger_id not in self._ledgers:
            return False
        self._remove(ledger_id)
        return True

    def clear(self) -> None:
        self._ledgers.clear()
        self._ids.clear()
        self.range_count = 0
        self.acked_count = 0

    def _insert(self, ledger_id: int, bitmap: BitMap, ranges: int) -> None:
        self._ledgers[ledger_id] = AckedInLedger(bitmap, ranges)
        insort(self._ids, ledger_id)
        self.range_count += ranges
        self.acked_count += len(bitmap)

    def _remove(self, ledger_id: int) -> None:
        ledger = self._ledgers.pop(ledger_id)
        del self._ids[bisect_left(self._ids, ledger_id)]
        self.range_count -= ledger.range_count
        self.acked_count -= len(ledger.bitmap)

    def check(self) -> None:
        assert self._ids == sorted(self._ledgers), self._ids
        for ledger_id, ledger in self._ledgers.items():
            assert ledger.bitmap, f"empty bitmap kept for ledger {ledger_id}"
            counted = run_count(ledger.bitmap)
            assert ledger.range_count == counted, (ledger_id, ledger.range_count, counted)
        assert self.range_count == sum(ledger.range_count for ledger in self._ledgers.values())
        assert self.acked_count == sum(len(ledger.bitmap) for ledger in self._ledgers.values())


# ------------------------------------------------------------------------------ as text


def ranges_text(ranges: AckRanges, ranges_max: int) -> str:
    """The lowest `ranges_max` ranges; ``...`` stands for the rest."""
    texts: list[str] = []
    for ledger_id, bitmap in ranges.bitmaps():
        wanted = ranges_max - len(texts)
        if wanted <= 0:
            break
        starts, stops = run_bounds(lowest_runs(bitmap, wanted))
        texts.extend(
            f"({ledger_id}:{start - 1}..{ledger_id}:{stop - 1}]"
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        )
    if len(texts) < ranges.range_count:
        texts.append("...")
    return f"[{','.join(texts)}]"
