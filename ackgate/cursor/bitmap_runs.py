"""Questions about the runs of a Roaring bitmap, answered by set algebra instead of a walk.

Pure. A run is a maximal stretch of consecutive members, written half-open ``[start, stop)``.

    members        . # # # . . # . # #
    shifted by 1   . . # # # . . # . #
    starts         . # . . . . # . # .      = members - (members + 1)
    lasts          . . . # . . # . . #      = members - (members - 1)
    adjacent pairs . . # # . . . . . #      = members & (members + 1); runs = members - pairs

A shift costs microseconds per million members, so all of these are O(containers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap

from ackgate.cursor.position import ENTRY_ID_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run_count(bitmap: BitMap) -> int:
    """Runs of the bitmap."""
    return len(bitmap) - bitmap.intersection_cardinality(bitmap.shift(1))


def run_count_change(bitmap: BitMap, added: BitMap) -> int:
    """By how much the runs of `bitmap` grow in number when the disjoint set `added` joins it.

    Touches only the containers of `added` and their neighbours.
    """
    after = added.shift(1)
    pairs_within = added.intersection_cardinality(after)
    pairs_across = bitmap.intersection_cardinality(after)
    pairs_across += bitmap.intersection_cardinality(added.shift(-1))
    return len(added) - pairs_within - pairs_across


def run_bounds(bitmap: BitMap) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The runs in ascending order, as arrays of starts and of stops (half-open)."""
    starts = bitmap - bitmap.shift(1)
    lasts = bitmap - bitmap.shift(-1)
    return members(starts), members(lasts) + 1


def members(bitmap: BitMap) -> NDArray[np.int64]:
    """The members in ascending order."""
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64)


def lowest_runs(bitmap: BitMap, runs_max: int) -> BitMap:
    """A copy that holds only the lowest `runs_max` runs."""
    kept = bitmap.copy()
    if runs_max <= 0:
        return BitMap()
    starts = bitmap - bitmap.shift(1)
    if len(starts) > runs_max:
        kept.remove_range(starts[runs_max], ENTRY_ID_MAX + 1)
    return kept


def run_stop(bitmap: BitMap, start: int, stop_max: int) -> int:
    """Where the run that holds `start` stops, looking no further than `stop_max`.

    Gallops: O(log length) probes. Returns `start` when it is not a member.
    """
    stop, width = start, 1
    while stop < stop_max and bitmap.contains_range(stop, min(stop + width, stop_max)):
        stop = min(stop + width, stop_max)
        width *= 2
    # The first absent id, if there is one below stop_max, lies in [stop, stop + width).
    while width > 1 and stop < stop_max:
        width //= 2
        if stop + width <= stop_max and bitmap.contains_range(stop, stop + width):
            stop += width
    return stop


def nth_absent(bitmap: BitMap, start: int, n: int) -> int:
    """The n-th id (n = 1 is the first) at or after `start` that is not a member."""
    before = bitmap.range_cardinality(0, start)
    low = start + n - 1
    high = min(low + len(bitmap) - before, ENTRY_ID_MAX)
    while low < high:
        middle = (low + high) // 2
        absent = middle - start + 1 - (bitmap.rank(middle) - before)
        if absent >= n:
            high = middle
        else:
            low = middle + 1
    return low
