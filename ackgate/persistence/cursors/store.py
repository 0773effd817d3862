"""The cursor store: keeps one cursor's state durable, by group commit, and says when it is.

Edge: the face of persistence towards the owner of a cursor, and the driver of its write path. One task,
only while there is work, carries out the steps of `WritePath` and reports the results::

    ack --> cursor.version 7 --> notify() --> task: next_step --> append, begin, put --> wrote / failed
                                                |  later acks are in the next write
    until_durable(7) <------- durable: 7 <------'

A failed write does not fail the receipts: the next write may still store the state. Waiting ends with an
error at its timeout, or when there will be no write (closed, deleted, another owner).

Invariants: each waiter gets one answer, success only after a durable write that covers the version; an
idle store has no task and no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeAlias

from ackgate.cursor import NO_NACKS
from ackgate.errors import (
    AckGateError,
    CursorClosedError,
    InternalError,
    LedgerFencedError,
    NodeTooLargeError,
    OwnershipError,
    PersistTimeoutError,
    StorageError,
)
from ackgate.persistence.cursors.ledger import delete_ledger, ledger_options
from ackgate.persistence.cursors.node import (
    CursorNode,
    OwnedCursorNode,
    check_users_properties,
    encode_cursor_node,
    internal_properties,
    users_properties,
)
from ackgate.persistence.cursors.opening import CursorOpening
from ackgate.persistence.cursors.write_path import (
    LAST_WRITES_MAX,
    AppendRecord,
    BeginLedger,
    PutState,
    RoundReport,
    SettleNode,
    WaitUntil,
    WriteFailure,
    WritePath,
)
from ackgate.persistence.records.limits import packing
from ackgate.persistence.records.outcome import CursorStoreStats, PersistWhere
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import ManagedCursor, MessageLedgers, PendingNacks, Position
    from ackgate.persistence.cursors.opening import OpenedCursor
    from ackgate.persistence.cursors.write_path import WriteStep
    from ackgate.persistence.ports import LedgerClient, LedgerWriter, MetadataStore
    from ackgate.persistence.records.forming import NackSource
    from ackgate.persistence.records.outcome import PersistOutcome, RecoveryReport

    Done: TypeAlias = Callable[[BaseException | None], None]

log = logging.getLogger(__name__)

CLOSE_SECONDS_MAX: Final = 30.0
"""How long closing waits for stores that hang. Long, since thousands may be closed at once."""

RELEASE_SECONDS_MAX: Final = 10.0
"""How long it then waits for handles to be let go of."""

FLUSH_SECONDS_MAX: Final = 10.0
"""How long a flush waits for a write that hangs."""

STALL_SECONDS: Final = 5.0
"""A round that takes this long counts as failing, since it began, until it is through."""

INTERNAL_SHARE: Final = 0.5
"""How much of the node the properties may take when internal ones are added: the cursor's own state
must find room there, too."""


class WriteObserver(Protocol):
    """Records every attempt to write, in order."""

    def wrote(self, outcome: PersistOutcome) -> None: ...

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        """Record that a state could not be written to this store."""


class _Waiting:
    """A call that waits for `version` to be durable, for a limited time."""

    __slots__ = ("done", "timer", "version")

    timer: asyncio.TimerHandle

    def __init__(self, version: int, done: Done) -> None:
        self.version = version
        self.done = done


class _Flush(NamedTuple):
    """A call that waits for `version` to be durable, or for a later round than this to fail."""

    version: int
    round: int
    done: asyncio.Future[None]


class CursorStore:
    """Keeps one cursor durable. Make it with `open`; one owner calls it, on one event loop."""

    __slots__ = (
        "_client",
        "_clock_ms",
        "_closed",
        "_flushes",
        "_has_logged_drop",
        "_has_logged_failure",
        "_has_logged_fallback",
        "_is_finishing",
        "_is_resting",
        "_loop",
        "_node",
        "_observer",
        "_on_outcome",
        "_path",
        "_recovered",
        "_settings",
        "_stopped",
        "_sweep",
        "_task",
        "_waiting",
        "_wake",
        "_write_began",
        "_writers",
        "cursor",
        "recovered_nacks",
        "report",
        "write_seconds",
    )

    cursor: ManagedCursor
    report: RecoveryReport
    """What opening found."""
    write_seconds: float
    """How long the last durable write took, by a finer clock than the loop's."""
    recovered_nacks: PendingNacks
    """Recovered entries that are still to be held; see `keep_nacks`."""

    def __init__(
        self,
        opened: OpenedCursor,
        ledger_client: LedgerClient,
        metadata: MetadataStore,
        settings: PersistenceSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self.cursor = opened.cursor
        self.report = opened.report
        self.recovered_nacks = opened.nacks
        self._recovered = opened.outcome
        self._settings = settings
        self._node = OwnedCursorNode(
            metadata,
            opened.path,
            opened.node,
            version=opened.node_version,
            encode=lambda node: encode_cursor_node(node, packing(self._settings)),
        )
        self._path = WritePath(
            opened.cursor,
            self._node,
            settings,
            durable_version=opened.durable_version,
            mark_delete=opened.report.mark_delete,
        )
        self._client = ledger_client
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._writers: dict[int, LedgerWriter] = {}
        """Handles of the ledgers that are open, or were."""
        self._task: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_resting = False
        """Whether the task waits with no new acks to write."""
        self._is_finishing = False
        self._stopped: AckGateError | None = None
        self._waiting: list[_Waiting] = []
        self._flushes: list[_Flush] = []
        self._on_outcome: Callable[[], None] | None = None
        self._observer: WriteObserver | None = None
        self._closed: asyncio.Future[None] | None = None
        self.write_seconds = self._write_began = 0.0
        self._has_logged_failure = self._has_logged_fallback = self._has_logged_drop = False

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
        _log_recovery(path, opened.report)
        return cls(opened, ledger_client, metadata, settings, clock_ms)

    # ------------------------------------------------------------------ what is known

    @property
    def outcome(self) -> PersistOutcome | None:
        """The last durable write of this store; None before the first."""
        return self._path.outcome

    @property
    def durable_outcome(self) -> PersistOutcome:
        """How the durable state is stored: by the last write, or as recovery found it."""
        return self._path.outcome or self._recovered

    @property
    def persisted_mark_delete(self) -> Position:
        """What is acked and surely durable as that: up to here messages may be trimmed.

        A cursor that was moved back has not acked what it moved over, whether that is durable or not.
        """
        return min(self._path.persisted_mark_delete, self.cursor.mark_delete)

    @property
    def failing_since_ms(self) -> int | None:
        """Since when nothing could be written; None while writes succeed."""
        return self._path.failing_since_ms

    @property
    def last_failure(self) -> str | None:
        """The last error, with place and cause; None when the last write went to the ledger."""
        return self._path.last_failure

    @property
    def is_on_fallback(self) -> bool:
        """Whether the state goes to the metadata store because the ledger fails."""
        return self._path.is_on_fallback

    @property
    def why_stopped(self) -> AckGateError | None:
        """Why nothing will be written any more; None as long as something may be."""
        return self._stopped

    @property
    def is_dirty(self) -> bool:
        """Whether the cursor, or what is held back, has changed since the last durable write."""
        return self._path.is_dirty

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written and nothing is waited for."""
        return self._task is None and self._sweep is None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, deleted or abandoned."""
        return self._closed is not None

    @property
    def nacks_durable_version(self) -> int:
        """The version of the newest durable image of what is held back."""
        return self._path.nacks.durable_version

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """Text that users attached to the subscription."""
        return users_properties(self._node.cursor_properties)

    @property
    def internal_properties(self) -> Mapping[str, str]:
        """What the broker keeps in the cursor's node besides, by names that users may not use."""
        return internal_properties(self._node.cursor_properties)

    def statistics(self) -> CursorStoreStats:
        """Counts since it was opened, and how the state is kept now; frozen. O(1)."""
        path = self._path
        return CursorStoreStats(
            report=self.report,
            outcome=path.outcome,
            persisted_version=path.durable_version,
            dirty_versions=max(0, self.cursor.version - path.durable_version),
            receipts_waiting=len(self._waiting),
            is_on_fallback=path.is_on_fallback,
            failing_since_ms=path.failing_since_ms,
            last_failure=path.last_failure,
            cursor_ledger_id=self._node.cursor_ledger_id,
            cursor_ledger_last_entry=path.last_entry_id,
            ledger_writes=path.ledger.writes,
            ledger_errors=path.ledger.errors,
            metadata_writes=path.node_store.writes,
            metadata_errors=path.node_store.errors,
            bytes_written=path.ledger.bytes_written + path.node_store.bytes_written,
            nacks_persisted=path.nacks.persisted,
            nacks_dropped=path.nacks.dropped,
        )

    # ------------------------------------------------------------- called by the owner

    def keep_nacks(self, source: NackSource | None) -> None:
        """Persist what `source` holds back, too; it has taken over `recovered_nacks`. Idempotent.

        None: nothing is held back so far.
        """
        if source is not None:
            self._path.nacks.attach(source, self.report.nacks)
            self.recovered_nacks = NO_NACKS

    def notify(self) -> bool:
        """The cursor, or what is held back, has changed. Cheap and idempotent.

        False: there is nothing to write. An earlier write took it along, or the settings keep no nacks;
        `durable_outcome` covers it, and no outcome will follow.
        """
        if self._closed is not None:
            return True
        if self._task is None:
            if self._path.has_work and self._stopped is None and not self._is_finishing:
                self._path.changed(self._loop.time())
                self._task = self._loop.create_task(self._write_while_needed())
        elif self._is_resting:
            self._path.changed(self._loop.time())
            self._wake_up()
        return self._stopped is not None or self.is_dirty

    def when_durable(self, version: int, done: Done) -> None:
        """Call `done` when `version` is durable (at once if it is), or with why it is not.

        After `ackReceiptTimeoutSeconds` that is a `PersistTimeoutError`; the store goes on trying.
        """
        if version <= self._path.durable_version:
            _call(done, None)
        elif self._stopped is not None:
            _call(done, self._stopped)
        else:
            seconds = self._settings.ack_receipt_timeout_seconds
            waiting = _Waiting(version, done)
            waiting.timer = self._loop.call_later(seconds, self._overdue, waiting, seconds)
            self._waiting.append(waiting)

    def _overdue(self, waiting: _Waiting, seconds: float) -> None:
        self._waiting.remove(waiting)
        why = self.last_failure or "the write is still under way"
        error = f"cursor {self._node.path}: applied, but not durable after {seconds} s: {why}"
        _call(waiting.done, PersistTimeoutError(error))

    async def until_durable(self, version: int | None = None) -> PersistOutcome:
        """Return when a write is durable that covers `version` (None: everything so far).

        The outcome says what that write kept. Raises `PersistTimeoutError` as `when_durable`,
        `CursorClosedError`, `OwnershipError`.
        """
        durable: asyncio.Future[None] = self._loop.create_future()
        self.when_durable(
            self.cursor.version if version is None else version,
            lambda error: resolve(durable) if error is None else fail(durable, error),
        )
        self.notify()
        await durable
        return self.durable_outcome

    def on_outcome(self, callback: Callable[[], None]) -> None:
        """Set the one callback that is called after every durable write and every failure."""
        self._on_outcome = callback

    def report_attempts(self, observer: WriteObserver) -> None:
        """Report every attempt to write to `observer`, before the result is reported elsewhere."""
        self._observer = observer

    def configure(self, settings: PersistenceSettings) -> None:
        """Use these settings from the next write on."""
        self._settings = settings
        self._path.configure(settings)

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
                * min(self._settings.metadata_store_max_node_bytes, self._node.bytes_max)
            ),
        )

    async def _change_properties(
        self,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        bytes_max: int | None,
    ) -> None:
        self._check_running()

        def check_room(node: CursorNode) -> None:
            taken = len(encode_cursor_node(node._replace(state=None), packing(self._settings)))
            if bytes_max is not None and taken > bytes_max:
                raise NodeTooLargeError(
                    f"the properties would take {taken} bytes of the node, and may take {bytes_max}"
                )

        try:
            await self._node.change_properties(change, check_room)
        except OwnershipError as error:
            self._stop(error)
            raise

    async def flush(self) -> bool:
        """Try now to make everything durable, whatever linger, rate limit or backoff say.

        Replaces a ledger that is outdated, of an idle cursor too. Returns whether all that was acked
        when it was called is written (`durable_outcome` says what of it was kept). A failure is not
        raised, nor that a write hangs: it shows in `failing_since_ms` and is retried. Raises
        `OwnershipError`, `CursorClosedError`.
        """
        self._check_running()
        version, path = self.cursor.version, self._path
        is_outdated = path.is_ledger_outdated(self._loop.time())
        if self.is_dirty or is_outdated:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append(_Flush(version, path.rounds, flushed))
            path.hurry(roll=is_outdated)
            self.notify()
            self._wake_up()
            await asyncio.wait([flushed], timeout=FLUSH_SECONDS_MAX)
            if flushed.done():
                flushed.result()
            self._flushes = [flush for flush in self._flushes if flush.done is not flushed]
        return version <= path.durable_version

    # -------------------------------------------------------------------------- the task

    async def _write_while_needed(self) -> None:
        try:
            while self._stopped is None and not self._is_finishing:
                step = self._path.next_step(self._loop.time(), self._clock_ms())
                if step is None:
                    break
                match step:
                    case WaitUntil(at=at):
                        await self._rest(at)
                    case RoundReport():
                        self._report(step)
                    case _:
                        await self._carry_out_watched(step)
                if self._sweep is None and self._path.has_garbage(self._loop.time()):
                    self._sweep = self._loop.create_task(self._sweep_beside())
        except OwnershipError as error:
            log.warning("cursor %s: %s", self._node.path, error)
            self._stop(error)
        except Exception as error:
            log.exception("cursor %s: its writes failed", self._node.path)
            self._stop(InternalError(f"the writes of cursor {self._node.path} failed: {error!r}"))
        finally:
            # Nothing was awaited since the path had no step, so no change can go unnoticed.
            self._task = None

    async def _rest(self, until: float) -> None:
        """Wait until that time, or to be woken. With no acks to write, the first ack wakes."""
        self._is_resting = self.cursor.version <= self._path.durable_version
        self._wake = wake = self._loop.create_future()
        timer = self._loop.call_at(until, resolve, wake)
        try:
            await wake
        finally:
            timer.cancel()
            self._wake = None
            self._is_resting = False

    def _wake_up(self) -> None:
        if self._wake is not None:
            resolve(self._wake)

    async def _carry_out_watched(self, step: WriteStep) -> None:
        """As `_carry_out`, but fails the waiters when it hangs."""
        stall = self._loop.call_later(STALL_SECONDS, self._stalled)
        try:
            await self._carry_out(step)
        finally:
            stall.cancel()

    async def _carry_out(self, step: WriteStep) -> AckGateError | None:
        """Do what the path says and report what came of it. Raises `OwnershipError`.

        Returns why it failed. When it is cancelled it is not known what was done.
        """
        path, now, now_ms = self._path, self._loop.time, self._clock_ms
        self._write_began = perf_counter()
        try:
            match step:
                case SettleNode():
                    await self._node.make_certain()
                    path.settled()
                case AppendRecord(ledger_id=ledger_id, entries=entries):
                    size = await self._append(ledger_id, entries)
                    self._report(path.wrote(now(), now_ms(), ledger_bytes=size))
                case BeginLedger(entries=entries):
                    options = ledger_options(
                        self._node.path, self._settings, owner_epoch=self._node.owner_epoch
                    )
                    writer = await self._client.create(options)
                    self._writers[writer.ledger_id] = writer
                    path.ledger_created(step, writer.ledger_id)
                    size = await self._append(writer.ledger_id, entries)
                    node_bytes = await self._node.put(
                        cursor_ledger_id=writer.ledger_id, state=path.inline_state(step)
                    )
                    self._report(
                        path.wrote(now(), now_ms(), ledger_bytes=size, node_bytes=node_bytes)
                    )
                case PutState(formed=formed):
                    node_bytes = await self._node.put(cursor_ledger_id=None, state=formed.encoded)
                    self._report(path.wrote(now(), now_ms(), node_bytes=node_bytes))
        except LedgerFencedError as error:
            await self._node.check_owner()
            path.failed(error, now())
            return error
        except OwnershipError:
            raise
        except AckGateError as error:
            path.failed(error, now())
            return error
        return None

    async def _append(self, ledger_id: int, entries: Sequence[bytes]) -> int:
        """After any error the ledger's tail is unknown and nothing more may be appended."""
        await self._writers[ledger_id].append(entries).durable
        return sum(map(len, entries))

    async def _sweep_beside(self) -> None:
        try:
            await self._sweep_up()
        except Exception:
            log.exception("cursor %s: unused ledgers could not be deleted", self._node.path)
        finally:
            self._sweep = None

    async def _sweep_up(self) -> None:
        """Let go of ledgers that are out of use, and delete them. May go on beside a write."""
        for ledger_id in self._path.take_retired():
            await self._let_go(ledger_id)
        for ledger_id in self._path.garbage:
            if ledger_id not in self._path.garbage:
                continue
            if await delete_ledger(self._client, ledger_id):
                self._path.deleted(ledger_id)
            else:
                self._path.not_deleted(self._loop.time())

    async def _let_go(self, ledger_id: int) -> None:
        """Close the ledger, unless it is to be deleted: then closing it would be a write for nothing.

        A failure changes nothing, since recovery closes the ledger then.
        """
        writer = self._writers.pop(ledger_id, None)
        if writer is not None:
            with contextlib.suppress(AckGateError):
                if ledger_id in self._path.garbage:
                    await writer.release()
                else:
                    await writer.close()

    # ------------------------------------------------------------- what came of it

    def _report(self, report: RoundReport) -> None:
        """Report the end of a round to the observer, waiters, flushes and the listener."""
        outcome = report.outcome
        self._log(report)
        self._report_failures(report.failures, report.failing_since_ms)
        if outcome is None:
            self._settle_flushes(lambda flush: flush.round < report.round)
        else:
            self.write_seconds = perf_counter() - self._write_began
            if self._observer is not None:
                self._observer.wrote(outcome)
            self._settle_waiting(outcome.version)
            self._settle_flushes(lambda flush: flush.version <= outcome.version)
        self._notify_listener()

    def _log(self, report: RoundReport) -> None:
        """Once when things turn bad; failures are repeated for as long as they last."""
        outcome, path = report.outcome, self._node.path
        if outcome is None:
            if report.failing_since_ms is not None and not self._has_logged_failure:
                self._has_logged_failure = True
                log.warning("cursor %s cannot be persisted: %s", path, self.last_failure)
            return
        self._has_logged_failure = False
        is_on_fallback = self._path.is_on_fallback
        if is_on_fallback and not self._has_logged_fallback:
            log.warning("cursor %s is kept in its node; %s", path, self.last_failure)
        self._has_logged_fallback = is_on_fallback
        if not outcome.is_complete and not self._has_logged_drop:
            log.warning(
                "cursor %s: %d of %d ranges and %d of %d partly acked entries are in memory only",
                path,
                outcome.ranges_dropped,
                outcome.ranges_in_memory,
                outcome.batch_indexes_dropped,
                outcome.batch_indexes_in_memory,
            )
        self._has_logged_drop = not outcome.is_complete

    def _stalled(self) -> None:
        report = self._path.stalled()
        if report is not None:
            self._report(report)

    def _report_failures(self, failures: Sequence[WriteFailure], since_ms: int | None) -> None:
        if self._observer is not None:
            for where, version, error in failures:
                self._observer.attempt_failed(where, version, str(error), since_ms)

    def _settle_waiting(self, version: int) -> None:
        if self._waiting:
            reached = [each for each in self._waiting if each.version <= version]
            self._waiting = [each for each in self._waiting if each.version > version]
            self._answer(reached, None)

    def _answer(self, reached: Sequence[_Waiting], error: AckGateError | None) -> None:
        for waiting in reached:
            waiting.timer.cancel()
            _call(waiting.done, error)

    def _settle_flushes(self, is_settled: Callable[[_Flush], bool]) -> None:
        if self._flushes:
            for flush in self._flushes:
                if is_settled(flush):
                    resolve(flush.done)
            self._flushes = [flush for flush in self._flushes if not flush.done.done()]

    def _notify_listener(self) -> None:
        if self._on_outcome is not None:
            self._on_outcome()

    def _stop(self, error: AckGateError) -> None:
        """End writing, and fail the waiters with the reason. The first reason counts."""
        if self._stopped is not None:
            return
        self._stopped = error
        self.cursor.seal(f"cursor {self._node.path} takes no more changes: {error}")
        self._wake_up()
        reached, self._waiting = self._waiting, []
        self._answer(reached, error)
        for flush in self._flushes:
            fail(flush.done, error)
        self._flushes = []
        self._notify_listener()

    # -------------------------------------------------------------------------- the end

    async def close(self) -> PersistOutcome:
        """Write what is dirty and let go of everything. A second close does nothing.

        Returns how all that the cursor has taken is kept. Its version lies before the cursor's if
        somebody else has taken the cursor over. From the last write on the cursor takes no more acks.

        Raises `StorageError` if something could not be written; the store is closed all the same.
        """
        if self._closed is None:
            await self._end_with(self._write_last)
        else:
            await asyncio.shield(self._closed)
        return self.durable_outcome

    def abandon(self, error: OwnershipError) -> None:
        """Write no more, and release it at once: it may have another owner."""
        self._stop(error)
        self._give_up()
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._closed.set_result(None)

    async def delete(self) -> None:
        """Remove the cursor's node, then its ledgers. After a `StorageError` it may be repeated."""
        if self._closed is None:
            await self._end_with(self._remove)
        else:
            await asyncio.shield(self._closed)
            await self._remove()

    async def _end_with(self, last_step: Callable[[], Awaitable[None]]) -> None:
        self._closed = self._loop.create_future()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._finish()
                await last_step()
        except TimeoutError:
            self._give_up()
            raise StorageError(
                f"cursor {self._node.path}: not closed cleanly within {CLOSE_SECONDS_MAX:g} s: "
                f"{self.last_failure or 'a store does not answer'}"
            ) from None
        finally:
            self._seal()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS_MAX):
                    await self._close_writers()
            self._stop(CursorClosedError(f"cursor {self._node.path} is closed"))
            self._closed.set_result(None)

    async def _finish(self) -> None:
        """Begin no further write, and wait for the one under way."""
        self._is_finishing = True
        # One that is cancelled before it has begun is done, and never gets to say so itself.
        while tasks := [t for t in (self._task, self._sweep) if t is not None and not t.done()]:
            self._wake_up()
            await asyncio.wait(tasks)

    def _give_up(self) -> None:
        """Cancel what has hung for too long. Whether it was done is unknown."""
        for task in (self._task, self._sweep):
            if task is not None:
                task.cancel()

    def _seal(self) -> None:
        self.cursor.seal(f"cursor {self._node.path} is closed")

    async def _write_last(self) -> None:
        """Write what is dirty. What is acked meanwhile is written, too; what comes after is refused.

        Raises `StorageError` when something is not durable after that.
        """
        if self._stopped is not None:
            return
        failures: list[AckGateError] = []
        for left in reversed(range(LAST_WRITES_MAX)):
            if left == 0:
                self._seal()
            await self._write_last_once(failures)
            if not self.is_dirty or failures or self.why_stopped is not None:
                break
        self._seal()  # with no await since the last write
        if self.why_stopped is not None:
            return
        await self._sweep_up()
        if self.is_dirty and failures:
            raise StorageError(
                f"cursor {self._node.path} was closed with changes that are not durable: "
                + "; ".join(map(str, failures))
            ) from failures[-1]

    async def _write_last_once(self, failures: list[AckGateError]) -> None:
        path = self._path
        path.begin_last()
        written = path.outcome
        while path.outcome is written:
            try:
                step = path.next_last_step(self._loop.time(), self._clock_ms())
                if step is None:
                    return
                failure = await self._carry_out(step)
            except OwnershipError as lost:
                self._stop(lost)
                return
            except NodeTooLargeError as too_large:
                failure, step = too_large, None
            if failure is not None:
                failures.append(failure)
                where = PersistWhere.METADATA_STORE if step is None else step.where
                version = self.cursor.version if step is None else step.version
                self._report_failures(
                    [WriteFailure(where, version, failure)], self.failing_since_ms
                )
        failures.clear()

    async def _remove(self) -> None:
        """The node, then every ledger of the cursor. Raises `StorageError`."""
        await self._close_writers()
        await self._node.remove()
        for ledger_id in list(self._path.removed()):
            if await delete_ledger(self._client, ledger_id):
                self._path.deleted(ledger_id)

    async def _close_writers(self) -> None:
        for ledger_id in list(self._writers):
            await self._let_go(ledger_id)

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._closed is not None:
            raise CursorClosedError(f"cursor {self._node.path} is closed")


def _call(done: Done, error: BaseException | None) -> None:
    try:
        done(error)
    except Exception as failure:  # noqa: BLE001  # one listener's fault is not the others'
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a listener failed", "exception": failure}
        )


def _log_recovery(path: str, report: RecoveryReport) -> None:
    if report.lost is not None or report.torn_records:
        log.warning(
            "cursor %s recovered at version %d; lost: %s; skipped: %s",
            path,
            report.version,
            report.lost or "nothing",
            "; ".join(report.torn_records) or "nothing",
        )
    dropped = report.dropped
    if dropped is not None and (dropped.entries_beyond_end or dropped.entries_of_unknown_ledgers):
        log.warning(
            "cursor %s: %d acked entries are not there any more: the ends of ledgers, or whole ones,"
            " are lost; ledgers that do not exist: %s",
            path,
            dropped.entries_beyond_end + dropped.entries_of_unknown_ledgers,
            ", ".join(map(str, dropped.unknown_ledger_ids)) or "none",
        )
