"""Cutting a stream into frames, and verifying entries."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from ackgate.broker.wire.entry import entry_metadata
from ackgate.broker.wire.errors import ChecksumError, FrameTooLargeError, ProtocolError
from ackgate.broker.wire.intake import FrameDecoder
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.persistence.messages.frame import seal_entry

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()


def frame(command: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def test_frames_come_out_in_order_with_their_payload() -> None:
    decoder = FrameDecoder(1000)
    stream = frame(b"ab") + frame(b"cd", b"payload") + frame(b"efg")
    assert decoder.feed(stream) == [(b"ab", b""), (b"cd", b"payload"), (b"efg", b"")]
    assert decoder.buffered_bytes == 0
    assert decoder.error is None


def test_a_frame_in_many_chunks_is_joined_once() -> None:
    decoder = FrameDecoder(1_000_000)
    stream = frame(b"ab", bytes(500_000))
    for start in range(0, len(stream) - 1000, 1000):
        assert decoder.feed(stream[start : start + 1000]) == []
    done = len(stream) - len(stream) % 1000 if len(stream) % 1000 else len(stream) - 1000
    assert decoder.buffered_bytes <= len(stream)
    frames = decoder.feed(stream[done:])
    assert frames == [(b"ab", bytes(500_000))]


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    decoder = FrameDecoder(100)
    assert decoder.feed(frame(b"ab", bytes(94))) == [(b"ab", bytes(94))]
    assert decoder.feed(frame(b"ab", bytes(95))[:8]) == []
    assert isinstance(decoder.error, FrameTooLargeError)
    assert "above the limit of 100" in str(decoder.error)
    assert decoder.buffered_bytes == 0, "refused before it is buffered"


@pytest.mark.parametrize(
    ("total", "command"),
    [(0, 0), (4, 0), (5, 1), (6, 0), (6, 1), (6, 3), (10, 7), (10, 2**32 - 1), (2**32 - 1, 2)],
)
def test_sizes_that_contradict_each_other_are_malformed(total: int, command: int) -> None:
    decoder = FrameDecoder(1000)
    good = frame(b"ab")
    assert decoder.feed(good + struct.pack(">II", total, command) + good) == [(b"ab", b"")]
    assert isinstance(decoder.error, ProtocolError)
    assert decoder.feed(good) == [], "an error is final"


def test_a_sealed_entry_gives_its_metadata() -> None:
    assert entry_metadata(seal_entry(METADATA, b"payload")).publish_time == 2
    assert entry_metadata(seal_entry(b"", b"")).publish_time == 0


@pytest.mark.parametrize("index", range(2, 2 + 4 + 4 + len(METADATA) + 7))
def test_one_wrong_bit_is_found(index: int) -> None:
    entry = bytearray(seal_entry(METADATA, b"payload"))
    entry[index] ^= 0x10
    with pytest.raises(ChecksumError):
        entry_metadata(bytes(entry))


def test_metadata_that_do_not_fit_are_malformed() -> None:
    covered = (100).to_bytes(4, "big") + b"short"
    entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered
    with pytest.raises(ProtocolError, match="100 bytes of metadata in 15 bytes"):
        entry_metadata(entry)


@pytest.mark.parametrize("entry", [b"", b"\x0e", b"\x0e\x01", b"\x0e\x01abc", b"\xff" * 20])
def test_what_is_too_short_is_malformed(entry: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed entry"):
        entry_metadata(entry)


def test_an_entry_without_checksum_is_taken_from_old_clients() -> None:
    size = len(METADATA)
    assert entry_metadata(size.to_bytes(4, "big") + METADATA + b"payload").publish_time == 2
    assert entry_metadata((0).to_bytes(4, "big")).publish_time == 0
    with pytest.raises(ProtocolError):
        entry_metadata((size + 1).to_bytes(4, "big") + METADATA)


def test_metadata_that_are_none_are_malformed_with_any_seal() -> None:
    for entry in (seal_entry(b"\xff\xff\xff", b"x"), (3).to_bytes(4, "big") + b"\xff\xff\xff"):
        with pytest.raises(ProtocolError, match="not MessageMetadata"):
            entry_metadata(entry)
