"""The frame of a message's entry: where its metadata and its payload lie. Pure.

    | 0x0e01 | crc32c | metadata size | MessageMetadata | payload |        a client with checksums
                      | metadata size | MessageMetadata | payload |        one without
       2        4            4

Numbers are big-endian; the checksum covers what comes after it.
"""

from __future__ import annotations

from typing import Final

import google_crc32c

MAGIC: Final = b"\x0e\x01"
HEADER_BYTES: Final = 10
"""Magic 2, checksum 4, metadata size 4."""
NO_MAGIC_HEADER_BYTES: Final = 4


def metadata_span(entry: bytes) -> tuple[int, int]:
    """Where the metadata begins, and where it ends and the payload begins.

    As the size in front of it has it, which may be more than there is.
    """
    start = HEADER_BYTES if entry[:2] == MAGIC else NO_MAGIC_HEADER_BYTES
    return start, start + int.from_bytes(entry[start - 4 : start], "big")


def seal_entry(metadata: bytes, payload: bytes) -> bytes:
    """An entry of serialized metadata and a payload, as a client with checksums sends it."""
    covered = len(metadata).to_bytes(4, "big") + metadata + payload
    checksum: int = google_crc32c.value(covered)
    return MAGIC + checksum.to_bytes(4, "big") + covered


def signed64(number: int) -> int:
    """An unsigned 64-bit id of the wire or of metadata as Java's signed long."""
    return number - 2**64 if number >= 2**63 else number
