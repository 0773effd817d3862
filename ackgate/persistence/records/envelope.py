"""The frame round every stored record: what it is, whether it is whole, how it is compressed.

Pure, and knows nothing of cursors.

    offset  0       2        3      4             5             9         13
            +-------+--------+------+-------------+-------------+---------+---------+
            | magic | format | kind | compression | body length | CRC-32C | payload |
            +-------+--------+------+-------------+-------------+---------+---------+

A kind of record that gains a part has formats of its own, 1 and up; what needs nothing of the newer
one is still written in the older, so that builds before it can read it.

Numbers are big-endian. The body length is that before compression; the payload is the body as
compressed. The checksum covers every other byte, so no byte can change unnoticed. It is looked at
before the format: damage is never taken for a newer version, nor a newer version for damage.
"""

from __future__ import annotations

import enum
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import cramjam
import google_crc32c

from ackgate.errors import CallerError, CorruptRecordError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = b"Ak"
FORMAT_VERSION: Final = 1
"""What is written unless a kind of record says otherwise."""

BODY_BYTES_MAX: Final = 512 * 1024 * 1024
"""A header that promises more is not believed: it would only make us allocate memory."""

_HEAD: Final = Struct(">2sBBBI")
_CRC: Final = Struct(">I")
HEADER_BYTES: Final = _HEAD.size + _CRC.size


class Compression(enum.IntEnum):
    """How a body is compressed. Names and numbers are those of Pulsar's `CompressionType`."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_COMPRESS: Final[dict[int, Callable[[bytes], bytes]]] = {
    Compression.LZ4: lambda body: bytes(cramjam.lz4.compress_block(body, store_size=False)),
    Compression.ZLIB: lambda body: bytes(cramjam.zlib.compress(body)),
    Compression.ZSTD: lambda body: bytes(cramjam.zstd.compress(body)),
    Compression.SNAPPY: lambda body: bytes(cramjam.snappy.compress_raw(body)),
}


def _inflate_into(payload: bytes, body: bytearray) -> int:
    """Pulsar's Java classes flush a stream of zlib and never end it: the end may be missing."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(payload, len(body) + 1)
    except zlib.error as error:
        raise cramjam.DecompressionError(str(error)) from error
    if len(found) <= len(body):
        body[: len(found)] = found
    return len(found)


_DECOMPRESS_INTO: Final[dict[int, Callable[[bytes, bytearray], int]]] = {
    Compression.LZ4: cramjam.lz4.decompress_block_into,
    Compression.ZLIB: _inflate_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
    Compression.SNAPPY: cramjam.snappy.decompress_raw_into,
}


class Packing(NamedTuple):
    """The compression of bodies, and the size from which it applies."""

    compression: Compression = Compression.NONE
    threshold_bytes: int = 0
    """A smaller body stays as it is: compressing it costs more than the write it saves."""


class Unsealed(NamedTuple):
    """What was in an envelope."""

    kind: int
    body: bytes


def seal(kind: int, body: bytes, packing: Packing, *, format_version: int | None = None) -> bytes:
    """Put a body into an envelope. A body that compression would not shrink is left as it is."""
    if format_version is None:
        format_version = FORMAT_VERSION
    if len(body) > BODY_BYTES_MAX:
        raise CallerError(f"a record of {len(body)} bytes exceeds {BODY_BYTES_MAX}")
    compression, payload = Compression.NONE, body
    if packing.compression is not Compression.NONE and len(body) >= packing.threshold_bytes:
        packed = compressed(body, packing.compression)
        if len(packed) < len(body):
            compression, payload = packing.compression, packed
    head = _HEAD.pack(MAGIC, format_version, kind, compression, len(body))
    crc = google_crc32c.extend(google_crc32c.value(head), payload)
    return b"".join((head, _CRC.pack(crc), payload))


def unseal(envelope: bytes, *, newest_format: int = FORMAT_VERSION) -> Unsealed:
    """Take the body out. Raises `CorruptRecordError`, `UnknownFormatError` (a newer format)."""
    if len(envelope) < HEADER_BYTES:
        raise CorruptRecordError(f"{len(envelope)} bytes are too few for a record")
    magic, format_version, kind, compression, body_bytes = _HEAD.unpack_from(envelope)
    if magic != MAGIC:
        raise CorruptRecordError(f"not a record: it begins with {envelope[:2].hex()}")
    payload = envelope[HEADER_BYTES:]
    crc = google_crc32c.extend(google_crc32c.value(envelope[: _HEAD.size]), payload)
    if crc != _CRC.unpack_from(envelope, _HEAD.size)[0]:
        raise CorruptRecordError("the record's checksum does not match")
    if not FORMAT_VERSION <= format_version <= newest_format:
        raise UnknownFormatError(
            f"the record has format {format_version}, this build reads {newest_format}"
        )
    return Unsealed(kind, decompressed(payload, compression, body_bytes))


def format_of(envelope: bytes) -> int:
    """The format of an envelope that `unseal` has taken."""
    return envelope[len(MAGIC)]


def compressed(body: bytes, compression: Compression) -> bytes:
    """The body, compressed. Producers compress payloads of messages in the same formats."""
    return body if compression is Compression.NONE else _COMPRESS[compression](body)


def decompressed(payload: bytes, compression: int, body_bytes: int) -> bytes:
    """The body, of `body_bytes` bytes. Raises `CorruptRecordError` for damage and for another length."""
    if compression == Compression.NONE:
        if len(payload) != body_bytes:
            raise CorruptRecordError(f"{len(payload)} bytes of body, {body_bytes} announced")
        return payload
    decompress_into = _DECOMPRESS_INTO.get(compression)
    if decompress_into is None or body_bytes > BODY_BYTES_MAX:
        raise CorruptRecordError(f"compression {compression}, {body_bytes} bytes of body")
    body = bytearray(body_bytes)
    try:
        written = decompress_into(payload, body)
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"the record does not decompress: {error}") from error
    if written != body_bytes:
        raise CorruptRecordError(f"{written} bytes of body, {body_bytes} announced")
    return bytes(body)
