"""Splits the bytes of a socket into frames: sizes, bounds, checksums.

Pure. A frame is a command and, for SEND and MESSAGE only, a payload section after it::

    | total | command size | BaseCommand | 0x0e01 | crc32c | metadata size | metadata | payload |
       4          4           protobuf       2        4          4
                                          `------ the entry: stored and forwarded as it is -----
                                                            `------ what the crc32c covers -----

Total counts everything after itself. All numbers are big-endian.

The decoder rejects a frame as soon as its first bytes announce too much, so it never holds more
than `frame_bytes_max` plus one chunk. An error is final: the frames before it are still returned,
nothing after it is. Frames come out the same wherever the stream was cut.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

import google_crc32c
from google.protobuf.message import DecodeError

from ackgate.broker.wire.errors import ChecksumError, FrameTooLargeError, ProtocolError
from ackgate.broker.wire.proto import pulsar_pb2 as pb

Frame: TypeAlias = tuple[bytes, bytes]
"""(serialized BaseCommand, payload section). A plain tuple: one is made for every message that
comes in. The payload section is empty for a simple command."""

COMMAND_BYTES_EXTRA: Final = 10 * 1024
"""A frame may be this much larger than the largest message: Pulsar's room for the command."""

HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
"""Bound until CONNECT has been accepted. Authentication data may be some kilobytes."""

ENTRY_HEADER_BYTES: Final = 10
"""Magic, checksum and metadata size in front of the metadata."""

SMALL_CHUNK_BYTES: Final = 4096
"""Smaller pieces of an incomplete frame are joined, larger ones kept as they came."""

_SIZE_BYTES: Final = 4
_TLS_HANDSHAKE: Final = 0x1603
"""First bytes of a client that takes this for a TLS port. As a size they mean 369 million bytes."""
_SIZES: Final = Struct(">II").unpack_from
_MAGIC: Final = b"\x0e\x01"
_CHECKSUM_AND_SIZE: Final = Struct(">II").unpack_from
_parse_metadata: Final = pb.MessageMetadata.FromString


class FrameDecoder:
    """Cuts a stream into frames. One per connection."""

    __slots__ = ("_bytes_needed", "_chunks", "_chunks_bytes", "error", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Largest total size. May be raised between two calls of `feed`."""
        self.error: ProtocolError | None = None
        """Why decoding has stopped for good; None: it has not."""
        self._chunks: list[bytes | bytearray] = []
        self._chunks_bytes = 0
        self._bytes_needed = 2 * _SIZE_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes received of an incomplete frame."""
        return self._chunks_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that an incomplete frame still lacks, as far as its size is known."""
        return self._bytes_needed - self._chunks_bytes if self._chunks else 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that this chunk completes, in order. Check `error` afterwards."""
        if self.error is not None:
            return []
        if self._chunks:
            self._keep(chunk)
            # A frame of megabytes comes in many chunks: join them once, not with each.
            if self._chunks_bytes < self._bytes_needed:
                return []
            chunk = b"".join(self._chunks)
            self._chunks.clear()
            self._chunks_bytes = 0
        return self._cut(chunk)

    def _keep(self, chunk: bytes) -> None:
        """Add a chunk to an incomplete frame, without an object for each tiny chunk."""
        self._chunks_bytes += len(chunk)
        if len(chunk) >= SMALL_CHUNK_BYTES:
            self._chunks.append(chunk)
        elif isinstance(last := self._chunks[-1], bytearray):
            last += chunk
        else:
            self._chunks.append(bytearray(chunk))

    def _cut(self, stream: bytes) -> list[Frame]:
        frames: list[Frame] = []
        append = frames.append
        sizes = _SIZES
        start = 0
        end = len(stream)
        bytes_needed = 2 * _SIZE_BYTES
        bytes_max = self.frame_bytes_max
        while end - start >= 8:
            total_bytes, command_bytes = sizes(stream, start)
            # The shortest command names its type, in two bytes.
            if not 6 <= total_bytes <= bytes_max or not 2 <= command_bytes <= total_bytes - 4:
                self.error = _frame_error(total_bytes, command_bytes, bytes_max)
                return frames
            frame_end = start + _SIZE_BYTES + total_bytes
            if frame_end > end:
                bytes_needed = frame_end - start
                break
            command_end = start + 8 + command_bytes
            append((stream[start + 8 : command_end], stream[command_end:frame_end]))
            start = frame_end
        if start < end:
            rest = stream[start:] if start else stream
            self._chunks.append(rest)
            self._chunks_bytes = len(rest)
            self._bytes_needed = bytes_needed
        return frames


def _frame_error(total_bytes: int, command_bytes: int, bytes_max: int) -> ProtocolError:
    if total_bytes >> 16 == _TLS_HANDSHAKE:
        return ProtocolError(
            "it speaks TLS, and this port is in clear (or a frame is far too large)"
        )
    if total_bytes > bytes_max:
        return FrameTooLargeError(f"frame of {total_bytes} bytes is above the limit of {bytes_max}")
    return ProtocolError(f"malformed frame: total size {total_bytes}, command size {command_bytes}")


def entry_metadata(entry: bytes) -> pb.MessageMetadata:
    """Verify an entry to be published, and parse its metadata.

    Raises `ChecksumError` when its bytes are not those that the producer took the CRC32C of, and
    `ProtocolError` when its metadata cannot be parsed: such an entry would stop every
    subscription that meets it. One that does not begin with the magic number comes from a client
    without checksums; it begins with the metadata size.
    """
    start = ENTRY_HEADER_BYTES
    if entry[:2] == _MAGIC and len(entry) >= ENTRY_HEADER_BYTES:
        checksum, metadata_bytes = _CHECKSUM_AND_SIZE(entry, 2)
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


def seal_entry(metadata: bytes, payload: bytes) -> bytes:
    """Build an entry of serialized metadata and payload: what a producer does."""
    covered = len(metadata).to_bytes(4, "big") + metadata + payload
    checksum: int = google_crc32c.value(covered)
    return _MAGIC + checksum.to_bytes(4, "big") + covered
