"""Runs of delayed entries by key: a multiset, sorted when read.

Pure. It does not know which of its entries are still tracked. Entries that arrive in order cost
almost nothing; shuffled ones cost a row each, and are not sorted until there are many::

    add --> open run --> fresh      rows as they came, a few thousand
                           | sorted, packed
                           v
                         recent     packed parts that overlap
                           | all merged, once they are a quarter of the base
                           v
                         base       packed parts, one after the other
      take <-- front <-----'        the next rows, unpacked

Rows are taken from `front`, up to the first row of any packed part. Merging unpacks in the same way,
a piece at a time, so it needs little extra memory.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.dispatcher.held.runs import (
    TIME_MS_MAX,
    PackedRuns,
    Runs,
    coalesced,
    joined,
    no_runs,
    ordered,
    rows_before,
    single,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackgate.dispatcher.held.runs import Head, IntArray

FRESH_ROWS_MAX: Final = 4_096
"""With so many rows what is fresh is packed."""

FRESH_SHARE: Final = 128
"""Or this part of the base, if that is more: so there are never many recent parts to merge."""

BULK_ROWS_MIN: Final = 8_192
"""Rows that come together, and so many, are packed at once."""

RECENT_ROWS_MIN: Final = 65_536
"""With fewer rows than this in recent parts nothing is merged."""

RECENT_SHARE: Final = 4
"""Nor before they are this part of the base."""

PIECE_ROWS_MIN: Final = 16_384
"""So many rows are unpacked at once, if there are."""

PIECE_ROWS_MAX: Final = 65_536
"""And a part of the base has no more than about twice this."""

ALL: Final = 2**62
"""More entries than there are."""

ROW_BYTES: Final = 32
FRESH_ROW_BYTES: Final = 34
"""An array grows by a sixteenth more than it needs."""


class RunStore:
    """Runs in, the lowest runs out."""

    __slots__ = (
        "_base",
        "_base_rows",
        "_fresh",
        "_fresh_first_key",
        "_front",
        "_key",
        "_ledger_id",
        "_packed_bytes",
        "_packed_head",
        "_recent",
        "_recent_rows",
        "_start",
        "_stop",
        "entry_count",
    )

    entry_count: int
    """Entries, stale ones and repeated ones included."""

    def __init__(self) -> None:
        self._fresh = array("q")
        self._base: deque[PackedRuns] = deque()
        self._recent: list[PackedRuns] = []
        self.clear()

    def clear(self) -> None:
        self.entry_count = 0
        self._key = self._ledger_id = self._start = self._stop = -1
        self._fresh = array("q")
        self._fresh_first_key = TIME_MS_MAX + 1
        self._front = no_runs()
        self._base = deque()
        self._recent = []
        self._base_rows = self._recent_rows = self._packed_bytes = 0
        self._packed_head: Head | None = None

    @property
    def byte_estimate(self) -> int:
        fresh = FRESH_ROW_BYTES * (len(self._fresh) // 4)
        return self._packed_bytes + fresh + ROW_BYTES * self._front.keys.size

    @property
    def first_key(self) -> int | None:
        """The lowest key; None if there is nothing. O(1)."""
        lowest = self._fresh_first_key
        if self._front.keys.size:
            lowest = min(lowest, int(self._front.keys[0]))
        if self._packed_head is not None:
            lowest = min(lowest, self._packed_head[0])
        return None if lowest > TIME_MS_MAX else lowest

    # -- adding

    def add(self, key: int, ledger_id: int, entry_id: int) -> None:
        if entry_id == self._stop and key == self._key and ledger_id == self._ledger_id:
            self._stop = entry_id + 1
            self.entry_count += 1
            return
        self._close_run()
        self.entry_count += 1
        self._key, self._ledger_id, self._start = key, ledger_id, entry_id
        self._stop = entry_id + 1
        if key < self._fresh_first_key:  # noqa: PLR1730 - quicker, and this is asked for each entry
            self._fresh_first_key = key

    def add_runs(self, runs: Runs) -> None:
        if not runs.keys.size:
            return
        if runs.keys.size >= BULK_ROWS_MIN:
            self.entry_count += runs.entry_count
            self._pack(ordered(runs))
            return
        self._close_run()
        self.entry_count += runs.entry_count
        self._fresh_first_key = min(self._fresh_first_key, int(runs.keys.min()))
        self._fresh.frombytes(np.stack(runs, axis=1).tobytes())
        if len(self._fresh) >= 4 * max(FRESH_ROWS_MAX, self._base_rows // FRESH_SHARE):
            self._pack(ordered(self._take_fresh(TIME_MS_MAX)))

    def _close_run(self) -> None:
        """The run that grows by single entries is a row like others."""
        if self._stop >= 0:
            self._fresh.extend((self._key, self._ledger_id, self._start, self._stop))
            self._stop = -1
            if len(self._fresh) >= 4 * max(FRESH_ROWS_MAX, self._base_rows // FRESH_SHARE):
                self._pack(ordered(self._take_fresh(TIME_MS_MAX)))

    def _take_fresh(self, cutoff: int) -> Runs:
        """The fresh rows with keys up to `cutoff`, in the order in which they came."""
        rows = np.frombuffer(self._fresh, dtype=np.int64).reshape(-1, 4)
        is_taken = rows[:, 0] <= cutoff
        taken, left = rows[is_taken], rows[~is_taken]
        self._fresh = array("q", left.tobytes())
        self._fresh_first_key = int(left[:, 0].min()) if left.size else TIME_MS_MAX + 1
        return Runs(*(np.ascontiguousarray(column) for column in taken.T))

    def _pack(self, runs: Runs) -> None:
        part = PackedRuns(runs)
        self._recent.append(part)
        self._recent_rows += part.row_count
        self._packed_bytes += part.byte_count
        if self._packed_head is None or part.head < self._packed_head:
            self._packed_head = part.head
        if self._recent_rows > max(RECENT_ROWS_MIN, self._base_rows // RECENT_SHARE):
            self.rewrite(None)

    # -- taking out

    def take(self, cutoff: int, entries_max: int) -> Runs:
        """Take out some of the lowest entries with keys up to `cutoff`, at most so many.

        Nothing only if there is nothing.
        """
        if self._fresh_first_key <= cutoff:
            self._close_run()
        if self._fresh_first_key <= cutoff:
            self._front = ordered(joined((self._front, self._take_fresh(cutoff))))
        while True:
            rows = self._rows_first(cutoff)
            if rows:
                return self._take_front(rows, entries_max)
            piece = self._unpack(cutoff, min(max(entries_max, PIECE_ROWS_MIN), PIECE_ROWS_MAX))
            if not piece.keys.size:
                return piece
            self._front = ordered(joined((self._front, piece)))

    def put_back(self, runs: Runs) -> None:
        """What was taken just now."""
        self.entry_count += runs.entry_count
        self._front = ordered(joined((self._front, runs)))

    def _take_front(self, rows: int, entries_max: int) -> Runs:
        """The first entries of the front; a run is cut if it must be."""
        front = self._front
        rows = min(rows, entries_max)
        ends = np.cumsum(front.stops[:rows] - front.starts[:rows])
        beyond = int(ends[-1]) - entries_max
        if beyond > 0:
            rows = int(np.searchsorted(ends, entries_max)) + 1
            beyond = int(ends[rows - 1]) - entries_max
        taken = front.rows(slice(0, rows))
        if beyond > 0:
            taken = Runs(*map(np.copy, taken))
            taken.stops[-1] -= beyond
            front.starts[rows - 1] = taken.stops[-1]
            rows -= 1
        self._front = front.rows(slice(rows, None))
        self.entry_count -= taken.entry_count
        return taken

    def _rows_first(self, cutoff: int) -> int:
        """How many rows of the front come before all else, and are due."""
        keys = self._front.keys
        if not keys.size or keys[0] > cutoff:
            return 0
        rows = int(np.searchsorted(keys, cutoff, side="right"))
        if self._packed_head is None:
            return rows
        return min(rows, rows_before(self._front, self._packed_head))

    def _unpack(self, cutoff: int, rows_min: int) -> Runs:
        """Rows of packed parts, not sorted: the first so many, and the rest of their blocks."""
        parts = [part for part in self._recent if part.head[0] <= cutoff]
        rows = 0
        for part in self._base:
            if rows >= rows_min or part.head[0] > cutoff:
                break
            parts.append(part)
            rows += part.rows_left
        blocks = _first_blocks(parts, cutoff, rows_min)
        pieces = [part.take(count) for part, count in zip(parts, blocks, strict=True) if count]
        self._drop_taken()
        return joined(pieces)

    def _drop_taken(self) -> None:
        """Parts of which nothing is left go; see what is first now."""
        gone = [part for part in self._recent if part.is_taken]
        if gone:
            self._recent = [part for part in self._recent if not part.is_taken]
            self._recent_rows -= sum([part.row_count for part in gone])
        while self._base and self._base[0].is_taken:
            gone.append(self._base.popleft())
            self._base_rows -= gone[-1].row_count
        self._packed_bytes -= sum([part.byte_count for part in gone])
        heads = [part.head for part in self._recent]
        if self._base:
            heads.append(self._base[0].head)
        self._packed_head = min(heads, default=None)

    # -- merging

    def rewrite(self, kept: Callable[[Runs], Runs] | None) -> None:
        """Merge all into the base, less what is not `kept` (called with sorted pieces, in order)."""
        base: deque[PackedRuns] = deque()
        base_bytes = base_rows = entry_count = 0
        for runs in self._pieces(kept):
            base.append(PackedRuns(runs))
            base_bytes += base[-1].byte_count
            base_rows += base[-1].row_count
            entry_count += runs.entry_count
        self._base, self._base_rows, self._packed_bytes = base, base_rows, base_bytes
        self._packed_head = base[0].head if base else None
        self.entry_count = entry_count

    def _pieces(self, kept: Callable[[Runs], Runs] | None) -> Iterator[Runs]:
        """Take out everything, sorted, a part of a base at a time."""
        waiting: list[Runs] = []
        rows = 0
        while (runs := self.take(TIME_MS_MAX, ALL)).keys.size:
            waiting.append(runs if kept is None else kept(runs))
            rows += waiting[-1].keys.size
            if rows >= PIECE_ROWS_MAX:
                yield coalesced(joined(waiting))
                waiting, rows = [], 0
        if rows:
            yield coalesced(joined(waiting))

    # -- for tests

    def everything(self) -> Runs:
        """All there is, sorted. O(everything)."""
        pieces = [self._front, *(part.left() for part in (*self._base, *self._recent))]
        rows = np.array(self._fresh, dtype=np.int64).reshape(-1, 4)
        pieces.append(Runs(*rows.T))
        if self._stop >= 0:
            pieces.append(single(self._key, self._ledger_id, self._start, self._stop))
        return ordered(joined(pieces))

    def check(self) -> None:
        runs = self.everything()
        assert self.entry_count == runs.entry_count, (self.entry_count, runs)
        parts = (*self._base, *self._recent)
        assert self._packed_bytes == sum(part.byte_count for part in parts)
        assert not any(part.is_taken for part in parts)
        assert self._packed_head == min((part.head for part in parts), default=None)
        assert list(self._base) == sorted(self._base, key=lambda part: part.head)
        for before, after in pairwise(self._base):
            assert _last(before.left()) < after.head
        if self._fresh or self._stop >= 0:
            assert self._fresh_first_key <= TIME_MS_MAX
        if runs.keys.size:
            assert self.first_key == int(runs.keys[0])
        else:
            assert self.first_key is None


def _first_blocks(parts: list[PackedRuns], cutoff: int, rows_min: int) -> list[int]:
    """How many blocks of each part to unpack: the first ones of all, about so many rows.

    Each part offers according to its size. What it does not offer bounds what is taken of others.
    """
    rows_left = sum([part.rows_left for part in parts])
    offers: list[Runs] = []
    sizes: list[IntArray] = []
    bound: Head | None = None
    for part in parts:
        share = rows_min * part.rows_left // max(rows_left, 1)
        heads, rows = part.next_blocks(cutoff, share + share // 4 + 16)
        offers.append(heads)
        sizes.append(rows)
        if rows.size < part.blocks_left:
            after = part.head_after(rows.size)
            if after[0] <= cutoff and (bound is None or after < bound):
                bound = after
    counts = [rows.size for rows in sizes]
    if len(parts) < 2:
        return counts
    heads = joined(offers)
    owners = np.repeat(np.arange(len(parts)), counts)
    order = np.lexsort((heads.starts, heads.ledger_ids, heads.keys))
    ends = np.cumsum(np.concatenate(sizes)[order])
    chosen = int(np.searchsorted(ends, rows_min)) + 1
    if bound is not None:
        chosen = min(chosen, rows_before(heads.rows(order), bound, is_through=True))
    taken = np.bincount(owners[order[:chosen]], minlength=len(parts))
    return [int(count) for count in taken]


def _last(runs: Runs) -> Head:
    return int(runs.keys[-1]), int(runs.ledger_ids[-1]), int(runs.starts[-1])
