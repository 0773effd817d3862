"""The cursor store: keeps one cursor's state durable, by group commit, and says when it is.

Edge: the face of persistence towards the owner of a cursor. It opens, closes and deletes, keeps the
receipts, and hands every change on to the cursor's writer.

    ack --> cursor.version 7 --> notify() --> writer (a task, only while there is work)
                                                |  linger, then write; acks that come meanwhile
                                                |  go out together in the write after it
    receipt for 7 <------- durable: 7 <---------'

A failed write fails no receipt: the next write may still keep it. It is answered with an error when
its time is up, or when no write will ever come (closed, deleted, owned by somebody else).

Invariants: a receipt is answered once, and with success only by a durable write that covers its
version; an idle store has no task, and after its last receipt soon no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from ackgate.cursor.pending_nacks import NO_NACKS
from ackgate.errors import (
    CursorClosedError,
    OwnershipError,
    PersistTimeoutError,
    StorageError,
)
from ackgate.persistence.cursor_node import (
    check_users_properties,
    internal_properties,
    users_properties,
)
from ackgate.persistence.cursor_opening import CursorOpening
from ackgate.persistence.cursor_persister import CursorPersister
from ackgate.persistence.cursor_writer import CursorWriter
from ackgate.persistence.futures import fail, resolve
from ackgate.persistence.limits import packing
from ackgate.persistence.store_stats import CursorStoreStats
from ackgate.persistence.timed_receipts import TimedReceipts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.managed_cursor import ManagedCursor
    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.pending_nacks import PendingNacks
    from ackgate.cursor.position import Position
    from ackgate.errors import AckGateError
    from ackgate.persistence.cursor_opening import OpenedCursor
    from ackgate.persistence.nack_writes import NackSource
    from ackgate.persistence.outcome import PersistOutcome, PersistWhere, RecoveryReport
    from ackgate.persistence.ports import LedgerClient, MetadataStore
    from ackgate.persistence.receipts import Done, ReceiptQueue

log = logging.getLogger(__name__)

CLOSE_SECONDS_MAX: Final = 30.0
"""How long closing waits for stores that hang. Long, since thousands may be closed at once."""

RELEASE_SECONDS_MAX: Final = 10.0
"""How long it then waits for handles to be let go of."""


INTERNAL_SHARE: Final = 0.5
"""How much of the node the properties may take when internal ones are added: the cursor's own state
must find room there, too."""

FLUSH_SECONDS_MAX: Final = 10.0
"""How long a flush waits for a write that hangs."""


class _Flush(NamedTuple):
    """Somebody waits for `version` to be durable, or for a later attempt than this to fail."""

    version: int
    attempt: int
    done: asyncio.Future[None]


class WriteWitness(Protocol):
    """Who is told of every attempt to write, in order."""

    def wrote(self, outcome: PersistOutcome) -> None:
        """A state is durable."""

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        """A state could not be written there."""


class CursorStore:
    """Keeps one cursor durable. Make it with `open`; one owner calls it, on one event loop."""

    __slots__ = (
        "_closed",
        "_flushes",
        "_loop",
        "_on_outcome",
        "_persister",
        "_receipts",
        "_settings",
        "_witness",
        "_writer",
        "cursor",
        "recovered_nacks",
        "report",
    )

    cursor: ManagedCursor
    report: RecoveryReport
    """What opening found."""
    recovered_nacks: PendingNacks
    """Entries that were held back and still are: for whoever calls `keep_nacks`."""

    def __init__(
        self,
        opened: OpenedCursor,
        ledger_client: LedgerClient,
        settings: PersistenceSettings,
        clock_ms: Callable[[], int],
        receipts: Callable[[Callable[[Done], None]], ReceiptQueue],
    ) -> None:
        self.cursor = opened.cursor
        self.report = opened.report
        self.recovered_nacks = opened.nacks
        self._persister = CursorPersister(
            opened.cursor, opened.node, ledger_client, settings, clock_ms
        )
        self._writer = CursorWriter(
            self._persister,
            self,
            settings,
            clock_ms,
            durable_version=opened.durable_version,
            mark_delete=opened.report.mark_delete,
        )
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._receipts = receipts(self._fail_overdue)
        self._flushes: list[_Flush] = []
        self._on_outcome: Callable[[], None] | None = None
        self._witness: WriteWitness | None = None
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
        receipts: Callable[[Callable[[Done], None]], ReceiptQueue] = TimedReceipts,
    ) -> Self:
        """Recover the cursor at `path`, or make it at `create_at` if there is none.

        `receipts` makes the queue of acks that wait to be durable.

        Raises `NoSuchNodeError` (none, and not to be made), `OwnershipError` (a later owner has
        it), `StorageError` (nothing was changed; try again), `CorruptRecordError`, `CallerError` (a
        property whose name is kept for the broker).
        """
        check_users_properties(cursor_properties or {})
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
        dropped = report.dropped
        if dropped is not None and (
            dropped.entries_beyond_end or dropped.entries_of_unknown_ledgers
        ):
            log.warning(
                "cursor %s: %d acked entries are not there any more: the ends of ledgers, or whole ones,"
                " are lost; ledgers that do not exist: %s",
                path,
                dropped.entries_beyond_end + dropped.entries_of_unknown_ledgers,
                ", ".join(map(str, dropped.unknown_ledger_ids)) or "none",
            )
        return cls(opened, ledger_client, settings, clock_ms, receipts)

    # ------------------------------------------------------------------ what is known

    @property
    def outcome(self) -> PersistOutcome | None:
        """The last durable write of this store; None before the first."""
        return self._writer.outcome

    @property
    def persisted_mark_delete(self) -> Position:
        """The mark-delete that is surely durable: what lies below it may be trimmed."""
        return self._writer.persisted_mark_delete

    @property
    def failing_since_ms(self) -> int | None:
        """Since when nothing could be written; None while writes succeed."""
        return self._writer.failing_since_ms

    @property
    def last_failure(self) -> str | None:
        """The last error, with place and cause; None when the last write went to the ledger."""
        return self._writer.last_failure

    @property
    def why_stopped(self) -> AckGateError | None:
        """Why nothing will be written any more; None as long as something may be."""
        return self._writer.why_stopped

    @property
    def is_dirty(self) -> bool:
        """Whether the cursor, or what is held back, has changed since the last durable write."""
        return self._writer.is_dirty

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written and nothing is waited for."""
        return self._writer.is_idle

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """Text that users attached to the subscription."""
        return users_properties(self._persister.node.cursor_properties)

    @property
    def internal_properties(self) -> Mapping[str, str]:
        """What the broker keeps in the cursor's node besides, by names that users may not use."""
        return internal_properties(self._persister.node.cursor_properties)

    def statistics(self) -> CursorStoreStats:
        """Everything there is to say in numbers."""
        persister, writer, pace = self._persister, self._writer, self._writer.pace
        return CursorStoreStats(
            report=self.report,
            outcome=writer.outcome,
            persisted_version=writer.durable_version,
            dirty_versions=max(0, self.cursor.version - writer.durable_version),
            receipts_waiting=len(self._receipts),
            is_on_fallback=pace.is_on_fallback,
            failing_since_ms=writer.failing_since_ms,
            last_failure=writer.last_failure,
            cursor_ledger_id=persister.node.cursor_ledger_id,
            cursor_ledger_last_entry=persister.last_entry_id,
            ledger_writes=pace.ledger.writes,
            ledger_errors=pace.ledger.errors,
            metadata_writes=pace.node.writes,
            metadata_errors=pace.node.errors,
            bytes_written=pace.ledger.bytes_written + pace.node.bytes_written,
            nacks_persisted=persister.nacks.persisted,
            nacks_dropped=persister.nacks.dropped,
        )

    # ------------------------------------------------------------- told by the owner

    def keep_nacks(self, source: NackSource) -> None:
        """Keep what this one holds back, too; it has taken `recovered_nacks` over."""
        self._persister.nacks.attach(source, self.report.nacks)
        self.recovered_nacks = NO_NACKS

    def notify(self) -> None:
        """The cursor, or what is held back, has changed. Cheap and idempotent."""
        if self._closed is None:
            self._writer.start()

    def when_durable(self, version: int, done: Done) -> None:
        """Call `done` when `version` is durable (at once if it is), or with why it is not."""
        writer = self._writer
        if version <= writer.durable_version:
            _call(done, None)
        elif writer.why_stopped is not None:
            _call(done, writer.why_stopped)
        else:
            self._receipts.add(version, self._settings.ack_receipt_timeout_seconds, done)

    def on_outcome(self, callback: Callable[[], None]) -> None:
        """Call this after every durable write and every failure. There is one listener."""
        self._on_outcome = callback

    def tell_attempts(self, witness: WriteWitness) -> None:
        """Tell `witness` of every attempt to write, before anybody else hears what came of it."""
        self._witness = witness

    def configure(self, settings: PersistenceSettings) -> None:
        """New settings hold from the next write on."""
        self._settings = settings
        self._writer.configure(settings)

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace those of users, durably; internal ones stay.

        Raises `StorageError`, `OwnershipError`, `NodeTooLargeError`, `CallerError` (a name that is
        kept for the broker).
        """
        check_users_properties(properties)
        await self._change_properties(
            lambda held: {**internal_properties(held), **properties}, bytes_max=None
        )

    async def change_internal_properties(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace the internal ones by what `change` makes of them; those of users stay.

        One atomic, durable step; `change` may be asked more than once. Raises as
        `set_cursor_properties`; `NodeTooLargeError` when they leave too little room for the cursor's
        state.
        """
        await self._change_properties(
            lambda held: {**users_properties(held), **change(internal_properties(held))},
            bytes_max=int(
                INTERNAL_SHARE
                * min(self._settings.metadata_store_max_node_bytes, self._persister.node.bytes_max)
            ),
        )

    async def _change_properties(
        self,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        bytes_max: int | None,
    ) -> None:
        self._check_running()
        try:
            await self._persister.node.change_properties(
                change, packing(self._settings), bytes_max=bytes_max
            )
        except OwnershipError as error:
            self._writer.stop(error)
            raise

    async def flush(self) -> None:
        """Try now to make everything durable, whatever linger, rate limit or backoff say.

        Replaces a ledger that is too old, of an idle cursor too. A failure is not raised, nor that
        a write hangs: it shows in `failing_since_ms` and is retried. Raises `OwnershipError`,
        `CursorClosedError`.
        """
        self._check_running()
        is_old = self._persister.is_ledger_old()
        if self.is_dirty or is_old:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append(_Flush(self.cursor.version, self._writer.attempts, flushed))
            self._writer.hurry(roll=is_old)
            await asyncio.wait([flushed], timeout=FLUSH_SECONDS_MAX)
            if flushed.done():
                flushed.result()
            self._flushes = [flush for flush in self._flushes if flush.done is not flushed]

    # -------------------------------------------------------------------------- the end

    async def close(self) -> None:
        """Write what is dirty and let go of everything. A second close does nothing.

        Raises `StorageError` if something could not be written; the store is closed all the same.
        """
        if self._closed is None:
            await self._end_with(self._write_last)
        else:
            await asyncio.shield(self._closed)

    def abandon(self, error: OwnershipError) -> None:
        """Write no more, and let go at once: somebody else may own the cursor."""
        self._writer.stop(error)
        self._writer.abandon()
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._closed.set_result(None)

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
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._writer.finish()
                await last_step()
        except TimeoutError:
            self._writer.abandon()
            raise StorageError(
                f"cursor {self._path}: not closed cleanly within {CLOSE_SECONDS_MAX:g} s: "
                f"{self.last_failure or 'a store does not answer'}"
            ) from None
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS_MAX):
                    await self._persister.close()
            self._writer.stop(CursorClosedError(f"cursor {self._path} is closed"))
            self._closed.set_result(None)

    async def _write_last(self) -> None:
        if self._writer.why_stopped is None:
            await self._writer.write_last()

    def _check_running(self) -> None:
        if self._writer.why_stopped is not None:
            raise self._writer.why_stopped
        if self._closed is not None:
            raise CursorClosedError(f"cursor {self._path} is being closed")

    @property
    def _path(self) -> str:
        return self._persister.node.path

    # --------------------------------------------------------------- told by the writer

    def wrote(self, outcome: PersistOutcome) -> None:
        """See `WriterOwner`."""
        if self._witness is not None:
            self._witness.wrote(outcome)
        for done in self._receipts.take_durable(outcome.version):
            _call(done, None)
        if self._flushes:
            self._settle_flushes(lambda flush: flush.version <= outcome.version)
        self._tell_listener()

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        """See `WriterOwner`."""
        if self._witness is not None:
            self._witness.attempt_failed(where, version, error, failing_since_ms)

    def failed(self, attempt: int) -> None:
        """See `WriterOwner`. Receipts stay: the next attempt may still keep them."""
        self._settle_flushes(lambda flush: flush.attempt < attempt)
        self._tell_listener()

    def stopped(self, error: AckGateError) -> None:
        """See `WriterOwner`. Whoever waits for a write hears why none will come."""
        for done in self._receipts.take_all():
            _call(done, error)
        for flush in self._flushes:
            fail(flush.done, error)
        self._flushes.clear()
        if isinstance(error, OwnershipError):
            self._tell_listener()

    def _settle_flushes(self, is_settled: Callable[[_Flush], bool]) -> None:
        waiting = []
        for flush in self._flushes:
            if is_settled(flush):
                resolve(flush.done)
            else:
                waiting.append(flush)
        self._flushes = waiting

    def _tell_listener(self) -> None:
        if self._on_outcome is not None:
            self._on_outcome()

    def _fail_overdue(self, done: Done) -> None:
        _call(
            done,
            PersistTimeoutError(
                f"cursor {self._path}: applied, but not durable after "
                f"{self._settings.ack_receipt_timeout_seconds} s: "
                f"{self.last_failure or 'the write is still under way'}"
            ),
        )


def _call(done: Done, error: BaseException | None) -> None:
    try:
        done(error)
    except Exception as failure:  # noqa: BLE001  # one listener's fault is not the others'
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a receipt's callback failed", "exception": failure}
        )
