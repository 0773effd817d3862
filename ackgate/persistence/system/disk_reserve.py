"""Room kept free on a file system, so that a full disk can still be consumed free.

Edge: `OsSpace`, blocking. `plan` is pure. A file of allocated bytes lies beside the data; when others
have taken what was free, it is cut, and what is being read, acknowledged and deleted fits again::

    free + reserve    >= 3 reserves  back to normal: the reserve is made again
                      <  2 reserves  low: no messages are taken any more; the reserve stays
    low, and less than a quarter of a reserve free:  cut to a quarter, which acknowledgements may not use
    low, and a broker starts:                        the same; if that was done already, that quarter goes too

The gap between two and three keeps a broker from changing its mind with every message. The last
quarter is for the next start: an acknowledgement that does not fit costs a redelivery, a broker that
cannot start costs everything.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ackgate.persistence.system.data_directory import FILE_MODE

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_FILE: Final = "reserve"
"""Its name, in a data directory or a bookie's directory."""

SHARE_MAX: Final = 8
"""A reserve is at most this part of its file system: a small one is for messages, too."""

_PIECE_BYTES: Final = 1024 * 1024


class Room(NamedTuple):
    """What a file system has, in bytes."""

    total_bytes: int
    free_bytes: int
    """For us; what is kept for root is not."""


class SpaceFiles(Protocol):
    """The calls to a file system. Each raises `OSError`."""

    def room(self, directory: Path) -> Room:
        """What the file system of a directory has."""

    def device(self, directory: Path) -> int:
        """A number that directories share when they share their room."""

    def allocated_bytes(self, path: Path) -> int:
        """Bytes allocated to a file; 0 when there is none."""

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Make the file take that many bytes; 0: remove it."""


class OsSpace:
    """The file systems of the operating system."""

    def room(self, directory: Path) -> Room:
        found = os.statvfs(directory)
        return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def device(self, directory: Path) -> int:
        return directory.stat().st_dev

    def allocated_bytes(self, path: Path) -> int:
        try:
            found = path.stat()
        except FileNotFoundError:
            return 0
        # A copy may have holes where ours has room.
        return min(found.st_size, found.st_blocks * 512)

    def allocate(self, path: Path, size_bytes: int) -> None:
        if not size_bytes:
            path.unlink(missing_ok=True)
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(descriptor, min(os.fstat(descriptor).st_size, size_bytes))
            _fill(descriptor, size_bytes)
        except OSError:
            # Half a reserve would take what it is to keep.
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def _fill(descriptor: int, size_bytes: int) -> None:
    fallocate = getattr(os, "posix_fallocate", None)
    if fallocate is not None:
        fallocate(descriptor, 0, size_bytes)
        return
    for offset in range(0, size_bytes, _PIECE_BYTES):
        os.pwrite(descriptor, bytes(min(_PIECE_BYTES, size_bytes - offset)), offset)


class Plan(NamedTuple):
    """What to do about the room there is."""

    is_low: bool
    """Messages are refused."""
    reserve_bytes: int
    """The new size of the reserve."""


def plan(
    free_bytes: int, reserved_bytes: int, wanted_bytes: int, *, was_low: bool, is_starting: bool
) -> Plan:
    """Decide what to do about the room there is; see the module.

    `was_low`: what the last plan said.
    """
    all_bytes = free_bytes + reserved_bytes
    last_bytes = wanted_bytes // 4
    if all_bytes >= (3 if was_low else 2) * wanted_bytes:
        return Plan(is_low=False, reserve_bytes=wanted_bytes)
    kept_bytes = reserved_bytes
    if is_starting:
        if free_bytes < 2 * last_bytes:
            kept_bytes = last_bytes if reserved_bytes > last_bytes else 0
    elif reserved_bytes < last_bytes and free_bytes >= 2 * last_bytes:
        kept_bytes = last_bytes
    elif was_low and free_bytes < last_bytes:
        # Not before messages have been refused for a while: those on their way would take it.
        kept_bytes = min(reserved_bytes, last_bytes)
    return Plan(is_low=True, reserve_bytes=kept_bytes)


class DiskReserve:
    """The reserve of one file system."""

    def __init__(self, directory: Path, wanted_bytes: int, files: SpaceFiles) -> None:
        self.directory = directory
        self._wanted_bytes = wanted_bytes
        self._files = files
        self.is_low = False
        self.free_bytes = 0
        """When last looked, the reserve not counted."""
        self.wanted_bytes = wanted_bytes

    def look(self, *, is_starting: bool = False) -> None:
        """Find out how much room there is, and make or cut the reserve. Raises `OSError`."""
        files, path = self._files, self.directory / RESERVE_FILE
        room = files.room(self.directory)
        wanted = self.wanted_bytes = min(self._wanted_bytes, room.total_bytes // SHARE_MAX)
        reserved = files.allocated_bytes(path)
        decided = plan(
            room.free_bytes, reserved, wanted, was_low=self.is_low, is_starting=is_starting
        )
        self.is_low, self.free_bytes = decided.is_low, room.free_bytes
        if decided.reserve_bytes != reserved:
            files.allocate(path, decided.reserve_bytes)
            self.free_bytes = files.room(self.directory).free_bytes
