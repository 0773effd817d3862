"""Opening the SQLite file: for its one writer, or for any reader beside it.

Edge: the file and its lock. The writer holds an exclusive lock on ``<file>-lock`` for as long as
it lives, so an ephemeral node found at opening belongs to a process that is gone. Readers take no
lock and never wait for the writer (WAL).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ackgate.errors import ConfigurationError, DataDirectoryBusyError, MetadataStoreError
from ackgate.persistence.metadata.node_table import prepare

if TYPE_CHECKING:
    from pathlib import Path

BUSY_TIMEOUT_SECONDS: Final = 5.0
"""A reader that checkpoints or copies the file may hold it for a moment."""

_JOURNAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""The write-ahead log is cut back to this after a checkpoint that let it grow."""


class SoleWriter:
    """The lock that makes this process the file's only writer."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises `DataDirectoryBusyError` naming who holds it."""
        self._path = path.with_name(path.name + "-lock")
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise DataDirectoryBusyError(
                f"{path} is held by process {holder or 'unknown'}"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the file. The lock file stays: removing it would race."""
        os.close(self._descriptor)


def connect_writer(path: Path) -> sqlite3.Connection:
    """A durable read-write connection; the file is made if it is not there."""
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_SECONDS, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES_MAX}")
        connection.execute("BEGIN IMMEDIATE")
        prepare(connection, str(path), may_create=True)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, beside a writer or on a read-only directory."""
    if not path.exists():
        raise ConfigurationError(f"there is no metadata store at {path}")
    try:
        return _checked_reader(path, "mode=ro")
    except sqlite3.OperationalError:
        # WAL needs its index file even to read. After a clean shutdown it is gone, and on a
        # read-only directory it cannot be made; then nobody can be writing either.
        if path.with_name(path.name + "-wal").exists():
            raise
        return _checked_reader(path, "mode=ro&immutable=1")


def _checked_reader(path: Path, parameters: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{parameters}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_SECONDS,
        check_same_thread=False,
    )
    try:
        prepare(connection, str(path), may_create=False)
    except BaseException:
        connection.close()
        raise
    return connection


def translated(path: Path, error: sqlite3.Error | OSError) -> MetadataStoreError:
    """Our error for one of SQLite's or of the file system's."""
    return MetadataStoreError(f"{path}: {error}")
