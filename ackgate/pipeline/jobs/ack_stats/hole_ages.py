"""Since when is a hole one?

Pure. An entry turns from backlog into a hole when one behind it is acked first. So it is enough to
remember when the last acked entry of each ledger moved on:

    last acked   12 at 10:00    30 at 10:05    31 at 10:09
    a hole that begins at 14 is one since 10:05

Where a snapshot sets the state back, what lay beyond it is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.ack_stats.fold import CursorRecordRow
    from ackgate.pipeline.jobs.ack_stats.holes import Holes


class HighWater:
    """The last acked entries of each ledger, and when they were first seen."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, tuple[list[int], list[int]]] = {}
        """Ledger id -> entries, ascending, and the time of each."""

    def see(self, row: CursorRecordRow, at_ms: int) -> None:
        """The next record that was applied. Amortised O(ledgers in it)."""
        if row.base_version is None:
            self._set_back(row)
        for ledger_id, bitmap in row.acked.items():
            if not bitmap:
                continue
            entries, times = self._by_ledger.setdefault(ledger_id, ([], []))
            last = bitmap.max()
            if not entries or last > entries[-1]:
                entries.append(last)
                times.append(at_ms)
        for ledger_id in [known for known in self._by_ledger if known < row.mark_delete.ledger_id]:
            del self._by_ledger[ledger_id]

    def since(self, holes: Holes) -> NDArray[np.int64]:
        """Since when each hole of the state is one."""
        since_ms = np.empty(holes.count, np.int64)
        ledger_ids, firsts, counts = np.unique(
            holes.ledger_ids, return_index=True, return_counts=True
        )
        for ledger_id, first, end in zip(ledger_ids.tolist(), firsts, firsts + counts, strict=True):
            entries, times = self._by_ledger[ledger_id]
            moved_on = np.searchsorted(entries, holes.starts[first:end], side="right")
            since_ms[first:end] = np.array(times, np.int64)[moved_on]
        return since_ms

    def _set_back(self, row: CursorRecordRow) -> None:
        for ledger_id in list(self._by_ledger):
            bitmap = row.acked.get(ledger_id)
            if not bitmap:
                del self._by_ledger[ledger_id]
                continue
            entries, times = self._by_ledger[ledger_id]
            last = bitmap.max()
            while entries and entries[-1] > last:
                entries.pop()
                times.pop()
