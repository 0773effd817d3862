"""What an entry of a message ledger holds: a message, or a batch of them, as the producer sent it.

Pure. ::

    | 0x0e01 | crc32c | metadata size | MessageMetadata | payload |        a client with checksums
                      | metadata size | MessageMetadata | payload |        one without
       2        4            4

Numbers are big-endian. The broker stores these bytes untouched; the checksum covers what is behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ackgate.errors import CorruptRecordError
from ackgate.persistence.proto.message_pb2 import MessageMetadata

if TYPE_CHECKING:
    from ackgate.cursor.position import Position

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


def parse_metadata(entry: bytes, position: Position) -> MessageMetadata:
    """Parse the metadata of an entry. Raises `CorruptRecordError` naming the position."""
    start, stop = metadata_span(entry)
    if stop > len(entry):
        raise CorruptRecordError(
            f"entry {position}: metadata of {stop - start} bytes does not fit into {len(entry)} bytes"
        )
    try:
        return MessageMetadata.FromString(entry[start:stop])
    except DecodeError as error:
        raise CorruptRecordError(f"entry {position}: metadata cannot be parsed") from error
