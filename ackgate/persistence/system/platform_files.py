"""What differs between operating systems in keeping files: decided here, once, for all who write any.

Edge: blocking calls.

    Linux    `fdatasync` for a file, `fsync` for the names in a directory
    macOS    `F_FULLFSYNC` for both. Python has no `fdatasync` there, and `fsync` only hands bytes on to
             the drive, which may lose them with its power. A file system without `F_FULLFSYNC` (a
             network's, say) gets an `fsync`.
    others   refused with a sentence, before anything is written: whatever keeps data takes a lock first
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # Windows; `require_supported_platform` says so
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    SyncCall = Callable[[int], None]

SUPPORTED: Final = {"linux": "Linux", "darwin": "macOS"}
"""By Python's `sys.platform`."""

F_FULLFSYNC: Final = 51
"""macOS's number for it; the module `fcntl` has the name on macOS only."""

_NOT_OFFERED: Final = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY})
"""What a file system answers that has no `F_FULLFSYNC`."""

_SOCKET_PATH_BYTES_MAX: Final = 100
"""Paths of Unix sockets may have a few more: 107 on Linux, 103 on macOS."""

_OPEN_FILES: Final = "/proc/self/fd"


def require_supported_platform(platform: str | None = None) -> None:
    """Raises `ConfigurationError` where data cannot be kept safely."""
    platform = sys.platform if platform is None else platform
    if platform not in SUPPORTED:
        raise ConfigurationError(
            f"ackgate keeps data on {' and '.join(SUPPORTED.values())} only, and this is {platform}: "
            "it knows no call there that makes a file durable"
        )


def sync_calls(platform: str) -> tuple[SyncCall, SyncCall]:
    """How a platform makes a file's bytes durable, and the names in a directory.

    Both take a descriptor, and raise `OSError`.
    """
    if platform == "linux":
        return os.fdatasync, os.fsync
    if platform == "darwin":
        return _full_sync, _full_sync

    def refuse(_: int) -> None:
        require_supported_platform(platform)

    return refuse, refuse


def _full_sync(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, F_FULLFSYNC)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        os.fsync(descriptor)


sync_file, sync_names = sync_calls(sys.platform)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_names(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, wait: bool) -> bool:
    """Take the exclusive lock of an open file; it ends with the descriptor, however that ends.

    False: another has it, and `wait` is false. Raises `OSError`, `ConfigurationError` (not supported).
    """
    require_supported_platform()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def is_known_here_alone(descriptor: int) -> bool:
    """Whether a file has no name any more, and no descriptor but this one, anywhere. False: perhaps not.

    Linux grants a write lease on such a file only. Without a name nobody can open it after this.
    """
    try:
        if sys.platform != "linux" or os.fstat(descriptor).st_nlink:
            return False
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """The path of a Unix socket or, if it is too long and this is Linux, a short one to the same place.

    Raises `OSError`.
    """
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX or sys.platform != "linux":
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_OPEN_FILES}/{directory}/{path.name}"
    finally:
        os.close(directory)
