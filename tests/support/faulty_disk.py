"""A disk that fails when told to, and that can be pulled out.

Wraps `OsDisk` under bookies. `before` is asked ahead of every call and may raise what the disk is
to raise; a `ShortWrite` lets part of an append through first. `crash` is `kill -9`: descriptors and
locks are gone, whatever was written stays. `power_loss` is the plug: of what was not synced, a part
of the tail is cut off or comes back as zeros, as the given random generator decides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from ackgate.persistence.system.disk import OsDisk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ackgate.persistence.system.disk import DiskFile, OsFile, OsLock


class ShortWrite(OSError):  # noqa: N818  it is what a full disk does, and reads better so
    """An append that stops half-way: the first `written` bytes are there."""

    def __init__(self, written: int, code: int = errno.ENOSPC) -> None:
        super().__init__(code, os.strerror(code))
        self.written = written


def disk_error(code: int, path: Path) -> OSError:
    """What the operating system would raise."""
    return OSError(code, os.strerror(code), str(path))


class FaultyFile:
    """A file of a `FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, file: OsFile) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path
        disk.files.append(self)
        # What was there before this disk is as safe as it can be.
        disk.synced.setdefault(file.path, file.size())

    def append(self, data: bytes) -> None:
        """Write at the end."""
        try:
            with self._disk.call("append", self.path):
                self._file.append(data)
        except ShortWrite as short:
            self._file.append(data[: short.written])
            raise

    def sync(self) -> None:
        """Make durable."""
        with self._disk.call("sync", self.path):
            size = self._file.size()
            self._file.sync()
            self._disk.synced[self.path] = size

    def size(self) -> int:
        """Bytes in it."""
        with self._disk.call("size", self.path):
            return self._file.size()

    def read(self, offset: int, size: int) -> bytes:
        """Read a piece."""
        with self._disk.call("read", self.path):
            return self._file.read(offset, size)

    def truncate(self, size: int) -> None:
        """Cut off the end."""
        with self._disk.call("truncate", self.path):
            self._file.truncate(size)
            self._disk.synced[self.path] = min(size, self._disk.synced.get(self.path, 0))

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
        if self in self._disk.files:
            self._disk.files.remove(self)


class FaultyDisk:
    """Implements `Disk`."""

    def __init__(self) -> None:
        self._disk = OsDisk()
        self.files: list[FaultyFile] = []
        self.locks: list[OsLock] = []
        self.calls: Counter[str] = Counter()
        """How often each operation was asked for."""
        self.synced: dict[Path, int] = {}
        """Bytes of each file that a power loss leaves."""
        self.before: Callable[[str, Path], None] | None = None
        """Asked with operation and path ahead of every call; raises what the call is to raise."""
        self.room_bytes: int | None = None
        """What `free_bytes` shall say; None: the truth."""
        self.is_gone = False
        self._call_lock = threading.RLock()

    @contextlib.contextmanager
    def call(self, operation: str, path: Path) -> Iterator[None]:
        """Count, fail if told to, and keep a crash from coming in the middle of it."""
        self.calls[operation] += 1
        if self.before is not None and not self.is_gone:
            self.before(operation, path)
        with self._call_lock:
            if self.is_gone:
                raise disk_error(errno.ENODEV, path)
            yield

    def crash(self) -> None:
        """End as a killed process does. Code that still uses this disk gets errors."""
        with self._call_lock:
            self.is_gone = True
            for file in tuple(self.files):
                file.close()
            for lock in self.locks:
                lock.release()

    def power_loss(self, rng: random.Random) -> None:
        """Crash, and lose some of what was not synced. Names are kept."""
        self.crash()
        for path in sorted(self.synced):
            if not path.exists():
                continue
            size, synced = path.stat().st_size, self.synced.get(path, 0)
            if size > synced:
                kept = rng.randint(synced, size)
                os.truncate(path, kept)
                if kept > synced and rng.random() < 0.5:
                    hole = rng.randint(synced, kept)
                    with path.open("r+b") as file:
                        file.seek(synced)
                        file.write(bytes(hole - synced))

    def create(self, path: Path) -> FaultyFile:
        """A new file."""
        with self.call("create", path):
            return FaultyFile(self, self._disk.create(path))

    def open_append(self, path: Path) -> FaultyFile:
        """A file to append to."""
        with self.call("open_append", path):
            return FaultyFile(self, self._disk.open_append(path))

    def open_read(self, path: Path) -> FaultyFile:
        """A file to read."""
        with self.call("open_read", path):
            return FaultyFile(self, self._disk.open_read(path))

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        """Make several files durable, one after the other: scripts of faults stay exact."""
        for file in files:
            file.sync()

    def list(self, directory: Path) -> list[str]:
        """Names in a directory."""
        with self.call("list", directory):
            return self._disk.list(directory)

    def names_stamp(self, directory: Path) -> int | None:
        """Whether its names have changed. Never sure, so that the clock plays no part."""
        with self.call("names_stamp", directory):
            self._disk.names_stamp(directory)  # raises when the directory is gone
            return None

    def free_bytes(self, directory: Path) -> int | None:
        """As the test says, or as the file system does."""
        return self._disk.free_bytes(directory) if self.room_bytes is None else self.room_bytes

    def make_directory(self, directory: Path) -> None:
        """Make it."""
        with self.call("make_directory", directory):
            self._disk.make_directory(directory)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with self.call("remove", path):
            self._disk.remove(path)
            self.synced.pop(path, None)

    def remove_directory(self, directory: Path) -> None:
        """Remove an empty directory."""
        with self.call("remove_directory", directory):
            self._disk.remove_directory(directory)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file."""
        with self.call("rename", source):
            self._disk.rename(source, target)
            self.synced[target] = self.synced.pop(source, 0)

    def sync_directory(self, directory: Path) -> None:
        """Make names durable."""
        with self.call("sync_directory", directory):
            self._disk.sync_directory(directory)

    def lock(self, path: Path, *, wait: bool) -> OsLock | None:
        """Take a lock."""
        with self.call("lock", path):
            lock = self._disk.lock(path, wait=wait)
            if lock is not None:
                self.locks.append(lock)
            return lock
