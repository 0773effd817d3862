"""Group commit: what was added during one sync is written with the next.

Edge: one task per bookie, alive only while there is something to do. Each round takes all waiting
batches, of any ledger, passes them to the journal lane, and then notifies every sink once:

    add add add            add add add add
    -----+-----            -------+-------
         v                        v
      [ write, fdatasync, poll fences ]  -> synced(...) per ledger, one hop back to the loop

A disk may also hang. A round that takes longer than `BookieSettings.timeout_seconds` has *stalled*:
its adds fail, and so do later ones until the round has ended. What it wrote is then stored although
it was reported as failed, which does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, ClosedHandleError, InternalError, StorageError
from ackgate.persistence.bookies.patience import LATE_SECONDS, NoAnswerError, within
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.persistence.bookies.entry_codec import AddSink, EntryBatch
    from ackgate.persistence.bookies.journal import Journal
    from ackgate.persistence.bookies.register import Fences
    from ackgate.persistence.bookies.settings import BookieSettings
    from ackgate.persistence.bookies.write_cache import CacheHalf, WriteCache
    from ackgate.persistence.system.io_lane import IoLane

logger = logging.getLogger(__name__)

RECENT_COMMITS_MAX: Final = 128
"""Commits whose time is remembered, to show how fast the disk is."""


class GroupCommit:
    """Makes the adds of one bookie durable, in rounds."""

    __slots__ = (
        "_behind_bytes",
        "_cache",
        "_checkpoint_error",
        "_commit_bytes_max",
        "_dropped",
        "_fences",
        "_is_closed",
        "_journal",
        "_lane",
        "_on_committed",
        "_pending",
        "_pending_bytes",
        "_progress",
        "_request_checkpoint",
        "_round_began",
        "_seals",
        "_task",
        "_timeout_seconds",
        "_under_way",
        "_watch",
        "bookie_id",
        "commit_count",
        "committed_bytes",
        "committed_entries",
        "fenced",
        "is_stalled",
        "last_error",
        "recent_seconds",
    )

    def __init__(
        self,
        *,
        bookie_id: str,
        journal: Journal,
        fences: Fences,
        lane: IoLane,
        cache: WriteCache,
        settings: BookieSettings,
        request_checkpoint: Callable[[], None],
        on_committed: Callable[[], None],
    ) -> None:
        self.bookie_id = bookie_id
        self._journal = journal
        self._fences = fences
        self._lane = lane
        self._cache = cache
        self._commit_bytes_max = settings.commit_bytes_max
        self._behind_bytes = settings.behind_bytes
        self._timeout_seconds = settings.timeout_seconds
        self._request_checkpoint = request_checkpoint
        self._on_committed = on_committed
        self._progress = asyncio.Event()
        self._checkpoint_error: AckGateError | None = None
        self._pending: list[tuple[EntryBatch, AddSink]] = []
        self._pending_bytes = 0
        self._seals: list[asyncio.Future[tuple[CacheHalf, int]]] = []
        self._under_way: list[tuple[EntryBatch, AddSink]] = []
        """What the round that runs is to answer for."""
        self._round_began = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.is_stalled = False
        """Whether the round that runs has been given up."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._dropped: set[int] = set()
        self.fenced: set[int] = set()
        """Ledgers that may not be added to any more, as far as known here."""
        self.last_error: AckGateError | None = None
        """Why the last commit failed; None once one has succeeded again."""
        self.commit_count = 0
        self.committed_entries = 0
        self.committed_bytes = 0
        self.recent_seconds: deque[float] = deque(maxlen=RECENT_COMMITS_MAX)
        """How long the latest commits took that succeeded."""

    def add(self, batch: EntryBatch, sink: AddSink) -> None:
        """Queue a batch; its sink gets the result. Never blocks."""
        if self._is_closed:
            sink.failed(ClosedHandleError(f"bookie {self.bookie_id} is closed"))
            return
        if self.is_stalled:
            sink.failed(self._silence())
            return
        self._pending.append((batch, sink))
        self._pending_bytes += len(batch.encoded)
        if self._task is None:
            self._start()

    @property
    def is_behind(self) -> bool:
        """Whether the queue is so long that writers should wait for it."""
        return self._pending_bytes > self._behind_bytes

    def _take_pending(self) -> list[tuple[EntryBatch, AddSink]]:
        pending, self._pending = self._pending, []
        self._pending_bytes = 0
        return pending

    def drop(self, ledger_id: int) -> None:
        """Drop a deleted ledger's entries, those not yet committed included."""
        self._cache.drop(ledger_id)
        if self._task is not None:
            self._dropped.add(ledger_id)

    async def seal(self) -> tuple[CacheHalf, int]:
        """Seal journal and write cache at the same moment, between two commits.

        Returns the sealed half and the number of the journal file up to which it covers everything.
        """
        waiter: asyncio.Future[tuple[CacheHalf, int]] = asyncio.get_running_loop().create_future()
        self._seals.append(waiter)
        self._progress.set()
        if self._task is None:
            self._start()
        return await waiter

    def checkpoint_went_on(self) -> None:
        """Note that a checkpoint makes progress, so that a slow disk does not count as silent."""
        self._round_began = asyncio.get_running_loop().time()

    def checkpoint_ended(self, error: AckGateError | None) -> None:
        """Note the end of a checkpoint; `error`: why the write cache could not be emptied."""
        self._checkpoint_error = error
        self._progress.set()

    async def probe(self) -> None:
        """Find out whether the disk takes writes again. Raises `StorageError`."""
        if self._is_closed:
            raise StorageError(f"bookie {self.bookie_id} is closed")
        if self.is_stalled:
            raise self._silence()
        try:
            await within(self._timeout_seconds, self._lane.run(self._journal.probe))
        except NoAnswerError:
            self.last_error = self._silence()
            raise self.last_error from None
        except OSError as error:
            self.last_error = self._storage_error(error)
            raise self.last_error from error
        self.last_error = None

    async def close(self) -> bool:
        """Finish what was added; take no more. False when the disk does not answer."""
        self._is_closed = True
        self.last_error = ClosedHandleError(f"bookie {self.bookie_id} is closed")
        while self._task is not None and not self.is_stalled:
            # The watch ends this wait where the task does not.
            await asyncio.wait([self._task], timeout=self._timeout_seconds)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        return self._task is None

    def _start(self) -> None:
        self._begin_round()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _begin_round(self) -> None:
        loop = asyncio.get_running_loop()
        self._round_began = loop.time()
        if self._watch is None and self._timeout_seconds is not None:
            self._watch = loop.call_at(self._round_began + self._timeout_seconds, self._look)

    def _look(self) -> None:
        """Give the round up if it began too long ago. One timer, however many rounds."""
        watch, self._watch = self._watch, None
        if self._task is None or self._timeout_seconds is None or watch is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - watch.when() > LATE_SECONDS:
            self._round_began = loop.time()
        due = self._round_began + self._timeout_seconds
        if loop.time() < due:
            self._watch = loop.call_at(due, self._look)
            return
        self.is_stalled = True
        error = self._silence()
        if not self._is_closed:
            self.last_error = error
        self._fail(self._take_under_way() + self._take_pending(), error)

    def _silence(self) -> StorageError:
        return StorageError(
            f"bookie {self.bookie_id}: its disk has not answered for {self._timeout_seconds} s"
        )

    async def _run(self) -> None:
        try:
            while self._pending or self._seals:
                self._begin_round()
                if self._seals:
                    await self._seal()
                elif self._cache.is_full:
                    await self._wait_for_cache()
                else:
                    await self._commit(self._take())
                self.is_stalled = False
        finally:
            self._task = None
            self.is_stalled = False
            self._dropped.clear()
            # Cancelled with the loop, or a bug: nothing may wait forever.
            error = InternalError(f"bookie {self.bookie_id}: the commit task ended")
            self._fail(self._take_under_way() + self._take_pending(), error)
            for waiter in self._seals:
                fail(waiter, error)
            self._seals = []

    async def _wait_for_cache(self) -> None:
        """Wait until the write cache is emptied; if it cannot be, the pending adds fail."""
        self._progress.clear()
        self._request_checkpoint()
        await self._progress.wait()
        error, self._checkpoint_error = self._checkpoint_error, None
        if error is not None and self._cache.is_full:
            self.last_error = error
            self._fail(self._take_pending(), error)

    async def _seal(self) -> None:
        waiters, self._seals = self._seals, []
        # Nothing is in the journal lane now, so that half and this journal file end at the same entry.
        half = self._cache.seal()
        sequence = await self._lane.run(self._journal.seal)
        for waiter in waiters:
            resolve(waiter, (half, sequence))

    def _take(self) -> list[tuple[EntryBatch, AddSink]]:
        """The next round: everything, or what is fair.

        The oldest batch always, however large, and of each ledger its share of a round, so that small
        batches do not wait for large ones. Each ledger's batches stay in order.
        """
        round_bytes = self._commit_bytes_max
        if self._pending_bytes <= round_bytes:
            return self._take_pending()
        pending, self._pending = self._pending, []
        oldest = pending[0][0].ledger_id
        part = round_bytes // len({batch.ledger_id for batch, _ in pending})
        room: dict[int, int] = {oldest: max(part, len(pending[0][0].encoded))}
        taken: list[tuple[EntryBatch, AddSink]] = []
        for add in pending:
            ledger_id, size = add[0].ledger_id, len(add[0].encoded)
            left = room.get(ledger_id, part) - size
            room[ledger_id] = left if left >= 0 else -1  # nothing overtakes what has to wait
            if left >= 0:
                taken.append(add)
                self._pending_bytes -= size
            else:
                self._pending.append(add)
        return taken

    async def _commit(self, taken: list[tuple[EntryBatch, AddSink]]) -> None:
        self._under_way = taken
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            newly_fenced = await self._lane.run(lambda: self._write(taken))
        except OSError as error:
            self.last_error = self._storage_error(error)
            self._fail(self._take_under_way(), self.last_error)
            return
        except Exception as error:
            logger.exception("bookie %s: commit failed", self.bookie_id)
            self.last_error = InternalError(f"bookie {self.bookie_id}: {error!r}")
            self._fail(self._take_under_way(), self.last_error)
            return
        if not self._is_closed:
            self.last_error = None
        self.fenced |= newly_fenced
        self.commit_count += 1
        self.recent_seconds.append(loop.time() - began)
        dropped, cache = self._dropped, self._cache
        for batch, _ in taken:
            if batch.ledger_id not in dropped:
                cache.add(batch)
            self.committed_entries += batch.entry_count
            self.committed_bytes += len(batch.encoded)
        self._report(self._take_under_way())
        self._on_committed()

    def _take_under_way(self) -> list[tuple[EntryBatch, AddSink]]:
        """The sinks without a result; none when the round was given up."""
        taken, self._under_way = self._under_way, []
        return taken

    def _write(self, taken: list[tuple[EntryBatch, AddSink]]) -> set[int]:
        """In the journal lane. Returns the ledgers that were fenced meanwhile."""
        self._journal.commit([batch for batch, _ in taken])
        # Only now: see `fences`.
        return self._fences.poll()

    def _report(self, taken: list[tuple[EntryBatch, AddSink]]) -> None:
        last_entry_ids = {sink: batch.last_entry_id for batch, sink in taken}
        fenced = self.fenced
        for sink, last_entry_id in last_entry_ids.items():
            if sink.ledger_id in fenced and not sink.is_recovery:
                sink.fenced()
            else:
                sink.synced(last_entry_id)

    def _fail(self, taken: Iterable[tuple[EntryBatch, AddSink]], error: AckGateError) -> None:
        for sink in {sink: None for _, sink in taken}:
            sink.failed(error)

    def _storage_error(self, error: OSError) -> StorageError:
        return StorageError(f"bookie {self.bookie_id}: journal not written: {error}")
