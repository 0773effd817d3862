r"""The embedded metadata store: one SQLite file, written by one thread with group commit.

Edge: the thread. Every operation is a small closure that runs in the worker thread; all that were
asked for in one turn of the loop, or while a transaction was being committed, share the next one:

    loop    put  put  create  |         get  put  put  put      |
              \____|____/    |            \____|____|___/     |
    worker                 [BEGIN ... COMMIT, fsync]         [BEGIN ... COMMIT, fsync]
                              |                                 |
    loop                   results, then watches             results, then watches

A result is handed out only after the commit, reads too: nobody sees what may yet be lost. The
journal is WAL with ``synchronous = FULL``. If a commit fails, every operation in it failed.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from ackgate.persistence.futures import fail, resolve
from ackgate.persistence.metadata.memory import wall_clock_ms
from ackgate.persistence.metadata.node_table import NodeTable
from ackgate.persistence.metadata.rules import NODE_BYTES_MAX, check_path, check_value
from ackgate.persistence.metadata.sqlite_file import (
    SoleWriter,
    connect_reader,
    connect_writer,
    translated,
)
from ackgate.persistence.metadata.watches import Watches
from ackgate.persistence.ports import NodeValue, SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ports import WatchEvent

T = TypeVar("T")

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
        self._batches: queue.SimpleQueue[list[_Operation] | None] = queue.SimpleQueue()
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
        """See `MetadataStore.node_bytes_max`."""
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        """See `MetadataStore.session_state`."""
        return SessionState.CONNECTED if self._closing is None else SessionState.LOST

    @property
    def lease_until(self) -> float:
        """The lock on a local file does not expire."""
        return math.inf

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        """See `MetadataStore.get`."""
        check_path(path)
        return await self._submit(lambda table: table.get(path))

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        """See `MetadataStore.put`."""
        self._check_write(path, value)
        return await self._submit(lambda table: table.put(path, value, expected_version))

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """See `MetadataStore.create`."""
        self._check_write(path, value)
        await self._submit(lambda table: table.create(path, value, ephemeral))

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """See `MetadataStore.delete`."""
        self._check_write(path, b"")
        await self._submit(lambda table: table.delete(path, expected_version))

    async def children(self, path: str) -> list[str]:
        """See `MetadataStore.children`."""
        if path != "/":
            check_path(path)
        return await self._submit(lambda table: table.children(path))

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        return self._watches.add(path, on_event)

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        """A local file has no session that could be suspended: `on_change` is never called."""
        del on_change
        return lambda: None

    async def renew(self) -> None:
        """A local file's session ends with `close` only: there is nothing to renew."""
        if self._closing is not None:
            raise ClosedHandleError(f"the metadata store {self._path} is closed")

    async def close(self) -> None:
        """See `MetadataStore.close`."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._batches.put(self._waiting)
            self._batches.put(None)
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
        """Send when this turn of the loop is over: whoever is running may ask for more."""
        if not self._is_sending:
            self._is_sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_sending = False
        if self._waiting and not self._is_committing:
            self._is_committing = True
            self._batches.put(self._waiting[:OPERATIONS_PER_COMMIT_MAX])
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
            lock = None if self._is_read_only else SoleWriter(self._path)
            try:
                connection = (
                    connect_reader(self._path) if lock is None else connect_writer(self._path)
                )
            except BaseException:
                if lock is not None:
                    lock.release()
                raise
        except (sqlite3.Error, OSError) as error:
            self._post(fail, self._opened, translated(self._path, error))
            return
        except Exception as error:  # noqa: BLE001  # goes to whoever awaits `open`
            self._post(fail, self._opened, error)
            return
        try:
            self._serve(NodeTable(connection, self._clock_ms), connection)
        finally:
            connection.close()
            if lock is not None:
                lock.release()
            self._post(resolve, self._ended)

    def _serve(self, table: NodeTable, connection: sqlite3.Connection) -> None:
        if not self._is_read_only:
            _, error = self._transact(connection, table.delete_ephemeral)
            if error is not None:
                self._post(fail, self._opened, error)
                return
        self._post(resolve, self._opened)
        while (batch := self._batches.get()) is not None:
            if batch:
                self._commit(connection, table, batch)
        if not self._is_read_only:
            self._transact(connection, table.delete_ephemeral)

    def _commit(
        self, connection: sqlite3.Connection, table: NodeTable, batch: list[_Operation]
    ) -> None:
        table.events = []
        answers, error = self._transact(connection, partial(_run_all, batch, table))
        if answers is None:
            self._post(self._deliver, [_Answer(o.done, None, error) for o in batch], [])
        else:
            self._post(self._deliver, answers, table.events)

    def _transact(
        self, connection: sqlite3.Connection, run: Callable[[], T]
    ) -> tuple[T | None, AckGateError | None]:
        """Run inside one transaction. Either everything is committed or nothing is."""
        try:
            connection.execute("BEGIN" if self._is_read_only else "BEGIN IMMEDIATE")
            result = run()
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure: AckGateError = translated(self._path, error)
            failure.__cause__ = error
        except Exception as error:  # noqa: BLE001  # a bug, but the thread must outlive it
            failure = InternalError(f"{self._path}: {error!r}")
            failure.__cause__ = error
        else:
            return result, None
        # SQLite may have rolled back by itself; the failure is reported in any case.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        return None, failure

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        # A closed loop raises: then nobody waits for an answer any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _run_all(batch: list[_Operation], table: NodeTable) -> list[_Answer]:
    answers = []
    for run, done in batch:
        try:
            answers.append(_Answer(done, run(table), None))
        except AckGateError as error:
            answers.append(_Answer(done, None, error))
    return answers
