"""Which positions are tracked: a bitmap of entry ids for each ledger. A tracker's only index.

Pure. Buckets say *when* an entry is due; only this set says whether it is tracked. So a discard
clears one bit, and a bucket's copy of the entry no longer counts.

A Roaring bitmap does not look for runs by itself: after every few hundred changes of a ledger its
bitmap is run-optimised and its size measured. So the memory is known in O(1), to within a few
hundred entries of each ledger.

Invariants: no empty bitmap is kept; `entry_count` is the sum over the ledgers; ledger ids are kept
ascending.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from ackgate.cursor.position import ENTRY_ID_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.cursor.position import Position

LEDGER_BYTES: Final = 450
"""A ledger without its containers: bitmap, record, place in the table. Measured."""

CONTAINER_BYTES: Final = 48
"""A container without its members: header, pointer, key, type."""

ENTRY_BYTES: Final = 2
"""An entry that was not weighed yet: as a member of an array container."""

CHANGES_MIN: Final = 256
"""Changes of a ledger after which it is weighed: enough that a weighing costs them little."""

CHANGES_PER_CONTAINER: Final = 128


class _Ledger:
    __slots__ = ("bitmap", "bytes", "changes_left")

    def __init__(self, bitmap: BitMap) -> None:
        self.bitmap = bitmap
        self.bytes = 0
        self.changes_left = 0


class PositionSet:
    """A set of positions that knows its size and its memory at any time."""

    __slots__ = ("_ids", "_ledgers", "byte_estimate", "entry_count")

    entry_count: int
    """Positions in the set. O(1)."""

    byte_estimate: int
    """Bytes of memory, to within a fifth. O(1)."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}
        self._ids: list[int] = []
        self.entry_count = 0
        self.byte_estimate = 0

    # -- reading

    def __contains__(self, position: Position) -> bool:
        ledger_id, entry_id = position
        ledger = self._ledgers.get(ledger_id)
        return ledger is not None and 0 <= entry_id <= ENTRY_ID_MAX and entry_id in ledger.bitmap

    @property
    def ledger_ids(self) -> Sequence[int]:
        """Ledgers with tracked entries, ascending. Not a copy."""
        return self._ids

    def bitmap(self, ledger_id: int) -> BitMap | None:
        """The tracked entries of one ledger. Live: read it, keep it not."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.bitmap

    def bitmaps(self) -> Iterator[tuple[int, BitMap]]:
        """Ledgers ascending, each with its live bitmap."""
        for ledger_id in self._ids:
            yield ledger_id, self._ledgers[ledger_id].bitmap

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
        bitmap.add(entry_id)
        self.entry_count += 1
        ledger.bytes += ENTRY_BYTES
        self.byte_estimate += ENTRY_BYTES
        ledger.changes_left -= 1
        if ledger.changes_left < 0:
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
            ledger.bitmap |= entries
            self.entry_count += len(entries)
            self._changed(ledger, len(entries))
        return entries

    # -- shrinking

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Remove one entry. Returns whether it was there."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or not 0 <= entry_id <= ENTRY_ID_MAX or entry_id not in ledger.bitmap:
            return False
        ledger.bitmap.remove(entry_id)
        self.entry_count -= 1
        if not ledger.bitmap:
            self._remove(ledger_id)
            return True
        ledger.changes_left -= 1
        if ledger.changes_left < 0:
            self._weigh(ledger)
        return True

    def discard_many(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Remove many entries. Returns those that were there."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return BitMap()
        gone: BitMap = ledger.bitmap & entries
        if len(gone) == len(ledger.bitmap):
            self.entry_count -= len(gone)
            self._remove(ledger_id)
        elif gone:
            ledger.bitmap -= gone
            self.entry_count -= len(gone)
            self._changed(ledger, len(gone))
        return gone

    def take_through(self, position: Position) -> list[tuple[int, BitMap]]:
        """Remove everything at or before a position. Returns it, ledgers ascending."""
        ledger_id, entry_id = position
        taken: list[tuple[int, BitMap]] = []
        for lower in self._ids[: bisect_left(self._ids, ledger_id)]:
            bitmap = self._ledgers[lower].bitmap
            taken.append((lower, bitmap))
            self.entry_count -= len(bitmap)
        if taken:
            for lower, _ in taken:
                self.byte_estimate -= self._ledgers.pop(lower).bytes
            del self._ids[: len(taken)]
        if entry_id >= 0 and ledger_id in self._ledgers:
            through = BitMap()
            through.add_range(0, min(entry_id, ENTRY_ID_MAX) + 1)
            gone = self.discard_many(ledger_id, through)
            if gone:
                taken.append((ledger_id, gone))
        return taken

    def clear(self) -> None:
        self._ledgers.clear()
        self._ids.clear()
        self.entry_count = 0
        self.byte_estimate = 0

    # -- bookkeeping

    def _insert(self, ledger_id: int, bitmap: BitMap) -> None:
        ledger = _Ledger(bitmap)
        self._ledgers[ledger_id] = ledger
        insort(self._ids, ledger_id)
        self.entry_count += len(bitmap)
        self._weigh(ledger)

    def _remove(self, ledger_id: int) -> None:
        """A ledger whose entries are counted out already."""
        self.byte_estimate -= self._ledgers.pop(ledger_id).bytes
        del self._ids[bisect_left(self._ids, ledger_id)]

    def _changed(self, ledger: _Ledger, changes: int) -> None:
        ledger.changes_left -= changes
        if ledger.changes_left < 0:
            self._weigh(ledger)

    def _weigh(self, ledger: _Ledger) -> None:
        """Find runs, give back spare room, and note what is left. O(containers)."""
        bitmap = ledger.bitmap
        bitmap.run_optimize()
        bitmap.shrink_to_fit()
        containers, weight = bitmap_bytes(bitmap)
        self.byte_estimate += weight - ledger.bytes
        ledger.bytes = weight
        ledger.changes_left = max(CHANGES_MIN, CHANGES_PER_CONTAINER * containers)

    def check(self) -> None:
        assert self._ids == sorted(self._ledgers), self._ids
        for ledger_id, ledger in self._ledgers.items():
            assert ledger.bitmap, f"empty bitmap kept for ledger {ledger_id}"
        ledgers = self._ledgers.values()
        assert self.entry_count == sum(len(ledger.bitmap) for ledger in ledgers)
        assert self.byte_estimate == sum(ledger.bytes for ledger in ledgers)


def bitmap_bytes(bitmap: BitMap) -> tuple[int, int]:
    """How many containers, and how many bytes in all."""
    statistics = bitmap.get_statistics()
    containers: int = statistics["n_containers"]
    weight: int = (
        LEDGER_BYTES
        + CONTAINER_BYTES * containers
        + statistics["n_bytes_array_containers"]
        + statistics["n_bytes_run_containers"]
        + statistics["n_bytes_bitset_containers"]
    )
    return containers, weight
