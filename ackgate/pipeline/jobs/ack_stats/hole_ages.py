"""Since when is a hole one?

Pure. An entry turns from backlog into a hole when one behind it is acked first. So it is enough to
remember when the last acked entry of each ledger moved on:

    last acked   12 at 10:00    30 at 10:05    31 at 10:09
    a hole that begins at 14 is one since 10:05

Where a snapshot sets the state back, what lay beyond it is forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from ackgate.cursor.position import Position

if TYPE_CHECKING:
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

    def oldest(self, holes: Holes) -> tuple[Position, int] | None:
        """The hole that has been one for longest (the lowest of several), and since when."""
        best: tuple[Position, int] | None = None
        ledger_ids, first_holes = np.unique(holes.ledger_ids, return_index=True)
        # Within a ledger lower holes are never the younger ones.
        for ledger_id, at in zip(ledger_ids.tolist(), first_holes.tolist(), strict=True):
            entries, times = self._by_ledger[ledger_id]
            start = int(holes.starts[at])
            since_ms = times[bisect_right(entries, start)]
            if best is None or since_ms < best[1]:
                best = Position(ledger_id, start), since_ms
        return best

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
