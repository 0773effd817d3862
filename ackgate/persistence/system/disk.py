"""The one place where bookies touch a disk.

Edge: blocking calls, made in a bookie's I/O threads, never on the event loop. `OsDisk` is the real one;
a simulated or a faulty disk has the same methods. Nothing here knows bookies, and nothing is retried:
a caller that knows what an `OSError` means handles it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.persistence.system import platform_files
from ackgate.persistence.system.data_directory import FILE_MODE, make_private_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SYNC_THREADS: Final = 4
"""Syncs under way at a time, of one disk: the file system commits them together. Measured on ext4,
1,000 new files: one thread 1.4 s, four 0.4 to 0.7 s, eight and sixteen no better."""

_FREED_BYTES: Final = 1024 * 1024
"""Freed of a removed file at a time. ext4 frees it in one transaction, and a sync of any other file
waits for that. Measured while 64 MiB were removed: at once, a sync took 60 ms; in these steps, 4 ms."""

_FREEING_PAUSE_SECONDS: Final = 0.005

_RACY_NS: Final = 50_000_000
"""A directory that changed so short a time ago may change again without its time stamp moving."""


class DiskFile(Protocol):
    """An open file; all calls block and raise `OSError`."""

    @property
    def path(self) -> Path: ...

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end, or raise `OSError` (some of it may be there then)."""

    def sync(self) -> None:
        """Return when everything appended is on stable storage.

        After an error nothing is known of what was appended since the last success: do not sync
        this file again.
        """

    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None:
        """Give the descriptor back. Twice is fine."""


class DiskLock(Protocol):
    """A lock that ends with its holder, however the holder ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The file system below a bookie."""

    def create(self, path: Path) -> DiskFile:
        """A new file to append to. Raises `FileExistsError`."""

    def open_append(self, path: Path) -> DiskFile:
        """An existing or new file to append to and to read."""

    def open_read(self, path: Path) -> DiskFile: ...

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        """Sync several files, in any order. Raises `OSError` when one fails."""

    def list(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""

    def names_stamp(self, directory: Path) -> int | None:
        """A number that stays the same only while the names in a directory do; None: unknown."""

    def free_bytes(self, directory: Path) -> int | None:
        """Room left on its file system; None: unknown."""

    def make_directory(self, directory: Path) -> None:
        """Make it and its parents; existing is fine."""

    def remove(self, path: Path) -> None:
        """The name is gone at once. The room of a large file comes back within the next moments."""

    def remove_directory(self, directory: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None:
        """Move a file, atomically; a file at `target` is replaced."""

    def sync_directory(self, directory: Path) -> None:
        """Make creations, renames and removals in it durable."""

    def lock(self, path: Path, *, wait: bool) -> DiskLock | None:
        """Take the exclusive lock on a file (made if absent); None when taken and not waiting."""


def read_file(disk: Disk, path: Path, bytes_max: int | None = None) -> bytes | None:
    """The content of a file, or its first `bytes_max` bytes; None: no file. Raises `OSError`."""
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, max(file.size(), 1) if bytes_max is None else bytes_max)
    finally:
        file.close()


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Write a file: under its name there is all of `content`, or what was there before.

    The new content is durable once the directory is synced. Raises `OSError`.
    """
    temporary = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.append(content)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def append(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        while written < len(data):
            written += os.write(self._descriptor, memoryview(data)[written:])

    def sync(self) -> None:
        platform_files.sync_file(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OsLock:
    """An flock: gone when the process is."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


class _Freeing:
    """Frees removed files step by step, in a thread that never keeps the process from ending."""

    def __init__(self) -> None:
        self._removed: SimpleQueue[int] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def free(self, descriptor: int) -> None:
        """The file of this descriptor, which is closed in the end, has no name any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bookie-free", daemon=True)
            self._thread.start()
        self._removed.put(descriptor)

    def _run(self) -> None:
        while True:
            descriptor = self._removed.get()
            # An error changes nothing: closing frees what is left.
            with contextlib.suppress(OSError):
                size = os.fstat(descriptor).st_size
                if not platform_files.is_known_here_alone(descriptor):
                    size = 0  # a backup has a link to it, or a reader is at work
                while size > _FREED_BYTES:
                    size -= _FREED_BYTES
                    os.ftruncate(descriptor, size)
                    time.sleep(_FREEING_PAUSE_SECONDS)
            os.close(descriptor)


class OsDisk:
    """The disk of the operating system."""

    def __init__(self) -> None:
        self._syncing = ThreadPoolExecutor(_SYNC_THREADS, "bookie-sync")
        self._freeing = _Freeing()

    def create(self, path: Path) -> OsFile:
        return OsFile(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)

    def open_append(self, path: Path) -> OsFile:
        return OsFile(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def open_read(self, path: Path) -> OsFile:
        return OsFile(path, os.O_RDONLY)

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        if len(files) == 1:
            files[0].sync()
            return
        # Every one is waited for before the first error goes up: the caller closes the files then.
        done = [self._syncing.submit(file.sync) for file in files]
        wait(done)
        for one in done:
            one.result()

    def list(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208  Path.iterdir makes a Path per name

    def names_stamp(self, directory: Path) -> int | None:
        changed_ns = directory.stat().st_mtime_ns
        return changed_ns if time.time_ns() - changed_ns > _RACY_NS else None

    def free_bytes(self, directory: Path) -> int | None:
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def make_directory(self, directory: Path) -> None:
        make_private_directory(directory)

    def remove(self, path: Path) -> None:
        descriptor = -1
        if path.lstat().st_size > _FREED_BYTES:
            with contextlib.suppress(OSError):  # what cannot be opened can be removed all the same
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            path.unlink()
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            raise
        if descriptor >= 0:
            self._freeing.free(descriptor)

    def remove_directory(self, directory: Path) -> None:
        directory.rmdir()

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def sync_directory(self, directory: Path) -> None:
        platform_files.sync_directory(directory)

    def lock(self, path: Path, *, wait: bool) -> OsLock | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            is_ours = platform_files.lock(descriptor, wait=wait)
        except BaseException:
            os.close(descriptor)
            raise
        if not is_ours:
            os.close(descriptor)
            return None
        return OsLock(descriptor)
