"""One machine's file system, in memory, for processes that are killed and plugs that are pulled.

`SimulatedFiles` is the machine; `files.disk(process)` is what one process of it sees, with the methods
of `ackgate.persistence.system.disk.Disk`. No clock, no thread, no chance but from the generator handed
in: a run is its seed. Made to be called millions of times: an operation costs what it writes.

**A process is killed** (`kill`). What it wrote is in the page cache and stays, whole: names,
renames, sizes, bytes. Its locks are free, as an flock is when its holder ends. Code that still calls
a disk of the dead process gets EIO, so that nothing is done in its name any more.

**The power fails** (`power_loss`). All processes die, and of every file and directory there is what
was durable, and any part of what came after:

    written, file not synced     kept, lost or torn: sectors of 512 bytes in any order, what is not
                                 there reads as zeros; the size may be that of a write whose bytes
                                 are lost, and a later write may be kept when an earlier one is lost
    truncated, not synced        done or not; bytes cut off may come back
    `sync` of a file             its bytes and its size are durable. Its name is not (fdatasync and
                                 POSIX say nothing of it; ext4 happens to do more)
    created, removed, made       there or not, each by itself, until the directory that holds the
                                 name is synced; a name that is lost takes all below it along
    renamed                      old name or new name, never both or neither, and an overwritten
                                 target whole; which of the two, the directory's sync says
    `sync_directory`             its names are durable; neither the content of files nor the names
                                 in directories below it are

Changes that hang together in no such way are lost and kept independently of each other, whatever
their order. That is less than POSIX's usual implementations do (ext4's journal keeps changes of
names in their order, and the bytes before the size that counts them); each of their outcomes is one
of these, and `power_loss` chooses such an ordered outcome often enough.

**Syncs that fail.** The kernel reports a failed write once; what it was to write still reads back,
is not on the disk, and the next sync succeeds. So here: it may be zeros after a power loss, for
ever.

**Sectors that go bad** (`corrupt`) flip a bit of what is durable. **Full disks and broken ones**
(`capacity_bytes`, `fail`): an append that fails may leave a part of its bytes, and here always does.

Not here: hard links, renames of directories or between directories, permissions, time.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.simulation.inodes import Directory, Inode, Link, Rename, Unlink, copy_tree, walk
from tests.support.simulation.power_loss import choose_fates

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from ackgate.persistence.system.disk import DiskFile
    from tests.support.simulation.inodes import Change, Fate, NameChange, Node

_NEEDS_ROOM: Final = frozenset({"append", "create", "make_directory"})
"""What a full disk refuses."""

_CHANGES: Final = _NEEDS_ROOM | {
    "sync",
    "truncate",
    "remove",
    "remove_directory",
    "rename",
    "sync_directory",
}
"""What a broken or read-only disk refuses; it can still be read."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


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


class Operation(NamedTuple):
    """Something done that a crash before it would have found undone."""

    process: str
    kind: str
    path: str
    size: int = 0
    """Bytes appended, or the size truncated to."""


class SimulatedFiles:
    """The file system of one machine."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """Bytes that all files together may have; None: no bound."""
        self.used_bytes = 0
        self.trace: list[Operation] | None = None
        """Set a list to have the operations recorded."""
        self.on_operation: Callable[[Operation], None] | None = None
        """Told after each operation: the moment to look at what a crash would leave."""
        self._root = Directory()
        self._directories: dict[str, Directory] = {"": self._root, "/": self._root}
        self._disks: dict[str, SimulatedDisk] = {}
        self._failing: dict[str, tuple[int, Collection[str]]] = {}
        self._sequence = 0
        self._dirty_files: dict[Inode, None] = {}
        self._dirty_directories: dict[Directory, None] = {}

    # -------------------------------------------------------------------------------- its processes

    def disk(self, process: str) -> SimulatedDisk:
        """What a process sees. The same one until the process is killed, then a new one."""
        disk = self._disks.get(process)
        if disk is None:
            disk = self._disks[process] = SimulatedDisk(self, process)
        return disk

    def kill(self, process: str) -> None:
        """End a process as `kill -9` does."""
        disk = self._disks.pop(process, None)
        if disk is not None:
            disk.die()
            self.did(process, "kill", "/")

    # -------------------------------------------------------------------------------------- faults

    def power_loss(self, rng: random.Random) -> None:
        """Pull the plug: every process dies, and what was not synced meets its fate."""
        self.settle(choose_fates(self.pending(), rng))

    def pending(self) -> list[Change]:
        """What a power loss would decide about, in the order in which it was done."""
        changes: list[Change] = []
        for file in self._dirty_files:
            changes += file.pending
            changes += file.doubtful
        for directory in self._dirty_directories:
            changes += directory.pending
        return sorted(changes, key=_by_sequence)

    def settle(self, fates: Mapping[int, Fate]) -> None:
        """Pull the plug with a given fate, by its sequence number, for each pending change."""
        for process in list(self._disks):
            self._disks.pop(process).die()
        for file in self._dirty_files:
            file.settle(fates)
        for directory in self._dirty_directories:
            directory.settle(fates)
        self._dirty_files.clear()
        self._dirty_directories.clear()
        self._directories = {"": self._root, "/": self._root}
        self.used_bytes = 0
        for path, node in walk(self._root):
            if isinstance(node, Directory):
                self._directories[path] = node
            else:
                node.is_linked = True
                self.used_bytes += len(node.content)
        self.did("", "power_loss", "/")

    def corrupt(self, rng: random.Random, path_prefix: str = "/") -> tuple[str, int] | None:
        """Let one bit of durable bytes below a path go bad; where, or None when there are none."""
        files = [(path, file) for path, file in self.files(path_prefix) if file.durable_size]
        if not files:
            return None
        sizes = [file.durable_size for _, file in files]
        path, file = rng.choices(files, sizes)[0]
        offset = rng.randrange(file.durable_size)
        file.flip(offset, rng.randrange(8))
        return path, offset

    def fail(
        self, path_prefix: str, code: int | None, operations: Collection[str] | None = None
    ) -> None:
        """Let changes below a path fail with an errno, until taken back with None.

        `operations`: which; by default what a full disk refuses for ENOSPC, all changes otherwise.
        Also "read", "open_read" and "list" can be named.
        """
        if code is None:
            self._failing.pop(path_prefix, None)
            return
        if operations is None:
            operations = _NEEDS_ROOM if code in _FULL else _CHANGES
        self._failing[path_prefix] = (code, operations)

    # ------------------------------------------------------------------------------------- looking

    def files(self, path_prefix: str = "/") -> list[tuple[str, Inode]]:
        """All files below a path, sorted by path."""
        return [
            (path, node)
            for path, node in sorted(walk(self._root), key=_path_of)
            if isinstance(node, Inode) and path.startswith(path_prefix)
        ]

    def contents(self, path_prefix: str = "/") -> dict[str, bytes]:
        """Bytes of all files below a path, as a read finds them."""
        return {path: bytes(file.content) for path, file in self.files(path_prefix)}

    def digest(self) -> bytes:
        """The same for two machines that have the same names and bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for path, node in sorted(walk(self._root), key=_path_of):
            if isinstance(node, Inode):
                digest.update(f"{path}\0{len(node.content)}\0".encode())
                digest.update(node.content)
            else:
                digest.update(f"{path}/".encode())
        return digest.digest()

    def copy(self) -> SimulatedFiles:
        """A machine with the same files, pending changes included, and no process on it."""
        twin = SimulatedFiles(capacity_bytes=self.capacity_bytes)
        twin.used_bytes = self.used_bytes
        twin._sequence = self._sequence
        twins: dict[int, Node] = {}
        twin._root = copy_tree(self._root, twins)
        for file in self._dirty_files:
            same = twins.get(id(file))
            if isinstance(same, Inode):
                twin._dirty_files[same] = None
        for directory in self._dirty_directories:
            same = twins.get(id(directory))
            if isinstance(same, Directory):
                twin._dirty_directories[same] = None
        twin._directories = {
            path: same
            for path, directory in self._directories.items()
            if isinstance(same := twins[id(directory)], Directory)
        }
        return twin

    # ---------------------------------------------------------------- for the disks of the processes

    def did(self, process: str, kind: str, path: str, size: int = 0) -> None:
        """Tell of an operation."""
        if self.trace is not None or self.on_operation is not None:
            operation = Operation(process, kind, path, size)
            if self.trace is not None:
                self.trace.append(operation)
            if self.on_operation is not None:
                self.on_operation(operation)

    def check(self, operation: str, path: str) -> None:
        """Raise what `fail` asked for."""
        for prefix, (code, operations) in self._failing.items():
            if operation in operations and path.startswith(prefix):
                raise os_error(code, path)

    def next_sequence(self) -> int:
        """A number for a change."""
        self._sequence += 1
        return self._sequence

    def directory_at(self, path: str) -> Directory:
        """The directory of this path. Raises `OSError`."""
        directory = self._directories.get(path)
        if directory is None:
            parent, _, name = path.rpartition("/")
            if parent != path and isinstance(self.directory_at(parent).entries.get(name), Inode):
                raise os_error(errno.ENOTDIR, path)
            raise os_error(errno.ENOENT, path)
        return directory

    def place_of(self, path: str) -> tuple[Directory, str, Node | None]:
        """Parent, name, and what is there. Raises `OSError`."""
        parent, _, name = path.rpartition("/")
        directory = self._directories.get(parent)
        if directory is None:
            directory = self.directory_at(parent)
        return directory, name, directory.entries.get(name)

    def file_at(self, path: str) -> Inode:
        """The file at a path. Raises `OSError`."""
        _, _, node = self.place_of(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        return node

    def change_name(self, directory: Directory, change: NameChange) -> None:
        """Change a name in a directory."""
        directory.change(change)
        self._dirty_directories[directory] = None

    def make_directory(self, path: str) -> bool:
        """Make one directory; False when it is there. Raises `OSError`."""
        if path in self._directories:
            return False
        parent, name, node = self.place_of(path)
        if node is not None:
            raise os_error(errno.EEXIST, path)
        made = Directory()
        self.change_name(parent, Link(self.next_sequence(), name, made))
        self._directories[path] = made
        return True

    def forget_directory(self, path: str) -> None:
        """A directory was removed."""
        del self._directories[path]

    def append(self, file: Inode, data: bytes, path: str) -> None:
        """Append as much as there is room for. Raises `OSError` when that is not all."""
        room = len(data)
        if self.capacity_bytes is not None:
            room = max(min(room, self.capacity_bytes - self.used_bytes), 0)
        file.append(self.next_sequence(), bytes(data[:room]))
        self._dirty_files[file] = None
        if file.is_linked:
            self.used_bytes += room
        if room < len(data):
            raise os_error(errno.ENOSPC, path)

    def truncate(self, file: Inode, size: int) -> None:
        """Cut or grow a file."""
        if file.is_linked:
            self.used_bytes += size - len(file.content)
        file.truncate(self.next_sequence(), size)
        self._dirty_files[file] = None

    def sync(self, file: Inode) -> None:
        """Make a file's bytes durable."""
        file.sync()
        if not file.doubtful:
            self._dirty_files.pop(file, None)

    def sync_directory(self, directory: Directory) -> None:
        """Make a directory's names durable."""
        directory.sync()
        self._dirty_directories.pop(directory, None)

    def unlinked(self, node: Node | None) -> None:
        """A file lost its name."""
        if isinstance(node, Inode):
            node.is_linked = False
            self.used_bytes -= len(node.content)


def _by_sequence(change: Change) -> int:
    return change.sequence


def _path_of(found: tuple[str, Node]) -> str:
    return found[0]
