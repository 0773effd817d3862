"""Runs of delayed entries, as columns: what shares key and ledger and follows one another.

Pure. Entries that wait equally long lie in runs: a thousand of them are one row here. Whoever needs
them one by one expands them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

CODE_BITS_MAX: Final = 62


class Runs(NamedTuple):
    """Columns of one length. Sorted by (key, ledger, start) unless said otherwise."""

    keys: IntArray
    ledger_ids: IntArray
    starts: IntArray
    stops: IntArray
    """Half-open."""

    @property
    def entry_count(self) -> int:
        """Entries of all runs."""
        return int((self.stops - self.starts).sum())

    def rows(self, chosen: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Runs:
        """Some of the runs."""
        return Runs(*(column[chosen] for column in self))


def no_runs() -> Runs:
    """None at all."""
    empty = np.empty(0, dtype=np.int64)
    return Runs(empty, empty, empty, empty)


def single(key: int, ledger_id: int, start: int, stop: int) -> Runs:
    """One run."""
    return Runs(*np.array([[key], [ledger_id], [start], [stop]], dtype=np.int64))


def joined(pieces: Sequence[Runs]) -> Runs:
    """All of them, one behind the other."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return no_runs()
    return Runs(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def ordered(runs: Runs) -> Runs:
    """Sorted by (key, ledger, start); what touches is joined."""
    if runs.keys.size < 2:
        return runs
    in_order = _sorted_codes(runs)
    if in_order is None:
        in_order = runs.rows(np.lexsort((runs.starts, runs.ledger_ids, runs.keys)))
    return coalesced(in_order)


def _sorted_codes(runs: Runs) -> Runs | None:
    """Sorted as one number for each run: five times as quick; None if four do not fit into one."""
    key_low, ledger_low = int(runs.keys.min()), int(runs.ledger_ids.min())
    keys = runs.keys - key_low
    all_bits = int(np.bitwise_or.reduce(keys))
    shift = (all_bits & -all_bits).bit_length() - 1 if all_bits else 0
    lengths = runs.stops - runs.starts
    ledger_bits = (int(runs.ledger_ids.max()) - ledger_low).bit_length()
    start_bits = int(runs.starts.max()).bit_length()
    length_bits = int(lengths.max()).bit_length()
    key_bits = max(0, all_bits.bit_length() - shift)
    if key_bits + ledger_bits + start_bits + length_bits > CODE_BITS_MAX:
        return None
    codes = keys >> shift
    codes <<= ledger_bits
    codes += runs.ledger_ids - ledger_low
    codes <<= start_bits
    codes += runs.starts
    codes <<= length_bits
    codes += lengths
    codes.sort()
    stops = codes & ((1 << length_bits) - 1)
    codes >>= length_bits
    starts = codes & ((1 << start_bits) - 1)
    codes >>= start_bits
    stops += starts
    ledger_ids = (codes & ((1 << ledger_bits) - 1)) + ledger_low
    codes >>= ledger_bits
    codes <<= shift
    codes += key_low
    return Runs(codes, ledger_ids, starts, stops)


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
