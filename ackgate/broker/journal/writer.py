"""The writer of one topic's delivery journal: a task that lives as long as there are events to write.

Edge: the task, and the journal's ledgers. Nothing waits for it: it opens the journal in the
background, and a block that cannot be written for a while is dropped and counted.

    asleep --note--> gather (linger) --> take --> columns (in turn) --> append --> take ... --> asleep
                                                                          |
                       another owner: stop for good <---------------------+--> fails: again, the same
                                                                               block; then dropped

A block that may have been written, and was not confirmed, is appended once more: readers recognise it
by its epoch and its sequence numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.broker.journal.note_columns import columns_of_notes
from ackgate.broker.journal.topic_journal import TopicJournal
from ackgate.described import statistic
from ackgate.errors import AckGateError, OwnershipError, StorageError
from ackgate.persistence.system.futures import resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ackgate.broker.journal.topic_journal import Taken
    from ackgate.config.journal import JournalSettings
    from ackgate.persistence.deliveries.journal import DeliveryJournal

# ---- How much of the broker's time its delivery journals may take, all topics together
#
# Edge: the event loop's clock. Blocks are made in turns; one that took its maker `t` is followed by a
# pause, so that no more than a share of the time goes into journals::
#
#     block  . . .  block  . . .  block         a share of a quarter: three times `t` of pause
#     t      3 t    t      3 t
#
# What cannot be written in this time waits in the topics' queues, and beyond those it is dropped.

SHARE_MAX: Final = 0.25
"""Largest share of the event loop's time."""

OPENINGS_AT_ONCE_MAX: Final = 20
"""Journals that are opened at the same time; no topic waits for them."""


class JournalPace:
    """Gives the journals turns to make their blocks, one at a time, with pauses in between."""

    def __init__(self) -> None:
        self.openings = asyncio.Semaphore(OPENINGS_AT_ONCE_MAX)
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn. Make a block inside the context, without awaiting anything."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            wait = self._free_at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            began = loop.time()
            try:
                yield
            finally:
                self.took(loop.time() - began)

    def took(self, seconds: float) -> None:
        """Count time that a journal took; the next turn begins after a pause in proportion."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + seconds * (1 / SHARE_MAX - 1)


log = logging.getLogger(__name__)

BLOCK_EVENTS_MAX: Final = 16_384
"""Events of one block, unless a single note has more. Takes a few milliseconds."""

BLOCK_SECONDS_MAX: Final = 10.0
"""How long the writer retries a block that cannot be written."""

RETRY_SECONDS: Final = 0.5
"""Pause between two tries. The journal itself waits longer each time before it makes a ledger."""

CLOSE_SECONDS_MAX: Final = 5.0
"""How long the closing of a topic waits for its journal."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """One topic's journal since the topic was opened."""

    events_written: int = statistic("Events written", "", "ackgate_delivery_journal_events_total")
    events_dropped: int = statistic(
        "Events that are missing in the journal",
        "",
        "ackgate_delivery_journal_events_dropped_total",
    )
    events_pending: int = statistic(
        "Events that wait to be written", "", "ackgate_delivery_journal_events_pending"
    )
    blocks_written: int = statistic("Blocks written", "", "ackgate_delivery_journal_blocks_total")
    bytes_written: int = statistic("Written", "bytes", "ackgate_delivery_journal_bytes_total")
    failures: int = statistic(
        "Failed attempts to open the journal or to write a block",
        "",
        "ackgate_delivery_journal_failures_total",
    )
    last_failure: str | None = statistic("Why the last one failed")
    is_stopped: bool = statistic(
        "1 once the journal ended: another broker has the topic, or its node is unreadable",
        "",
        "ackgate_delivery_journal_stopped",
    )


class JournalWriter:
    """Writes the notes of a topic's `TopicJournal`, block by block."""

    def __init__(
        self,
        topic: str,
        owner_epoch: int,
        settings: JournalSettings,
        pace: JournalPace,
        *,
        open_journal: Callable[[], Awaitable[DeliveryJournal]],
        clock_us: Callable[[], int],
    ) -> None:
        self.notes = TopicJournal(
            pending_events_max=settings.delivery_journal_max_pending_events,
            clock_us=clock_us,
            wake=self._start,
        )
        self._topic = topic
        self._owner_epoch = owner_epoch
        self._settings = settings
        self._pace = pace
        self._open_journal = open_journal
        self._loop = asyncio.get_running_loop()
        self._journal: DeliveryJournal | None = None
        self._task: asyncio.Task[None] | None = None
        self._pausing: asyncio.Future[None] | None = None
        self._is_closing = False
        self._is_stopped = False
        self._events_written = self._blocks_written = self._bytes_written = 0
        self._failures = 0
        self._last_failure: str | None = None

    def statistics(self) -> JournalStatistics:
        """The counts and the last failure since the topic was opened."""
        return JournalStatistics(
            events_written=self._events_written,
            events_dropped=self.notes.events_dropped,
            events_pending=self.notes.events_pending,
            blocks_written=self._blocks_written,
            bytes_written=self._bytes_written,
            failures=self._failures,
            last_failure=self._last_failure,
            is_stopped=self._is_stopped,
        )

    def configure(self, settings: JournalSettings) -> None:
        self._settings = settings
        if self._journal is not None:
            self._journal.configure(settings)

    # ------------------------------------------------------------------------ the task

    def _start(self) -> None:
        if self._task is None and not self._is_stopped and not self._is_closing:
            self._task = self._loop.create_task(self._write_while_needed())

    async def _write_while_needed(self) -> None:
        try:
            journal = await self._opened()
            while journal is not None:
                await self._gather()
                taken = self.notes.take(BLOCK_EVENTS_MAX)
                if taken is None:
                    return
                await self._write(journal, taken)
        except OwnershipError as error:
            log.info("delivery journal of %s: %s", self._topic, error)
            self.abandon()
        except AckGateError as error:
            log.warning("delivery journal of %s stops: %s", self._topic, error)
            self._failed(error)
            self.abandon()
        except Exception:
            log.exception("delivery journal of %s stops", self._topic)
            self.abandon()
        finally:
            # Nothing was awaited since no note was found, so no note can be missed.
            self._task = None

    async def _opened(self) -> DeliveryJournal | None:
        """Open the journal, and retry while the topic is open. None: the topic is being closed."""
        while self._journal is None and not self._is_closing:
            try:
                async with self._pace.openings:
                    self._journal = await self._open_journal()
            except StorageError as error:
                self._failed(error)
                await self._pause(RETRY_SECONDS)
        return self._journal

    async def _gather(self) -> None:
        """Wait a little so that events share a block, unless there are enough already."""
        if self.notes.events_pending < BLOCK_EVENTS_MAX and not self._is_closing:
            await self._pause(self._settings.delivery_journal_linger_ms / 1000)

    async def _write(self, journal: DeliveryJournal, taken: Taken) -> None:
        async with self._pace.turn():
            block = columns_of_notes(
                taken.notes,
                topic=self._topic,
                owner_epoch=self._owner_epoch,
                first_sequence=taken.first_sequence,
            )
        give_up_at = self._loop.time() + BLOCK_SECONDS_MAX
        while True:
            try:
                self._bytes_written += await journal.append(block)
            except StorageError as error:
                self._failed(error)
                if self._is_closing or self._loop.time() >= give_up_at:
                    self._lose(taken)
                    return
                await self._pause(RETRY_SECONDS)
            except OwnershipError:
                self._lose(taken)
                raise
            except AckGateError as error:
                self._failed(error)
                self._lose(taken)
                return
            else:
                self._blocks_written += 1
                self._events_written += taken.events
                self.notes.release(taken)
                return

    def _lose(self, taken: Taken) -> None:
        log.warning(
            "delivery journal of %s: %d events are missing: %s",
            self._topic, taken.missing, self._last_failure or "it belongs to another owner",
        )  # fmt: skip
        self.notes.lost(taken)

    def _failed(self, error: AckGateError) -> None:
        self._failures += 1
        self._last_failure = str(error)

    async def _pause(self, seconds: float) -> None:
        """Wait for the time, or until `_pausing` is resolved."""
        self._pausing = pausing = self._loop.create_future()
        timer = self._loop.call_later(seconds, resolve, pausing)
        try:
            await pausing
        finally:
            timer.cancel()
            self._pausing = None

    # ----------------------------------------------------------------------- upkeep, end

    async def trim(self) -> None:
        """Delete what is older, or larger, than the settings allow. Raises `StorageError`."""
        if self._journal is not None and not self._is_stopped and not self._is_closing:
            try:
                await self._journal.trim()
            except OwnershipError as error:
                log.info("delivery journal of %s: %s", self._topic, error)
                self.abandon()

    async def close(self) -> None:
        """Write waiting notes if that is quick, and close the journal. May be called twice."""
        if self._is_closing or self._is_stopped:
            return
        self._is_closing = True
        if self._pausing is not None:
            resolve(self._pausing)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._write_last()
                if self._journal is not None:
                    await self._journal.close()
        self.abandon()

    async def _write_last(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._journal is not None and not self._is_stopped:
            await self._write_while_needed()

    def abandon(self) -> None:
        """Stop at once, and write no more.

        Waiting notes are dropped; the next owner closes the ledger.
        """
        self._is_stopped = True
        self.notes.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def remove(self) -> None:
        """Delete the whole journal of a deleted topic. Raises `StorageError`."""
        self._is_closing = True
        task = self._task
        self.abandon()
        if task is not None:
            await asyncio.wait([task])
        journal = self._journal or await self._open_journal()
        await journal.remove()
