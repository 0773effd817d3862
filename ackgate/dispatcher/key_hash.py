"""From a message's key to the 16-bit hash that Key_Shared divides among consumers.

Pure. As Pulsar 4: the key is the ordering key, else the partition key, else one made of producer
and sequence id (so that messages without a key spread). Hash 0 means "not set" there and is never
given. ::

    AUTO_SPLIT   murmur3 % 65535 + 1      1..65535
    STICKY       murmur3 % 65536          1..65535; 0 becomes 1
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.dispatcher import KeySharedMode
from ackgate.dispatcher.murmur3 import make_hash

if TYPE_CHECKING:
    from collections.abc import Callable

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
