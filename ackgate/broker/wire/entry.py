"""One entry on its way through the broker: its bytes and what dispatch must know of them.

The bytes are what the producer sent (see `ackgate.persistence.messages.entry`), stored and forwarded
untouched; the metadata is parsed only when somebody asks (a key, a publish time) and then kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.wire.batch_payload import can_hold
from ackgate.cursor import Position
from ackgate.dispatcher import MessageChunk, resolve_key
from ackgate.persistence.messages.entries import EntryForm
from ackgate.persistence.messages.entry import parse_metadata
from ackgate.persistence.messages.frame import metadata_span

if TYPE_CHECKING:
    from ackgate.persistence.ports import LedgerEntry
    from ackgate.persistence.proto.message_pb2 import MessageMetadata

_CHUNK_COUNT_TAG: Final = b"\xd8\x01"  # field 27, varint: num_chunks_from_msg


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
        self._metadata: MessageMetadata | None = None

    @classmethod
    def stored(cls, ledger_id: int, entry: LedgerEntry) -> Entry:
        """Make an entry of what a ledger returned. Raises `CorruptRecordError`."""
        made = cls(Position(ledger_id, entry.entry_id), entry.payload, 1)
        metadata = made.metadata
        if metadata.num_messages_in_batch > 1 and can_hold(entry.payload, metadata):
            made.message_count = metadata.num_messages_in_batch
        made.deliver_at_ms = max(0, metadata.deliver_at_time)
        return made

    @property
    def metadata(self) -> MessageMetadata:
        """The parsed metadata. Raises `CorruptRecordError` naming the position."""
        if self._metadata is None:
            self._metadata = parse_metadata(self.payload, self.position)
        return self._metadata

    @property
    def published_ms(self) -> int:
        """When the producer says that it was published. Raises `CorruptRecordError`."""
        return self.metadata.publish_time

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
    def chunk(self) -> MessageChunk | None:
        """Which piece of a chunked message this is; None if it is none.

        Metadata without the bytes of the field's tag is not parsed: nearly every entry.
        """
        start, stop = metadata_span(self.payload)
        if self.payload.find(_CHUNK_COUNT_TAG, start, stop) < 0:
            return None
        metadata = self.metadata
        count = metadata.num_chunks_from_msg
        return MessageChunk(metadata.uuid, metadata.chunk_id == count - 1) if count > 1 else None


ENTRY_FORM: Final = EntryForm(Entry, Entry.stored)
"""How a topic's ledgers make entries."""
