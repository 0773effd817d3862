"""Single messages out of stored entries: batches, compressions, what a broker puts in front."""

from __future__ import annotations

import pytest

from ackgate.cursor import Position
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.messages.unpack import unpacked, without_broker_metadata
from ackgate.persistence.proto.message_pb2 import (
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
)
from ackgate.persistence.records.envelope import Compression, compressed

AT = Position(7, 3)


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=5, publish_time=1_000, **fields)


def entry(about: MessageMetadata, payload: bytes) -> bytes:
    return seal_entry(about.SerializeToString(), payload)


def batch(values: list[bytes | None]) -> bytes:
    found = b""
    for number, value in enumerate(values):
        single = SingleMessageMetadata(
            payload_size=len(value or b""), partition_key=f"k{number}", null_value=value is None
        ).SerializeToString()
        found += len(single).to_bytes(4, "big") + single + (value or b"")
    return found


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch(compression: Compression) -> None:
    values = [b"first", b"", None, b"x" * 5000]
    body = batch(values)
    about = metadata(
        num_messages_in_batch=4, compression=int(compression), uncompressed_size=len(body)
    )
    found = list(unpacked(entry(about, compressed(body, compression)), AT))
    assert [each.payload for each in found] == values
    assert [each.batch_index for each in found] == [0, 1, 2, 3]
    assert [each.single and each.single.partition_key for each in found] == ["k0", "k1", "k2", "k3"]


def test_a_single_message_and_a_null_value() -> None:
    [found] = unpacked(entry(metadata(), b"text"), AT)
    assert (found.payload, found.batch_index, found.single) == (b"text", None, None)
    [found] = unpacked(entry(metadata(null_value=True), b""), AT)
    assert found.payload is None


def test_what_cannot_be_unpacked_comes_as_it_is_stored() -> None:
    encrypted = metadata(num_messages_in_batch=3, compression=1, uncompressed_size=9)
    encrypted.encryption_keys.add(key="k", value=b"v")
    piece = metadata(num_chunks_from_msg=2, chunk_id=1, compression=2, uncompressed_size=9)
    for about in (encrypted, piece):
        [found] = unpacked(entry(about, b"\xff\xff"), AT)
        assert (found.payload, found.batch_index) == (b"\xff\xff", None)


def test_messages_that_compaction_took_out_are_left_out() -> None:
    single = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    body = len(single).to_bytes(4, "big") + single + batch([b"kept"])
    found = list(unpacked(entry(metadata(num_messages_in_batch=2), body), AT))
    assert [(each.batch_index, each.payload) for each in found] == [(1, b"kept")]


def test_what_a_broker_puts_in_front() -> None:
    stored = entry(metadata(), b"text")
    assert without_broker_metadata(stored, AT).entry == stored
    front = BrokerEntryMetadata(broker_timestamp=12, index=34).SerializeToString()
    with_front = b"\x0e\x02" + len(front).to_bytes(4, "big") + front + stored
    assert without_broker_metadata(with_front, AT) == (stored, 12, 34)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (entry(metadata(num_messages_in_batch=3), batch([b"a", b"b"])), "message 2"),
        (entry(metadata(num_messages_in_batch=1), batch([b"abc"])[:-1]), "message 0: it is cut"),
        (entry(metadata(compression=1, uncompressed_size=9), b"\xff\xff"), "decompress"),
        (b"\0\0\0\x09abc", "9 bytes does not fit"),
    ],
)
def test_damage_is_named(stored: bytes, why: str) -> None:
    with pytest.raises(CorruptRecordError, match=f"7:3.*{why}"):
        list(unpacked(stored, AT))
