"""Single messages out of an entry: a batch unpacked, the payload decompressed.

Pure. What cannot be unpacked comes as it is stored: an encrypted payload, since its keys are the
application's, and a piece of a chunked message, which was compressed as a whole before it was cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.entry import parse_metadata
from ackgate.persistence.messages.frame import metadata_span
from ackgate.persistence.proto.message_pb2 import BrokerEntryMetadata, SingleMessageMetadata
from ackgate.persistence.records.envelope import decompressed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.cursor import Position
    from ackgate.persistence.proto.message_pb2 import MessageMetadata

_BROKER_MAGIC: Final = b"\x0e\x02"
_BROKER_HEADER_BYTES: Final = 6


class BrokerEntry(NamedTuple):
    """An entry without what a broker has put in front of it."""

    entry: bytes
    broker_time_ms: int | None = None
    """When the broker added it. None: it does not say (brokerEntryMetadataInterceptors)."""
    message_index: int | None = None
    """Of the entry's last message among all of the topic. None: likewise."""


class UnpackedMessage(NamedTuple):
    """One message of an entry, or the whole entry where it cannot be unpacked."""

    metadata: MessageMetadata
    """Metadata of the message's entry."""
    batch_index: int | None
    """None: its entry is no batch, or cannot be unpacked."""
    single: SingleMessageMetadata | None
    """Metadata of a message in a batch."""
    payload: bytes | None
    """None: the producer sent a null value."""


def without_broker_metadata(entry: bytes, position: Position) -> BrokerEntry:
    """Take off what Pulsar's brokers may put in front of an entry. Raises `CorruptRecordError`."""
    if entry[:2] != _BROKER_MAGIC:
        return BrokerEntry(entry)
    stop = _BROKER_HEADER_BYTES + int.from_bytes(entry[2:_BROKER_HEADER_BYTES], "big")
    try:
        found = BrokerEntryMetadata.FromString(entry[_BROKER_HEADER_BYTES:stop])
    except DecodeError as error:
        raise CorruptRecordError(f"entry {position}: its broker's part: {error}") from error
    return BrokerEntry(
        entry[stop:],
        found.broker_timestamp if found.HasField("broker_timestamp") else None,
        found.index if found.HasField("index") else None,
    )


def plain_payload(entry: bytes, metadata: MessageMetadata, position: Position) -> bytes:
    """The payload of an entry, decompressed, a batch as a whole; as stored if it cannot be unpacked.

    Raises `CorruptRecordError` naming the position.
    """
    payload = entry[metadata_span(entry)[1] :]
    if not metadata.compression or _is_opaque(metadata):
        return payload
    try:
        return decompressed(payload, metadata.compression, metadata.uncompressed_size)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"entry {position}: {error}") from error


def _is_opaque(metadata: MessageMetadata) -> bool:
    """Whether the payload is encrypted, or a piece of a chunked message."""
    return bool(metadata.encryption_keys) or metadata.num_chunks_from_msg > 1


def unpacked(entry: bytes, position: Position) -> Iterator[UnpackedMessage]:
    """The messages of an entry, in order. Raises `CorruptRecordError` naming the position."""
    metadata = parse_metadata(entry, position)
    payload = plain_payload(entry, metadata, position)
    if _is_opaque(metadata):
        yield UnpackedMessage(metadata, None, None, payload)
        return
    if not metadata.HasField("num_messages_in_batch"):
        yield UnpackedMessage(metadata, None, None, None if metadata.null_value else payload)
        return
    at = 0
    for index in range(metadata.num_messages_in_batch):
        size = int.from_bytes(payload[at : at + 4], "big")
        stop = at + 4 + size
        try:
            single = SingleMessageMetadata.FromString(payload[at + 4 : stop])
        except DecodeError as error:
            raise CorruptRecordError(f"entry {position}, message {index}: {error}") from error
        at = stop + single.payload_size
        if stop > len(payload) or not stop <= at <= len(payload):
            raise CorruptRecordError(f"entry {position}, message {index}: it is cut off")
        value = None if single.null_value else payload[stop:at]
        if not single.compacted_out:
            yield UnpackedMessage(metadata, index, single, value)
