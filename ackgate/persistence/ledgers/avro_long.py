"""Avro's `long`: zigzag, then seven bits a byte, low ones first.

Pure. Only what the codecs beside it need; whole records for anybody else go through fastavro.
"""

from __future__ import annotations

LONG_BYTES_MAX = 10
"""A 64-bit number takes at most ten bytes; more than that is damage, not a number."""


def encode_varint(number: int) -> bytes:
    """Encode a number >= 0 without zigzag."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_long(number: int) -> bytes:
    """Encode a signed 64-bit number."""
    return encode_varint((number << 1) ^ (number >> 63))


def decode_long(data: bytes, start: int) -> tuple[int, int]:
    """Return the number at `start` and where it ends.

    Raises `IndexError` when the bytes run out, `ValueError` when there are too many of them.
    """
    byte = data[start]
    end = start + 1
    number = byte & 127
    shift = 7
    while byte > 127:
        if shift > 7 * (LONG_BYTES_MAX - 1):
            raise ValueError(f"no Avro long: more than {LONG_BYTES_MAX} bytes")
        byte = data[end]
        end += 1
        number |= (byte & 127) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), end
