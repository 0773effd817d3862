"""Entries in memory, in runs sorted by key and position; the earliest are taken first.

Pure. A run is a piece of the mutable bucket, a whole bucket that is not stored yet, or loaded
segments. One heap has every run, by the key of its first entry::

    heap   100: [100 100 107 120]     101: [101 ...]      350: [350 ...]
            ^ up to the next run's first key it is taken in one piece; runs that begin with the
              same key are taken together, by position

The entries are copies: the tracker's index says whether one is still tracked (`holdings`).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ackgate.cursor import SnapshotSegment
from ackgate.dispatcher.buckets.segments import picked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ackgate.cursor import PositionSet


class RunOwner(Protocol):
    """The bucket that a run belongs to."""

    memory_entries: int
    """Entries in all its runs; updated by `LoadedRuns`."""

    runs: list[LoadedRun]
    """Its runs that still have entries."""


class LoadedRun:
    """Sorted columns of which the first rows have been taken."""

    __slots__ = ("columns", "head", "owner")

    def __init__(self, columns: SnapshotSegment, owner: RunOwner) -> None:
        self.columns = columns
        self.head = 0
        self.owner = owner

    def __len__(self) -> int:
        return int(self.columns.keys_ms.size) - self.head

    @property
    def head_key_ms(self) -> int:
        """Key of the first row that is left."""
        return int(self.columns.keys_ms[self.head])

    def count_through(self, key_ms: int) -> int:
        """Rows that are left with keys up to this one."""
        return int(self.columns.keys_ms.searchsorted(key_ms, "right")) - self.head

    @property
    def rest(self) -> SnapshotSegment:
        """The rows that are left, as views."""
        return picked(self.columns, slice(self.head, None))


class LoadedRuns:
    """All runs of a tracker."""

    __slots__ = ("_heap", "_serial", "entry_count", "touched")

    entry_count: int
    """Rows of all runs. O(1)."""

    touched: set[RunOwner]
    """Buckets that lost rows since the tracker last cleared this."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, LoadedRun]] = []
        self._serial = 0
        self.entry_count = 0
        self.touched = set()

    def __iter__(self) -> Iterator[LoadedRun]:
        return (run for _, _, run in self._heap if len(run))

    # -- runs

    def add(self, columns: SnapshotSegment, owner: RunOwner) -> LoadedRun:
        """A new run, not empty."""
        run = LoadedRun(columns, owner)
        owner.runs.append(run)
        owner.memory_entries += len(run)
        self.entry_count += len(run)
        self._push(run)
        return run

    def remove(self, run: LoadedRun) -> SnapshotSegment:
        """Take a whole run out; what was left of it."""
        rest = run.rest
        run.owner.runs.remove(run)
        self._count(run, -len(run))
        run.head = int(run.columns.keys_ms.size)
        return rest

    def move(self, run: LoadedRun, owner: RunOwner) -> None:
        """Give a run to another bucket."""
        run.owner.runs.remove(run)
        run.owner.memory_entries -= len(run)
        owner.runs.append(run)
        owner.memory_entries += len(run)
        run.owner = owner

    def replace(self, run: LoadedRun, columns: SnapshotSegment) -> None:
        """Keep only these rows of a run, a part of those that are left.

        Call `settle` in the end.
        """
        self._count(run, int(columns.keys_ms.size) - len(run))
        run.columns = columns
        run.head = 0
        if not len(run):
            run.owner.runs.remove(run)

    def settle(self) -> None:
        """Restore the heap after `replace`. O(runs)."""
        self._heap = [(run.head_key_ms, serial, run) for _, serial, run in self._heap if len(run)]
        heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self.entry_count = 0
        self.touched.clear()

    # -- taking

    @property
    def next_key_ms(self) -> int | None:
        """The lowest key of all."""
        heap = self._heap
        while heap and not len(heap[0][2]):
            heappop(heap)
        return heap[0][0] if heap else None

    def skip_one_of(self, positions: PositionSet) -> bool:
        """Take off the first row of the first run, and out of the set, if that holds it."""
        run = self._heap[0][2]
        ledger_id = int(run.columns.ledger_ids[run.head])
        if not positions.discard(ledger_id, int(run.columns.entry_ids[run.head])):
            return False
        heappop(self._heap)
        self._count(run, -1)
        run.head += 1
        if len(run):
            self._push(run)
        else:
            run.owner.runs.remove(run)
        return True

    def take(self, last_key_ms: int, entries_max: int) -> SnapshotSegment | None:
        """The next entries in order with keys up to this one, at most so many. None: no more.

        May give fewer than there are: ask again.
        """
        key_ms = self.next_key_ms
        if key_ms is None or key_ms > last_key_ms:
            return None
        runs = [heappop(self._heap)[2]]
        while (next_key_ms := self.next_key_ms) == key_ms:
            runs.append(heappop(self._heap)[2])
        if len(runs) == 1:
            if next_key_ms is not None:
                last_key_ms = min(last_key_ms, next_key_ms - 1)
            taken = self._take_one(runs[0], last_key_ms, entries_max)
        else:
            taken = self._take_together(runs, key_ms, entries_max)
        for run in runs:
            if len(run):
                self._push(run)
            else:
                run.owner.runs.remove(run)
        return taken

    def _take_one(self, run: LoadedRun, last_key_ms: int, entries_max: int) -> SnapshotSegment:
        stop = int(run.columns.keys_ms.searchsorted(last_key_ms, "right"))
        stop = min(stop, run.head + entries_max)
        rows = picked(run.columns, slice(run.head, stop))
        self._count(run, run.head - stop)
        run.head = stop
        return rows

    def _take_together(
        self, runs: list[LoadedRun], key_ms: int, entries_max: int
    ) -> SnapshotSegment:
        """The rows with this key, which is the first of each of the runs."""
        ledgers: list[NDArray[np.int64]] = []
        entries: list[NDArray[np.int64]] = []
        for run in runs:
            stop = int(run.columns.keys_ms.searchsorted(key_ms, "right"))
            rows = slice(run.head, min(stop, run.head + entries_max))
            ledgers.append(run.columns.ledger_ids[rows])
            entries.append(run.columns.entry_ids[rows])
        all_ledgers, all_entries = np.concatenate(ledgers), np.concatenate(entries)
        order = np.lexsort((all_entries, all_ledgers))[:entries_max]
        origin = np.repeat(np.arange(len(runs)), [rows.size for rows in ledgers])[order]
        counts = np.bincount(origin, minlength=len(runs)).tolist()
        for run, count in zip(runs, counts, strict=True):
            self._count(run, -count)
            run.head += count
        return SnapshotSegment(
            np.full(order.size, key_ms, np.int64), all_ledgers[order], all_entries[order]
        )

    # -- bookkeeping

    def _push(self, run: LoadedRun) -> None:
        self._serial += 1
        heappush(self._heap, (run.head_key_ms, self._serial, run))

    def _count(self, run: LoadedRun, change: int) -> None:
        run.owner.memory_entries += change
        self.entry_count += change
        self.touched.add(run.owner)

    def check(self, owners: list[Any]) -> None:
        runs = list(self)
        assert len(runs) == len(set(map(id, runs))), "a run is in the heap twice"
        assert self.entry_count == sum(map(len, runs))
        for key_ms, _, run in self._heap:
            assert not len(run) or key_ms == run.head_key_ms
        for run in runs:
            rest = run.rest
            order = np.lexsort((rest.entry_ids, rest.ledger_ids, rest.keys_ms))
            assert bool(np.all(order == np.arange(order.size))), "a run is out of order"
        for owner in owners:
            own = [run for run in runs if run.owner is owner]
            assert set(map(id, own)) == set(map(id, owner.runs)), "a bucket's runs are not its own"
        assert {id(run.owner) for run in runs} <= set(map(id, owners)), "a run of no bucket"
