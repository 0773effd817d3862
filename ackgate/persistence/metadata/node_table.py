"""The tree of nodes as one SQLite table: plain synchronous statements, no thread, no commit.

Edge: the connection. Used by the worker thread of `SqliteMetadataStore`, inside a transaction that
the worker opened. An operation decides before its first change, so one that raises has changed
nothing and the others of its transaction go on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import (
    CallerError,
    ConfigurationError,
    CorruptRecordError,
    NodeExistsError,
    NoSuchNodeError,
)
from ackgate.persistence.metadata.commit_log import AS_BEFORE, STORE_BYTES, RowChange
from ackgate.persistence.ports import NodeValue, WatchEvent, WatchKind
from ackgate.persistence.ports.node_rules import MUST_NOT_EXIST, conflict, split

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

APPLICATION_ID: Final = 0x61636B67
"""``ackg``: distinguishes our files from other SQLite databases."""

FORMAT_VERSION: Final = 2
UNNUMBERED_FORMAT_VERSION: Final = 1
"""Without numbers of commits. Such a file can be read, and is brought up to date by its writer."""

_CREATE: Final = """
CREATE TABLE node (
    parent      TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    value       BLOB    NOT NULL,
    version     INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    ephemeral   INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
)
"""


_CREATE_PROGRESS: Final = "CREATE TABLE progress (number INTEGER NOT NULL, store BLOB NOT NULL)"


class CommitProgress(NamedTuple):
    """How far a database has come."""

    number: int
    """Of its last commit that changed anything, counted from 1."""
    store: bytes
    """Random name of the database, in copies of it, too."""


def prepare(connection: sqlite3.Connection, where: str, *, is_writing: bool) -> None:
    """Make the tables in an empty file, bring an older one up to date; refuse others, naming them.

    Raises `ConfigurationError`.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (format_version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == 0 and tables == 0 and is_writing:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(_CREATE)
        _number_commits(connection)
        return
    if application_id != APPLICATION_ID:
        raise ConfigurationError(f"{where} is not a metadata store of ackgate")
    if format_version == UNNUMBERED_FORMAT_VERSION:
        if is_writing:
            _number_commits(connection)
    elif format_version != FORMAT_VERSION:
        raise ConfigurationError(
            f"{where} has format {format_version}, this build reads {FORMAT_VERSION}"
        )


def _number_commits(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    connection.execute(_CREATE_PROGRESS)
    connection.execute("INSERT INTO progress VALUES (0, ?)", (os.urandom(STORE_BYTES),))


def read_progress(connection: sqlite3.Connection) -> CommitProgress | None:
    """None: a file whose commits are not numbered. Raises `sqlite3.Error`, `CorruptRecordError`."""
    (format_version,) = connection.execute("PRAGMA user_version").fetchone()
    if format_version == UNNUMBERED_FORMAT_VERSION:
        return None
    rows = connection.execute("SELECT number, store FROM progress").fetchall()
    if len(rows) != 1 or not isinstance(rows[0][0], int) or not isinstance(rows[0][1], bytes):
        raise CorruptRecordError("the number of the last commit cannot be read")
    return CommitProgress(*rows[0])


def write_progress(connection: sqlite3.Connection, number: int) -> None:
    """Write the number of the commit that this is part of."""
    connection.execute("UPDATE progress SET number = ?", (number,))


class NodeTable:
    """The operations of the port on one connection.

    What they changed collects in `events`, and in `changes` as rows.
    """

    __slots__ = ("_clock_ms", "_connection", "_sessions", "changes", "events")

    def __init__(self, connection: sqlite3.Connection, clock_ms: Callable[[], int]) -> None:
        self._connection = connection
        self._clock_ms = clock_ms
        self._sessions: dict[str, int] = {}
        """The session that made the ephemeral node at a path last. No session outlives this table."""
        self.events: list[WatchEvent] = []
        self.changes: list[RowChange] = []

    def get(self, path: str) -> NodeValue | None:
        row = self._connection.execute(
            "SELECT value, version, created_ms, modified_ms, ephemeral FROM node"
            " WHERE parent = ? AND name = ?",
            split(path),
        ).fetchone()
        if row is None:
            return None
        value, version, created_ms, modified_ms, ephemeral = row
        return NodeValue(value, version, created_ms, modified_ms, bool(ephemeral))

    def put(self, path: str, value: bytes, expected_version: int | None) -> int:
        """Compare and set, or set; the new version."""
        if expected_version == MUST_NOT_EXIST:
            if not self._insert(path, value, ephemeral=False):
                raise conflict(path, self._version(path), expected_version)
            return 0
        if expected_version is not None:
            # One statement for the common case: compare and set in the same step.
            now_ms, (parent, name) = self._clock_ms(), split(path)
            done = self._connection.execute(
                "UPDATE node SET value = ?, version = version + 1, modified_ms = ?"
                " WHERE parent = ? AND name = ? AND version = ?",
                (value, now_ms, parent, name, expected_version),
            )
            if done.rowcount == 0:
                raise conflict(path, self._version(path), expected_version)
            version = expected_version + 1
            self.changes.append(RowChange(parent, name, value, version, AS_BEFORE, now_ms))
            self.events.append(WatchEvent(WatchKind.CHANGED, path))
            return version
        found = self._version(path)
        if found is None:
            self._insert(path, value, ephemeral=False)
            return 0
        return self.put(path, value, found)

    def create(self, path: str, value: bytes, ephemeral: bool, session: int = 0) -> None:  # noqa: FBT001
        """Add a node that must not be there; an ephemeral one is that session's."""
        if not self._insert(path, value, ephemeral=ephemeral):
            raise NodeExistsError(f"{path} exists already")
        if ephemeral:
            self._sessions[path] = session

    def delete(self, path: str, expected_version: int | None) -> None:
        """Take out a node that has no children."""
        found = self._version(path)
        if found is None:
            raise NoSuchNodeError(f"{path} does not exist")
        if expected_version is not None and found != expected_version:
            raise conflict(path, found, expected_version)
        child = self._connection.execute(
            "SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)
        ).fetchone()
        if child is not None:
            raise CallerError(f"{path} has children and cannot be deleted")
        parent, name = split(path)
        self._connection.execute("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
        self.changes.append(RowChange(parent, name, None))
        self.events.append(WatchEvent(WatchKind.DELETED, path))

    def children(self, path: str) -> list[str]:
        """Names of the children, sorted."""
        rows = self._connection.execute(
            "SELECT name FROM node WHERE parent = ? ORDER BY name", (path,)
        )
        return [name for (name,) in rows]

    def delete_ephemeral(self) -> None:
        """The session is over, or the process that had it is."""
        rows = self._connection.execute(
            "SELECT parent, name FROM node WHERE ephemeral = 1"
        ).fetchall()
        self._connection.execute("DELETE FROM node WHERE ephemeral = 1")
        for parent, name in rows:
            self.changes.append(RowChange(parent, name, None))
            path = f"{'' if parent == '/' else parent}/{name}"
            self.events.append(WatchEvent(WatchKind.DELETED, path))

    def end_session(self, session: int) -> None:
        """One session of several is over: its ephemeral nodes go."""
        for path in [path for path, owner in self._sessions.items() if owner == session]:
            del self._sessions[path]
            node = self.get(path)
            if node is not None and node.is_ephemeral:
                self.delete(path, None)

    def repeat(self, changes: Iterable[RowChange]) -> None:
        """Make the rows what a commit made them."""
        execute = self._connection.execute
        for parent, name, value, version, created_ms, modified_ms, ephemeral in changes:
            if value is None:
                execute("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
            elif created_ms == AS_BEFORE:
                execute(
                    "UPDATE node SET value = ?, version = ?, modified_ms = ?"
                    " WHERE parent = ? AND name = ?",
                    (value, version, modified_ms, parent, name),
                )
            else:
                execute(
                    "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (parent, name, value, version, created_ms, modified_ms, ephemeral),
                )

    def _insert(self, path: str, value: bytes, *, ephemeral: bool) -> bool:
        """Add a node, making its parents. False, and nothing changed, if it is there."""
        parent, name = split(path)
        if parent != "/":
            row = self._connection.execute(
                "SELECT ephemeral FROM node WHERE parent = ? AND name = ?", split(parent)
            ).fetchone()
            if row is None:
                self._insert(parent, b"", ephemeral=False)
            elif row[0]:
                raise CallerError(f"{parent} is ephemeral and cannot have children")
        now_ms = self._clock_ms()
        done = self._connection.execute(
            "INSERT OR IGNORE INTO node VALUES (?, ?, ?, 0, ?, ?, ?)",
            (parent, name, value, now_ms, now_ms, ephemeral),
        )
        if done.rowcount == 0:
            return False
        self.changes.append(RowChange(parent, name, value, 0, now_ms, now_ms, int(ephemeral)))
        self.events.append(WatchEvent(WatchKind.CREATED, path))
        return True

    def _version(self, path: str) -> int | None:
        row = self._connection.execute(
            "SELECT version FROM node WHERE parent = ? AND name = ?", split(path)
        ).fetchone()
        return None if row is None else int(row[0])
