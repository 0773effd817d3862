"""Avro object container files, as journals and fragment files are: framing only.

Pure but for `scan`, which reads through a `DiskFile`. A file is

    "Obj" 1 | metadata map: schema, codec | sync marker (16 random bytes)         header
    count | size | records ............... | sync marker                  block, again and again

and nothing else, so any Avro reader reads it. The sync marker after a block shows that the
block is whole. Everything after the last whole block is a torn tail. A stretch between two whole
blocks that is no block is damage; the next marker shows where it ends.

Avro's `long` is zigzag, then seven bits a byte, low ones first. Only what the codecs beside it need is
here; all other records go through fastavro.
"""

from __future__ import annotations

import functools
import io
import json
import pkgutil
from typing import TYPE_CHECKING, Final, NamedTuple

import fastavro

from ackgate.errors import CorruptRecordError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.persistence.system.disk import DiskFile


LONG_BYTES_MAX = 10
"""A 64-bit number takes at most ten bytes; more than that is damage, not a number."""


def encode_varint(number: int) -> bytes:
    """Encode a number >= 0 without zigzag, as Protobuf does, too."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_long(number: int) -> bytes:
    """Encode a signed 64-bit number."""
    return encode_varint((number << 1) ^ (number >> 63))


def decode_long(data: bytes, start: int) -> tuple[int, int]:
    """Return the number at `start` and where it ends.

    Raises `IndexError` when the bytes run out, `ValueError` when there are too many of them.
    """
    byte = data[start]
    end = start + 1
    number = byte & 127
    shift = 7
    while byte > 127:
        if shift > 7 * (LONG_BYTES_MAX - 1):
            raise ValueError(f"no Avro long: more than {LONG_BYTES_MAX} bytes")
        byte = data[end]
        end += 1
        number |= (byte & 127) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), end


SYNC_BYTES: Final = 16
FORMAT_KEY: Final = "ackgate.format"
FORMAT: Final = b"1"
"""Version of what we put into these files. A file of another version is left alone, and named."""

HEADER_BYTES_MAX: Final = 64 * 1024
"""Longest header that is read. Ours are far shorter, so a longer one is not ours."""

_MAGIC: Final = b"Obj\x01"
_WINDOW_BYTES: Final = 8 * 1024
"""Read ahead while hopping from block head to block head: enough for many small blocks, little
enough not to read all of the large ones."""

_SEARCH_BYTES: Final = 256 * 1024
"""Read at a time while looking for a marker."""

_COUNT_MAX: Final = 1 << 31


@functools.cache
def entry_schema() -> dict[str, object]:
    """The schema of an entry, as in ``schemas/ledger_entry.avsc``."""
    text = pkgutil.get_data("ackgate.persistence.records", "schemas/ledger_entry.avsc")
    assert text is not None, "packages lie in files or archives, and their loaders read both"
    schema: dict[str, object] = json.loads(text)
    return schema


@functools.cache
def _header_without_marker() -> bytes:
    buffer = io.BytesIO()
    fastavro.writer(
        buffer,
        entry_schema(),
        [],
        codec="null",
        metadata={FORMAT_KEY: FORMAT.decode()},
        sync_marker=bytes(SYNC_BYTES),
    )
    return buffer.getvalue()[:-SYNC_BYTES]


def container_header(sync_marker: bytes) -> bytes:
    """The first bytes of a file of entries."""
    return _header_without_marker() + sync_marker


def block_head(count: int, size: int) -> bytes:
    """The bytes before the records of a block."""
    return encode_long(count) + encode_long(size)


class ContainerHeader(NamedTuple):
    """The header of a container file."""

    sync_marker: bytes
    size: int
    """Where the first block begins."""
    damage: str | None = None
    """What is wrong with the rest of the header; the file's blocks can be read all the same."""


def read_header(file: DiskFile) -> ContainerHeader | None:
    """The header of a file of entries, or None when the file ends within it (torn at birth).

    Raises `CorruptRecordError` naming the file when it is not one of ours, `UnknownFormatError` when
    it is one of a later version.
    """
    data = file.read(0, HEADER_BYTES_MAX)
    if not data.startswith(_MAGIC[: len(data)]):
        raise CorruptRecordError(f"{file.path}: not an Avro object container file")
    try:
        metadata, at = _decode_map(data, len(_MAGIC))
    except ValueError as error:
        raise CorruptRecordError(f"{file.path}: damaged Avro header: {error}") from None
    except IndexError:
        metadata, at = {}, len(data)
    if at + SYNC_BYTES > len(data):
        if len(data) == HEADER_BYTES_MAX:
            raise CorruptRecordError(f"{file.path}: Avro header of more than {len(data)} bytes")
        return None
    found = metadata.get(FORMAT_KEY.encode())
    if found is None:
        raise CorruptRecordError(f"{file.path}: a foreign Avro file: no {FORMAT_KEY}")
    if found != FORMAT:
        raise UnknownFormatError(
            f"{file.path}: entry file of format {found.decode(errors='replace')!r}; "
            f"this version reads {FORMAT.decode()!r}"
        )
    damage, ours = None, _header_without_marker()
    # Earlier versions explained the fields in other words: their headers have another length.
    if at == len(ours) and data[:at] != ours:
        damage = f"{file.path}: damaged between bytes 0 and {at}: not the header that was written"
    return ContainerHeader(data[at : at + SYNC_BYTES], at + SYNC_BYTES, damage)


def _decode_map(data: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    pairs: dict[bytes, bytes] = {}
    while True:
        count, at = decode_long(data, at)
        if count == 0:
            return pairs, at
        if count < 0:
            # The longer form of an Avro map block: the size in bytes comes with it.
            count = -count
            _, at = decode_long(data, at)
        for _ in range(count):
            key, at = _decode_bytes(data, at)
            pairs[key], at = _decode_bytes(data, at)


def _decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = decode_long(data, at)
    if size < 0:
        raise ValueError(f"length {size}")
    if at + size > len(data):
        raise IndexError(at + size)
    return data[at : at + size], at + size


class Block(NamedTuple):
    """Where a block lies in its file."""

    offset: int
    entry_count: int
    data_offset: int
    data_size: int
    end: int
    """Where the next block begins."""
    is_whole: bool
    """False: damage; some of its records may still be readable."""


def scan(file: DiskFile, header: ContainerHeader, start: int) -> Iterator[Block]:
    """Blocks from `start` (a block's beginning) to the end of the file as it is now, in order.

    Reads block heads and markers, not what is between them. The last one may be a torn tail: not
    whole, and ending where the file ends.
    """
    window = _Window(file)
    marker = header.sync_marker
    offset = start
    while offset < window.file_size:
        block = _block_at(window, marker, offset)
        if block is None:
            end = _find_marker(window, marker, offset)
            block = _damaged(window, offset, end)
        yield block
        offset = block.end


def next_block(file: DiskFile, header: ContainerHeader, offset: int) -> int | None:
    """Where the first block at or after `offset` begins: after a marker. None: no marker follows."""
    if offset <= header.size:
        return header.size
    window = _Window(file)
    start = offset - SYNC_BYTES
    end = _find_marker(window, header.sync_marker, start)
    if window.read(end - SYNC_BYTES, SYNC_BYTES) != header.sync_marker:
        return None
    return end


class _Window:
    """Buffers a file: reads large pieces and serves small ones from them."""

    def __init__(self, file: DiskFile) -> None:
        self.file_size = file.size()
        self._file = file
        self._start = 0
        self._data = b""

    def read(self, offset: int, size: int) -> bytes:
        at = offset - self._start
        if not 0 <= at <= at + size <= len(self._data):
            self._data = self._file.read(offset, max(size, _WINDOW_BYTES))
            self._start, at = offset, 0
        return self._data[at : at + size]


def _block_at(window: _Window, marker: bytes, offset: int) -> Block | None:
    left = window.file_size - offset
    head = window.read(offset, min(2 * LONG_BYTES_MAX, left))
    try:
        count, at = decode_long(head, 0)
        size, at = decode_long(head, at)
    except (IndexError, ValueError):
        return None
    end = offset + at + size + SYNC_BYTES
    if not 0 < count < _COUNT_MAX or size <= 0 or end > window.file_size:
        return None
    if window.read(end - SYNC_BYTES, SYNC_BYTES) != marker:
        return None
    return Block(offset, count, offset + at, size, end, is_whole=True)


def _find_marker(window: _Window, marker: bytes, offset: int) -> int:
    """Where the next marker after `offset` ends, or the end of the file."""
    while (left := window.file_size - offset) >= SYNC_BYTES:
        data = window.read(offset, min(_SEARCH_BYTES, left))
        found = data.find(marker)
        if found >= 0:
            return offset + found + SYNC_BYTES
        if len(data) < SYNC_BYTES:
            break
        offset += len(data) - SYNC_BYTES + 1
    return window.file_size


def _damaged(window: _Window, offset: int, end: int) -> Block:
    """A stretch that is no block. Its records, if any are left, begin after two numbers."""
    head = window.read(offset, min(2 * LONG_BYTES_MAX, end - offset))
    try:
        count, at = decode_long(head, 0)
        _, at = decode_long(head, at)
    except (IndexError, ValueError):
        count, at = 0, len(head)
    count = min(max(count, 0), _COUNT_MAX)
    return Block(offset, count, offset + at, max(end - offset - at, 0), end, is_whole=False)
