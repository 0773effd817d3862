"""From an array of entry ids to a Roaring bitmap, at a few nanoseconds an entry.

Pure. Pyroaring's own loop over a numpy array costs some 45 ns an element. Here numpy sets one byte
for each id, packs the bytes to bits, and the bits are laid out as portable Roaring containers,
which pyroaring only has to copy in:

    ids  [70000, 3, 1, ...]           any order, repeats allowed
      |  bits[ids] = 1                one byte per entry of the span
      |  packbits                     8 KB per block of 65,536 entries
      v
    cookie | key, cardinality - 1 ... | offsets ... | 8 KB | 8 KB | ...      -> BitMap.deserialize

A block with few members must be an array container in that format, and a wide span with few members
would make the byte array large: such ids are sorted instead and handed over as a C array.

Format: https://github.com/RoaringBitmap/RoaringFormatSpec (no run containers).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

COOKIE_WITHOUT_RUNS: Final = 12346
BLOCK_ENTRIES: Final = 1 << 16
"""Entries that one Roaring container covers."""

BLOCK_BYTES: Final = BLOCK_ENTRIES // 8

ARRAY_CONTAINER_ENTRIES_MAX: Final = 4096
"""With no more members than this a container is a sorted array, by the format."""

SCATTER_IDS_MIN: Final = 4096
"""Below this, sorting is quicker than clearing and packing even a single block."""

SCATTER_BYTES_PER_ID_MAX: Final = 16
"""How much wider than the ids the byte array may get: bounds the memory of a wide span."""


def pack(ids: NDArray[np.integer[Any]]) -> BitMap:
    """The set of the ids. All of them must lie in 0..2^32-1; the caller has checked it."""
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
