"""The frame round records: nothing in it can change unnoticed."""

from __future__ import annotations

import zlib

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.records import envelope
from ackgate.persistence.records.envelope import (
    HEADER_BYTES,
    Compression,
    Packing,
    decompressed,
    seal,
    unseal,
)

BODIES = [b"", b"x", b"abc" * 500, bytes(range(256)) * 8]


@pytest.mark.parametrize("compression", Compression, ids=lambda c: c.name)
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_what_is_sealed_comes_out(compression: Compression, body: bytes) -> None:
    assert unseal(seal(7, body, Packing(compression, 0))) == (7, body)


@given(st.binary(max_size=3000), st.sampled_from(Compression), st.integers(0, 4000))
def test_any_body_comes_out(body: bytes, compression: Compression, threshold: int) -> None:
    assert unseal(seal(1, body, Packing(compression, threshold))).body == body


@pytest.mark.parametrize(
    "compression", [c for c in Compression if c is not Compression.NONE], ids=lambda c: c.name
)
def test_compression_shrinks_what_has_a_pattern_and_leaves_the_rest(
    compression: Compression,
) -> None:
    body = b"abc" * 500
    assert len(seal(1, body, Packing(compression, len(body)))) < len(body) / 2
    assert len(seal(1, body, Packing(compression, len(body) + 1))) == len(body) + HEADER_BYTES
    assert len(seal(1, b"x", Packing(compression, 0))) == 1 + HEADER_BYTES


@pytest.mark.parametrize("compression", Compression, ids=lambda c: c.name)
def test_every_flipped_bit_and_every_missing_byte_is_noticed(compression: Compression) -> None:
    sealed = seal(2, b"abcabcabc" * 8, Packing(compression, 0))
    for index in range(len(sealed)):
        for bit in range(8):
            broken = bytearray(sealed)
            broken[index] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                unseal(bytes(broken))
        with pytest.raises(CorruptRecordError):
            unseal(sealed[:index])
    with pytest.raises(CorruptRecordError):
        unseal(sealed + b"\0")


def test_a_newer_format_is_not_taken_for_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "FORMAT_VERSION", 2)
    newer = seal(1, b"body", Packing())
    monkeypatch.undo()
    with pytest.raises(UnknownFormatError, match="format 2"):
        unseal(newer)


def forged(compression: int, payload: bytes, body_bytes: int) -> bytes:
    """An envelope with a correct checksum round nonsense."""
    head = envelope._HEAD.pack(envelope.MAGIC, 1, 1, compression, body_bytes)
    crc = google_crc32c.value(head + payload)
    return head + envelope._CRC.pack(crc) + payload


@pytest.mark.parametrize("compression", range(7))
@pytest.mark.parametrize("body_bytes", [0, 3, 2**32 - 1])
def test_nonsense_with_a_correct_checksum_is_refused(compression: int, body_bytes: int) -> None:
    with pytest.raises(CorruptRecordError):
        unseal(forged(compression, b"nonsense", body_bytes))


def test_a_stream_of_zlib_that_was_flushed_and_never_ended() -> None:
    """As the codec of Pulsar's Java classes leaves it."""
    body = b"ack state " * 50
    stream = zlib.compressobj()
    flushed = stream.compress(body) + stream.flush(zlib.Z_SYNC_FLUSH)
    assert decompressed(flushed, Compression.ZLIB, len(body)) == body
    assert decompressed(zlib.compress(body), Compression.ZLIB, len(body)) == body
    for wrong, size in ((flushed[:10], 500), (flushed, 499), (flushed, 501), (b"\xff" * 20, 500)):
        with pytest.raises(CorruptRecordError):
            decompressed(wrong, Compression.ZLIB, size)
