"""A bookie: one directory that keeps entries.

Edge: owns two lanes of blocking work and everything that touches them.

    add ---> group commit ---> journal (one write, one fdatasync for all ledgers)      journal lane
                  |
                  v
             write cache ---- checkpoint ---> fragment files, one per ledger           storage lane
                  |                                 |
    read <--------+---------------------------------+---- other writers' journals

An entry is durable when it is in the journal. A *checkpoint* writes what the cache holds to
fragment files, syncs them, and removes the journal so far; it runs when journal or cache reach
their bound, when nothing was added for a while, and at close. It writes small pieces with pauses
between them, so that commits do not wait for it, unless somebody waits for the checkpoint. After a
crash the journal is taken over (see `takeover`). A bookie checks no digests (it has no passwords)
and knows nothing of quorums.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ackgate.errors import AckGateError, CallerError, ClosedHandleError, InternalError, StorageError
from ackgate.persistence.bookies.entry_codec import batch_of
from ackgate.persistence.bookies.group_commit import GroupCommit
from ackgate.persistence.bookies.journal import Journal, remove_journals
from ackgate.persistence.bookies.patience import LanePatience, NoAnswerError
from ackgate.persistence.bookies.register import FileRemovals, RegisterRounds
from ackgate.persistence.bookies.write_cache import WriteCache, batches_of
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.directory import BookieDirectory
    from ackgate.persistence.bookies.entry_codec import AddSink, EntryBatch, StoredEntry
    from ackgate.persistence.bookies.origins import LedgerOrigin
    from ackgate.persistence.bookies.register import Beginning, Mark
    from ackgate.persistence.bookies.settings import BookieSettings
    from ackgate.persistence.bookies.write_cache import CacheHalf
    from ackgate.persistence.system.io_lane import IoLane

CHECKPOINT_ROOM_BYTES: Final = 256 * 1024
"""What a checkpoint takes beside the entries: heads of files and blocks, names."""

CHECKPOINT_PART_BYTES: Final = 256 * 1024
"""A checkpoint that nobody waits for writes about as much in one go, and then pauses: commits of the
journal wait for a sync that is under way."""

CHECKPOINT_PAUSE_RATIO: Final = 5.0
"""At most it pauses this many times as long as its last part took."""

CHECKPOINT_PAUSE_SECONDS_MAX: Final = 0.05

CHECKPOINT_DONE_AT: Final = 0.75
"""It is to end when what came since has filled this share of journal or cache. Pauses become shorter as
it falls behind, so that the next checkpoint need not wait for it."""

CHECKPOINT_LEAD: Final = 0.1
"""A lead that allows full pauses, in shares of journal or cache. Half of it is given at the beginning; a
checkpoint that is half of it late hurries."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """What a bookie has done since it was opened, and what it holds."""

    bookie_id: str
    directory: Path
    is_read_only: bool
    last_error: str | None
    """Why the last commit or checkpoint failed; None when it succeeded."""
    commit_count: int
    committed_entries: int
    committed_bytes: int
    commit_ms_mean: float | None
    """Of the latest commits: from handing a round to the disk until it is synced. None: none yet."""
    commit_ms_max: float | None
    journal_bytes: int
    """Journal written since the last checkpoint."""
    cached_bytes: int
    ledger_count: int
    open_files: int
    replayed_entries: int
    """Entries taken over from journals of writers that are gone."""
    damages: tuple[str, ...]
    """Damaged places met, each with file and offset."""
    foreign_files: tuple[str, ...]
    """Names in the directory that are not ours."""


class Bookie:
    """One opened directory. Made by `open_bookies`."""

    def __init__(
        self,
        opened: BookieDirectory,
        *,
        settings: BookieSettings,
        journal_lane: IoLane,
        storage_lane: IoLane,
    ) -> None:
        self.bookie_id = opened.bookie_id
        self.directory = opened.directory
        self.is_read_only = opened.writer is None
        self._opened = opened
        self._settings = settings
        self._journal_lane = journal_lane
        self._storage_lane = storage_lane
        self._storage = opened.storage
        self._others = opened.others
        self._cache = WriteCache(settings.write_cache_bytes_max, settings.block_bytes)
        self._commit: GroupCommit | None = None
        self._journal: Journal | None = None
        if opened.writer is not None:
            self._journal = Journal(opened.disk, opened.writer.journal, opened.random_bytes)
            self._commit = GroupCommit(
                bookie_id=self.bookie_id,
                journal=self._journal,
                fences=opened.writer.fences,
                lane=journal_lane,
                cache=self._cache,
                settings=settings,
                request_checkpoint=self._start_checkpoint,
                on_committed=self._committed,
            )
        self._rounds = RegisterRounds(
            f"bookie {self.directory}", opened.register, self._in_time, self._holds
        )
        self._removals = FileRemovals(self._in_time, self._remove_files)
        self._checkpoint: asyncio.Task[None] | None = None
        self._checkpoint_error: AckGateError | None = None
        self._unwritten: tuple[CacheHalf, int] | None = None
        """What a checkpoint is writing, or failed to write, and the journal file up to which it goes."""
        self._checkpoint_is_awaited = asyncio.Event()
        self._fence_waiting: set[int] = set()
        self._fence_round: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_commit_at = 0.0
        self._patience = LanePatience(settings.timeout_seconds)
        self._is_closed = False

    # ----------------------------------------------------------------------- which ledgers there are

    @property
    def mark(self) -> Mark:
        """The metadata store's counters, as this bookie last saw them."""
        return self._opened.register.mark

    async def raise_mark(self, mark: Mark) -> None:
        """Record the metadata store's counters; durable when this returns.

        Raises `StorageError`.
        """
        self._writable()
        await self._in_time(lambda: self._opened.register.raise_mark(mark))

    def begin(self, origin: LedgerOrigin, mark: Mark) -> Beginning:
        """Store a new ledger's origin, before its first entry is added."""
        self._writable()
        if self.is_silent:
            return self._rounds.put_off(origin)
        return self._rounds.begin(origin, mark)

    async def take_in(self, origin: LedgerOrigin) -> None:
        """Store the origin of a ledger that gets this bookie later in its life.

        Raises `StorageError`.
        """
        self._writable()
        await self._in_time(lambda: self._opened.register.origins.keep(origin))

    async def give_back(self, ledger_id: int) -> None:
        """Undo `begin` of a ledger that will not be made. Raises `StorageError`."""
        await self._in_time(lambda: self._opened.register.origins.forget([ledger_id]))

    async def kept_ledger_ids(self) -> set[int]:
        """Ledgers that were begun here and not deleted, and that have files or journaled entries."""
        stored = await self.ledger_ids()
        register = self._opened.register
        return stored & await self._in_time(lambda: register.origins.ids() - register.deleted())

    async def deleted_ledger_ids(self) -> frozenset[int]:
        """Ledgers whose entries may still be seen in journals, and must not."""
        return await self._in_time(self._opened.register.deleted)

    async def cluster(self) -> str | None:
        """Name of the metadata store that knows its ledgers; None: no cluster has claimed it yet."""
        return await self._in_time(self._opened.cluster)

    async def readable_origin_ids(self) -> set[int]:
        """Ledgers whose origin is here, and whole; damaged ones are in `damages`."""
        return await self._in_time(self._opened.register.origins.readable_ids)

    async def origins(self) -> list[LedgerOrigin]:
        """Of every ledger begun here and not deleted; damaged ones are left out and in `damages`."""

        def read() -> list[LedgerOrigin]:
            register = self._opened.register
            return register.origins.all_of(register.origins.ids() - register.deleted())

        return await self._in_time(read)

    def _holds(self, ledger_ids: Collection[int]) -> set[int]:
        elsewhere = self._others.ledger_ids()
        return {i for i in ledger_ids if i in elsewhere or self._storage.names(i)}

    # -------------------------------------------------------------------------------------- adding

    def add(self, batch: EntryBatch, sink: AddSink) -> None:
        """Queue entries for the next group commit; `sink` is called with the result."""
        self._writable().add(batch, sink)

    @property
    def is_behind(self) -> bool:
        """Whether its disk is so far behind that writers should wait for it."""
        return self._writable().is_behind

    @property
    def last_error(self) -> AckGateError | None:
        """Why this bookie cannot be written, as far as known; None after a successful write."""
        return self._commit.last_error if self._commit else None

    async def probe(self) -> None:
        """Try to write. Raises `StorageError` if this bookie cannot be written."""
        if self._cache.is_full:
            # The journal may be fine and the fragment files not; then nothing can be taken either.
            await self.checkpoint()
        await self._writable().probe()

    def ledger_closed(self, ledger_id: int) -> None:
        """Note that no more entries of the ledger come from here. Free what appending needed."""
        self._cache.active.closed.add(ledger_id)
        if self._commit:
            self._commit.fenced.discard(ledger_id)

    async def rewrite(self, entries: Sequence[StoredEntry], fragment_id: int) -> None:
        """Write entries of one ledger, ascending, again, byte for byte; return when they are durable.

        The ledger's fence does not apply: they are part of it already. Raises `StorageError`.
        """
        sink = _Rewrite(entries[0].ledger_id)
        self.add(batch_of(entries, fragment_id), sink)
        await sink.done

    def ledger_mended(self, ledger_id: int) -> None:
        """Entries of a closed ledger were written again; nothing will be appended to them."""
        self._cache.active.closed.add(ledger_id)

    # ------------------------------------------------------------------------------------- reading

    async def read(
        self, ledger_id: int, first: int, last: int, entry_count: int
    ) -> list[StoredEntry]:
        """Entries first..last as far as they are here, ascending; a copy may come more than once.

        `entry_count`: how many there should be; when as many are found, it looks no further.
        Digests are not verified. Raises `StorageError`, also when the disk does not answer.
        """
        cached = self._cache.read(ledger_id, first, last)
        if len(cached) >= entry_count:
            return cached
        missing = entry_count - len(cached)
        stored = await self._in_time(lambda: self._read_stored(ledger_id, first, last, missing))
        if not cached:
            return stored
        return sorted(cached + stored, key=_by_entry_id)

    def read_cached(
        self, ledger_id: int, first: int, last: int, entry_count: int
    ) -> list[StoredEntry] | None:
        """Return what `read` would, or None if the write cache does not hold all of it."""
        cached = self._cache.read(ledger_id, first, last)
        return cached if len(cached) >= entry_count else None

    def _read_stored(
        self, ledger_id: int, first: int, last: int, missing: int
    ) -> list[StoredEntry]:
        found = self._storage.read(ledger_id, first, last)
        if len(found) >= missing and _distinct(found) >= missing:
            if len(self._storage.names(ledger_id)) > 1:
                # A takeover makes files of its own, and a directory lists them in any order.
                found.sort(key=_by_entry_id)
            return found
        # Journals first: what is gone from there in between is in a fragment file by then.
        self._others.refresh()
        found = self._others.read(ledger_id, first, last)
        self._storage.refresh()
        found += self._storage.read(ledger_id, first, last, is_wide=True)
        found.sort(key=_by_entry_id)
        return found

    async def last_entries(self, ledger_id: int) -> list[StoredEntry]:
        """The newest entries of a ledger from every place that may hold them."""
        cached = self._cache.last_block(ledger_id)

        def stored() -> list[StoredEntry]:
            self._others.refresh()
            found = self._others.last_entries(ledger_id)
            self._storage.refresh()
            return found + self._storage.last_blocks(ledger_id)

        return cached + await self._in_time(stored)

    async def claim(self, cluster: str) -> None:
        """Mark this bookie as the cluster's.

        Raises `ConfigurationError` if it is another cluster's, `StorageError`.
        """
        await self._in_time(lambda: self._opened.claim(cluster))

    async def ledger_ids(self) -> set[int]:
        """Ledgers that have entries here."""

        def stored() -> set[int]:
            self._others.refresh()
            self._storage.refresh()
            return self._others.ledger_ids() | self._storage.ledger_ids()

        return self._cache.ledger_ids() | await self._in_time(stored)

    # ------------------------------------------------------------------------- fencing and deleting

    async def fence(self, ledger_id: int) -> None:
        """From now on no add to this ledger is confirmed here. Raises `StorageError`.

        Those who fence at the same time share one sync. If the writer is dead its journal is taken
        over, once for all its ledgers.
        """
        self._writable().fenced.add(ledger_id)
        self._fence_waiting.add(ledger_id)
        while ledger_id in self._fence_waiting:
            if self._fence_round is None:
                self._fence_round = asyncio.get_running_loop().create_task(self._write_fences())
            await self._patiently(asyncio.shield(self._fence_round))

    async def _write_fences(self) -> None:
        writer = self._opened.writer
        assert writer is not None
        ledger_ids = sorted(self._fence_waiting)

        def fence() -> bool:
            writer.fences.add(ledger_ids)
            return bool(self._others.writers())

        try:
            if await self._on_storage(fence):
                await self.take_over_dead_journals()
            self._fence_waiting.difference_update(ledger_ids)
        finally:
            self._fence_round = None

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger and remove its files: for good, once this returns. Raises `StorageError`."""
        self._writable().drop(ledger_id)
        await self._patiently(self._rounds.delete(ledger_id))
        await self._removals.remove(ledger_id)

    def _remove_files(self, ledger_ids: Sequence[int]) -> dict[int, StorageError]:
        """In the storage lane. Returns why files of which ledgers could not be removed."""
        failed: dict[int, StorageError] = {}
        for ledger_id in ledger_ids:
            try:
                self._storage.remove(ledger_id)
                self._opened.register.origins.forget([ledger_id])
            except OSError as error:
                failed[ledger_id] = StorageError(f"bookie {self.bookie_id}: {error}")
        return failed

    async def take_over_dead_journals(self) -> int:
        """Move the journal entries of dead writers into fragment files. Returns their number.

        Done at opening and when a ledger is fenced; cheap when there are none. Raises
        `StorageError`.
        """
        self._writable()
        taking_over = self._on_storage(self._opened.take_over)
        try:
            return await self._patience.within(taking_over, is_long=True)
        except NoAnswerError:
            raise StorageError(f"bookie {self.bookie_id}: its disk does not answer") from None

    async def make_up(self) -> None:
        """Retry the writes that failed for lack of room. Raises `StorageError`."""
        if self.last_error is not None:
            await self.probe()
        if self._cache.bytes or (self._journal is not None and self._journal.unremoved_bytes):
            await self.checkpoint()
        await self.take_over_dead_journals()

    # ---------------------------------------------------------------------------------- checkpoints

    async def checkpoint(self) -> None:
        """Bring fragment files up to date and remove the journal so far. Raises `StorageError`."""
        self._start_checkpoint()
        assert self._checkpoint is not None
        self._checkpoint_is_awaited.set()
        await asyncio.shield(self._checkpoint)
        if self._checkpoint_error is not None:
            raise self._checkpoint_error

    def _start_checkpoint(self) -> None:
        if self._checkpoint is None:
            self._checkpoint = asyncio.get_running_loop().create_task(self._run_checkpoint())

    async def _run_checkpoint(self) -> None:
        error: AckGateError | None = None
        try:
            await self._write_fragments()
        except AckGateError as caught:
            error = caught
            if str(error) != str(self._checkpoint_error):
                logger.warning("bookie %s: fragment files not written: %s", self.bookie_id, error)
        except Exception as caught:
            error = InternalError(f"bookie {self.bookie_id}: {caught!r}")
            logger.exception("bookie %s: checkpoint failed", self.bookie_id)
        finally:
            self._checkpoint = None
            self._checkpoint_is_awaited.clear()
            self._checkpoint_error = error
            self._writable().checkpoint_ended(error)

    async def _write_fragments(self) -> None:
        writer = self._opened.writer
        assert writer is not None
        await self._on_storage(self._check_room)
        if self._unwritten is None:
            self._unwritten = await self._writable().seal()
        half, sequence = self._unwritten
        all_bytes = half.bytes
        while half.ledgers:
            lead = self._checkpoint_lead(1 - half.bytes / all_bytes)
            part_seconds = await self._write_part(writer.name, half, hurries=lead < -0.5)
            if lead > 0 and half.ledgers:
                await self._pause_checkpoint(CHECKPOINT_PAUSE_RATIO * part_seconds * min(lead, 1))
        closed = frozenset(half.closed)

        def finish() -> None:
            self._storage.sync_directory()
            self._storage.stop_growing(closed)
            remove_journals(self._opened.disk, writer.journal, sequence)

        await self._on_storage(finish)
        self._cache.release()
        self._unwritten = None

    async def _write_part(self, writer: str, half: CacheHalf, *, hurries: bool) -> float:
        """Write the first blocks of the half, and drop them from it. Returns seconds."""
        bytes_max = self._settings.checkpoint_bytes_max
        if not hurries:
            bytes_max = min(bytes_max, CHECKPOINT_PART_BYTES)
        part = half.part(self._storage.files_per_chunk, bytes_max)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._on_storage(
            lambda: self._storage.write(writer, [(i, batches_of(i, each)) for i, each in part])
        )
        # Reads find these in the files now; should a later part fail, they are not written again.
        for ledger_id, blocks in part:
            half.drop_first(ledger_id, blocks)
        self._writable().checkpoint_went_on()
        return loop.time() - began

    def _checkpoint_lead(self, written: float) -> float:
        """How far a checkpoint that has written this share is ahead of its schedule.

        In `CHECKPOINT_LEAD`s; negative: late.
        """
        if self._checkpoint_is_awaited.is_set():
            return -math.inf
        journal, settings = self._journal, self._settings
        assert journal is not None
        filled = max(
            self._cache.active.bytes / settings.write_cache_bytes_max,
            journal.unremoved_bytes / settings.journal_bytes_max,
        )
        return 0.5 + (written * CHECKPOINT_DONE_AT - filled) / CHECKPOINT_LEAD

    async def _pause_checkpoint(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._checkpoint_is_awaited.wait(), min(seconds, CHECKPOINT_PAUSE_SECONDS_MAX)
            )

    def _check_room(self) -> None:
        """Raise `OSError` unless there is room for a whole checkpoint.

        One that stops half-way takes the room that acks could use.
        """
        free_bytes = self._opened.disk.free_bytes(self.directory)
        if free_bytes is not None and free_bytes < self._cache.bytes + CHECKPOINT_ROOM_BYTES:
            raise OSError(errno.ENOSPC, "no room for what the journal holds", str(self.directory))

    def _committed(self) -> None:
        journal = self._journal
        assert journal is not None
        if self._cache.is_full or journal.unremoved_bytes >= self._settings.journal_bytes_max:
            self._start_checkpoint()
        if self._rounds.late_count:
            self._rounds.try_late()
        self._last_commit_at = asyncio.get_running_loop().time()
        if self._idle_timer is None:
            self._watch_idle()

    def _watch_idle(self) -> None:
        """Checkpoint when nothing was added for a while. One timer, however many commits."""
        idle_seconds = self._settings.checkpoint_idle_seconds
        if idle_seconds is None or self._is_closed:
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            self._idle_timer = None
            if loop.time() < self._last_commit_at + idle_seconds:
                self._watch_idle()
            else:
                self._start_checkpoint()

        self._idle_timer = loop.call_at(self._last_commit_at + idle_seconds, look)

    # -------------------------------------------------------------------------------------- the end

    async def close(self) -> None:
        """Finish, bring fragment files up to date, let go of the directory. Twice is fine.

        When the disk does not take it, the journal stays, and the next start replays it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        try:
            await self._close_in_time()
        except NoAnswerError:
            # Its threads cannot be ended; they are left to the disk, and the journal to the next start.
            logger.error("bookie %s: its disk does not answer; left as it is", self.bookie_id)  # noqa: TRY400
            return
        finally:
            self._patience.close()
        self._journal_lane.close()
        self._storage_lane.close()

    async def _close_in_time(self) -> None:
        is_written = False
        if self._commit is not None:
            if not await self._commit.close():
                raise NoAnswerError
            is_written = await self._checkpoint_until_empty()
        try:
            await self._patience.within(
                self._storage_lane.run(lambda: self._opened.close(is_written=is_written))
            )
        except OSError as error:
            logger.warning("bookie %s: %s", self.bookie_id, error)

    async def _checkpoint_until_empty(self) -> bool:
        # At most: one under way, one left over from a failure, one for what came since.
        for _ in range(3):
            try:
                await self._patience.within(self.checkpoint(), is_long=True)
            except AckGateError:
                return False
            if not self._cache.bytes and self._unwritten is None:
                return True
        return False

    def statistics(self) -> BookieStatistics:
        """Counters and sizes, as they are now."""
        commit, journal = self._commit, self._journal
        error = (commit.last_error if commit else None) or self._checkpoint_error
        took = [1000 * seconds for seconds in commit.recent_seconds] if commit else []
        return BookieStatistics(
            bookie_id=self.bookie_id,
            directory=self.directory,
            is_read_only=self.is_read_only,
            last_error=str(error) if error else None,
            commit_count=commit.commit_count if commit else 0,
            committed_entries=commit.committed_entries if commit else 0,
            committed_bytes=commit.committed_bytes if commit else 0,
            commit_ms_mean=sum(took) / len(took) if took else None,
            commit_ms_max=max(took, default=None),
            journal_bytes=journal.unremoved_bytes if journal else 0,
            cached_bytes=self._cache.bytes,
            ledger_count=len(self._storage.ledger_ids() | self._cache.ledger_ids()),
            open_files=self._storage.open_count,
            replayed_entries=self._opened.replayed_entries,
            damages=tuple(self._opened.damages),
            foreign_files=self._opened.foreign_files,
        )

    def _writable(self) -> GroupCommit:
        if self._commit is None:
            raise CallerError(
                f"bookie {self.bookie_id} ({self.directory}) is open for reading only"
            )
        return self._commit

    @property
    def is_silent(self) -> bool:
        """Whether its disk did not answer lately: ask others first."""
        return self._patience.is_silent

    async def _in_time(self, work: Callable[[], T]) -> T:
        """Run work in the storage lane. Raises `StorageError`, also when the disk does not answer.

        The work may still be done after that.
        """
        return await self._patiently(self._on_storage(work))

    async def _patiently(self, answer: Awaitable[T]) -> T:
        seconds = self._patience.seconds
        try:
            return await self._patience.within(answer)
        except NoAnswerError:
            raise StorageError(
                f"bookie {self.bookie_id}: its disk has not answered for {seconds:g} s"
            ) from None

    async def _on_storage(self, work: Callable[[], T]) -> T:
        try:
            done = await self._storage_lane.run(work)
        except OSError as error:
            self._patience.answered()
            raise StorageError(f"bookie {self.bookie_id}: {error}") from error
        except RuntimeError as error:
            if self._is_closed:
                raise ClosedHandleError(f"bookie {self.bookie_id} is closed") from error
            raise
        self._patience.answered()
        return done


def _by_entry_id(entry: StoredEntry) -> int:
    return entry.entry_id


def _distinct(entries: list[StoredEntry]) -> int:
    return len({entry.entry_id for entry in entries})


class _Rewrite:
    """The adds of one rewrite, as their `AddSink`."""

    is_recovery = True

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def synced(self, last_entry_id: int) -> None:  # noqa: ARG002
        resolve(self.done)

    def failed(self, error: AckGateError) -> None:
        fail(self.done, error)

    def fenced(self) -> None:
        """Never called: the writer here is the one that fences."""
