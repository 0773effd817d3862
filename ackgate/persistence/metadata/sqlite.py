r"""The embedded metadata store: one SQLite file, written by one thread with group commit.

Edge: the thread. Every operation is a small closure that runs in the worker thread; all those
requested in one turn of the loop, or during a commit, share the next transaction:

    loop    put  put  create  |         get  put  put  put      |
              \____|____/    |            \____|____|___/     |
    worker                 [BEGIN ... log, sync, COMMIT]     [BEGIN ... log, sync, COMMIT]
                              |                                 |
    loop                   results, then watches             results, then watches

Results, also those of reads, are returned only after the commit: no caller sees what may yet be lost.
Our own log, whose records have checksums, makes a commit durable (`commit_log`); `sqlite_file`
handles damaged files. If a commit fails, every operation in it failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    InternalError,
    MetadataStoreError,
)
from ackgate.persistence.metadata.memory import wall_clock_ms
from ackgate.persistence.metadata.node_table import NodeTable
from ackgate.persistence.metadata.sqlite_file import (
    Database,
    SoleWriter,
    connect_reader,
    translated,
)
from ackgate.persistence.metadata.watches import Watches
from ackgate.persistence.ports import NodeValue, SessionState
from ackgate.persistence.ports.node_rules import NODE_BYTES_MAX, check_path, check_value
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ports import WatchEvent

T = TypeVar("T")

logger = logging.getLogger(__name__)

OPERATIONS_PER_COMMIT_MAX: Final = 4096
"""Bounds how long the first operation of a transaction waits for the last."""

OPERATIONS_WAITING_MAX: Final = 200_000
"""Beyond this the store refuses: something is far slower than what it is asked to do."""


class _Operation(NamedTuple):
    run: Callable[[NodeTable], Any]
    done: asyncio.Future[Any]


class _Answer(NamedTuple):
    done: asyncio.Future[Any]
    result: Any
    error: BaseException | None


class _Opened(NamedTuple):
    """What the worker thread works on."""

    connection: sqlite3.Connection
    database: Database | None
    """None: opened for reading."""
    close: Callable[[], None]


class SqliteMetadataStore:
    """The one session to a SQLite file. Implements `MetadataStore`. Make it with `open`."""

    def __init__(
        self, path: Path, *, read_only: bool, node_bytes_max: int, clock_ms: Callable[[], int]
    ) -> None:
        self._path = path
        self._is_read_only = read_only
        self._node_bytes_max = node_bytes_max
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._work_queue: queue.SimpleQueue[list[_Operation] | asyncio.Future[bool] | None] = (
            queue.SimpleQueue()
        )
        """Batches to commit, requested checkpoints, and the end."""
        self._waiting: list[_Operation] = []
        self._is_committing = False
        self._is_sending = False
        self._watches = Watches()
        self._closing: asyncio.Future[None] | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._work, name=f"ackgate-metadata {path.name}", daemon=True
        )
        self.commits = 0
        """Transactions committed so far: with `operations` says how well group commit works."""
        self.operations = 0
        """Operations answered so far."""

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        read_only: bool = False,
        node_bytes_max: int = NODE_BYTES_MAX,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> Self:
        """Open the file, making it unless `read_only`.

        Raises `DataDirectoryBusyError` (another process writes it), `ConfigurationError` (no file
        to read, or not one of ours), `MetadataStoreError`.
        """
        store = cls(
            Path(path), read_only=read_only, node_bytes_max=node_bytes_max, clock_ms=clock_ms
        )
        store._thread.start()
        await store._opened
        return store

    @property
    def node_bytes_max(self) -> int:
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        return SessionState.CONNECTED if self._closing is None else SessionState.LOST

    @property
    def lease_until(self) -> float:
        """The lock on a local file does not expire."""
        return math.inf

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        check_path(path)
        return await self._submit(lambda table: table.get(path))

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        self._check_write(path, value)
        return await self._submit(lambda table: table.put(path, value, expected_version))

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, session: int = 0
    ) -> None:
        """See `MetadataStore.create`. An ephemeral node ends with `end_session` of this number, too."""
        self._check_write(path, value)
        await self._submit(lambda table: table.create(path, value, ephemeral, session))

    async def end_session(self, session: int) -> None:
        """Delete the ephemeral nodes that were created for it: for who shares this session with others."""
        await self._submit(lambda table: table.end_session(session))

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        self._check_write(path, b"")
        await self._submit(lambda table: table.delete(path, expected_version))

    async def children(self, path: str) -> list[str]:
        if path != "/":
            check_path(path)
        return await self._submit(lambda table: table.children(path))

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        return self._watches.add(path, on_event)

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        """A local file has no session that could be suspended: `on_change` is never called."""
        del on_change
        return lambda: None

    async def renew(self) -> None:
        """A local file's session ends with `close` only: there is nothing to renew."""
        if self._closing is not None:
            raise ClosedHandleError(f"the metadata store {self._path} is closed")

    async def checkpoint(self) -> bool:
        """Bring the file itself up to date. False when a reader or the disk prevents it."""
        if self._closing is not None:
            raise ClosedHandleError(f"the metadata store {self._path} is closed")
        done: asyncio.Future[bool] = self._loop.create_future()
        self._work_queue.put(done)
        return await done

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._work_queue.put(self._waiting)
            self._work_queue.put(None)
            self._waiting = []
            await asyncio.shield(self._ended)
            self._thread.join()
            self._watches.clear()
            self._closing.set_result(None)
        await asyncio.shield(self._closing)

    # ------------------------------------------------------------------ on the loop

    def _check_write(self, path: str, value: bytes) -> None:
        check_path(path)
        check_value(path, value, self._node_bytes_max)
        if self._is_read_only:
            raise CallerError(f"{self._path} was opened for reading only")

    def _submit(self, run: Callable[[NodeTable], T]) -> asyncio.Future[T]:
        if self._closing is not None:
            raise ClosedHandleError(f"the metadata store {self._path} is closed")
        if len(self._waiting) >= OPERATIONS_WAITING_MAX:
            raise MetadataStoreError(f"{self._path}: {len(self._waiting)} operations are waiting")
        done: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append(_Operation(run, done))
        if not self._is_committing:
            self._send_soon()
        return done

    def _send_soon(self) -> None:
        """Send at the end of this turn of the loop, since the running callback may request more."""
        if not self._is_sending:
            self._is_sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_sending = False
        if self._waiting and not self._is_committing:
            self._is_committing = True
            self._work_queue.put(self._waiting[:OPERATIONS_PER_COMMIT_MAX])
            del self._waiting[:OPERATIONS_PER_COMMIT_MAX]

    def _deliver(self, answers: list[_Answer], events: list[WatchEvent]) -> None:
        self._is_committing = False
        self.operations += len(answers)
        self.commits += 1
        for done, result, error in answers:
            if done.done():  # the caller was cancelled; what it asked for is done all the same
                continue
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)
        self._watches.fire(events)
        if self._waiting:
            self._send_soon()  # after the turn in which the answers' callers go on

    # ------------------------------------------------------------------ in the worker thread

    def _work(self) -> None:
        try:
            opened = self._open_reader() if self._is_read_only else self._open_writer()
        except (sqlite3.Error, OSError) as error:
            self._post(fail, self._opened, translated(self._path, error))
            return
        except Exception as error:  # noqa: BLE001  # goes to the caller of `open`
            self._post(fail, self._opened, error)
            return
        try:
            self._serve(opened)
        finally:
            opened.close()
            self._post(resolve, self._ended)

    def _open_reader(self) -> _Opened:
        connection = connect_reader(self._path)
        return _Opened(connection, None, connection.close)

    def _open_writer(self) -> _Opened:
        lock = SoleWriter(self._path)
        try:
            database = Database.open(self._path)
        except BaseException:
            lock.release()
            raise

        def close() -> None:
            database.close()
            lock.release()

        return _Opened(database.connection, database, close)

    def _serve(self, opened: _Opened) -> None:
        table = NodeTable(opened.connection, self._clock_ms)
        if opened.database is not None:
            _, error = self._transact(opened, table, table.delete_ephemeral)
            if error is not None:
                self._post(fail, self._opened, error)
                return
        self._post(resolve, self._opened)
        while (work := self._work_queue.get()) is not None:
            if isinstance(work, asyncio.Future):
                self._post(resolve, work, self._checkpoint(opened))
            elif work:
                self._commit(opened, table, work)
                if opened.database is not None and opened.database.is_checkpoint_due:
                    self._checkpoint(opened)
        if opened.database is not None:
            self._transact(opened, table, table.delete_ephemeral)

    def _commit(self, opened: _Opened, table: NodeTable, batch: list[_Operation]) -> None:
        table.events = []
        answers, error = self._transact(opened, table, partial(_run_all, batch, table))
        if answers is None:
            self._post(self._deliver, [_Answer(o.done, None, error) for o in batch], [])
        else:
            self._post(self._deliver, answers, table.events)
        # The next batch may be long in coming: until then nothing holds this one.
        batch.clear()
        table.events, table.changes = [], []

    def _transact(
        self, opened: _Opened, table: NodeTable, run: Callable[[], T]
    ) -> tuple[T | None, AckGateError | None]:
        """Run inside one transaction. Either everything is committed or nothing is."""
        try:
            if opened.database is not None:
                return opened.database.transact(table, run), None
            return _read(opened.connection, run), None
        except (sqlite3.Error, OSError) as error:
            failure: AckGateError = translated(self._path, error)
            failure.__cause__ = error
        except Exception as error:  # noqa: BLE001  # a bug, but the thread must outlive it
            failure = InternalError(f"{self._path}: {error!r}")
            failure.__cause__ = error
        return None, failure

    def _checkpoint(self, opened: _Opened) -> bool:
        if opened.database is None:
            return False
        try:
            return opened.database.checkpoint()
        except (sqlite3.Error, OSError) as error:
            logger.warning("%s: no checkpoint, tried again later: %s", self._path, error)
            return False

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        # A closed loop raises: then there are no waiters any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _read(connection: sqlite3.Connection, run: Callable[[], T]) -> T:
    connection.execute("BEGIN")
    try:
        return run()
    finally:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("COMMIT")


def _run_all(batch: list[_Operation], table: NodeTable) -> list[_Answer]:
    answers = []
    for run, done in batch:
        try:
            answers.append(_Answer(done, run(table), None))
        except AckGateError as error:
            answers.append(_Answer(done, None, error))
    return answers
