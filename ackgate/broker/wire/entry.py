"""One entry on its way through the broker: its bytes and what dispatch must know of them.

Pure. The bytes are the payload section of a SEND: verified when they come, then stored and forwarded
untouched. The metadata is parsed at its first use (a key, a publish time) and then kept::

    | 0x0e01 | crc32c | metadata size | metadata | payload |
        2        4            4
                      `------ what the crc32c covers ------'

An entry may hold a batch of messages. Its payload may be compressed as a whole; then it may be
encrypted as a whole::

    | metadata size | SingleMessageMetadata | message |      once per message
           4

The broker looks inside a batch where the number of an entry is not enough: de-duplication, whose
producers do not all say which sequence ids a batch holds, and which must part what is stored from what
is not; and where that number is not to be believed.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception, and no function
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from ackgate.broker.wire.errors import ChecksumError, ProtocolError
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.cursor import Position
from ackgate.dispatcher import MessageChunk, resolve_key
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.entries import EntryForm
from ackgate.persistence.messages.entry import parse_metadata
from ackgate.persistence.messages.frame import HEADER_BYTES, MAGIC, metadata_span, seal_entry
from ackgate.persistence.records.envelope import Compression, compressed, decompressed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.persistence.ports import LedgerEntry
    from ackgate.persistence.proto.message_pb2 import MessageMetadata
    from ackgate.persistence.proto.message_pb2 import MessageMetadata as StoredMetadata

_CHUNK_COUNT_TAG: Final = b"\xd8\x01"  # field 27, varint: num_chunks_from_msg

MESSAGE_BYTES_MIN: Final = 6
"""Shortest message of a batch: its size field, and metadata with the required payload size."""

UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""A batch that claims a larger size is not unpacked: the claim costs its sender nothing."""

BELIEVED_MESSAGES_MAX: Final = 10_000
"""Messages that a compressed batch may claim without being unpacked: ten times what clients
send."""

_SIZE_BYTES: Final = 4

_checksum_and_size: Final = Struct(">II").unpack_from
_parse_metadata: Final = pb.MessageMetadata.FromString
_size_at: Final = Struct(">I").unpack_from

_parse_single: Final = pb.SingleMessageMetadata.FromString


def entry_metadata(entry: bytes) -> pb.MessageMetadata:
    """Verify an entry to be published, and parse its metadata.

    Raises `ChecksumError` when its bytes are not those that the producer took the CRC32C of, and
    `ProtocolError` when its metadata cannot be parsed: such an entry would stop every
    subscription that meets it. One that does not begin with the magic number comes from a client
    without checksums; it begins with the metadata size.
    """
    start = HEADER_BYTES
    if entry[:2] == MAGIC and len(entry) >= HEADER_BYTES:
        checksum, metadata_bytes = _checksum_and_size(entry, 2)
        if google_crc32c.value(entry[6:]) != checksum:
            raise ChecksumError("Checksum failed on the broker")  # Pulsar's words
    elif len(entry) >= _SIZE_BYTES:
        start = _SIZE_BYTES
        metadata_bytes = int.from_bytes(entry[:_SIZE_BYTES], "big")
    else:
        raise ProtocolError(f"malformed entry of {len(entry)} bytes")
    end = start + metadata_bytes
    if end > len(entry):
        raise ProtocolError(
            f"malformed entry: {metadata_bytes} bytes of metadata in {len(entry)} bytes"
        )
    try:
        return _parse_metadata(entry[start:end])
    except DecodeError:
        raise ProtocolError("malformed entry: its metadata are not MessageMetadata") from None


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
        """Make an entry from what a ledger returned. Raises `CorruptRecordError`."""
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
        """Publish time by the producer's clock. Raises `CorruptRecordError`."""
        return self.metadata.publish_time

    @property
    def key(self) -> bytes:
        """The bytes that Key_Shared hashes."""
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

        Most entries do not contain the bytes of the field's tag; their metadata is not parsed for
        this.
        """
        start, stop = metadata_span(self.payload)
        if self.payload.find(_CHUNK_COUNT_TAG, start, stop) < 0:
            return None
        metadata = self.metadata
        count = metadata.num_chunks_from_msg
        return MessageChunk(metadata.uuid, metadata.chunk_id == count - 1) if count > 1 else None


ENTRY_FORM: Final = EntryForm(Entry, Entry.stored)
"""How a topic's ledgers make entries."""


class Batch(NamedTuple):
    """The content of a batch."""

    metadata: pb.MessageMetadata | StoredMetadata
    payload: bytes
    """The payload, decompressed."""
    stops: list[int]
    """Where each message ends, in bytes from the payload's start."""
    sequence_ids: list[int] | None
    """Unsigned, as on the wire. None unless every message has its own."""


def can_hold(entry: bytes, metadata: pb.MessageMetadata | StoredMetadata) -> bool:
    """Whether an entry can hold as many messages as it claims.

    Consumers pay for messages with permits, so a false claim takes permits away from others.
    """
    least_bytes = metadata.num_messages_in_batch * MESSAGE_BYTES_MIN
    if least_bytes <= len(entry) - metadata_span(entry)[1]:
        return True
    if not metadata.compression or least_bytes > metadata.uncompressed_size:
        return False
    is_usual = metadata.num_messages_in_batch <= BELIEVED_MESSAGES_MAX
    return is_usual or unpack(entry, metadata) is not None


def message_properties(
    entry: bytes, metadata: pb.MessageMetadata | StoredMetadata
) -> Iterator[dict[str, str]]:
    """The properties of each message in an entry, as far as they can be read."""
    if not metadata.HasField("num_messages_in_batch"):
        yield {pair.key: pair.value for pair in metadata.properties}
        return
    payload = _plain(entry, metadata)
    split = None if payload is None else _split(payload, metadata.num_messages_in_batch)
    for single in split[1] if split is not None else ():
        yield {pair.key: pair.value for pair in single.properties}


def unpack(entry: bytes, metadata: pb.MessageMetadata | StoredMetadata) -> Batch | None:
    """Take a batch apart. None if it is encrypted or malformed."""
    payload = _plain(entry, metadata)
    if payload is None:
        return None
    split = _split(payload, metadata.num_messages_in_batch)
    if split is None:
        return None
    stops, singles = split
    ids = [single.sequence_id for single in singles]
    # An absent id reads as 0: only then check for presence.
    if 0 in ids and not all(single.HasField("sequence_id") for single in singles):
        return Batch(metadata, payload, stops, None)
    return Batch(metadata, payload, stops, ids)


def _plain(entry: bytes, metadata: pb.MessageMetadata | StoredMetadata) -> bytes | None:
    """The decompressed payload of a batch. None if it is encrypted or malformed."""
    payload = entry[metadata_span(entry)[1] :]
    if metadata.encryption_keys or metadata.encryption_algo:
        return None
    if metadata.compression:
        if metadata.uncompressed_size > UNPACKED_BYTES_MAX:
            return None
        try:
            payload = decompressed(payload, metadata.compression, metadata.uncompressed_size)
        except CorruptRecordError:
            return None
    return payload


def _split(payload: bytes, count: int) -> tuple[list[int], list[pb.SingleMessageMetadata]] | None:
    stops, singles = [], []
    start = 0
    try:
        for _ in range(count):
            head = start + _SIZE_BYTES
            body = head + _size_at(payload, start)[0]
            single = _parse_single(payload[head:body])
            start = body + single.payload_size
            if start < body:
                return None
            stops.append(start)
            singles.append(single)
    except (StructError, DecodeError):
        return None
    return (stops, singles) if start <= len(payload) else None


def repacked(batch: Batch, wanted: Sequence[int]) -> bytes:
    """An entry with only some messages of a batch.

    `wanted`: their indexes, ascending, at least one.
    """
    starts = [0, *batch.stops[:-1]]
    payload = b"".join([batch.payload[starts[place] : batch.stops[place]] for place in wanted])
    metadata = pb.MessageMetadata.FromString(batch.metadata.SerializeToString())
    metadata.num_messages_in_batch = len(wanted)
    if batch.sequence_ids is not None:
        metadata.sequence_id = batch.sequence_ids[wanted[0]]
    if metadata.compression:
        metadata.uncompressed_size = len(payload)
        payload = compressed(payload, Compression(metadata.compression))
    return seal_entry(metadata.SerializeToString(), payload)
