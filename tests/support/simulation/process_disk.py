"""What one process sees of a simulated machine's files: an implementation of `ledgers.disk.Disk`.

Pure. A process that was killed keeps its objects, and every call of them is an EIO. What a kill or a
power loss may do: see `disk`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from tests.support.simulation.inodes import Directory, Inode, Link, Rename, Unlink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ackgate.persistence.system.disk import DiskFile
    from tests.support.simulation.disk import SimulatedFiles


class SimulatedFile:
    """An open file. Implements `DiskFile`."""

    __slots__ = ("_disk", "_inode", "_is_open", "_is_writable", "_name", "path")

    def __init__(
        self, disk: SimulatedDisk, path: Path, name: str, inode: Inode, *, is_writable: bool
    ) -> None:
        self.path = path
        self._disk = disk
        self._name = name
        self._inode = inode
        self._is_open = True
        self._is_writable = is_writable

    def append(self, data: bytes) -> None:
        """See `DiskFile.append`."""
        disk = self._disk
        self._check(is_writing=True)
        try:
            disk.check("append", self._name)
        except OSError:
            # The worst that it can do: some of it is there.
            disk.files.append(self._inode, data[: len(data) // 2], self._name)
            disk.did("append", self._name, len(data) // 2)
            raise
        try:
            disk.files.append(self._inode, data, self._name)
        finally:
            disk.did("append", self._name, len(data))

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        disk = self._disk
        self._check()
        try:
            disk.check("sync", self._name)
        except OSError:
            self._inode.sync_failed()
            raise
        disk.files.sync(self._inode)
        disk.did("sync", self._name)

    def size(self) -> int:
        """See `DiskFile.size`."""
        self._check()
        return len(self._inode.content)

    def read(self, offset: int, size: int) -> bytes:
        """See `DiskFile.read`."""
        self._check()
        self._disk.check("read", self._name)
        return bytes(memoryview(self._inode.content)[offset : offset + size])

    def truncate(self, size: int) -> None:
        """See `DiskFile.truncate`."""
        self._check(is_writing=True, code=errno.EINVAL)
        self._disk.check("truncate", self._name)
        self._disk.files.truncate(self._inode, size)
        self._disk.did("truncate", self._name, size)

    def close(self) -> None:
        """See `DiskFile.close`."""
        self._is_open = False

    def _check(self, *, is_writing: bool = False, code: int = errno.EBADF) -> None:
        self._disk.check_alive(self._name)
        if not self._is_open:
            raise os_error(errno.EBADF, self._name)
        if is_writing and not self._is_writable:
            raise os_error(code, self._name)


class SimulatedLock:
    """A lock held. Implements `DiskLock`."""

    __slots__ = ("_disk", "_inode")

    def __init__(self, disk: SimulatedDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode: Inode | None = inode

    def release(self) -> None:
        """See `DiskLock.release`."""
        if self._inode is not None:
            self._inode.is_locked = False
            self._inode = None
            self._disk.locks.pop(self, None)


class SimulatedDisk:
    """The file system as one process sees it. Implements `Disk`."""

    def __init__(self, files: SimulatedFiles, process: str) -> None:
        self.files = files
        self.process = process
        self.is_dead = False
        self.locks: dict[SimulatedLock, None] = {}

    def die(self) -> None:
        """The process is gone: its locks are free, and its calls come to nothing."""
        self.is_dead = True
        for lock in list(self.locks):
            lock.release()

    def check_alive(self, path: str) -> None:
        """Raise EIO in a dead process."""
        if self.is_dead:
            raise os_error(errno.EIO, path)

    def check(self, operation: str, path: str) -> None:
        """Raise what the disk was told to fail with."""
        if self.is_dead:
            raise os_error(errno.EIO, path)
        if self.files._failing:
            self.files.check(operation, path)

    def did(self, kind: str, path: str, size: int = 0) -> None:
        """Tell of an operation."""
        self.files.did(self.process, kind, path, size)

    # ----------------------------------------------------------------------------------- the protocol

    def create(self, path: Path) -> SimulatedFile:
        """See `Disk.create`."""
        name = str(path)
        self.check("create", name)
        return self._open(path, name, is_exclusive=True)

    def open_append(self, path: Path) -> SimulatedFile:
        """See `Disk.open_append`."""
        name = str(path)
        self.check("open_append", name)
        return self._open(path, name, is_exclusive=False)

    def open_read(self, path: Path) -> SimulatedFile:
        """See `Disk.open_read`."""
        name = str(path)
        self.check("open_read", name)
        return SimulatedFile(self, path, name, self.files.file_at(name), is_writable=False)

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        """See `Disk.sync_files`. All are synced, even when one fails."""
        errors: list[OSError] = []
        for file in files:
            try:
                file.sync()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def free_bytes(self, directory: Path) -> int | None:
        """See `Disk.free_bytes`."""
        capacity = self.files.capacity_bytes
        return None if capacity is None else max(0, capacity - self.files.used_bytes)

    def list(self, directory: Path) -> list[str]:
        """See `Disk.list`."""
        name = str(directory)
        self.check("list", name)
        return sorted(self.files.directory_at(name).entries)

    def names_stamp(self, directory: Path) -> int | None:
        """See `Disk.names_stamp`. Always sure."""
        name = str(directory)
        self.check("names_stamp", name)
        return self.files.directory_at(name).stamp

    def make_directory(self, directory: Path) -> None:
        """See `Disk.make_directory`."""
        name = str(directory)
        self.check("make_directory", name)
        at = 0
        while at >= 0:
            at = name.find("/", at + 1)
            part = name[:at] if at >= 0 else name
            if self.files.make_directory(part):
                self.did("make_directory", part)

    def remove(self, path: Path) -> None:
        """See `Disk.remove`."""
        name = str(path)
        self.check("remove", name)
        inode = self.files.file_at(name)
        parent, last, _ = self.files.place_of(name)
        self.files.change_name(parent, Unlink(self.files.next_sequence(), last))
        self.files.unlinked(inode)
        self.did("remove", name)

    def remove_directory(self, directory: Path) -> None:
        """See `Disk.remove_directory`."""
        name = str(directory)
        self.check("remove_directory", name)
        if self.files.directory_at(name).entries:
            raise os_error(errno.ENOTEMPTY, name)
        parent, last, _ = self.files.place_of(name)
        self.files.change_name(parent, Unlink(self.files.next_sequence(), last))
        self.files.forget_directory(name)
        self.did("remove_directory", name)

    def rename(self, source: Path, target: Path) -> None:
        """See `Disk.rename`. Of files, within a directory."""
        name, new_name = str(source), str(target)
        self.check("rename", name)
        inode = self.files.file_at(name)
        parent, last, _ = self.files.place_of(name)
        new_parent, new_last, replaced = self.files.place_of(new_name)
        if new_parent is not parent:
            raise os_error(errno.EXDEV, name)
        if isinstance(replaced, Directory):
            raise os_error(errno.EISDIR, new_name)
        self.files.change_name(parent, Rename(self.files.next_sequence(), last, new_last, inode))
        if replaced is not inode:
            self.files.unlinked(replaced)
        self.did("rename", f"{name} -> {new_last}")

    def sync_directory(self, directory: Path) -> None:
        """See `Disk.sync_directory`."""
        name = str(directory)
        self.check("sync_directory", name)
        self.files.sync_directory(self.files.directory_at(name))
        self.did("sync_directory", name)

    def lock(self, path: Path, *, wait: bool) -> SimulatedLock | None:
        """See `Disk.lock`. Nobody can be waited for here: a wait that would be one is EDEADLK."""
        name = str(path)
        self.check("lock", name)
        parent, last, node = self.files.place_of(name)
        if node is None:
            node = Inode()
            self.files.change_name(parent, Link(self.files.next_sequence(), last, node))
            self.did("create", name)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, name)
        if node.is_locked:
            if wait:
                raise os_error(errno.EDEADLK, name)
            return None
        node.is_locked = True
        lock = SimulatedLock(self, node)
        self.locks[lock] = None
        return lock

    def _open(self, path: Path, name: str, *, is_exclusive: bool) -> SimulatedFile:
        parent, last, node = self.files.place_of(name)
        if node is None:
            if not is_exclusive:
                self.check("create", name)
            node = Inode()
            self.files.change_name(parent, Link(self.files.next_sequence(), last, node))
            self.did("create", name)
        elif is_exclusive:
            raise os_error(errno.EEXIST, name)
        elif isinstance(node, Directory):
            raise os_error(errno.EISDIR, name)
        return SimulatedFile(self, path, name, node, is_writable=True)


def os_error(code: int, path: str) -> OSError:
    """What the operating system would raise."""
    return OSError(code, os.strerror(code), path)
