"""What an entry of a message ledger holds: a message, or a batch of them, as the producer sent it.

Pure. Its bytes: `frame`. The broker stores them untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.frame import metadata_span
from ackgate.persistence.proto.message_pb2 import MessageMetadata

if TYPE_CHECKING:
    from ackgate.cursor import Position


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
