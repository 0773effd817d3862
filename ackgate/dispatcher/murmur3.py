"""MurmurHash3, x86 32-bit, seed 0: the hash that Pulsar's clients and brokers share.

Pure. Pulsar routes by the lower 31 bits (``Murmur3_32Hash.makeHash``). About 1 us for a key of
eight bytes; callers with recurring keys keep the results (`key_hash`).
"""

from __future__ import annotations

from struct import unpack_from
from typing import Final

_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_WORD: Final = 0xFFFFFFFF


def murmur3_32(key: bytes) -> int:
    """The 32-bit hash, unsigned."""
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
