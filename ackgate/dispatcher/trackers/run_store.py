"""Runs of delayed entries by key: a multiset that gives them back in order.

Pure. It does not know which of its entries are still tracked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ackgate.dispatcher.trackers.runs import Runs, joined, no_runs, ordered, single, split_at

if TYPE_CHECKING:
    from collections.abc import Callable


class RunStore:
    """Runs in, the lowest runs out."""

    __slots__ = ("_runs", "entry_count")

    def __init__(self) -> None:
        self._runs = no_runs()
        self.entry_count = 0

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory."""
        return 4 * self._runs.keys.nbytes

    @property
    def first_key(self) -> int | None:
        """The lowest key; None if there is nothing."""
        return int(self._runs.keys[0]) if self.entry_count else None

    def add(self, key: int, ledger_id: int, entry_id: int) -> None:
        """One entry."""
        self.add_runs(single(key, ledger_id, entry_id, entry_id + 1))

    def add_runs(self, runs: Runs) -> None:
        """Runs in any order."""
        self._runs = ordered(joined((self._runs, runs)))
        self.entry_count += runs.entry_count

    def take(self, cutoff: int, entries_max: int) -> Runs:
        """Take out the lowest entries with keys up to `cutoff`, at most so many."""
        row = int(np.searchsorted(self._runs.keys, cutoff, side="right"))
        due, later = self._runs.rows(slice(0, row)), self._runs.rows(slice(row, None))
        taken, rest = split_at(due, entries_max)
        self._runs = joined((rest, later))
        self.entry_count -= taken.entry_count
        return taken

    def put_back(self, runs: Runs) -> None:
        """What was taken just now."""
        self.add_runs(runs)

    def rewrite(self, kept: Callable[[Runs], Runs]) -> None:
        """Replace everything by what is kept of it."""
        self._runs = kept(self._runs)
        self.entry_count = self._runs.entry_count

    def clear(self) -> None:
        """Remove everything."""
        self._runs = no_runs()
        self.entry_count = 0

    def everything(self) -> Runs:
        """All there is, sorted. For tests."""
        return self._runs

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        assert self.entry_count == self._runs.entry_count
