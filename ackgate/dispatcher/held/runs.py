"""Runs of delayed entries, as columns: consecutive entries of one key and ledger.

Pure. Consecutive entries with the same delay make a run: a thousand of them are one row. `expanded`
makes rows of one entry each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


IntArray: TypeAlias = "NDArray[np.int64]"

TIME_MS_MAX: Final = 2**63 - 1
"""The latest time, ms since the epoch: a signed 64-bit number, as on Pulsar's wire."""

CODE_BITS_MAX: Final = 63
"""Bits of a positive number: columns that need no more together are sorted as one."""

FEW_ROWS: Final = 512
"""So few rows are sorted column by column, which is quicker then. Measured."""


class Runs(NamedTuple):
    """Columns of one length. Sorted by (key, ledger, start) by default."""

    keys: IntArray
    ledger_ids: IntArray
    starts: IntArray
    stops: IntArray
    """Half-open."""

    @property
    def entry_count(self) -> int:
        return int((self.stops - self.starts).sum())

    def rows(self, chosen: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Runs:
        return Runs(*(column[chosen] for column in self))


def no_runs() -> Runs:
    empty = np.empty(0, dtype=np.int64)
    return Runs(empty, empty, empty, empty)


def single(key: int, ledger_id: int, start: int, stop: int) -> Runs:
    return Runs(*np.array([[key], [ledger_id], [start], [stop]], dtype=np.int64))


def joined(pieces: Sequence[Runs]) -> Runs:
    """All of them, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return no_runs()
    return Runs(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def ordered(runs: Runs) -> Runs:
    """Sorted by (key, ledger, start); what touches is joined."""
    if runs.keys.size < 2:
        return runs
    keys, ledger_ids, starts, stops = runs
    keys, ledger_ids, starts, stops = sorted_columns((keys, ledger_ids, starts, stops - starts))
    stops += starts
    return coalesced(Runs(keys, ledger_ids, starts, stops))


def sorted_columns(columns: Sequence[IntArray]) -> list[IntArray]:
    """The rows of columns of one length, sorted by the first, then by the next. New arrays.

    Many rows are sorted as one number each, which is five times as quick, if the columns fit into one.
    Keys are multiples of a power of two: zeros at the end of the first column take no room.
    """
    if columns[0].size <= FEW_ROWS:
        order = np.lexsort(columns[::-1])
        return [column[order] for column in columns]
    lows = [int(column.min()) for column in columns]
    widths = [
        (int(column.max()) - low).bit_length() for column, low in zip(columns, lows, strict=True)
    ]
    steps = int(np.bitwise_or.reduce(columns[0] - lows[0]))
    shift = (steps & -steps).bit_length() - 1 if steps else 0
    widths[0] -= shift
    if sum(widths) > CODE_BITS_MAX:
        order = np.lexsort(columns[::-1])
        return [column[order] for column in columns]
    codes = (columns[0] - lows[0]) >> shift
    for column, low, width in zip(columns[1:], lows[1:], widths[1:], strict=True):
        codes <<= width
        codes += column - low if low else column
    codes.sort()
    in_order: list[IntArray] = []
    for low, width in zip(lows[:0:-1], widths[:0:-1], strict=True):
        values = codes & ((1 << width) - 1)
        if low:
            values += low
        in_order.append(values)
        codes >>= width
    codes <<= shift
    codes += lows[0]
    return [codes, *reversed(in_order)]


def coalesced(runs: Runs) -> Runs:
    """Sorted runs: what touches is joined; what overlaps is not."""
    keys, ledger_ids, starts, stops = runs
    touches = (starts[1:] == stops[:-1]) & (keys[1:] == keys[:-1])
    touches &= ledger_ids[1:] == ledger_ids[:-1]
    if not touches.any():
        return runs
    is_first = np.concatenate(([True], ~touches))
    is_last = np.concatenate((~touches, [True]))
    return Runs(keys[is_first], ledger_ids[is_first], starts[is_first], stops[is_last])


def found_in(keys: IntArray, ledger_id: int, entry_ids: IntArray) -> Runs:
    """The runs of entries of one ledger, in the order of the arrays (not sorted)."""
    breaks = np.flatnonzero((np.diff(entry_ids) != 1) | (keys[1:] != keys[:-1]))
    first = np.concatenate(([0], breaks + 1))
    last = np.concatenate((breaks, [entry_ids.size - 1]))
    ledger_ids = np.full(first.size, ledger_id, dtype=np.int64)
    return Runs(keys[first], ledger_ids, entry_ids[first], entry_ids[last] + 1)


def expanded(runs: Runs) -> tuple[IntArray, IntArray, IntArray]:
    """Keys, ledger ids, entry ids: a row for each entry."""
    keys, ledger_ids, starts, stops = runs
    lengths = stops - starts
    if keys.size == 0 or int(lengths.max()) == 1:
        return keys, ledger_ids, starts
    ends = np.cumsum(lengths)
    shifts = np.repeat(starts - (ends - lengths), lengths)
    entry_ids = np.arange(int(ends[-1]), dtype=np.int64) + shifts
    return np.repeat(keys, lengths), np.repeat(ledger_ids, lengths), entry_ids


def rows_before(runs: Runs, head: tuple[int, int, int], *, is_through: bool = False) -> int:
    """How many of the sorted runs come before a (key, ledger, start), or through it."""
    key, ledger_id, start = head
    low = int(np.searchsorted(runs.keys, key))
    high = int(np.searchsorted(runs.keys, key, side="right"))
    ledger_ids = runs.ledger_ids[low:high]
    high = low + int(np.searchsorted(ledger_ids, ledger_id, side="right"))
    low += int(np.searchsorted(ledger_ids, ledger_id))
    side: Literal["left", "right"] = "right" if is_through else "left"
    return low + int(np.searchsorted(runs.starts[low:high], start, side=side))


# ------------------------------------------------------------------------------ packed
#
# Two bytes a run where a heap of triples takes twenty-four. Immutable but for how far it was taken. A
# position is one number here, ``slot << bits | entry``, the slot being the ledger's place among those
# that occur; runs are cut into blocks that share a key, and within a block only the distances are
# kept::
#
#     block   key, first position                20 bytes
#     row     distance to the row before         0, 1, 2, 4 or 8 bytes, whatever is least in all
#             length less one                    the same: 0 if nearly all runs are of one entry
#
# What is too wide for the width chosen is kept apart.


BLOCK_ROWS: Final = 4_096
"""No block has more rows: so much is unpacked at once, at least."""

WIDE_BYTES: Final = 12
"""A value kept apart, with its place."""

PART_BYTES: Final = 2_500
"""Objects round the arrays. Measured."""


Head: TypeAlias = tuple[int, int, int]
"""(key, ledger, start) of a run."""


class NarrowArray:
    """Numbers of 0 and above, most of them small; if most of them are 0, only the others."""

    __slots__ = ("_narrow", "_wide", "_wide_at")

    def __init__(self, values: IntArray) -> None:
        dtype, limit = _width(values)
        is_wide = values > limit
        self._wide_at: NDArray[np.uint32] = np.flatnonzero(is_wide).astype(np.uint32)
        self._wide: IntArray = values[self._wide_at]
        self._narrow: NDArray[Any] | None = None if dtype is None else values.astype(dtype)

    def slice(self, start: int, stop: int) -> IntArray:
        """Some of them, as they were."""
        if self._narrow is None:
            values = np.zeros(stop - start, dtype=np.int64)
        else:
            values = self._narrow[start:stop].astype(np.int64)
        if self._wide.size:
            first, last = np.searchsorted(self._wide_at, (start, stop))
            values[self._wide_at[first:last].astype(np.int64) - start] = self._wide[first:last]
        return values

    @property
    def byte_count(self) -> int:
        narrow = 0 if self._narrow is None else self._narrow.nbytes
        return narrow + self._wide.nbytes + self._wide_at.nbytes


def _width(values: IntArray) -> tuple[type[np.integer[Any]] | None, int]:
    """The type that takes the least room (None: nothing but what is not 0), its largest value."""
    best: tuple[int, type[np.integer[Any]] | None, int]
    best = (WIDE_BYTES * int(np.count_nonzero(values)), None, 0)
    highest = int(values.max()) if values.size else 0
    for dtype in (np.uint8, np.uint16, np.uint32, np.int64):
        limit = int(np.iinfo(dtype).max)
        wide = int(np.count_nonzero(values > limit)) if highest > limit else 0
        room = values.size * np.dtype(dtype).itemsize + wide * WIDE_BYTES
        if room < best[0]:
            best = (room, dtype, limit)
        if not wide:
            break
    return best[1], best[2]


class PackedRuns:
    """Sorted runs that are taken from the front, block by block."""

    __slots__ = (
        "_at",
        "_block_at",
        "_block_heads",
        "_block_keys",
        "_distances",
        "_entry_bits",
        "_ledger_ids",
        "_lengths",
        "byte_count",
        "head",
        "row_count",
    )

    byte_count: Final[int]

    row_count: Final[int]
    """Runs that were packed, taken or not."""

    head: Head
    """The first run that was not taken. Without one: meaningless."""

    def __init__(self, runs: Runs) -> None:
        """Pack sorted runs; at least one."""
        self._ledger_ids, slots = _slots(runs.ledger_ids)
        self._entry_bits = max(1, int(runs.starts.max()).bit_length())
        codes = (slots << self._entry_bits) + runs.starts
        is_head = np.zeros(codes.size, dtype=np.bool_)
        is_head[::BLOCK_ROWS] = True
        is_head[1:] |= runs.keys[1:] != runs.keys[:-1]
        heads = np.flatnonzero(is_head)
        self._block_at: NDArray[np.uint32] = np.append(heads, codes.size).astype(np.uint32)
        self._block_keys = runs.keys[heads]
        self._block_heads = codes[heads]
        distances = np.diff(codes, prepend=0)
        distances[heads] = 0
        self._distances = NarrowArray(distances)
        self._lengths = NarrowArray(runs.stops - runs.starts - 1)
        arrays = (self._block_at, self._block_keys, self._block_heads, self._ledger_ids)
        packed = self._distances.byte_count + self._lengths.byte_count
        self.byte_count = PART_BYTES + packed + sum(array.nbytes for array in arrays)
        self.row_count = codes.size
        self._at = 0
        self._set_head()

    def _set_head(self) -> None:
        if self._at < self._block_keys.size:
            self.head = self.head_after(0)

    def head_after(self, blocks: int) -> Head:
        """The first run after the next so many blocks."""
        code = int(self._block_heads[self._at + blocks])
        ledger_id = int(self._ledger_ids[code >> self._entry_bits])
        entry_id = code & ((1 << self._entry_bits) - 1)
        return int(self._block_keys[self._at + blocks]), ledger_id, entry_id

    @property
    def blocks_left(self) -> int:
        """Blocks that were not taken."""
        return self._block_keys.size - self._at

    @property
    def rows_left(self) -> int:
        """Runs that were not taken."""
        return self.row_count - int(self._block_at[self._at])

    @property
    def is_taken(self) -> bool:
        return self._at == self._block_keys.size

    def next_blocks(self, cutoff: int, rows_min: int) -> tuple[Runs, IntArray]:
        """The first runs of the next blocks with keys up to `cutoff`, and the sizes of the blocks.

        So many that they have `rows_min` rows, if there are. The stops of the runs are 0.
        """
        stop = int(np.searchsorted(self._block_keys, cutoff, side="right"))
        rows = int(self._block_at[self._at]) + rows_min
        stop = min(stop, int(np.searchsorted(self._block_at, np.uint32(min(rows, 2**32 - 1)))))
        codes = self._block_heads[self._at : stop]
        heads = Runs(
            self._block_keys[self._at : stop],
            self._ledger_ids[codes >> self._entry_bits],
            codes & ((1 << self._entry_bits) - 1),
            np.zeros(codes.size, dtype=np.int64),
        )
        block_at = self._block_at[self._at : stop + 1].astype(np.int64)
        return heads, block_at[1:] - block_at[:-1]

    def take(self, blocks: int) -> Runs:
        """Unpack the next so many blocks; they are taken."""
        runs = self._unpacked(self._at, self._at + blocks)
        self._at += blocks
        self._set_head()
        return runs

    def left(self) -> Runs:
        """What was not taken. For tests."""
        return self._unpacked(self._at, self._block_keys.size)

    def _unpacked(self, start: int, stop: int) -> Runs:
        block_at = self._block_at[start : stop + 1].astype(np.int64)
        sizes = np.diff(block_at)
        first_row, stop_row = int(block_at[0]), int(block_at[-1])
        codes = np.cumsum(self._distances.slice(first_row, stop_row))
        begins = block_at[:-1] - first_row
        codes += np.repeat(self._block_heads[start:stop] - codes[begins], sizes)
        starts = codes & ((1 << self._entry_bits) - 1)
        stops = starts + 1 + self._lengths.slice(first_row, stop_row)
        ledger_ids = self._ledger_ids[codes >> self._entry_bits]
        return Runs(np.repeat(self._block_keys[start:stop], sizes), ledger_ids, starts, stops)


def _slots(ledger_ids: IntArray) -> tuple[IntArray, IntArray]:
    """The ledgers that occur, ascending, and for each row the place of its ledger there."""
    lowest, highest = int(ledger_ids.min()), int(ledger_ids.max())
    if highest - lowest > 4 * ledger_ids.size + 64:
        table, slots = np.unique(ledger_ids, return_inverse=True)
        return table, slots.astype(np.int64)
    offsets = ledger_ids - lowest
    occurs = np.zeros(highest - lowest + 1, dtype=np.int64)
    occurs[offsets] = 1
    table = np.flatnonzero(occurs) + lowest
    return table, (np.cumsum(occurs) - 1)[offsets]
