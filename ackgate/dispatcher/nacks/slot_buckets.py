"""Slots by due time: one Roaring bitmap for each time bucket, without a search.

Pure. A slot waits for one time at most. No table says in which bucket each slot waits, since that
would cost more than all the bitmaps; so a slot whose time changes cannot be removed from its bucket
at once. Its bit stays as a **ghost**, and from then on it is a **moved** slot, whose bucket a small
table has::

    time bucket   12:00:00.000      12:00:00.256
    bitmap        . # g # . .       # . . . . #        g: a ghost
    moved         . . . . . .       . . # . . .        the slot of the ghost waits here now
                  due: bitmap - ghosts + moved

There are few ghosts as a rule (held entries rarely change). When there are more ghosts than buckets,
one pass removes them from all buckets, and moved slots become ordinary ones.

Invariants: a slot has a bit in one bucket's bitmap at most; ghosts are the bits of slots that do
not wait there; a moved slot has no bit elsewhere but a ghost; `held` is what waits at all.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import bitmap_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

GHOSTS_MIN: Final = 256
"""So many ghosts are never worth a pass over all buckets."""

RUN_OPTIMISE_ADDS_MIN: Final = 4_096
"""The index of all that is held is run-optimised after so many adds, not after each bucket."""

BUCKET_BYTES: Final = 240
"""Of memory for a bucket besides its containers: the objects, its places in dictionary and heap."""

CONTAINER_BYTES: Final = 64
"""Of memory for a container besides its members: two allocations and their places."""

MOVED_BYTES: Final = 180
"""Of memory for a moved slot."""


class SlotBuckets:
    """A set of slots, each with the key (a time) of the bucket that it waits in."""

    __slots__ = (
        "_bitmap_bytes",
        "_buckets",
        "_ghost_count",
        "_ghosts",
        "_held_adds",
        "_held_bytes",
        "_keys",
        "_moved",
        "_moved_in",
        "_open",
        "_open_adds",
        "held",
        "slot_count",
    )

    held: BitMap
    """Every slot that waits. Others read it; only this class writes it."""

    slot_count: int
    """Members of `held`. O(1)."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.held = BitMap()
        self.slot_count = 0
        self._buckets: dict[int, BitMap] = {}
        self._keys: list[int] = []
        """A heap of the keys of `_buckets`, and perhaps some of buckets that are gone."""
        self._ghosts = BitMap()
        self._ghost_count = 0
        self._moved: dict[int, int] = {}
        self._moved_in: dict[int, BitMap] = {}
        self._open: dict[int, int] = {}
        """Buckets added to since `close` -> bytes that are counted for them, without the adds."""
        self._bitmap_bytes = 0
        self._open_adds = 0
        self._held_bytes = 0
        self._held_adds = 0

    # -- adding

    def put(self, slot: int, key: int) -> bool:
        """The slot waits for this key, and no other from now on. Returns whether it is new."""
        held = self.held
        if slot not in held:
            held.add(slot)
            self.slot_count += 1
            if self._ghost_count and slot in self._ghosts:
                self._move(slot, key)
                return True
            bucket = self._buckets.get(key)
            if bucket is None or key not in self._open:
                bucket = self._opened(key)
            bucket.add(slot)
            self._open_adds += 1
            return True
        if slot in self._moved:
            self._unmove(slot)
        else:
            bucket = self._buckets.get(key)
            if bucket is not None and slot in bucket:
                return False
            self._ghosts.add(slot)
            self._ghost_count += 1
        self._move(slot, key)
        return False

    def put_many(self, slots: BitMap, key: int) -> int:
        """As `put`, for many. Takes `slots` over. Returns how many are new."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            slots -= bucket - self._ghosts
        held_before = self.discard_many(slots)
        ghosts = slots & self._ghosts
        for slot in ghosts:
            self.put(slot, key)
        slots -= ghosts
        count = len(slots)
        if count:
            self.held |= slots
            self.slot_count += count
            bucket = self._opened(key)
            bucket |= slots
            self._open_adds += count
        return count + len(ghosts) - len(held_before)

    def put_columns(self, columns: SlotColumns) -> int:
        """As `put_many`, for many keys."""
        held_before = self.discard_many(columns.all_slots)
        if self.ghosts_among(columns.all_slots):
            for key, slots in columns.groups():
                self.put_many(BitMap(slots), key)
        else:
            self.held |= columns.all_slots
            self.slot_count += len(columns.all_slots)
            self._open_adds += len(columns.all_slots)
            for key, slots in columns.groups():
                self._opened(key).update(slots)
        return len(columns.all_slots) - len(held_before)

    def close(self) -> None:
        """Note that time has moved on: buckets are unlikely to grow any more.

        O(buckets that grew).
        """
        buckets = self._buckets
        for key, counted in self._open.items():
            bucket = buckets[key]
            bucket.run_optimize()
            bucket.shrink_to_fit()
            self._bitmap_bytes += bitmap_bytes(bucket) - counted
        self._open.clear()
        self._held_adds += self._open_adds
        self._open_adds = 0
        if self._held_adds >= RUN_OPTIMISE_ADDS_MIN:
            self._optimise_held()

    def _optimise_held(self) -> None:
        self.held.run_optimize()
        self.held.shrink_to_fit()
        self._held_bytes = bitmap_bytes(self.held)
        self._held_adds = 0

    def _opened(self, key: int) -> BitMap:
        """The bucket, ready to be added to."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = BitMap()
            heappush(self._keys, key)
            self._open[key] = 0
        elif key not in self._open:
            self._open[key] = bitmap_bytes(bucket)
        return bucket

    # -- ghosts and moved slots

    def _move(self, slot: int, key: int) -> None:
        self._moved[slot] = key
        moved = self._moved_in.get(key)
        if moved is None:
            self._moved_in[key] = BitMap((slot,))
            if key not in self._buckets:
                self._opened(key)
        else:
            moved.add(slot)
        if self._ghost_count > GHOSTS_MIN + len(self._buckets):
            self.lay_ghosts()

    def _unmove(self, slot: int) -> None:
        key = self._moved.pop(slot)
        moved = self._moved_in[key]
        moved.remove(slot)
        if not moved:
            del self._moved_in[key]

    def lay_ghosts(self) -> None:
        """Take the ghosts out of all buckets; what was moved is ordinary then. O(buckets)."""
        for key, bucket in list(self._buckets.items()):
            moved = self._moved_in.get(key)
            if moved is None and not self._ghosts.intersect(bucket):
                continue
            counted = self._open.pop(key, None)
            self._bitmap_bytes -= bitmap_bytes(bucket) if counted is None else counted
            bucket.difference_update(self._ghosts)
            if moved is not None:
                bucket.update(moved)
            if bucket:
                bucket.run_optimize()
                bucket.shrink_to_fit()
                self._bitmap_bytes += bitmap_bytes(bucket)
            else:
                del self._buckets[key]
        self._ghosts.clear()
        self._ghost_count = 0
        self._moved.clear()
        self._moved_in.clear()
        self._keys = list(self._buckets)
        heapify(self._keys)

    # -- taking out

    def discard(self, slot: int) -> bool:
        """The slot waits no more. Did it?"""
        if slot not in self.held:
            return False
        self.held.remove(slot)
        self.slot_count -= 1
        if slot in self._moved:
            self._unmove(slot)
        else:
            self._ghosts.add(slot)
            self._ghost_count += 1
            if self._ghost_count > GHOSTS_MIN + len(self._buckets):
                self.lay_ghosts()
        return True

    def discard_many(self, slots: BitMap) -> BitMap:
        """As `discard`, for many. Returns those that waited."""
        gone = slots & self.held
        if not gone:
            return gone
        count = len(gone)
        self.held -= gone
        self.slot_count -= count
        if self._moved:
            moved = [slot for slot in self._moved if slot in gone]
            for slot in moved:
                self._unmove(slot)
            haunted = gone - BitMap(moved)
        else:
            haunted = gone
        self._ghosts |= haunted
        self._ghost_count = len(self._ghosts)
        if self._ghost_count > GHOSTS_MIN + len(self._buckets):
            self.lay_ghosts()
        return gone

    @property
    def first_key(self) -> int | None:
        """The lowest key that anything waits for. Drops buckets of nothing but ghosts on the way."""
        while self._keys:
            key = self._keys[0]
            bucket = self._buckets.get(key)
            if bucket is not None:
                if key in self._moved_in or not bucket.issubset(self._ghosts):
                    return key
                self._drop(key, bucket)
            heappop(self._keys)
        return None

    def waiting(self, key: int) -> BitMap:
        """What waits for this key. Read only."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return BitMap()
        if self._ghost_count:
            bucket = bucket.difference(self._ghosts)
        moved = self._moved_in.get(key)
        return bucket if moved is None else bucket | moved

    def take(self, key: int, slots: BitMap) -> None:
        """These of `waiting(key)` wait no more."""
        if not slots:
            return
        count = len(slots)
        bucket = self._buckets[key]
        moved = self._moved_in.get(key)
        if slots is bucket:
            slots = bucket.copy()
        self.held -= slots
        self.slot_count -= count
        self._held_adds += count
        if moved is not None:
            moved = moved.intersection(slots)
            slots = slots.difference(moved)
            for slot in moved:
                self._unmove(slot)
        counted = self._open.pop(key, None)
        self._bitmap_bytes -= bitmap_bytes(bucket) if counted is None else counted
        bucket -= slots
        if not bucket and key not in self._moved_in:
            del self._buckets[key]
        else:
            self._bitmap_bytes += bitmap_bytes(bucket)

    def _drop(self, key: int, bucket: BitMap) -> None:
        self._ghosts -= bucket
        self._ghost_count = len(self._ghosts)
        counted = self._open.pop(key, None)
        self._bitmap_bytes -= bitmap_bytes(bucket) if counted is None else counted
        del self._buckets[key]

    # -- reading

    def ghosts_among(self, slots: BitMap) -> bool:
        """Whether any of these is a ghost."""
        return bool(self._ghost_count) and self._ghosts.intersect(slots)

    @property
    def kept(self) -> BitMap:
        """Every slot that is known here in any way."""
        return self.held | self._ghosts

    def ordered_keys(self) -> Iterator[int]:
        """Keys that something waits for, ascending. Change nothing meanwhile."""
        for key in sorted(self._buckets):
            if key in self._moved_in or not self._buckets[key].issubset(self._ghosts):
                yield key

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory, about. O(1)."""
        return (
            self._bitmap_bytes
            + self._held_bytes
            + 2 * (self._held_adds + 2 * self._open_adds)
            + 2 * self._ghost_count
            + MOVED_BYTES * len(self._moved)
            + BUCKET_BYTES * len(self._buckets)
        )

    def check(self) -> None:
        seen = BitMap()
        for bucket in self._buckets.values():
            assert seen.isdisjoint(bucket), "a slot has bits in two buckets"
            seen |= bucket
        moved = BitMap(self._moved)
        assert self._ghosts.issubset(seen)
        assert moved.issubset(self.held)
        assert moved & seen == moved & self._ghosts, "a moved slot has a live bit"
        assert self.held == (seen - self._ghosts) | moved
        assert self.slot_count == len(self.held)
        assert self._ghost_count == len(self._ghosts) <= GHOSTS_MIN + len(self._buckets) + 1
        where = {slot: key for key, slots in self._moved_in.items() for slot in slots}
        assert where == self._moved
        assert all(self._moved_in.values())
        assert set(self._moved_in) <= set(self._buckets)
        assert set(self._keys) >= set(self._buckets)
        counted = sum(
            self._open.get(key, bitmap_bytes(bucket)) for key, bucket in self._buckets.items()
        )
        assert self._bitmap_bytes == counted, (self._bitmap_bytes, counted)


def bitmap_bytes(bitmap: BitMap) -> int:
    """Bytes of memory of a bitmap's containers. O(containers)."""
    figures = bitmap.get_statistics()
    return (
        CONTAINER_BYTES * figures["n_containers"]
        + figures["n_bytes_array_containers"]
        + figures["n_bytes_run_containers"]
        + figures["n_bytes_bitset_containers"]
    )


# ------------------------------------------------------------------------------ columns


LIST_MAX: Final = 64
"""So few slots are handed over as a list quicker than as a C array."""


class SlotColumns(NamedTuple):
    """Columns of slots and times, grouped into a bitmap for each time bucket.

    One sort of whole numbers does it all: the bucket in the upper half, the slot in the lower.
    """

    all_slots: BitMap
    keys: list[int]
    """Different ones, ascending."""
    borders: list[int]
    """The slots of ``keys[i]`` are those from ``borders[i]`` to ``borders[i + 1]``."""
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
    all_slots = bitmap_of(slots)
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
