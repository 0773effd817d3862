"""The pages of a SQLite database file: their sums, a second copy of them, and those in SQLite's log.

Edge: reads and writes files; blocking. SQLite keeps no checksum of a page of the database. The sums
are kept in the header of our own log (`commit_log`), and change only with a checkpoint: whatever
wrote a page in between was a disk, or a stranger. A page that does not fit is brought back from the
*mirror*, a copy of the database file as of the same checkpoint.

SQLite's write-ahead log is read here only for the numbers and contents of its pages. Its form is
documented and does not change (https://www.sqlite.org/fileformat2.html, section 4).

Pages are numbered from 0 here. A process that closes a database file loses the locks that SQLite
holds on it there; so a `PageFile` of a database is closed after SQLite's connection, not before.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from google_crc32c import value as crc32c

from ackgate.persistence.metadata.commit_log import write_all
from ackgate.persistence.system import platform_files
from ackgate.persistence.system.data_directory import FILE_MODE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray


_READ_PAGES: Final = 1024
_WAL_HEADER_BYTES: Final = 32
_WAL_SALTS: Final = slice(16, 24)
_FRAME_HEADER: Final = struct.Struct(">II8s8x")
"""Page number from 1, pages of the database after a commit or 0, salts. Two checksums follow."""

_DATABASE_HEADER_BYTES: Final = 100


class DatabaseHeader(NamedTuple):
    """The fields that we need of a database file's header."""

    page_bytes: int
    format_version: int
    """``PRAGMA user_version``."""
    application_id: int


class PageFile:
    """A file of pages, open for reading."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path) -> None:
        """Open the file. Raises `OSError`."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def header(self) -> DatabaseHeader | None:
        """None: it is too short for a database, or begins otherwise."""
        data = os.pread(self._descriptor, _DATABASE_HEADER_BYTES, 0)
        if len(data) < _DATABASE_HEADER_BYTES or not data.startswith(b"SQLite format 3\0"):
            return None
        page_bytes = int.from_bytes(data[16:18])
        return DatabaseHeader(
            65536 if page_bytes == 1 else page_bytes,
            int.from_bytes(data[60:64]),
            int.from_bytes(data[68:72]),
        )

    def sums(self, page_bytes: int) -> NDArray[np.uint32]:
        """CRC32C of each page; a partial last page counts as one. Raises `OSError`."""
        sums: list[int] = []
        at = 0
        while data := os.pread(self._descriptor, page_bytes * _READ_PAGES, at):
            sums += [crc32c(data[i : i + page_bytes]) for i in range(0, len(data), page_bytes)]
            at += page_bytes * _READ_PAGES
        return np.array(sums, np.uint32)

    def page(self, number: int, page_bytes: int) -> bytes:
        """One page, or as much of it as there is. Raises `OSError`."""
        return os.pread(self._descriptor, page_bytes, number * page_bytes)

    def close(self) -> None:
        """Give the descriptor back. Twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def unlike(found: NDArray[np.uint32], expected: NDArray[np.uint32]) -> list[int]:
    """The pages that are not as expected, missing and added ones among them."""
    both = min(len(found), len(expected))
    differing: list[int] = np.flatnonzero(found[:both] != expected[:both]).tolist()
    return differing + list(range(both, max(len(found), len(expected))))


def write_pages(
    path: Path, pages: Iterable[tuple[int, bytes]], page_bytes: int, page_count: int
) -> None:
    """Write pages into a file, made if absent, that then has so many; durable. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        for number, content in pages:
            write_all(descriptor, content, number * page_bytes)
        if os.fstat(descriptor).st_size != page_count * page_bytes:
            os.ftruncate(descriptor, page_count * page_bytes)
        platform_files.sync_file(descriptor)
    finally:
        os.close(descriptor)


class Mirror:
    """The second copy of a database file. Without room for it there is none."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + "-mirror")

    def good(
        self, wanted: Iterable[int], sums: NDArray[np.uint32], page_bytes: int
    ) -> Iterator[tuple[int, bytes]]:
        """Those of the pages that are here as they should be. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError), PageFile(self.path) as file:
            for number in wanted:
                if number < len(sums):
                    content = file.page(number, page_bytes)
                    if crc32c(content) == sums[number]:
                        yield number, content

    def sums(self, page_bytes: int) -> NDArray[np.uint32]:
        """CRC32C of each of its pages; empty when there is no mirror. Raises `OSError`."""
        try:
            with PageFile(self.path) as file:
                return file.sums(page_bytes)
        except FileNotFoundError:
            return np.zeros(0, np.uint32)

    def write(self, pages: Iterable[tuple[int, bytes]], page_bytes: int, page_count: int) -> None:
        """Bring it up to date, durably. Raises `OSError`."""
        write_pages(self.path, pages, page_bytes, page_count)

    def remove(self) -> None:
        """Remove the mirror: there is no room for one."""
        with contextlib.suppress(OSError):
            self.path.unlink()


# --------------------------------------------------------------------------------- SQLite's log


class WalFrames(NamedTuple):
    """The frames of a write-ahead log."""

    path: Path
    places: list[tuple[int, int]]
    """Page of each frame, and where its content begins."""
    page_count: int
    """Pages of the database after the last commit; 0: there is none."""

    def contents(self, wanted: Collection[int] | None = None) -> Iterator[tuple[int, bytes]]:
        """The pages of all frames in order, or those of `wanted`. Raises `OSError`."""
        if not self.places:
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            page_bytes = _page_bytes(os.pread(descriptor, _WAL_HEADER_BYTES, 0))
            for number, at in self.places:
                if wanted is None or number in wanted:
                    yield number, os.pread(descriptor, page_bytes, at)
        finally:
            os.close(descriptor)

    def newest(self) -> WalFrames:
        """Only the last frame of each page."""
        return self._replace(places=sorted(dict(self.places).items()))

    @property
    def pages(self) -> set[int]:
        """The pages that are in it."""
        return {number for number, _ in self.places}


def wal_path(database: Path) -> Path:
    """SQLite's own log of a database."""
    return database.with_name(database.name + "-wal")


def read_wal(database: Path, count: int | None = None) -> WalFrames:
    """The first `count` frames, or all of the log as it was begun last.

    Which of those SQLite would accept only SQLite knows. Raises `OSError`.
    """
    path = wal_path(database)
    places: list[tuple[int, int]] = []
    page_count = 0
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return WalFrames(path, places, 0)
    try:
        head = os.pread(descriptor, _WAL_HEADER_BYTES, 0)
        page_bytes = _page_bytes(head)
        size = os.fstat(descriptor).st_size
        step = _FRAME_HEADER.size + page_bytes
        there = (size - _WAL_HEADER_BYTES) // step if page_bytes else 0
        for index in range(there if count is None else min(there, count)):
            at = _WAL_HEADER_BYTES + index * step
            frame = os.pread(descriptor, _FRAME_HEADER.size, at)
            number, pages, salts = _FRAME_HEADER.unpack(frame)
            if salts != head[_WAL_SALTS]:
                break
            places.append((number - 1, at + _FRAME_HEADER.size))
            page_count = pages or page_count
    finally:
        os.close(descriptor)
    return WalFrames(path, places, page_count)


def _page_bytes(head: bytes) -> int:
    """Page size from the header; 0: it is no header."""
    size = int.from_bytes(head[8:12]) if len(head) == _WAL_HEADER_BYTES else 0
    return size if 512 <= size <= 65536 else 0


def sums_after(sums: NDArray[np.uint32], frames: WalFrames) -> NDArray[np.uint32]:
    """The sums of the database's pages once these frames were written into it. Raises `OSError`."""
    changed = np.zeros(frames.page_count or len(sums), np.uint32)
    both = min(len(sums), len(changed))
    changed[:both] = sums[:both]
    for number, content in frames.newest().contents():
        if number < len(changed):
            changed[number] = crc32c(content)
    return changed
