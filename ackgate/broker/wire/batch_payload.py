"""The messages of a batch: what lies in the payload of an entry that holds several.

Pure. A payload may be compressed as a whole; then it may be encrypted as a whole::

    | metadata size | SingleMessageMetadata | message |      once per message
           4

The broker stores and forwards batches untouched. It looks inside where the number of an entry is
not enough: de-duplication, whose producers do not all say which sequence ids a batch holds, and
which must part what is stored from what is not; and where that number is not to be believed.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception, and no function
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from ackgate.broker.wire.frames import seal_entry
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.frame import metadata_span
from ackgate.persistence.records.envelope import Compression, compressed, decompressed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.proto.message_pb2 import MessageMetadata as StoredMetadata

MESSAGE_BYTES_MIN: Final = 6
"""The shortest message of a batch: the size, and metadata that say "0 bytes" (a required field)."""

UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""A batch that says it is larger than this is not unpacked: it costs its sender nothing to say so."""

BELIEVED_MESSAGES_MAX: Final = 10_000
"""Messages that a compressed batch may claim unseen: ten times what clients put into one."""

_SIZE_BYTES: Final = 4
_size_at: Final = Struct(">I").unpack_from
_parse_single: Final = pb.SingleMessageMetadata.FromString


class Batch(NamedTuple):
    """A batch that was looked into."""

    metadata: pb.MessageMetadata | StoredMetadata
    payload: bytes
    """Unpacked."""
    stops: list[int]
    """Where each message ends and the next one begins."""
    sequence_ids: list[int] | None
    """As the wire has them: unsigned. None where not every message has one of its own."""


def can_hold(entry: bytes, metadata: pb.MessageMetadata | StoredMetadata) -> bool:
    """Whether an entry may be as many messages as it says.

    Consumers pay for messages in permits, so a claim that cannot be true is theft.
    """
    least_bytes = metadata.num_messages_in_batch * MESSAGE_BYTES_MIN
    if least_bytes <= len(entry) - metadata_span(entry)[1]:
        return True
    if not metadata.compression or least_bytes > metadata.uncompressed_size:
        return False
    is_usual = metadata.num_messages_in_batch <= BELIEVED_MESSAGES_MAX
    return is_usual or unpack(entry, metadata) is not None


def unpack(entry: bytes, metadata: pb.MessageMetadata | StoredMetadata) -> Batch | None:
    """Look into an entry with several messages. None for one that is encrypted or malformed."""
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
    split = _split(payload, metadata.num_messages_in_batch)
    if split is None:
        return None
    stops, singles = split
    ids = [single.sequence_id for single in singles]
    # An absent one reads as 0: only then is it worth asking.
    if 0 in ids and not all(single.HasField("sequence_id") for single in singles):
        return Batch(metadata, payload, stops, None)
    return Batch(metadata, payload, stops, ids)


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
    """An entry with some messages of a batch; by their places, ascending, at least one."""
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
