"""Cutting a stream into frames, and verifying entries."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from ackgate.broker.errors import FrameTooLargeError, ProtocolError
from ackgate.broker.frames import EntryFault, FrameDecoder, entry_fault, seal_entry


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


def test_a_sealed_entry_is_sound() -> None:
    assert entry_fault(seal_entry(b"metadata", b"payload")) is None
    assert entry_fault(seal_entry(b"", b"")) is None


@pytest.mark.parametrize("index", range(2, 25))
def test_one_wrong_bit_is_found(index: int) -> None:
    entry = bytearray(seal_entry(b"metadata", b"payload"))
    entry[index] ^= 0x10
    assert entry_fault(bytes(entry)) is EntryFault.CHECKSUM


def test_metadata_that_does_not_fit_is_malformed() -> None:
    covered = (100).to_bytes(4, "big") + b"short"
    entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered
    assert entry_fault(entry) is EntryFault.MALFORMED


@pytest.mark.parametrize("entry", [b"", b"\x0e", b"\x0e\x01", b"\x0e\x01abc", b"\xff" * 20])
def test_what_is_too_short_is_malformed(entry: bytes) -> None:
    assert entry_fault(entry) is EntryFault.MALFORMED


def test_an_entry_without_checksum_is_taken_from_old_clients() -> None:
    assert entry_fault((8).to_bytes(4, "big") + b"metadata" + b"payload") is None
    assert entry_fault((9).to_bytes(4, "big") + b"metadata") is EntryFault.MALFORMED
    assert entry_fault((0).to_bytes(4, "big")) is None
