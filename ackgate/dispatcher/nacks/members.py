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

from ackgate.cursor import PositionSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor import Position

PAIR_BYTES: Final = 320
"""Of memory for an entry in a bucket, mask and all."""


class MemberNacks:
    """Masks by entry and key."""

    __slots__ = ("_keys", "_keys_of", "_masks", "pair_count", "positions")

    positions: PositionSet
    """Entries of which any message waits. Others read it; only this class writes it."""

    pair_count: int
    """(Entry, key) pairs. O(1)."""

    def __init__(self) -> None:
        self.positions = PositionSet()
        self._masks: dict[int, dict[Position, int]] = {}
        """Key -> entry -> mask."""
        self._keys_of: dict[Position, tuple[int, ...]] = {}
        self._keys: list[int] = []
        """A heap of the keys of `_masks`, and perhaps some that are gone."""
        self.pair_count = 0

    def put(self, position: Position, key: int, mask: int) -> None:
        """Let these messages wait for this key, and for no other from now on."""
        keys = self._keys_of.get(position, ())
        for other in keys:
            if other != key:
                self._clear_bits(position, other, mask)
        at = self._masks.get(key)
        if at is None:
            at = self._masks[key] = {}
            heappush(self._keys, key)
        at[position] = at.get(position, 0) | mask
        if key not in keys:
            self._keys_of[position] = (*self._keys_of.get(position, ()), key)
            self.pair_count += 1
            self.positions.add(*position)

    def discard(self, position: Position, mask: int) -> bool:
        """These messages wait no more (-1: none of the entry does). Did any of them?"""
        keys = self._keys_of.get(position, ())
        found = [key for key in keys if self._masks[key][position] & mask]
        for key in found:
            self._clear_bits(position, key, mask)
        return bool(found)

    def _clear_bits(self, position: Position, key: int, mask: int) -> None:
        at = self._masks[key]
        left = at[position] & ~mask
        if left:
            at[position] = left
            return
        del at[position]
        if not at:
            del self._masks[key]
        keys = tuple(other for other in self._keys_of[position] if other != key)
        self.pair_count -= 1
        if keys:
            self._keys_of[position] = keys
        else:
            del self._keys_of[position]
            self.positions.discard(*position)

    @property
    def first_key(self) -> int | None:
        """The lowest key that anything waits for."""
        while self._keys and self._keys[0] not in self._masks:
            heappop(self._keys)
        return self._keys[0] if self._keys else None

    def mask(self, position: Position) -> int:
        """All messages of the entry that wait, whatever for."""
        mask = 0
        for key in self._keys_of.get(position, ()):
            mask |= self._masks[key][position]
        return mask

    def waiting(self, key: int) -> Mapping[Position, int]:
        """Entry -> mask of what waits for this key. Read only."""
        return self._masks.get(key, {})

    def take(self, position: Position, key: int) -> int:
        """Take out what of the entry waits for this key. Returns its mask; 0: nothing waits."""
        mask = self._masks.get(key, {}).get(position, 0)
        if mask:
            self._clear_bits(position, key, mask)
        return mask

    def check(self) -> None:
        self.positions.check()
        assert set(self._keys_of) == set(self.positions)
        assert self.pair_count == sum(map(len, self._keys_of.values()))
        pairs = {(position, key) for key, at in self._masks.items() for position in at}
        assert pairs == {
            (position, key) for position, keys in self._keys_of.items() for key in keys
        }
        assert set(self._keys) >= set(self._masks)
        assert all(self._masks.values())
        for position, keys in self._keys_of.items():
            masks = [self._masks[key][position] for key in keys]
            assert all(mask > 0 for mask in masks)
            union = 0
            for mask in masks:
                assert not union & mask, "a message waits for two times"
                union |= mask
