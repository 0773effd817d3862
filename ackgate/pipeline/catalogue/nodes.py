"""The nodes of a metadata store, many at once, for looking only.

Edge. Three ways to the same few questions: a SQLite file beside its writer, one that lies on another
machine (fetched with its write-ahead log, so that what is committed is there), and ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ackgate.errors import ConfigurationError, MetadataStoreError
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.sqlite_file import connect_reader, translated
from ackgate.persistence.metadata_url import open_metadata_store
from ackgate.persistence.ports.node_rules import split
from ackgate.pipeline.schema.addresses import shown_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.config.persistence import PersistenceSettings

_AT_ONCE: Final = 500
"""Nodes asked for before the first answer is waited for."""


class Nodes(Protocol):
    """Reading of a metadata store."""

    where: str
    """For people."""

    def get(self, path: str) -> bytes | None:
        """The value, or None when there is no such node."""

    def children(self, path: str) -> dict[str, bytes]:
        """Name and value of every child, by name. Empty when there is no such node."""

    def close(self) -> None:
        """Let go of the store."""


class SqliteNodes:
    """A SQLite file on this machine."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        with self._translating():
            self._connection = connect_reader(path)

    def get(self, path: str) -> bytes | None:
        with self._translating():
            row = self._connection.execute(
                "SELECT value FROM node WHERE parent = ? AND name = ?", split(path)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def children(self, path: str) -> dict[str, bytes]:
        with self._translating():
            rows = self._connection.execute(
                "SELECT name, value FROM node WHERE parent = ? ORDER BY name", (path,)
            ).fetchall()
        return {str(name): bytes(value) for name, value in rows}

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if "not a database" in str(error):
                raise ConfigurationError(f"{self._path} is not a metadata store") from error
            raise translated(self._path, error) from error


class FetchedSqliteNodes(SqliteNodes):
    """A SQLite file at an fsspec address."""

    def __init__(self, address: str) -> None:
        with contextlib.ExitStack() as stack:
            super().__init__(stack.enter_context(fetched_sqlite(address)))
            self._scratch = stack.pop_all()
        self.where = shown_address(address)

    def close(self) -> None:
        super().close()
        self._scratch.close()


class ZooKeeperNodes:
    """ZooKeeper, through the port, on an event loop of our own."""

    def __init__(self, url: str, settings: PersistenceSettings) -> None:
        self.where = url
        self._loop = asyncio.new_event_loop()
        try:
            self._store = self._loop.run_until_complete(
                open_metadata_store(url, read_only=True, session=SessionOptions.of(settings))
            )
        except BaseException:
            self._loop.close()
            raise

    def get(self, path: str) -> bytes | None:
        node = self._loop.run_until_complete(self._store.get(path))
        return None if node is None else node.value

    def children(self, path: str) -> dict[str, bytes]:
        return self._loop.run_until_complete(self._children(path))

    async def _children(self, path: str) -> dict[str, bytes]:
        names = await self._store.children(path)
        found: dict[str, bytes] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            nodes = await asyncio.gather(*(self._store.get(f"{path}/{name}") for name in some))
            # One that was deleted since is no child any more.
            found.update(
                (name, node.value)
                for name, node in zip(some, nodes, strict=True)
                if node is not None
            )
        return found

    def close(self) -> None:
        try:
            self._loop.run_until_complete(self._store.close())
        finally:
            self._loop.close()


_ATTEMPTS_MAX: Final = 5
_LOGS: Final = ("-log", "-wal")
"""Ours, by which the file is proved, and SQLite's, which never has less than ours had before."""

_LOG_HEADER_BYTES: Final = 32
"""Identifies a log; it changes when a new one begins."""


@contextlib.contextmanager
def fetched_sqlite(address: str) -> Iterator[Path]:
    """A copy of a SQLite file at an fsspec address, for the time of a `with`.

    Raises `ConfigurationError` when there is none, `MetadataStoreError`.
    """
    with tempfile.TemporaryDirectory(prefix="ackgate-catalogue-") as scratch:
        yield _fetched(address, shown_address(address), Path(scratch))


def _fetched(address: str, shown: str, scratch: Path) -> Path:
    """The file as last committed.

    Its logs are fetched last: unless SQLite began a new log since, they have everything that may have
    been written into the file during its transfer.
    """
    import fsspec  # noqa: PLC0415 - only for data that lies elsewhere

    target = scratch / "metadata.sqlite"
    try:
        files, path = fsspec.core.url_to_fs(address)
        if not files.exists(path):
            raise ConfigurationError(f"no broker has kept anything here: there is no {shown}")
        for _ in range(_ATTEMPTS_MAX):
            before = [_beside(files, path, end)[:_LOG_HEADER_BYTES] for end in _LOGS]
            files.get_file(path, str(target))
            logs = [_beside(files, path, end) for end in _LOGS]
            if [log[:_LOG_HEADER_BYTES] for log in logs] == before:
                for end, log in zip(_LOGS, logs, strict=True):
                    if log:
                        target.with_name(target.name + end).write_bytes(log)
                return target
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise MetadataStoreError(f"{shown} cannot be fetched: {error}") from error
    raise MetadataStoreError(f"{shown} is written to faster than it can be fetched")


def _beside(files: Any, path: str, end: str) -> bytes:  # noqa: ANN401 - fsspec has no types
    files.invalidate_cache()
    try:
        return bytes(files.cat_file(path + end))
    except FileNotFoundError:
        return b""
