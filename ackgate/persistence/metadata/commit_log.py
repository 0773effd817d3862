"""The log of a SQLite metadata store: the changes of each commit, with a checksum.

Edge: one file beside the database, written by the store's worker thread; blocking. SQLite's own log
ends silently at the first frame with a wrong checksum, so one flipped bit undoes every later commit.
Here a commit is durable (one `fdatasync`) before SQLite commits it, without a sync of its own. The
next opening restores from here what SQLite has lost. ::

    "ackglog1" | size | CRC | store, base, sums of the database's pages        header
    "#rec" | size | CRC | number, size of the file | changed rows              a commit
    "#rec" | size | CRC | number, size of the file | changed rows
    0000000...                                                                 room for more

The header describes the database file byte for byte as it was after commit `base`: a log begins with
a checkpoint, and ends with the next one. Room is written ahead, so that a sync need not make a new
size of the file durable, too.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from ackgate.persistence.system import platform_files
from ackgate.persistence.system.data_directory import FILE_MODE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_MAGIC: Final = b"ackglog1"
_HEADER: Final = struct.Struct("<8sII")
"""Magic, bytes that follow, their CRC32C."""

_BASE: Final = struct.Struct("<8sQIII")
"""Store, base, page size, number of pages, whether there is a mirror. The sums follow."""

_SUM_BYTES: Final = 4

_RECORD_MAGIC: Final = b"#rec"
_RECORD: Final = struct.Struct("<4sIIQQ")
"""Magic, bytes of the payload, CRC32C of all that follows, number, bytes of the file with its room."""

_NUMBERS: Final = struct.Struct("<QQ")

_ROOM_BYTES_FIRST: Final = 64 * 1024
_ROOM_BYTES_MAX: Final = 1024 * 1024
STORE_BYTES: Final = 8


class LogHeader(NamedTuple):
    """What a log begins with."""

    store: bytes
    """Random name of the database that it belongs to."""
    base: int
    """Number of the last commit that the database file held when the log was begun."""
    page_bytes: int
    sums: NDArray[np.uint32]
    """CRC32C of each page of the database file at that moment."""
    has_mirror: bool


@dataclass(slots=True)
class StoredLog:
    """A log as it was found."""

    header: LogHeader | None
    """None: it is damaged."""
    commits: list[tuple[int, bytes]] = field(default_factory=list)
    """Number and payload of each readable commit, in the order of the file."""
    end: int = 0
    """Where the last of them ends."""
    size: int = 0
    expected_size: int = 0
    """As the newest record has it."""
    damages: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Number of the newest commit that can be read; -1: none."""
        base = self.header.base if self.header is not None else -1
        return max((number for number, _ in self.commits), default=base)

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """The commits that follow on this one without a gap."""
        payloads = dict(self.commits)
        found: list[tuple[int, bytes]] = []
        while (payload := payloads.get(number + 1)) is not None:
            number += 1
            found.append((number, payload))
        return found


def read_log(path: Path) -> StoredLog | None:
    """Everything in a log that has a good checksum; None: there is no such file. Raises `OSError`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    header, at = _read_header(data)
    stored = StoredLog(header, end=at, size=len(data))
    if header is None:
        stored.damages.append(f"{path}: its header is damaged")
    damaged_from: int | None = None
    while at < len(data):
        end = _read_record(data, at, stored)
        if end is None and damaged_from is None:
            damaged_from = at
        elif end is not None and damaged_from is not None:
            _note_damage(stored, path, data, damaged_from, at)
            damaged_from = None
        stored.end = end if end is not None else stored.end
        # The next record is found by how it begins.
        at = end if end is not None else _next_record(data, at)
    if damaged_from is not None:
        _note_damage(stored, path, data, damaged_from, len(data))
    if len(data) < stored.expected_size:
        stored.damages.append(f"{path}: cut from {stored.expected_size} bytes to {len(data)}")
    return stored


def _note_damage(stored: StoredLog, path: Path, data: bytes, start: int, end: int) -> None:
    """Note bytes that are no record as damage, unless they are unused room."""
    if data.count(0, start, end) != end - start:
        stored.damages.append(f"{path}: bytes {start} to {end} are no whole record of a commit")


def _read_header(data: bytes) -> tuple[LogHeader | None, int]:
    if len(data) < _HEADER.size:
        return None, 0
    magic, size, crc = _HEADER.unpack_from(data)
    body = data[_HEADER.size : _HEADER.size + size]
    if magic != _MAGIC or len(body) != size or size < _BASE.size or crc32c(body) != crc:
        return None, 0
    store, base, page_bytes, pages, has_mirror = _BASE.unpack_from(body)
    sums = np.frombuffer(body, "<u4", offset=_BASE.size)
    if len(sums) != pages:
        return None, 0
    header = LogHeader(store, base, page_bytes, sums.astype(np.uint32), bool(has_mirror))
    return header, _HEADER.size + size


def _read_record(data: bytes, at: int, stored: StoredLog) -> int | None:
    """Read the record at `at`. Returns where it ends; None: there is none."""
    if at + _RECORD.size > len(data):
        return None
    magic, size, crc, number, file_bytes = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + int(size)
    if magic != _RECORD_MAGIC or end > len(data):
        return None
    payload = data[at + _RECORD.size : end]
    if _sum(number, file_bytes, payload) != crc:
        return None
    stored.commits.append((number, payload))
    stored.expected_size = file_bytes
    return end


def _next_record(data: bytes, at: int) -> int:
    found = data.find(_RECORD_MAGIC, at + 1)
    return found if found >= 0 else len(data)


def _encode_record(number: int, payload: bytes, file_bytes: int) -> bytes:
    crc = _sum(number, file_bytes, payload)
    return _RECORD.pack(_RECORD_MAGIC, len(payload), crc, number, file_bytes) + payload


def _sum(number: int, file_bytes: int, payload: bytes) -> int:
    return int(crc32c(_NUMBERS.pack(number, file_bytes) + payload))


class CommitLog:
    """A log that is written."""

    __slots__ = ("_descriptor", "_end", "_path", "_revoked_to", "_room_end", "header")

    def __init__(self, path: Path, header: LogHeader) -> None:
        self._path = path
        self.header = header
        self._descriptor = -1
        self._end = 0
        self._room_end = 0
        self._revoked_to = 0
        """Up to here there may be bytes of a commit that was not made; 0: there are none."""

    @classmethod
    def begin(
        cls, path: Path, header: LogHeader, commits: Sequence[tuple[int, bytes]] = ()
    ) -> CommitLog:
        """Replace the log by one that has these commits, atomically and durably.

        Raises `OSError`.
        """
        log = cls(path, header)
        log._write_new(commits)
        return log

    @classmethod
    def resume(cls, path: Path, stored: StoredLog) -> CommitLog:
        """Continue after the last commit that can be read. Raises `OSError`."""
        if stored.header is None:
            raise ValueError(f"{path} has no header to continue after")
        log = cls(path, stored.header)
        log._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        log._end, log._room_end = stored.end, stored.size
        log._revoked_to = stored.size if stored.damages else 0
        return log

    def restart(self, header: LogHeader) -> None:
        """Start a new log: the database file has everything. After an `OSError` the old one continues."""
        new = CommitLog.begin(self._path, header)
        self.close()
        self.header = header
        self._descriptor, new._descriptor = new._descriptor, -1
        self._end, self._room_end, self._revoked_to = new._end, new._room_end, 0

    def make_room(self, page_count: int) -> None:
        """Allocate what `restart` will need for the sums of so many pages. Raises `OSError`."""
        size = _HEADER.size + _BASE.size + page_count * _SUM_BYTES
        descriptor = os.open(self._new_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            write_all(descriptor, bytes(size), 0)
        finally:
            os.close(descriptor)

    @property
    def _new_path(self) -> Path:
        return self._path.with_name(self._path.name + ".new")

    def _write_new(self, commits: Sequence[tuple[int, bytes]]) -> None:
        header = self.header
        body = b"".join(
            (
                _BASE.pack(
                    header.store,
                    header.base,
                    header.page_bytes,
                    len(header.sums),
                    header.has_mirror,
                ),
                header.sums.astype("<u4").tobytes(),
            )
        )
        data = _HEADER.pack(_MAGIC, len(body), crc32c(body)) + body
        end = len(data) + sum(_RECORD.size + len(payload) for _, payload in commits)
        data += b"".join(_encode_record(number, payload, end) for number, payload in commits)
        temporary = self._new_path
        # Not emptied first: that would give back what `make_room` allocated.
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            write_all(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, end)
            platform_files.sync_file(self._descriptor)
            temporary.replace(self._path)
            platform_files.sync_directory(self._path.parent)
        except OSError:
            self.close()
            raise
        self._end = self._room_end = end

    def append(self, number: int, payload: bytes) -> None:
        """Return when the commit is durable. Raises `OSError`; then it was not made."""
        if self._revoked_to:
            self._erase()
        end = self._end + _RECORD.size + len(payload)
        room_end = self._room_end
        if end > room_end:
            room_end = end + min(max(end, _ROOM_BYTES_FIRST), _ROOM_BYTES_MAX)
        record = _encode_record(number, payload, room_end)
        room = bytes(room_end - end) if room_end != self._room_end else b""
        self._revoked_to = end
        try:
            write_all(self._descriptor, record + room, self._end)
            platform_files.sync_file(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self._erase()
            raise
        self._end, self._room_end, self._revoked_to = end, room_end, 0

    def revoke(self, payload: bytes) -> None:
        """The commit appended last was not made after all: SQLite could not.

        What cannot be taken back now is taken back before anything else is appended. Raises
        `OSError` then.
        """
        self._revoked_to = self._end
        self._end -= _RECORD.size + len(payload)
        with contextlib.suppress(OSError):
            self._erase()

    def _erase(self) -> None:
        write_all(self._descriptor, bytes(self._revoked_to - self._end), self._end)
        platform_files.sync_file(self._descriptor)
        self._room_end = max(self._room_end, self._revoked_to)
        self._revoked_to = 0

    def close(self) -> None:
        """Give the descriptor back. Twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it, or raise `OSError`."""
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


# ------------------------------------------------------------------ what a commit changed

_PUT: Final = 1
_DELETE: Final = 2
_ROW: Final = struct.Struct("<BHHIqqqB")
"""Kind, bytes of parent, name and value, version, created, modified, ephemeral."""


AS_BEFORE: Final = -1


class RowChange(NamedTuple):
    """A row as a commit left it."""

    parent: str
    name: str
    value: bytes | None
    """None: it was deleted."""
    version: int = 0
    created_ms: int = 0
    """`AS_BEFORE`: the row was there, and this and `ephemeral` stay what they were."""
    modified_ms: int = 0
    ephemeral: int = 0


def encode_changes(changes: Sequence[RowChange]) -> bytes:
    """The payload of a commit."""
    parts: list[bytes] = []
    pack = _ROW.pack
    for parent, name, value, version, created_ms, modified_ms, ephemeral in changes:
        where, what = parent.encode(), name.encode()
        kind = _DELETE if value is None else _PUT
        content = value or b""
        parts += (
            pack(
                kind,
                len(where),
                len(what),
                len(content),
                version,
                created_ms,
                modified_ms,
                ephemeral,
            ),
            where,
            what,
            content,
        )
    return b"".join(parts)


def decode_changes(payload: bytes) -> list[RowChange]:
    """The changes again, of a payload whose checksum fits."""
    changes = []
    at = 0
    while at < len(payload):
        kind, where, what, size, *numbers = _ROW.unpack_from(payload, at)
        at += _ROW.size
        parent = payload[at : at + where].decode()
        name = payload[at + where : at + where + what].decode()
        at += where + what
        value = payload[at : at + size] if kind == _PUT else None
        at += size
        changes.append(RowChange(parent, name, value, *numbers))
    return changes
