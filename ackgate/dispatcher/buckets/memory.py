"""Entries in memory: the bucket that takes new ones, and all runs, sorted by key and position.

Pure. New entries go to the end of three columns of the mutable bucket, unsorted; nothing more needs
to be done until the first of them falls due. Then the columns are sorted and become a run. Other runs
are whole buckets that are not stored yet, and loaded segments. One heap has every run, by the key of
its first entry::

    heap   100: [100 100 107 120]     101: [101 ...]      350: [350 ...]
            ^ up to the next run's first key it is taken in one piece; runs that begin with the
              same key are taken together, by position

The entries are copies: the tracker's index says whether one is still tracked (`holdings`).
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ackgate.cursor import SnapshotSegment
from ackgate.dispatcher.buckets.segments import in_order, joined, picked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ackgate.cursor import PositionSet

ENTRY_BYTES: Final = 24
"""A key, a ledger id and an entry id."""

RUN_GROWTH: Final = 2
"""A run of the mutable bucket is joined with the next younger one unless it is more than so many times
as large: so there are never more than some twenty."""


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


# ------------------------------------------------------------------------------ the mutable bucket


class MutableBucket:
    """The bucket that takes new entries: in memory only, until it is sealed.

    Entries may have any position: stragglers between those of sealed buckets are put here, too.
    """

    __slots__ = (
        "_entries",
        "_keys",
        "_ledgers",
        "_low_key_ms",
        "highest_ledger_id",
        "memory_entries",
        "oldest_ms",
        "runs",
    )

    memory_entries: int
    """Entries in it, columns and runs. O(1)."""

    oldest_ms: int | None
    """When the first of them came, or one before it. None: it is empty."""

    highest_ledger_id: int
    """Of those that came since it was empty; -1 if none did."""

    def __init__(self) -> None:
        self.runs: list[LoadedRun] = []
        self.memory_entries = 0
        self._begin()

    def _begin(self) -> None:
        self._keys = array("q")
        self._ledgers = array("q")
        self._entries = array("q")
        self._low_key_ms: int | None = None
        self.oldest_ms = None
        self.highest_ledger_id = -1

    def __len__(self) -> int:
        return self.memory_entries

    @property
    def column_entries(self) -> int:
        """Entries that are in no run."""
        return len(self._keys)

    @property
    def next_key_ms(self) -> int | None:
        """The lowest key that is in no run."""
        return self._low_key_ms

    # -- adding

    def add(self, key_ms: int, ledger_id: int, entry_id: int, now_ms: int) -> None:
        self._keys.append(key_ms)
        self._ledgers.append(ledger_id)
        self._entries.append(entry_id)
        self.memory_entries += 1
        self._grown(key_ms, ledger_id, now_ms)

    def add_many(
        self, keys_ms: NDArray[np.int64], ledger_id: int, entry_ids: NDArray[np.int64], now_ms: int
    ) -> None:
        """Add entries of one ledger, at least one."""
        self._keys.frombytes(keys_ms.tobytes())
        self._ledgers.frombytes(np.full(keys_ms.size, ledger_id, np.int64).tobytes())
        self._entries.frombytes(entry_ids.tobytes())
        self.memory_entries += int(keys_ms.size)
        self._grown(int(keys_ms.min()), ledger_id, now_ms)

    def _grown(self, key_ms: int, ledger_id: int, now_ms: int) -> None:
        if self._low_key_ms is None or key_ms < self._low_key_ms:
            self._low_key_ms = key_ms
        if self.oldest_ms is None:
            self.oldest_ms = now_ms
        self.highest_ledger_id = max(self.highest_ledger_id, ledger_id)

    # -- taking

    def sort(self, runs: LoadedRuns) -> None:
        """Make a run of the columns: something in them is due."""
        newest = self._take_columns()
        while self.runs and len(self.runs[-1]) <= RUN_GROWTH * newest.keys_ms.size:
            newest = joined((runs.remove(self.runs[-1]), newest))
        if newest.keys_ms.size:
            runs.add(newest, self)

    def take_all(self, runs: LoadedRuns) -> SnapshotSegment:
        """Take everything, in order; the bucket is empty then."""
        parts = [runs.remove(run) for run in list(self.runs)]
        everything = joined([part for part in (*parts, self._take_columns()) if part.keys_ms.size])
        self.note_empty()
        return everything

    def note_empty(self) -> None:
        """Reset what is remembered of the entries: all were taken."""
        if not self.memory_entries:
            self.oldest_ms = None
            self.highest_ledger_id = -1

    def _take_columns(self) -> SnapshotSegment:
        """The columns, sorted, and gone from here."""
        taken = in_order(*self.columns())
        self.memory_entries -= len(self._keys)
        oldest_ms, highest = self.oldest_ms, self.highest_ledger_id
        self._begin()
        self.oldest_ms, self.highest_ledger_id = oldest_ms, highest
        return taken

    def columns(self) -> SnapshotSegment:
        """The entries that are in no run, as they came. A copy."""
        return SnapshotSegment(
            np.array(self._keys, np.int64),
            np.array(self._ledgers, np.int64),
            np.array(self._entries, np.int64),
        )

    def clear(self) -> None:
        """Forget all; its runs are forgotten by their keeper."""
        self.runs = []
        self.memory_entries = 0
        self._begin()

    def check(self) -> None:
        assert len(self._keys) == len(self._ledgers) == len(self._entries)
        assert self.memory_entries == len(self._keys) + sum(map(len, self.runs))
        assert self._low_key_ms == min(self._keys, default=None)
        if self.memory_entries:
            assert self.oldest_ms is not None
            held = [*self._ledgers, *(int(run.rest.ledger_ids.max()) for run in self.runs)]
            assert max(held) <= self.highest_ledger_id
