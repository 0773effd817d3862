"""Columns of slots and times, grouped into a bitmap for each time bucket. Pure.

One sort of whole numbers does it all: the bucket in the upper half, the slot in the lower.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap

from ackgate.cursor.bitmap_pack import pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def by_key(
    keys: NDArray[np.int64], slots: NDArray[np.int64], bits: int
) -> Iterator[tuple[int, BitMap]]:
    """The slots of each key, keys ascending. Of a slot that comes twice the last key counts."""
    lowest = int(keys.min())
    if keys.size == 1 or lowest == int(keys.max()):
        yield lowest, pack(slots)
        return
    if len(pack(slots)) < slots.size:
        _, last = np.unique(slots[::-1], return_index=True)
        keys, slots = keys[::-1][last], slots[::-1][last]
    buckets = (keys - lowest) >> bits
    if int(buckets.max()) < 1 << 31:
        both = np.sort(buckets << 32 | slots)
        buckets, slots = both >> 32, both & 0xFFFF_FFFF
    else:
        order = np.lexsort((slots, buckets))
        buckets, slots = buckets[order], slots[order]
    borders = [0, *(np.flatnonzero(buckets[1:] != buckets[:-1]) + 1).tolist(), slots.size]
    different = (lowest + (buckets[borders[:-1]] << bits)).tolist()
    ordered = slots.astype(np.uint32)
    for key, (start, stop) in zip(different, pairwise(borders), strict=True):
        yield key, BitMap(array("I", ordered[start:stop].tobytes()))
