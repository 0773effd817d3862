"""One entry on its way through the broker: its bytes and what dispatch must know of them.

The bytes are what the producer sent, from the magic number on:
``0x0e01, crc32c, metadata size, MessageMetadata, payload``. They are stored and forwarded
untouched; the metadata is parsed only when somebody asks (a key, a publish time) and then kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ackgate.broker.proto import pulsar_pb2 as pb
from ackgate.cursor.position import Position
from ackgate.dispatcher.dispatcher import Chunk
from ackgate.dispatcher.key_hash import resolve_key
from ackgate.errors import CorruptRecordError

if TYPE_CHECKING:
    from ackgate.persistence.ports import LedgerEntry

_MAGIC: Final = b"\x0e\x01"
_HEADER_BYTES: Final = 10  # magic 2, crc 4, metadata size 4
_CHUNK_COUNT_TAG: Final = b"\xd8\x01"  # field 27, varint: num_chunks_from_msg
_NO_MAGIC_HEADER_BYTES: Final = 4  # a client without checksums sends the metadata size at once


class Entry:
    """An entry with its position. `message_count` is the number of messages in its batch.

    ``deliver_at_ms``: when it is to be delivered, ms since 1970; 0: at once.
    """

    __slots__ = ("_metadata", "deliver_at_ms", "message_count", "payload", "position")

    def __init__(self, position: Position, payload: bytes, message_count: int) -> None:
        self.position = position
        self.payload = payload
        self.message_count = message_count
        self.deliver_at_ms = 0
        self._metadata: pb.MessageMetadata | None = None

    @classmethod
    def stored(cls, ledger_id: int, entry: LedgerEntry) -> Entry:
        """Make an entry of what a ledger returned. Raises `CorruptRecordError`."""
        made = cls(Position(ledger_id, entry.entry_id), entry.payload, 1)
        metadata = made.metadata
        made.message_count = max(1, metadata.num_messages_in_batch)
        made.deliver_at_ms = max(0, metadata.deliver_at_time)
        return made

    @property
    def metadata(self) -> pb.MessageMetadata:
        """The parsed metadata. Raises `CorruptRecordError` naming the position."""
        if self._metadata is None:
            self._metadata = parse_metadata(self.payload, self.position)
        return self._metadata

    @property
    def key(self) -> bytes:
        """What Key_Shared hashes."""
        metadata = self.metadata
        return resolve_key(
            ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
            partition_key=metadata.partition_key if metadata.HasField("partition_key") else None,
            is_partition_key_base64=metadata.partition_key_b64_encoded,
            producer_name=metadata.producer_name,
            sequence_id=metadata.sequence_id,
        )

    @property
    def chunk(self) -> Chunk | None:
        """Which piece of a chunked message this is; None if it is none.

        Metadata without the bytes of the field's tag is not parsed: nearly every entry.
        """
        start = _metadata_start(self.payload)
        stop = start + int.from_bytes(self.payload[start - 4 : start], "big")
        if self.payload.find(_CHUNK_COUNT_TAG, start, stop) < 0:
            return None
        metadata = self.metadata
        count = metadata.num_chunks_from_msg
        return Chunk(metadata.uuid, metadata.chunk_id == count - 1) if count > 1 else None


def parse_metadata(payload: bytes, position: Position) -> pb.MessageMetadata:
    """Parse the MessageMetadata at the head of an entry. Raises `CorruptRecordError`."""
    start = _metadata_start(payload)
    size = int.from_bytes(payload[start - 4 : start], "big")
    if start + size > len(payload):
        raise CorruptRecordError(
            f"entry {position}: metadata of {size} bytes does not fit into {len(payload)} bytes"
        )
    try:
        return pb.MessageMetadata.FromString(payload[start : start + size])
    except DecodeError as error:
        raise CorruptRecordError(f"entry {position}: metadata cannot be parsed") from error


def _metadata_start(payload: bytes) -> int:
    return _HEADER_BYTES if payload[:2] == _MAGIC else _NO_MAGIC_HEADER_BYTES
