"""Messages of a batch that wait each for its own time: masks of indexes by entry and time bucket.

Pure. A mask is an int, bit i set = message i of the batch waits. Those of one entry in different
buckets never overlap: a message waits for one time. ::

    entry 3:1    12:00:00.000   0 0 1 0 1     messages 0 and 2
                 12:00:10.240   0 1 0 0 0     message 3
    nack of 2    12:00:10.240   0 1 1 0 0     and it leaves the mask above

Invariants: no mask is 0; the two tables name the same (entry, key) pairs.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAIR_BYTES: Final = 320
"""Of memory for an entry in a bucket, mask and all."""


class MemberNacks:
    """Masks by slot and key."""

    __slots__ = ("_keys", "_keys_of", "_masks", "pair_count", "slots")

    slots: BitMap
    """Entries of which any message waits. Others read it; only this class writes it."""

    pair_count: int
    """(Entry, key) pairs. O(1)."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.slots = BitMap()
        self.pair_count = 0
        self._masks: dict[int, dict[int, int]] = {}
        """Key -> slot -> mask."""
        self._keys_of: dict[int, tuple[int, ...]] = {}
        self._keys: list[int] = []
        """A heap of the keys of `_masks`, and perhaps some that are gone."""

    def put(self, slot: int, key: int, mask: int) -> None:
        """Let these messages wait for this key, and for no other from now on."""
        keys = self._keys_of.get(slot, ())
        for other in keys:
            if other != key:
                self._clear_bits(slot, other, mask)
        at = self._masks.get(key)
        if at is None:
            at = self._masks[key] = {}
            heappush(self._keys, key)
        at[slot] = at.get(slot, 0) | mask
        if key not in keys:
            self._keys_of[slot] = (*self._keys_of.get(slot, ()), key)
            self.pair_count += 1
            self.slots.add(slot)

    def discard(self, slot: int, mask: int) -> bool:
        """These messages wait no more (-1: none of the entry does). Did any of them?"""
        keys = self._keys_of.get(slot, ())
        found = [key for key in keys if self._masks[key][slot] & mask]
        for key in found:
            self._clear_bits(slot, key, mask)
        return bool(found)

    def _clear_bits(self, slot: int, key: int, mask: int) -> None:
        at = self._masks[key]
        left = at[slot] & ~mask
        if left:
            at[slot] = left
            return
        del at[slot]
        if not at:
            del self._masks[key]
        keys = tuple(other for other in self._keys_of[slot] if other != key)
        self.pair_count -= 1
        if keys:
            self._keys_of[slot] = keys
        else:
            del self._keys_of[slot]
            self.slots.remove(slot)

    @property
    def first_key(self) -> int | None:
        """The lowest key that anything waits for."""
        while self._keys and self._keys[0] not in self._masks:
            heappop(self._keys)
        return self._keys[0] if self._keys else None

    def mask(self, slot: int) -> int:
        """All messages of the entry that wait, whatever for."""
        mask = 0
        for key in self._keys_of.get(slot, ()):
            mask |= self._masks[key][slot]
        return mask

    def waiting(self, key: int) -> Mapping[int, int]:
        """Slot -> mask of what waits for this key. Read only."""
        return self._masks.get(key, {})

    def take(self, slot: int, key: int) -> int:
        """Take out what of the entry waits for this key. Returns its mask; 0: nothing waits."""
        mask = self._masks.get(key, {}).get(slot, 0)
        if mask:
            self._clear_bits(slot, key, mask)
        return mask

    def ordered_keys(self) -> Iterator[int]:
        """Keys that something waits for, ascending."""
        return iter(sorted(self._masks))

    def check(self) -> None:
        assert BitMap(self._keys_of) == self.slots
        assert self.pair_count == sum(map(len, self._keys_of.values()))
        pairs = {(slot, key) for key, at in self._masks.items() for slot in at}
        assert pairs == {(slot, key) for slot, keys in self._keys_of.items() for key in keys}
        assert set(self._keys) >= set(self._masks)
        assert all(self._masks.values())
        for slot, keys in self._keys_of.items():
            masks = [self._masks[key][slot] for key in keys]
            assert all(mask > 0 for mask in masks)
            union = 0
            for mask in masks:
                assert not union & mask, "a message waits for two times"
                union |= mask
