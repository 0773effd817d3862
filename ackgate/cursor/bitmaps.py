"""Roaring bitmaps: their runs by set algebra instead of a walk, and bitmaps from arrays of ids.

Pure. A run is a maximal stretch of consecutive members, written half-open ``[start, stop)``.

    members        . # # # . . # . # #
    shifted by 1   . . # # # . . # . #
    starts         . # . . . . # . # .      = members - (members + 1)
    lasts          . . . # . . # . . #      = members - (members - 1)
    adjacent pairs . . # # . . . . . #      = members & (members + 1); runs = members - pairs

A shift costs microseconds per million members, so all of these are O(containers).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from ackgate.cursor.position import ENTRY_ID_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray


ARRAY_BYTES_PER_ID: Final = 2
"""What a member takes in an array container."""


def run_count(bitmap: BitMap) -> int:
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


def stored_form(bitmap: BitMap) -> bytes:
    """The portable serialised form, with its runs found. Its length depends on the members alone.

    Roaring leaves a container as it is where runs and an array take the same room, and so as the
    set came to be. But one container of runs changes the header of the whole. Where runs save
    nothing, they are written as arrays.
    """
    if bitmap.run_optimize():
        figures = bitmap.get_statistics()
        if (
            figures["n_bytes_run_containers"]
            == ARRAY_BYTES_PER_ID * figures["n_values_run_containers"]
        ):
            return BitMap(bitmap.to_array()).serialize()
    return bitmap.serialize()


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


# ------------------------------------------------------------------------------ from arrays
#
# Pyroaring's own loop over a numpy array costs some 45 ns an element. Here numpy sets one byte
# for each id, packs the bytes to bits, and the bits are laid out as portable Roaring containers,
# which pyroaring only has to copy in:
#
#     ids  [70000, 3, 1, ...]           any order, repeats allowed
#       |  bits[ids] = 1                one byte per entry of the span
#       |  packbits                     8 KB per block of 65,536 entries
#       v
#     cookie | key, cardinality - 1 ... | offsets ... | 8 KB | 8 KB | ...      -> BitMap.deserialize
#
# A block with few members must be an array container in that format, and a wide span with few members
# would make the byte array large: such ids are sorted instead and handed over as a C array.
#
# Format: https://github.com/RoaringBitmap/RoaringFormatSpec (no run containers).


COOKIE_WITHOUT_RUNS: Final = 12346
BLOCK_ENTRIES: Final = 1 << 16
"""Entries that one Roaring container covers."""

BLOCK_BYTES: Final = BLOCK_ENTRIES // 8

ARRAY_CONTAINER_ENTRIES_MAX: Final = 4096
"""With no more members than this a container is a sorted array, by the format."""

HANDFUL_IDS: Final = 48
"""Up to so many ids a Python list is quicker than arrays. Measured."""

SCATTER_IDS_MIN: Final = 4096
"""Below this, sorting is quicker than clearing and packing even a single block."""

SCATTER_BYTES_PER_ID_MAX: Final = 16
"""How much wider than the ids the byte array may get: bounds the memory of a wide span."""


def bitmap_of(ids: NDArray[np.integer[Any]]) -> BitMap:
    """The set of the ids. All of them must lie in 0..2^32-1; the caller has checked it."""
    if ids.size <= HANDFUL_IDS:
        return BitMap(ids.tolist())
    if ids.size < SCATTER_IDS_MIN:
        return _pack_sorted(ids)
    first_block = int(ids.min()) // BLOCK_ENTRIES
    block_count = int(ids.max()) // BLOCK_ENTRIES - first_block + 1
    if block_count * BLOCK_ENTRIES > ids.size * SCATTER_BYTES_PER_ID_MAX:
        return _pack_sorted(ids)
    return _pack_scattered(ids, first_block, block_count)


def _pack_sorted(ids: NDArray[np.integer[Any]]) -> BitMap:
    ordered = np.sort(ids.astype(np.uint32))
    # array.array is the one sequence type that pyroaring takes over without a Python loop.
    return BitMap(array("I", ordered.tobytes()))


def _pack_scattered(ids: NDArray[np.integer[Any]], first_block: int, block_count: int) -> BitMap:
    base = first_block * BLOCK_ENTRIES
    bits = np.zeros(block_count * BLOCK_ENTRIES, dtype=np.uint8)
    bits[ids - ids.dtype.type(base) if base else ids] = 1
    blocks = np.packbits(bits, bitorder="little").reshape(block_count, BLOCK_BYTES)
    cardinalities = np.bitwise_count(blocks.view(np.uint64)).sum(axis=1, dtype=np.int64)
    is_dense = cardinalities > ARRAY_CONTAINER_ENTRIES_MAX
    dense = np.flatnonzero(is_dense)
    packed = BitMap.deserialize(
        _portable_form(dense + first_block, cardinalities[dense], blocks[dense].tobytes())
    )
    sparse = np.flatnonzero(~is_dense & (cardinalities > 0))
    if sparse.size:
        members = bits.reshape(block_count, BLOCK_ENTRIES)[sparse].nonzero()
        packed |= _pack_sorted(base + sparse[members[0]] * BLOCK_ENTRIES + members[1])
    return packed


def _portable_form(
    keys: NDArray[np.int64], cardinalities: NDArray[np.int64], containers: bytes
) -> bytes:
    """The serialised bitmap whose containers are all bitsets, 8 KB each."""
    count = keys.size
    descriptions = np.empty((count, 2), dtype="<u2")
    descriptions[:, 0] = keys
    descriptions[:, 1] = cardinalities - 1
    header_bytes = 8 + 8 * count
    offsets = (header_bytes + BLOCK_BYTES * np.arange(count)).astype("<u4")
    head = np.array([COOKIE_WITHOUT_RUNS, count], dtype="<u4")
    return b"".join((head.tobytes(), descriptions.tobytes(), offsets.tobytes(), containers))
