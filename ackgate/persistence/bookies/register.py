"""A bookie's record of its ledgers: which it has seen, begun and deleted, and which were fenced.

Edge: blocking; used from the bookie's storage lane only, but for `Fences.poll`, which the journal's lane
calls, and `RegisterRounds` and `FileRemovals`, whose tasks are on the loop. The register reveals a metadata
store that is older than its bookies, and restores ledgers that such a store has forgotten. ::

    marks      next ledger id (8) | run (8) | CRC32C (4), each record twice, appended
    origins/   a ledger's metadata when it was begun here: see `origins`
    deleted    ledger id (8) | CRC32C (4), appended
    fences     the same, of ledgers that were fenced: see `Fences`

*Marks*: the highest of each number counts. The next ledger id is the metadata store's own counter, so a
store whose counter is lower has been put back to an older state; so is one that has counted fewer runs.

*Origins*: one is durable before the first entry is added, and deleted with the ledger.

*Deleted*: written and synced before any file of a ledger is removed. A journal that a crash left may
still hold its entries; a takeover leaves them out. A writer that joins alone empties the list when no
journal is left.

Several processes may have the directory open. They append records to `marks` and `deleted`; each has a log
of origins of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from google_crc32c import value as crc32c

from ackgate.errors import AckGateError, ConfigurationError, StorageError
from ackgate.persistence.bookies.layout import DELETED_FILE, MARKS_FILE, ORIGINS_DIRECTORY
from ackgate.persistence.bookies.origins import Origins
from ackgate.persistence.system.disk import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.origins import LedgerOrigin
    from ackgate.persistence.system.disk import Disk, DiskFile


logger = logging.getLogger(__name__)

T = TypeVar("T")

_MARK: Final = struct.Struct(">QQI")
_LEDGER: Final = struct.Struct(">QI")
"""A ledger's id and its CRC32C, in `deleted` and in `fences`."""

_MARKS_BYTES_MAX: Final = 256 * 1024
"""Of a file that a writer who joins alone makes short again: a record for 100 ledgers, or for a run."""

_REMOVED_AT_ONCE_MAX: Final = 100
"""Deleted ledgers whose files go in one go; reads wait meanwhile."""

_COMFORT: Final = "what it said is known from the ledgers themselves"


class Mark(NamedTuple):
    """How far a metadata store was when the bookie last saw it."""

    next_ledger_id: int = 0
    """Every ledger id seen is lower."""
    run: int = -1
    """The highest number of a start of a broker (or of an embedding host)."""

    def with_(self, other: Mark) -> Mark:
        """Combine two marks: the higher of each number."""
        return Mark(max(self.next_ledger_id, other.next_ledger_id), max(self.run, other.run))


class LedgerRegister:
    """The marks, origins and deletions of one bookie."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._mark = Mark()
        self.damages: list[str] = []
        """Damaged places met, each with its file."""
        self.origins = Origins(disk, directory / ORIGINS_DIRECTORY, self._report)
        """What each ledger was."""

    # --------------------------------------------------------------------------------- joining

    def join(self, writer: str, others: Collection[str] = ()) -> None:
        """Make what is missing, as a writer that starts. Under the directory's lock.

        `others`: the writers that are alive. Raises `OSError`.
        """
        self.origins.join(writer, others)
        self.look()
        path = self._directory / MARKS_FILE
        data = read_file(self._disk, path)
        is_long = len(data or b"") > _MARKS_BYTES_MAX
        if not others and (is_long or self.damages):
            replace_file(self._disk, path, 2 * _encode_mark(self._mark))
            self._disk.sync_directory(self._directory)

    def look(self) -> None:
        """Read the marks. Raises `OSError`."""
        path = self._directory / MARKS_FILE
        data = read_file(self._disk, path)
        origin_ids = self.origins.ids()
        # A ledger that is here was seen, whatever the marks say.
        known, unread = Mark(max(origin_ids, default=-1) + 1), 0
        at = 0
        while data is not None and at < len(data):
            mark = _decode_mark(data[at : at + _MARK.size])
            unread += mark is None
            known = known.with_(mark) if mark is not None else known
            at += 1 if mark is None else _MARK.size
        if unread:
            self._report(f"{path}: {unread} of {len(data or b'')} bytes are damaged; {_COMFORT}")
        if not data and origin_ids:
            self._report(f"{path} is missing or empty although there are ledgers; {_COMFORT}")
        self._mark = known

    @property
    def mark(self) -> Mark:
        """The metadata store's counters, as far as they are known here."""
        return self._mark

    def raise_mark(self, mark: Mark) -> None:
        """Record the metadata store's counters; durable when this returns. Raises `OSError`."""
        raised = self._mark.with_(mark)
        if raised == self._mark:
            return
        file = self._disk.open_append(self._directory / MARKS_FILE)
        try:
            is_new = not file.size()
            file.append(2 * _encode_mark(raised))
            file.sync()
        finally:
            file.close()
        if is_new:
            self._disk.sync_directory(self._directory)
        self._mark = raised

    # --------------------------------------------------------------------------------- origins

    def sync(self, mark: Mark) -> None:
        """Return when `mark` and the origins of new ledgers are durable. Raises `OSError`."""
        try:
            self.raise_mark(mark)
        finally:
            self.origins.sync()

    def close(self) -> None:
        self.origins.close()

    # -------------------------------------------------------------------------------- deletions

    def delete(self, ledger_ids: Iterable[int]) -> None:
        """Note that these ledgers were deleted; durable when this returns. Raises `OSError`.

        Their files are still there; `forget` comes when they are gone.
        """
        path = self._directory / DELETED_FILE
        file = self._disk.open_append(path)
        try:
            size = file.size()
            file.append(_encode_ledgers(ledger_ids))
            file.sync()
        finally:
            file.close()
        if not size:
            self._disk.sync_directory(self._directory)

    def deleted(self) -> frozenset[int]:
        """Deleted ledgers, whose files a crash may still bring back. Raises `OSError`."""
        data = read_file(self._disk, self._directory / DELETED_FILE) or b""
        return frozenset(_decode_ledgers(data)[0])

    def all_deleted(self) -> None:
        """Empty the list: nothing can bring the deleted ledgers back any more. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            file = self._disk.open_append(self._directory / DELETED_FILE)
            try:
                if file.size():
                    file.truncate(0)
            finally:
                file.close()

    # ------------------------------------------------------------------------------------------

    def _report(self, damage: str) -> None:
        if damage not in self.damages:
            self.damages.append(damage)
            logger.warning("%s", damage)


def _encode_mark(mark: Mark) -> bytes:
    numbers = mark.next_ledger_id.to_bytes(8) + (mark.run + 1).to_bytes(8)
    return _MARK.pack(mark.next_ledger_id, mark.run + 1, crc32c(numbers))


def _decode_mark(data: bytes) -> Mark | None:
    if len(data) < _MARK.size:
        return None
    next_ledger_id, run, digest = _MARK.unpack(data)
    return Mark(next_ledger_id, run - 1) if digest == crc32c(data[:16]) else None


def _encode_ledgers(ledger_ids: Iterable[int]) -> bytes:
    return b"".join(_LEDGER.pack(i, crc32c(i.to_bytes(8))) for i in ledger_ids)


def _decode_ledgers(data: bytes) -> tuple[set[int], int]:
    """Decode whole records.

    Returns the ledger ids and the bytes read; the rest may be a torn record.
    """
    found: set[int] = set()
    at = 0
    while at + _LEDGER.size <= len(data):
        ledger_id, digest = _LEDGER.unpack_from(data, at)
        if digest == crc32c(data[at : at + 8]):
            found.add(ledger_id)
            at += _LEDGER.size
        else:
            at += 1  # part of a record that a crash cut off; look beyond it
    return found, at


# ---- fences: the word of a new owner to a writer that may still live
#
# One small file per bookie, shared by all processes that use the directory. Records only ever get appended.
#
# The one who fences appends and syncs *before* it reads what the ledger holds. The writer syncs its
# entries, *then* looks whether the file has grown, and only then confirms. Whichever came first:
# either the new owner sees the entries, or the writer sees the fence and does not confirm them.
#
# A writer needs to know nothing from before it joined: ledgers that it creates are newer than that.


class Fences:
    """The fences file of one bookie, as one process sees it."""

    __slots__ = ("_file", "_read_to")

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._read_to = file.size()

    @classmethod
    def join(cls, disk: Disk, path: Path, *, is_alone: bool) -> Fences:
        """Open the file as a writer that starts now; `is_alone`: no other writer lives.

        Call it under the bookie's lock. Without other writers, old fences are dropped.
        """
        file = disk.open_append(path)
        if is_alone and file.size():
            file.truncate(0)
        return cls(file)

    def add(self, ledger_ids: Iterable[int]) -> None:
        """Append and sync. Raises `OSError`."""
        self._file.append(_encode_ledgers(ledger_ids))
        self._file.sync()

    def poll(self) -> set[int]:
        """Ledgers fenced since the last call, by any process. Costs one fstat as a rule."""
        size = self._file.size()
        if size < self._read_to + _LEDGER.size:
            return set()
        fenced, read = _decode_ledgers(self._file.read(self._read_to, size - self._read_to))
        self._read_to += read
        return fenced

    def close(self) -> None:
        self._file.close()


# ---- rounds: simultaneous calls share one sync
#
# Tasks on the loop; the work itself is the register's, in the bookie's storage lane.
#
# A bookie that cannot write a ledger's origin (its disk is full, or hangs) still takes the ledger's
# entries if it can: the origin stays in memory until a round succeeds. A ledger id that the bookie has
# already is rejected at once, for good.


_LATE_MAX: Final = 10_000
"""Origins kept in memory while the disk takes none; beyond it the oldest are dropped."""


class Beginning(NamedTuple):
    """A ledger that begins on a bookie."""

    origin: LedgerOrigin
    refused: asyncio.Future[AckGateError | None]
    """Done with `ConfigurationError` if the bookie has a ledger of this id already, else with
    None."""
    durable: asyncio.Future[AckGateError | None]
    """Done when the origin is durable: None, or why it is not (`StorageError`: it is written later)."""

    def settle(
        self, refused: AckGateError | None, durable: AckGateError | None = None
    ) -> Beginning:
        for answer, error in ((self.refused, refused), (self.durable, refused or durable)):
            if not answer.done():
                answer.set_result(error)
        return self


class OnStorage(Protocol):
    """Runs work in the bookie's storage lane. Raises `StorageError`."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


class RegisterRounds:
    """Collects what is to be begun or deleted on one bookie, and writes it in rounds."""

    def __init__(
        self,
        bookie_name: str,
        register: LedgerRegister,
        on_storage: OnStorage,
        holds: Callable[[Collection[int]], set[int]],
    ) -> None:
        """`holds`: of which ledgers entries are here; asked in the storage lane."""
        self._name = bookie_name
        self._register = register
        self._on_storage = on_storage
        self._holds = holds
        self._mark = Mark()
        self._beginning: dict[int, Beginning] = {}
        self._deleting: set[int] = set()
        self._late: dict[int, LedgerOrigin] = {}
        self._round: asyncio.Task[AckGateError | None] | None = None

    @property
    def late_count(self) -> int:
        """Origins that are not on disk yet."""
        return len(self._late)

    def begin(self, origin: LedgerOrigin, mark: Mark) -> Beginning:
        """Store the origin of a new ledger."""
        self._mark = self._mark.with_(mark)
        beginning = _beginning(origin)
        waiting = self._beginning.get(origin.ledger_id)
        if waiting is not None and not waiting.refused.cancelled():
            return beginning.settle(self._taken(origin.ledger_id))
        self._beginning[origin.ledger_id] = beginning
        self._running()
        return beginning

    def put_off(self, origin: LedgerOrigin) -> Beginning:
        """Count the ledger as begun, and write its origin when the disk takes it."""
        self._late[origin.ledger_id] = origin
        while len(self._late) > _LATE_MAX:
            del self._late[next(iter(self._late))]
        return _beginning(origin).settle(None)

    def try_late(self) -> None:
        """Try to write the origins that were put off: the disk takes writes again."""
        if self._late:
            self._running()

    async def delete(self, ledger_id: int) -> None:
        """Return when it is durable that the ledger was deleted. Raises `StorageError`."""
        self._late.pop(ledger_id, None)
        self._deleting.add(ledger_id)
        while ledger_id in self._deleting:
            error = await asyncio.shield(self._running())
            if error is not None:
                raise error

    def _running(self) -> asyncio.Task[AckGateError | None]:
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run())
        return self._round

    async def _run(self) -> AckGateError | None:
        """One round: why it failed, or None."""
        beginning, self._beginning = self._beginning, {}
        deleting, mark = set(self._deleting), self._mark
        new = {i: each.origin for i, each in beginning.items()}
        late = {i: origin for i, origin in self._late.items() if i not in new}

        def begin() -> set[int]:
            if deleting:
                self._register.delete(sorted(deleting))
            held = self._holds(new)
            origins = [origin for i, origin in new.items() if i not in held]
            return held | self._register.origins.begin([*origins, *late.values()])

        error: AckGateError | None = None
        try:
            for ledger_id in await self._on_storage(begin):
                if ledger_id in beginning:
                    beginning.pop(ledger_id).settle(self._taken(ledger_id))
            for each in beginning.values():
                if not each.refused.done():
                    each.refused.set_result(None)
            await self._on_storage(lambda: self._register.sync(mark))
        except AckGateError as caught:
            error = caught
        except BaseException:
            for each in beginning.values():
                each.refused.cancel()
                each.durable.cancel()
            raise
        finally:
            self._round = None
            if self._beginning:
                self._running()
        if error is None:
            self._deleting -= deleting
            for ledger_id, origin in late.items():
                if self._late.get(ledger_id) is origin:
                    del self._late[ledger_id]
        elif late and not beginning:
            logger.warning("origins of ledgers are not written yet: %s", error)
        for each in beginning.values():
            if isinstance(error, StorageError):
                self.put_off(each.origin)
                each.settle(None, error)
            else:
                each.settle(error)
        return error

    def _taken(self, ledger_id: int) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name} has a ledger {ledger_id} already: the metadata store has given"
            " its id out a second time, so it is older than the bookie; stop the broker and run"
            " `ackgate ledgers adopt` (docs/operations.md, Backup and restore)"
        )


class FileRemovals:
    """Removes the files of deleted ledgers, in one go those that are asked for in one turn of the loop."""

    def __init__(
        self, on_storage: OnStorage, remove: Callable[[Sequence[int]], Mapping[int, StorageError]]
    ) -> None:
        """`remove`: in the storage lane; returns why files of which ledgers could not be removed."""
        self._on_storage = on_storage
        self._remove = remove
        self._gathered: list[int] = []
        self._round: asyncio.Task[Mapping[int, AckGateError]] | None = None

    async def remove(self, ledger_id: int) -> None:
        """Return when no file of the ledger is left. Raises `StorageError`."""
        if self._round is None or len(self._gathered) == _REMOVED_AT_ONCE_MAX:
            self._gathered = []
            self._round = asyncio.get_running_loop().create_task(self._run(self._gathered))
        self._gathered.append(ledger_id)
        failed = await asyncio.shield(self._round)
        if ledger_id in failed:
            raise failed[ledger_id]

    async def _run(self, ledger_ids: list[int]) -> Mapping[int, AckGateError]:
        if ledger_ids is self._gathered:
            self._round = None
        try:
            return await self._on_storage(lambda: self._remove(ledger_ids))
        except AckGateError as error:
            return dict.fromkeys(ledger_ids, error)


def _beginning(origin: LedgerOrigin) -> Beginning:
    loop = asyncio.get_running_loop()
    return Beginning(origin, loop.create_future(), loop.create_future())
