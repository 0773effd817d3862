"""The writer of one cursor: a task that lives as long as there is something to write.

Edge: the task and its clock. What one write does is `CursorPersister`, when the next may be is
`WritePace`; here the two are joined, and failures are told apart.

                  write fails                      node written
    LEDGER  --------------------------> FALLBACK -------------------.
       ^                                   |  ^    at a low rate    |
       |      a ledger can be written      |  '--------------------'
       '-----------------------------------'  a ledger is tried again and again, with backoff

Neither can be written: the acks stay in memory, `failing_since_ms` says since when; so it does while
a write hangs. Somebody else owns the cursor: the writer stops for good.

Ledgers out of use are closed and deleted beside the writes, since that may hang where writing does
not: it needs the metadata store, which a ledger that is open does not.

Invariants: never two writes at once; a clean writer that is not on fallback has no task.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from zlib import crc32

from ackgate.errors import AckGateError, InternalError, OwnershipError, StorageError
from ackgate.persistence.futures import resolve
from ackgate.persistence.outcome import PersistWhere
from ackgate.persistence.write_pace import WritePace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.position import Position
    from ackgate.persistence.cursor_persister import CursorPersister
    from ackgate.persistence.outcome import PersistOutcome

log = logging.getLogger(__name__)

LAST_WRITES_MAX: Final = 5
"""Writes at a close, should acks arrive during the one before."""

STALL_SECONDS: Final = 5.0
"""A write that takes this long counts as failing, since it began, until it is through."""


class WriterOwner(Protocol):
    """Who hears of the writes."""

    def wrote(self, outcome: PersistOutcome) -> None:
        """The state is durable up to the outcome's version."""

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        """One store could not be written; `failing_since_ms` as it is after it."""

    def failed(self, attempt: int) -> None:
        """This attempt (counted from 1) failed everywhere; another one will be made."""

    def stopped(self, error: AckGateError) -> None:
        """No further write will ever come."""


class _Attempt(NamedTuple):
    """A write of a version to one store."""

    where: PersistWhere
    version: int


class _Failure(NamedTuple):
    """One that failed."""

    where: PersistWhere
    version: int
    error: AckGateError

    def __str__(self) -> str:
        return f"{self.where.value.replace('-', ' ')}: {self.error}"


class CursorWriter:
    """Writes one cursor's state, sooner or later, somewhere."""

    __slots__ = (
        "_clock_ms",
        "_is_finishing",
        "_is_resting",
        "_is_rolling",
        "_loop",
        "_owner",
        "_persister",
        "_settings",
        "_stopped",
        "_sweep",
        "_task",
        "_under_way",
        "_wake",
        "attempts",
        "durable_version",
        "failing_since_ms",
        "last_failure",
        "outcome",
        "pace",
        "persisted_mark_delete",
    )

    def __init__(
        self,
        persister: CursorPersister,
        owner: WriterOwner,
        settings: PersistenceSettings,
        clock_ms: Callable[[], int],
        *,
        durable_version: int,
        mark_delete: Position,
    ) -> None:
        self._persister = persister
        self._owner = owner
        self._settings = settings
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._stopped: AckGateError | None = None
        self._is_finishing = False
        self._is_resting = False
        """Whether the task waits with nothing to write, for the ledger to be tried again."""
        self._is_rolling = False
        self._under_way: _Attempt | None = None
        self.attempts = 0
        """Writes begun so far."""
        self.pace = WritePace(seed=crc32(persister.node.path.encode()))
        self.durable_version = durable_version
        self.persisted_mark_delete = mark_delete
        self.outcome: PersistOutcome | None = None
        self.failing_since_ms: int | None = None
        self.last_failure: str | None = None

    @property
    def is_dirty(self) -> bool:
        """Whether anything has changed since the last durable write: acks, or pending nacks."""
        return self._has_new_acks or self._persister.nacks.is_dirty

    @property
    def _has_new_acks(self) -> bool:
        return self._persister.cursor.version > self.durable_version

    @property
    def is_idle(self) -> bool:
        """Whether no task runs."""
        return self._task is None and self._sweep is None

    @property
    def why_stopped(self) -> AckGateError | None:
        """Why there will be no further write; None as long as there may be."""
        return self._stopped

    def configure(self, settings: PersistenceSettings) -> None:
        """Holds from the next write on."""
        self._settings = settings
        self._persister.configure(settings)

    def start(self) -> None:
        """Write if there is something to write and nobody is at it. Cheap and idempotent."""
        if self._task is None and self._has_work:
            self._task = self._loop.create_task(self._write_while_needed())
        elif self._is_resting:
            self._wake_up()

    def hurry(self, *, roll: bool) -> None:
        """Write now, whatever linger, rate limit and backoff say; with `roll` into a new ledger."""
        self._is_rolling = self._is_rolling or roll
        self.pace.hurry()
        self._persister.nacks.hurry()
        self.start()
        self._wake_up()

    def stop(self, error: AckGateError) -> None:
        """Write no more. The first reason counts."""
        if self._stopped is None:
            self._stopped = error
            self._wake_up()
            self._owner.stopped(error)

    async def finish(self) -> None:
        """Start no further write, and wait for the one under way."""
        self._is_finishing = True
        # One that is cancelled before it has begun is done, and never gets to say so itself.
        while tasks := [t for t in (self._task, self._sweep) if t is not None and not t.done()]:
            self._wake_up()
            await asyncio.wait(tasks)

    def abandon(self) -> None:
        """Give up what is under way: it has hung for too long. Whether it was done is unknown."""
        for task in (self._task, self._sweep):
            if task is not None:
                task.cancel()

    async def write_last(self) -> None:
        """Write what is dirty, into the node if it fits there: the next opening needs no ledger.

        Raises `StorageError` when something is not durable after that.
        """
        failures: list[_Failure] = []
        for _ in range(LAST_WRITES_MAX):
            await self._write_last_once(failures)
            # What is acked meanwhile is written, too; what comes after that is too late.
            if not self.is_dirty or failures or self._stopped is not None:
                break
        if self._stopped is not None:
            return
        await self._persister.sweep()
        if self.is_dirty and failures:
            raise StorageError(
                f"cursor {self._path} was closed with changes that are not durable: "
                + "; ".join(str(failure.error) for failure in failures)
            ) from failures[-1].error

    async def _write_last_once(self, failures: list[_Failure]) -> None:
        persister = self._persister
        is_cut = self.outcome is not None and not self.outcome.is_complete
        node, ledger = PersistWhere.METADATA_STORE, PersistWhere.LEDGER
        writes: list[tuple[PersistWhere, Callable[[], Awaitable[PersistOutcome | None]]]] = []
        if self.is_dirty or persister.node.cursor_ledger_id is not None:
            writes.append((node, persister.to_node_if_it_fits))
        if self.is_dirty or (is_cut and self.pace.is_on_fallback):
            writes.append((ledger, persister.to_ledger))
        if self.is_dirty:
            writes.append((node, persister.to_node))
        for where, write in writes:
            version = persister.cursor.version
            try:
                outcome = await write()
            except OwnershipError as error:
                self.stop(error)
                return
            except AckGateError as error:
                failures.append(_Failure(where, version, error))
                self._tell(failures[-1:])
            else:
                if outcome is not None:
                    self._wrote(replace(outcome, is_last=True))
                    failures.clear()
                    return

    # ------------------------------------------------------------------------- the task

    @property
    def _has_work(self) -> bool:
        return (
            (self.is_dirty or self.pace.is_on_fallback or self._is_rolling)
            and self._stopped is None
            and not self._is_finishing
        )

    async def _write_while_needed(self) -> None:
        try:
            await self._linger()
            while self._has_work:
                wait = self._due_at() - self._loop.time()
                if wait > 0:
                    await self._wait(wait)
                else:
                    await self._write()
                if self._sweep is None and self._persister.has_garbage:
                    self._sweep = self._loop.create_task(self._sweep_beside())
        except OwnershipError as error:
            log.warning("cursor %s: %s", self._path, error)
            self.stop(error)
        except Exception as error:
            log.exception("cursor %s: the writer failed", self._path)
            self.stop(InternalError(f"the writer of cursor {self._path} failed: {error!r}"))
        finally:
            # Nothing was awaited since the loop found no work, so no change can go unnoticed.
            self._task = None

    def _due_at(self) -> float:
        due_at = self.pace.due_at(is_dirty=self.is_dirty)
        nacks = self._persister.nacks
        is_for_nacks = nacks.is_dirty and not self._has_new_acks and not self._is_rolling
        return max(due_at, nacks.due_at) if is_for_nacks else due_at

    async def _linger(self) -> None:
        """Let changes gather."""
        if not self.pace.is_hurried:
            await self._pause(self._settings.ack_persist_linger_ms / 1000)

    async def _wait(self, seconds: float) -> None:
        """Wait; whoever has no acks to write waits no longer than until there are some."""
        self._is_resting = not self._has_new_acks
        try:
            await self._pause(seconds)
        finally:
            was_resting, self._is_resting = self._is_resting, False
        if was_resting and self._has_new_acks:
            await self._linger()

    async def _sweep_beside(self) -> None:
        try:
            await self._persister.sweep()
        except Exception:
            log.exception("cursor %s: ledgers out of use are left behind", self._path)
        finally:
            self._sweep = None

    async def _write(self) -> None:
        """One attempt, of which everybody hears when it hangs."""
        self.attempts += 1
        began_ms = self._clock_ms()
        stall = self._loop.call_later(STALL_SECONDS, self._stalled, self.attempts, began_ms)
        try:
            await self._try_to_write(self.attempts, began_ms)
        finally:
            stall.cancel()

    async def _try_to_write(self, attempt: int, began_ms: int) -> None:
        """The ledger, or else the node."""
        pace, settings = self.pace, self._settings
        now = self._loop.time()
        pace.begin(now, writes_per_second=settings.managed_ledger_default_mark_delete_rate_limit)
        failures: list[_Failure] = []
        if pace.ledger.try_at <= now:
            self._is_rolling = False
            outcome = await self._attempt(PersistWhere.LEDGER, self._persister.to_ledger, failures)
            if outcome is not None:
                pace.ledger_wrote(outcome.bytes_written)
                self._wrote(outcome)
                return
            pace.ledger_failed(self._loop.time())
        if self.is_dirty and pace.node.try_at <= now:
            outcome = await self._attempt(
                PersistWhere.METADATA_STORE, self._persister.to_node, failures
            )
            if outcome is not None:
                self._fell_back(failures)
                pace.node_wrote(
                    outcome.bytes_written,
                    self._loop.time(),
                    writes_per_second=settings.fallback_rate_limit,
                )
                self._wrote(outcome)
                return
            pace.node_failed(self._loop.time())
        if failures:
            self._failed("; ".join(map(str, failures)), attempt, began_ms, failures)

    async def _attempt(
        self,
        where: PersistWhere,
        write: Callable[[], Awaitable[PersistOutcome]],
        failures: list[_Failure],
    ) -> PersistOutcome | None:
        version = self._persister.cursor.version
        self._under_way = _Attempt(where, version)
        try:
            return await write()
        except OwnershipError:
            raise
        except AckGateError as error:
            failures.append(_Failure(where, version, error))
            return None
        finally:
            self._under_way = None

    def _wrote(self, outcome: PersistOutcome) -> None:
        was_complete = self.outcome is None or self.outcome.is_complete
        self.outcome = outcome
        self.durable_version = outcome.version
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
        self._owner.wrote(outcome)

    def _fell_back(self, failures: list[_Failure]) -> None:
        if failures:
            self.last_failure = str(failures[0])
            self._tell(failures)
        if not self.pace.is_on_fallback:
            log.warning("cursor %s is kept in its node; %s", self._path, self.last_failure)

    def _stalled(self, attempt: int, began_ms: int) -> None:
        """The write under way has hung for a while. It goes on, and nobody need wait for it."""
        why = f"a write has been under way for {STALL_SECONDS:g} s"
        stalled = []
        if self._under_way is not None:
            stalled.append(_Failure(*self._under_way, StorageError(why)))
        self._failed(why, attempt, began_ms, stalled)

    def _failed(self, why: str, attempt: int, began_ms: int, failures: Sequence[_Failure]) -> None:
        self.last_failure = why
        if self.is_dirty and self.failing_since_ms is None:
            self.failing_since_ms = began_ms
            log.warning("cursor %s cannot be persisted: %s", self._path, why)
        self._tell(failures)
        self._owner.failed(attempt)

    def _tell(self, failures: Sequence[_Failure]) -> None:
        for where, version, error in failures:
            self._owner.attempt_failed(where, version, str(error), self.failing_since_ms)

    @property
    def _path(self) -> str:
        return self._persister.node.path

    async def _pause(self, seconds: float) -> None:
        """Wait, or until `_wake_up`."""
        if seconds <= 0:
            return
        self._wake = wake = self._loop.create_future()
        timer = self._loop.call_later(seconds, resolve, wake)
        try:
            await wake
        finally:
            timer.cancel()
            self._wake = None

    def _wake_up(self) -> None:
        if self._wake is not None:
            resolve(self._wake)
