"""The cursor store: keeps one cursor's state durable, by group commit.

Edge: owns the cursor's writer task, its clock and its receipts. What one write does is
`CursorPersister`; here is when, what after a failure, and who hears of it.

    ack --> cursor.version 7 --> notify() --> writer task (one, only while there is something to do)
                                                |  linger, then write; acks that come meanwhile go
                                                |  out together in the write after it
    receipt for 7 <------- durable: 7 <---------'

                      write fails                      node written
    LEDGER  ------------------------------> FALLBACK -------------------.
       ^                                       |  ^    at a low rate    |
       |        a ledger can be written        |  '--------------------'
       '---------------------------------------'  a ledger is tried again and again, with backoff

Neither can be written: the acks stay in memory, `failing_since_ms` says since when, receipts wait
or time out. Somebody else owns the cursor: the store stops for good, every receipt fails, and
nothing is written any more.

Invariants: never two writes at once; a receipt is resolved only by a durable write that covers its
version; an idle store has no task and no timer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, Self
from zlib import crc32

from ackgate.errors import (
    AckGateError,
    CursorClosedError,
    InternalError,
    OwnershipError,
    PersistTimeoutError,
    StorageError,
)
from ackgate.persistence.cursor_opening import CursorOpening
from ackgate.persistence.cursor_persister import CursorPersister
from ackgate.persistence.limits import packing
from ackgate.persistence.outcome import PersistOutcome, PersistWhere, RecoveryReport
from ackgate.persistence.receipts import Receipts
from ackgate.persistence.store_stats import CursorStoreStats
from ackgate.persistence.write_pace import WritePace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.managed_cursor import ManagedCursor
    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position
    from ackgate.persistence.cursor_opening import OpenedCursor
    from ackgate.persistence.ports import LedgerClient, MetadataStore
    from ackgate.persistence.receipts import Done

log = logging.getLogger(__name__)


class CursorStore:
    """Keeps one cursor durable. Make it with `open`; one owner calls it, on one event loop."""

    __slots__ = (
        "_clock_ms",
        "_closed",
        "_durable_version",
        "_flushes",
        "_is_rolling",
        "_loop",
        "_on_outcome",
        "_pace",
        "_persister",
        "_receipts",
        "_settings",
        "_stopped",
        "_timer",
        "_wake",
        "_writer",
        "cursor",
        "failing_since_ms",
        "last_failure",
        "outcome",
        "persisted_mark_delete",
        "report",
    )

    cursor: ManagedCursor
    report: RecoveryReport
    """What opening found."""
    outcome: PersistOutcome | None
    """The last durable write of this store; None before the first."""
    persisted_mark_delete: Position
    """The mark-delete that is surely durable: what lies below it may be trimmed."""
    failing_since_ms: int | None
    """Since when nothing could be written; None while writes succeed."""
    last_failure: str | None
    """The last error, with place and cause; None when the last write succeeded."""

    def __init__(
        self,
        opened: OpenedCursor,
        ledger_client: LedgerClient,
        settings: PersistenceSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self.cursor = opened.cursor
        self.report = opened.report
        self.outcome = None
        self.persisted_mark_delete = opened.report.mark_delete
        self.failing_since_ms = None
        self.last_failure = None
        self._persister = CursorPersister(
            opened.cursor, opened.node, ledger_client, settings, clock_ms
        )
        self._settings = settings
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._durable_version = opened.durable_version
        self._pace = WritePace(seed=crc32(opened.node.path.encode()))
        self._receipts = Receipts()
        self._writer: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: list[_Flush] = []
        self._on_outcome: Callable[[], None] | None = None
        self._is_rolling = False
        self._stopped: AckGateError | None = None
        self._closed: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        *,
        path: str,
        ledgers: MessageLedgers,
        ledger_client: LedgerClient,
        metadata: MetadataStore,
        settings: PersistenceSettings,
        batch_index_acks: bool,
        owner_epoch: int,
        clock_ms: Callable[[], int],
        create_at: Position | None = None,
        cursor_properties: Mapping[str, str] | None = None,
    ) -> Self:
        """Recover the cursor at `path`, or make it at `create_at` if there is none.

        Raises `NoSuchNodeError` (none, and not to be made), `OwnershipError` (a later owner has
        it), `StorageError` (nothing was changed; try again), `CorruptRecordError`.
        """
        opening = CursorOpening(
            path=path,
            ledgers=ledgers,
            ledger_client=ledger_client,
            metadata=metadata,
            settings=settings,
            batch_index_acks=batch_index_acks,
            owner_epoch=owner_epoch,
            clock_ms=clock_ms,
            create_at=create_at,
            cursor_properties=cursor_properties or {},
        )
        opened = await opening.open()
        report = opened.report
        if report.lost is not None or report.torn_records:
            log.warning(
                "cursor %s recovered at version %d; lost: %s; skipped: %s",
                path,
                report.version,
                report.lost or "nothing",
                "; ".join(report.torn_records) or "nothing",
            )
        return cls(opened, ledger_client, settings, clock_ms)

    # ------------------------------------------------------------------ told by the owner

    def notify(self) -> None:
        """The cursor has changed. Cheap and idempotent."""
        if self._writer is None and self._has_work:
            self._writer = self._loop.create_task(self._write_while_dirty())

    def when_durable(self, version: int, done: Done) -> None:
        """Call `done` when `version` is durable (at once if it is), or with why it is not."""
        if version <= self._durable_version:
            _call(done, None)
        elif self._stopped is not None:
            _call(done, self._stopped)
        else:
            deadline = self._loop.time() + self._settings.ack_receipt_timeout_seconds
            self._receipts.add(version, deadline, done)
            if self._timer is None:
                self._timer = self._loop.call_at(deadline, self._fail_overdue)

    def on_outcome(self, callback: Callable[[], None]) -> None:
        """Call this after every durable write and every failure. There is one listener."""
        self._on_outcome = callback

    def configure(self, settings: PersistenceSettings) -> None:
        """New settings hold from the next write on."""
        self._settings = settings
        self._persister.configure(settings)

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """Text that users attached to the subscription."""
        return self._persister.node.cursor_properties

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace them, durably. Raises `StorageError`, `OwnershipError`, `NodeTooLargeError`."""
        self._check_running()
        try:
            await self._persister.node.put_properties(properties, packing(self._settings))
        except OwnershipError as error:
            self._stop(error)
            raise

    @property
    def is_dirty(self) -> bool:
        """Whether the cursor has changed since the last durable write."""
        return self.cursor.version > self._durable_version

    def statistics(self) -> CursorStoreStats:
        """Everything there is to say in numbers."""
        persister, pace = self._persister, self._pace
        return CursorStoreStats(
            report=self.report,
            outcome=self.outcome,
            persisted_version=self._durable_version,
            dirty_versions=max(0, self.cursor.version - self._durable_version),
            receipts_waiting=len(self._receipts),
            is_on_fallback=pace.is_on_fallback,
            failing_since_ms=self.failing_since_ms,
            last_failure=self.last_failure,
            cursor_ledger_id=persister.node.cursor_ledger_id,
            cursor_ledger_last_entry=persister.last_entry_id,
            ledger_writes=pace.ledger.writes,
            ledger_errors=pace.ledger.errors,
            metadata_writes=pace.node.writes,
            metadata_errors=pace.node.errors,
            bytes_written=pace.ledger.bytes_written + pace.node.bytes_written,
        )

    # ----------------------------------------------------------------------- told to write

    async def flush(self) -> None:
        """Try now to make everything durable, whatever linger, rate limit or backoff say.

        Replaces a ledger that is too old, of an idle cursor too. A failure is not raised: it shows
        in `failing_since_ms` and is retried. Raises `OwnershipError`, `CursorClosedError`.
        """
        self._check_running()
        self._is_rolling = self._is_rolling or self._persister.is_ledger_old()
        if self.is_dirty or self._is_rolling:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append(_Flush(self.cursor.version, flushed))
            self._pace.hurry()
            self.notify()
            self._wake_up()
            await flushed

    async def close(self) -> None:
        """Write what is dirty and let go of everything. A second close does nothing.

        Raises `StorageError` if something could not be written; the store is closed all the same.
        """
        if self._closed is None:
            await self._end_with(self._write_last)
        else:
            await asyncio.shield(self._closed)

    async def delete(self) -> None:
        """Remove the cursor's node, then its ledgers. After a `StorageError` it may be repeated."""
        if self._closed is None:
            await self._end_with(self._persister.delete)
        else:
            await asyncio.shield(self._closed)
            await self._persister.delete()

    async def _end_with(self, last_step: Callable[[], Awaitable[None]]) -> None:
        self._closed = self._loop.create_future()
        try:
            if self._writer is not None:
                self._wake_up()
                await asyncio.wait([self._writer])
            await last_step()
        finally:
            await self._persister.close()
            self._stop(CursorClosedError(f"cursor {self._path} is closed"))
            self._closed.set_result(None)

    async def _write_last(self) -> None:
        """Into the node if everything fits, so that the next opening needs no ledger."""
        if self._stopped is not None:
            return
        persister = self._persister
        writes: list[Callable[[], Awaitable[PersistOutcome | None]]] = []
        if self.is_dirty or persister.node.cursor_ledger_id is not None:
            writes.append(persister.to_node_if_it_fits)
        if self.is_dirty:
            writes += [persister.to_ledger, persister.to_node]
        failures: list[AckGateError] = []
        for write in writes:
            try:
                outcome = await write()
            except OwnershipError as error:
                self._stop(error)
                return
            except AckGateError as error:
                failures.append(error)
            else:
                if outcome is not None:
                    self._persisted(outcome)
                    break
        await persister.sweep()
        if self.is_dirty:
            raise StorageError(
                f"cursor {self._path} was closed with changes that are not durable: "
                + "; ".join(map(str, failures))
            ) from failures[-1]

    # --------------------------------------------------------------------------- the writer

    @property
    def _has_work(self) -> bool:
        return (
            (self.is_dirty or self._pace.is_on_fallback or self._is_rolling)
            and self._stopped is None
            and self._closed is None
        )

    async def _write_while_dirty(self) -> None:
        try:
            if not self._pace.is_hurried:
                await self._pause(self._settings.ack_persist_linger_ms / 1000)
            while self._has_work:
                wait = self._pace.due_at(is_dirty=self.is_dirty) - self._loop.time()
                if wait > 0:
                    await self._pause(wait)
                else:
                    await self._write()
                if not self.is_dirty:
                    await self._persister.sweep()
        except OwnershipError as error:
            log.warning("cursor %s: %s", self._path, error)
            self._stop(error)
        except Exception as error:
            log.exception("cursor %s: the writer failed", self._path)
            self._stop(InternalError(f"the writer of cursor {self._path} failed: {error!r}"))
        finally:
            # Nothing was awaited since the loop found no work, so no change can go unnoticed.
            self._writer = None

    async def _write(self) -> None:
        """One write: to the ledger, or else to the node."""
        pace, settings = self._pace, self._settings
        now = self._loop.time()
        asked = len(self._flushes)
        pace.begin(now, writes_per_second=settings.managed_ledger_default_mark_delete_rate_limit)
        failure: AckGateError | None = None
        if pace.ledger.try_at <= now:
            self._is_rolling = False
            try:
                outcome = await self._persister.to_ledger()
            except OwnershipError:
                raise
            except AckGateError as error:
                failure = error
                pace.ledger_failed(now)
            else:
                pace.ledger_wrote(outcome.bytes_written)
                self._persisted(outcome)
                return
        if self.is_dirty and pace.node.try_at <= now:
            try:
                outcome = await self._persister.to_node()
            except OwnershipError:
                raise
            except AckGateError as error:
                failure = error if failure is None else _joined(failure, error)
                pace.node_failed(now)
            else:
                if not pace.is_on_fallback:
                    log.warning("cursor %s is kept in its metadata node: %s", self._path, failure)
                pace.node_wrote(
                    outcome.bytes_written, now, writes_per_second=settings.fallback_rate_limit
                )
                self.last_failure = str(failure) if failure is not None else self.last_failure
                self._persisted(outcome)
                return
        if failure is not None:
            self._failed(failure, asked)

    def _persisted(self, outcome: PersistOutcome) -> None:
        was_complete = self.outcome is None or self.outcome.is_complete
        self.outcome = outcome
        self._durable_version = outcome.version
        self.persisted_mark_delete = outcome.mark_delete
        self.failing_since_ms = None
        if outcome.where is PersistWhere.LEDGER:
            self.last_failure = None
        if was_complete and not outcome.is_complete:
            log.warning(
                "cursor %s: %d of %d ranges and %d of %d partly acked entries are in memory only",
                self._path,
                outcome.ranges_dropped,
                outcome.ranges_in_memory,
                outcome.batch_indexes_dropped,
                outcome.batch_indexes_in_memory,
            )
        for done in self._receipts.take_durable(outcome.version):
            _call(done, None)
        if self._flushes:
            for flush in self._flushes:
                if flush.version <= outcome.version and not flush.done.done():
                    flush.done.set_result(None)
            self._flushes = [flush for flush in self._flushes if not flush.done.done()]
        if self._on_outcome is not None:
            self._on_outcome()

    def _failed(self, failure: AckGateError, flushes_asked: int) -> None:
        if self.is_dirty and self.failing_since_ms is None:
            self.failing_since_ms = self._clock_ms()
            log.warning("cursor %s cannot be persisted: %s", self._path, failure)
        self.last_failure = str(failure)
        for flush in self._flushes[:flushes_asked]:
            if not flush.done.done():
                flush.done.set_result(None)
        del self._flushes[:flushes_asked]
        if self._on_outcome is not None:
            self._on_outcome()

    async def _pause(self, seconds: float) -> None:
        """Wait, or until `_wake_up`."""
        if seconds <= 0:
            return
        self._wake = wake = self._loop.create_future()
        timer = self._loop.call_later(seconds, _resolve, wake)
        try:
            await wake
        finally:
            timer.cancel()
            self._wake = None

    def _wake_up(self) -> None:
        if self._wake is not None:
            _resolve(self._wake)

    # ----------------------------------------------------------------------------- inside

    @property
    def _path(self) -> str:
        return self._persister.node.path

    def _fail_overdue(self) -> None:
        for done in self._receipts.take_overdue(self._loop.time()):
            _call(
                done,
                PersistTimeoutError(
                    f"cursor {self._path}: applied, but not durable after "
                    f"{self._settings.ack_receipt_timeout_seconds} s: "
                    f"{self.last_failure or 'the write is still under way'}"
                ),
            )
        deadline = self._receipts.next_deadline
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._fail_overdue)

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._closed is not None:
            raise CursorClosedError(f"cursor {self._path} is being closed")

    def _stop(self, error: AckGateError) -> None:
        """No further write will come. Whoever waits for one hears why; the first reason counts."""
        if self._stopped is None:
            self._stopped = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for done in self._receipts.take_all():
            _call(done, self._stopped)
        for flush in self._flushes:
            if not flush.done.done():
                flush.done.set_exception(self._stopped)
        self._flushes.clear()
        if self._on_outcome is not None and isinstance(error, OwnershipError):
            self._on_outcome()


class _Flush(NamedTuple):
    version: int
    done: asyncio.Future[None]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call(done: Done, error: BaseException | None) -> None:
    try:
        done(error)
    except Exception as failure:  # noqa: BLE001  # one listener's fault is not the others'
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a receipt's callback failed", "exception": failure}
        )


def _joined(ledger: AckGateError, node: AckGateError) -> StorageError:
    return StorageError(f"ledger: {ledger}; metadata store: {node}")
