"""The bucket that takes new entries. It is in memory only, until it is sealed.

Pure. New entries go to the end of three columns, unsorted; nothing more needs to be done until the
first of them falls due. Then the columns are sorted and become a run, from which the due ones are
taken (`loaded_runs`). Runs of like size are joined, so that there are never more than some twenty.

Entries may have any position: stragglers between those of sealed buckets are put here, too.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import SnapshotSegment
from ackgate.dispatcher.buckets.segments import in_order, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ackgate.dispatcher.buckets.loaded_runs import LoadedRun, LoadedRuns

ENTRY_BYTES: Final = 24
"""A key, a ledger id and an entry id."""

RUN_GROWTH: Final = 2
"""A run is joined with the next younger one unless it is more than so many times as large."""


class MutableBucket:
    """Entries that are in no snapshot yet."""

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
