"""Columns of slots and times, grouped into a bitmap for each time bucket. Pure.

One sort of whole numbers does it all: the bucket in the upper half, the slot in the lower.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from ackgate.cursor.bitmap_pack import pack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


LIST_MAX: Final = 64
"""So few slots are handed over as a list quicker than as a C array."""


class SlotColumns(NamedTuple):
    """Slots, each once, in the order of their keys."""

    all_slots: BitMap
    keys: list[int]
    """Different ones, ascending."""
    borders: list[int]
    """Slots of ``keys[i]`` are those from ``borders[i]`` to ``borders[i + 1]``."""
    slots: NDArray[np.uint32]

    def groups(self) -> Iterator[tuple[int, Sequence[int] | BitMap]]:
        """Each key with its slots."""
        slots, listed = self.slots, None
        if len(self.keys) * LIST_MAX > slots.size:
            listed = slots.tolist()
        for key, (start, stop) in zip(self.keys, pairwise(self.borders), strict=True):
            if listed is not None and stop - start <= LIST_MAX:
                yield key, listed[start:stop]
            else:
                yield key, BitMap(array("I", slots[start:stop].tobytes()))


def by_key(keys: NDArray[np.int64], slots: NDArray[np.int64], bits: int) -> SlotColumns:
    """The slots of each key, keys being multiples of ``2**bits``.

    Of a slot that comes twice the last key counts.
    """
    all_slots = pack(slots)
    if len(all_slots) < slots.size:
        _, last = np.unique(slots[::-1], return_index=True)
        keys, slots = keys[::-1][last], slots[::-1][last]
    lowest = int(keys.min())
    buckets = (keys - lowest) >> bits
    if int(buckets.max()) < 1 << 31:
        both = np.sort(buckets << 32 | slots)
        buckets, slots = both >> 32, both & 0xFFFF_FFFF
    else:
        order = np.lexsort((slots, buckets))
        buckets, slots = buckets[order], slots[order]
    borders = [0, *(np.flatnonzero(buckets[1:] != buckets[:-1]) + 1).tolist(), slots.size]
    different: list[int] = (lowest + (buckets[borders[:-1]] << bits)).tolist()
    return SlotColumns(all_slots, different, borders, slots.astype(np.uint32))
