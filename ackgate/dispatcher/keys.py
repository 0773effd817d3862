"""From a message's key to the consumer that owns it: its hash, and two ways to divide the hashes.

Pure. Positions on the ring are computed as Pulsar 4 does, so consumers of the same names get
the same keys in both.

`HashRing` (AUTO_SPLIT): each consumer claims N points of 1..65535, by the hash of its name. A hash
belongs to the claimant of the next point at or above it, past the last point to that of the first::

        A        B    A         C              points (N = 2 each, one is taken twice)
    ----|--------|----|---------|------
      A     B      A       C       A           owners

A point claimed twice belongs to the first claimant; the next takes over when it leaves.

`StickyRanges` (STICKY): consumers name their own ranges, which may not overlap; a hash in none of
them has no owner and waits.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right, insort
from functools import lru_cache
from itertools import pairwise
from struct import unpack_from
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.dispatcher.port import KeySharedMode
from ackgate.errors import ConsumerAssignError

if TYPE_CHECKING:
    from collections.abc import Callable

_SEPARATOR: Final = "\0"


class KeyRanges(Protocol):
    """A division of the hashes among consumers."""

    def add(self, consumer: int, name: str, ranges: tuple[tuple[int, int], ...]) -> None:
        """Give a consumer its share. Raises `ConsumerAssignError` and changes nothing then."""
        ...

    def remove(self, consumer: int) -> None:
        """Divide its share among the others, or leave it without an owner."""
        ...

    def owner(self, key_hash: int) -> int | None:
        """The owner of the hash; None: none."""
        ...

    def ranges(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Consumer -> its hashes, (first, last) both included, ascending."""
        ...

    def check(self) -> None: ...


class HashRing:
    """Consistent hashing over the consumers' names. Adding costs O(points + all claimed points)."""

    def __init__(self, points_per_consumer: int) -> None:
        self._points_per_consumer = points_per_consumer
        self._points: list[int] = []
        self._claims: dict[int, list[int]] = {}
        self._claimed: dict[int, list[int]] = {}
        # Consumers of one name differ by an index, the lowest that is free.
        self._names: dict[int, tuple[str, int]] = {}
        self._owners: dict[int, int | None] = {}

    def add(self, consumer: int, name: str, ranges: tuple[tuple[int, int], ...]) -> None:
        """Claim the consumer's points; the ranges it asks for do not count here."""
        del ranges
        taken = {index for other, index in self._names.values() if other == name}
        index = next(index for index in range(len(taken) + 1) if index not in taken)
        self._names[consumer] = (name, index)
        prefix = f"{name}{_SEPARATOR}{index}{_SEPARATOR}"
        claimed = [
            auto_split_hash(f"{prefix}{number}".encode())
            for number in range(self._points_per_consumer)
        ]
        for point in claimed:
            claimants = self._claims.get(point)
            if claimants is None:
                self._claims[point] = [consumer]
                insort(self._points, point)
            else:
                claimants.append(consumer)
        self._claimed[consumer] = claimed
        self._owners.clear()

    def remove(self, consumer: int) -> None:
        """Give up the consumer's points."""
        if self._names.pop(consumer, None) is None:
            return
        for point in self._claimed.pop(consumer):
            claimants = self._claims[point]
            claimants.remove(consumer)
            if not claimants:
                del self._claims[point]
                del self._points[bisect_left(self._points, point)]
        self._owners.clear()

    def owner(self, key_hash: int) -> int | None:
        """The claimant of the next point at or above the hash."""
        try:
            return self._owners[key_hash]
        except KeyError:
            points = self._points
            owner = None
            if points:
                place = bisect_left(points, key_hash)
                owner = self._claims[points[place] if place < len(points) else points[0]][0]
            self._owners[key_hash] = owner
            return owner

    def ranges(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Each consumer's hashes, neighbouring ones joined."""
        joined: list[tuple[int, int, int]] = []
        start = HASH_MIN
        last_point = self._points[-1] if self._points else 0
        ends = [*self._points, HASH_MAX] if self._points and last_point < HASH_MAX else self._points
        for end in ends:
            owner = self._claims[end if end in self._claims else self._points[0]][0]
            if joined and joined[-1][2] == owner:
                joined[-1] = (joined[-1][0], end, owner)
            else:
                joined.append((start, end, owner))
            start = end + 1
        shares: dict[int, list[tuple[int, int]]] = {consumer: [] for consumer in self._names}
        for first, last, owner in joined:
            shares[owner].append((first, last))
        return {consumer: tuple(share) for consumer, share in shares.items()}

    def check(self) -> None:
        assert self._points == sorted(self._claims)
        assert self._names.keys() == self._claimed.keys()
        assert len(set(self._names.values())) == len(self._names)
        for point, claimants in self._claims.items():
            assert claimants, point
            for consumer in claimants:
                assert self._claimed[consumer].count(point) == claimants.count(consumer)
        assert sum(map(len, self._claims.values())) == sum(map(len, self._claimed.values()))


class StickyRanges:
    """The ranges that consumers asked for."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, int]] = []

    def add(self, consumer: int, name: str, ranges: tuple[tuple[int, int], ...]) -> None:
        """Take the ranges if they are sound and free."""
        if not ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        wanted = sorted(ranges)
        for first, last in wanted:
            if first > last:
                raise ConsumerAssignError(
                    f"Fixed hash range start > end for range: [{first},{last}] of {name!r}"
                )
            if first < 0 or last > HASH_MAX:
                raise ConsumerAssignError(
                    f"hash range [{first},{last}] of {name!r} is not within 0..{HASH_MAX}"
                )
        for (first, last), (next_first, next_last) in pairwise(wanted):
            if next_first <= last:
                raise ConsumerAssignError(
                    f"Consumer's own ranges conflict: [{first},{last}] overlaps with "
                    f"[{next_first},{next_last}] of {name!r}"
                )
        for first, last in wanted:
            for taken_first, taken_last, other in self._ranges:
                if first <= taken_last and taken_first <= last:
                    raise ConsumerAssignError(
                        f"Range conflict with consumer {other}: [{first},{last}] of {name!r} "
                        f"overlaps with [{taken_first},{taken_last}]"
                    )
        self._ranges = sorted([*self._ranges, *((first, last, consumer) for first, last in wanted)])
        self._starts = [first for first, _, _ in self._ranges]

    def remove(self, consumer: int) -> None:
        """Leave its hashes without an owner."""
        self._ranges = [taken for taken in self._ranges if taken[2] != consumer]
        self._starts = [first for first, _, _ in self._ranges]

    def owner(self, key_hash: int) -> int | None:
        """Who asked for the hash."""
        place = bisect_right(self._starts, key_hash) - 1
        if place < 0:
            return None
        _, last, consumer = self._ranges[place]
        return consumer if key_hash <= last else None

    def ranges(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Each consumer's hashes as it asked for them."""
        shares: dict[int, list[tuple[int, int]]] = {}
        for first, last, consumer in self._ranges:
            shares.setdefault(consumer, []).append((first, last))
        return {consumer: tuple(share) for consumer, share in shares.items()}

    def check(self) -> None:
        assert self._starts == [first for first, _, _ in self._ranges]
        assert all(first <= last for first, last, _ in self._ranges)
        for (_, last, _), (first, _, _) in pairwise(self._ranges):
            assert last < first, self._ranges


# ------------------------------------------------------------------------------ from key to hash
#
# As Pulsar 4: the key is the ordering key, else the partition key, else one made of producer
# and sequence id (so that messages without a key spread). Hash 0 means "not set" there and is never
# given. ::
#
#     AUTO_SPLIT   murmur3 % 65535 + 1      1..65535
#     STICKY       murmur3 % 65536          1..65535; 0 becomes 1


HASH_MIN: Final = 1
"""The lowest hash that AUTO_SPLIT gives."""

HASH_MAX: Final = 65_535
"""The highest hash of both modes."""

CACHED_KEYS_MAX: Final = 16_384
"""Keys whose hash one dispatcher remembers: some 3 MB, and a hit costs a twentieth of a hash."""

_NONE_KEY: Final = b"NONE_KEY"


def resolve_key(
    *,
    ordering_key: bytes | None = None,
    partition_key: str | bytes | None = None,
    is_partition_key_base64: bool = False,
    producer_name: str | None = None,
    sequence_id: int | None = None,
) -> bytes:
    """The bytes that decide which consumer gets a message. None: the field is not set."""
    if ordering_key is not None:
        return ordering_key
    if partition_key is not None:
        if not is_partition_key_base64:
            # Clients in C++ may set any bytes, and protobuf hands those out that are no UTF-8.
            return partition_key if isinstance(partition_key, bytes) else partition_key.encode()
        try:
            return base64.b64decode(partition_key, validate=True)
        except (binascii.Error, ValueError):
            return _NONE_KEY  # Pulsar's answer to a key that cannot be read
    if producer_name is not None and sequence_id is not None:
        return f"{producer_name}-{sequence_id}".encode()
    return _NONE_KEY


def auto_split_hash(key: bytes) -> int:
    """The hash under `KeySharedMode.AUTO_SPLIT`, 1..65535. Also places consumers on the ring."""
    return make_hash(key) % HASH_MAX + HASH_MIN


def sticky_hash(key: bytes) -> int:
    """The hash under `KeySharedMode.STICKY`, 1..65535."""
    return make_hash(key) % (HASH_MAX + 1) or 1


def key_hasher(mode: KeySharedMode) -> Callable[[bytes], int]:
    """The mode's hash with a memory of recent keys. Make one per dispatcher."""
    hash_key = sticky_hash if mode is KeySharedMode.STICKY else auto_split_hash
    return lru_cache(maxsize=CACHED_KEYS_MAX)(hash_key)


# ------------------------------------------------------------------------------ murmur3
#
# MurmurHash3, x86 32-bit, seed 0: the hash that Pulsar's clients and brokers share. Pulsar routes by
# the lower 31 bits (``Murmur3_32Hash.makeHash``). About 1 us for a key of eight bytes; callers with
# recurring keys keep the results (`key_hasher`).


_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_WORD: Final = 0xFFFFFFFF


def murmur3_32(key: bytes) -> int:
    size = len(key)
    words = size >> 2
    mixed = 0
    for word in unpack_from(f"<{words}I", key):
        k = (word * _C1) & _WORD
        k = (((k << 15) | (k >> 17)) * _C2) & _WORD
        mixed ^= k
        mixed = (((mixed << 13) | (mixed >> 19)) * 5 + 0xE6546B64) & _WORD
    tail = key[words << 2 :]
    if tail:
        k = (int.from_bytes(tail, "little") * _C1) & _WORD
        mixed ^= (((k << 15) | (k >> 17)) * _C2) & _WORD
    mixed ^= size
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _WORD
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _WORD
    return mixed ^ (mixed >> 16)


def make_hash(key: bytes) -> int:
    """Pulsar's form of it: 31 bits, never negative."""
    return murmur3_32(key) & 0x7FFFFFFF
