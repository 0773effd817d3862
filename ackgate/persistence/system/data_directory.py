"""The broker's data directory: one process at a time, and where things lie in it.

Edge. ::

    DATA_DIR/
      lock               held by flock; says who holds it
      metadata.sqlite    the embedded metadata store, with its logs and a mirror beside it
      reserve            room for the day on which the disk is full (`disk_reserve`)
      bookies/0/         a bookie: journal and ledger files (`bookieDirectories` puts it elsewhere)

Whatever is made here is for the owner alone. A directory that is there already keeps its mode.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, DataDirectoryBusyError
from ackgate.persistence.system import platform_files

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Messages may hold anything: only their owner may read them."""


def make_private_directory(directory: Path) -> None:
    """Make it and its parents, for the owner alone. Raises `OSError`."""
    for each in reversed((directory, *directory.parents)):
        if not each.is_dir():
            each.mkdir(DIRECTORY_MODE, exist_ok=True)


class DataDirectory:
    """A locked data directory. The lock goes with the process, however it ends."""

    def __init__(self, root: Path, lock_file: int) -> None:
        self.root = root
        self._lock_file = lock_file

    @property
    def metadata_path(self) -> Path:
        return metadata_path(self.root)

    @classmethod
    def acquire(cls, root: Path) -> Self:
        """Make the directory if needed and lock it.

        Raises `DataDirectoryBusyError` naming the holder, `ConfigurationError` if it cannot be
        used.
        """
        platform_files.require_supported_platform()
        lock_path = root / "lock"
        try:
            make_private_directory(root)
            lock_file = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise ConfigurationError(
                f"data directory {root} cannot be used: {error.strerror or error}"
            ) from error
        if not platform_files.lock(lock_file, wait=False):
            holder = os.read(lock_file, 4096).decode(errors="replace").strip()
            os.close(lock_file)
            raise DataDirectoryBusyError(
                f"data directory {root} is held by another broker: {holder or 'unknown'}"
            )
        directory = cls(root, lock_file)
        directory.describe({})
        return directory

    def describe(self, details: dict[str, str]) -> None:
        """Write into the lock file who holds it: pid, since when, and `details`."""
        about = {"pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **details}
        os.ftruncate(self._lock_file, 0)
        with contextlib.suppress(OSError):  # a full disk: the lock itself needs no room
            os.pwrite(self._lock_file, json.dumps(about).encode() + b"\n", 0)

    def release(self) -> None:
        """Unlock. The file stays: removing it would let two processes lock different files."""
        os.ftruncate(self._lock_file, 0)
        os.close(self._lock_file)


def metadata_path(root: Path) -> Path:
    """Where a data directory keeps its embedded metadata store."""
    return root / "metadata.sqlite"
