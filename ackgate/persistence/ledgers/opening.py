"""Opening bookies' directories, and going on without those that cannot be opened.

Edge. A broker with three disks must start when one of them does not work. What is skipped is named,
and tried again every so often; once it opens it joins the others. Of a directory that cannot be
opened not even the id is known: to the ledgers on it, its bookie "is not here".
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, ConfigurationError, InternalError, StorageError
from ackgate.persistence.bookies.bookie import Bookie
from ackgate.persistence.bookies.directory import BookieDirectory
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.ledgers.bookie_pool import BookiePool
from ackgate.persistence.system.disk import OsDisk
from ackgate.persistence.system.io_lane import ThreadLane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from ackgate.persistence.system.disk import Disk
    from ackgate.persistence.system.io_lane import IoLane

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 30.0
"""How often a directory is tried again."""

OPEN_SECONDS_MAX: Final = 60.0
"""How long the others wait for one that may have much to replay. It goes on by itself then."""


class BookieOpener:
    """Opens the directories of bookies, with the settings and disks that they share."""

    def __init__(
        self,
        *,
        settings: BookieSettings | None = None,
        is_read_only: bool = False,
        disk: Disk | None = None,
        lane: Callable[[str], IoLane] = ThreadLane,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._settings = settings or BookieSettings()
        self._is_read_only = is_read_only
        self._disk = disk or OsDisk()
        self._lane = lane
        self._random_bytes = random_bytes
        self.admit: Callable[[Bookie], Awaitable[None]] | None = None
        """Asked about each that was opened; what it raises, opening raises."""

    async def open(self, directory: Path) -> Bookie:
        """Open one directory, made if absent, and replay what a crash left in its journal.

        Raises `StorageError`, `ConfigurationError`, `CorruptRecordError`.
        """
        storage_lane = self._lane(f"bookie-storage-{directory.name}")
        opened = BookieDirectory(self._disk, directory, self._settings, self._random_bytes)
        try:
            await storage_lane.run(opened.look if self._is_read_only else opened.join)
        except BaseException:
            storage_lane.close()
            raise
        bookie = Bookie(
            opened,
            settings=self._settings,
            journal_lane=self._lane(f"bookie-journal-{directory.name}"),
            storage_lane=storage_lane,
        )
        if self.admit is not None:
            try:
                await self.admit(bookie)
            except BaseException:
                await bookie.close()
                raise
        return bookie


def distinct(directories: Sequence[Path]) -> list[Path]:
    """The directories, resolved. Raises `ConfigurationError` when one is named twice."""
    resolved = [directory.resolve() for directory in directories]
    for directory in resolved:
        if resolved.count(directory) > 1:
            raise ConfigurationError(f"bookie directory {directory} is named twice")
    return resolved


class AbsentBookies:
    """Directories that could not be opened, tried again until they can be."""

    def __init__(self, opener: BookieOpener) -> None:
        self._opener = opener
        self._reasons: dict[Path, str] = {}
        self._opening: dict[Path, asyncio.Task[Bookie]] = {}
        """What an attempt that takes longer than the others could wait may yet become."""
        self._retry: asyncio.Task[None] | None = None

    @property
    def reasons(self) -> Mapping[Path, str]:
        """Why each of them is not there."""
        return self._reasons

    def put(self, directory: Path, reason: str, opening: asyncio.Task[Bookie] | None) -> None:
        logger.error("bookie directory %s is left out for now: %s", directory, reason)
        self._reasons[directory] = reason
        if opening is not None:
            self._opening[directory] = opening

    def start(self, on_opened: Callable[[Bookie], None]) -> None:
        """Keep trying from now on; `on_opened` gets each bookie that opens."""
        if self._reasons and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.create_task(self._try_again(on_opened))

    async def _try_again(self, on_opened: Callable[[Bookie], None]) -> None:
        while self._reasons:
            await asyncio.sleep(RETRY_SECONDS)
            for directory in tuple(self._reasons):
                try:
                    await self.try_one(directory, on_opened)
                except AckGateError as error:
                    self._reasons[directory] = str(error)

    async def try_one(self, directory: Path, on_opened: Callable[[Bookie], None]) -> None:
        """Try one now. Raises what opening raises."""
        task = self._opening.pop(directory, None)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._opener.open(directory))
        done, _ = await asyncio.wait([task], timeout=RETRY_SECONDS)
        if not done:
            self._opening[directory] = task
            return
        bookie = task.result()
        try:
            on_opened(bookie)
        except BaseException:
            await bookie.close()
            raise
        del self._reasons[directory]
        logger.warning("bookie directory %s is back: bookie %s", directory, bookie.bookie_id)

    async def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            await asyncio.wait([self._retry])
        for task in self._opening.values():
            task.cancel()


async def open_usable_bookies(
    directories: Sequence[Path], opener: BookieOpener, *, least: int = 1
) -> tuple[list[Bookie], AbsentBookies]:
    """Open as many of the directories as can be opened, all at the same time.

    Raises `StorageError` when fewer than `least` can be, `ConfigurationError` when a directory is
    named twice, or is a copy of another.
    """
    loop = asyncio.get_running_loop()
    tasks = {path: loop.create_task(opener.open(path)) for path in distinct(directories)}
    done, _ = (
        await asyncio.wait(tasks.values(), timeout=OPEN_SECONDS_MAX) if tasks else (set(), set())
    )
    bookies: list[Bookie] = []
    absent = AbsentBookies(opener)
    refusals: list[AckGateError] = []
    bugs: list[BaseException] = []
    for path, task in tasks.items():
        error = task.exception() if task in done else None
        if task not in done:
            absent.put(path, f"not open after {OPEN_SECONDS_MAX:g} s", task)
        elif error is None:
            bookies.append(task.result())
        elif isinstance(error, AckGateError) and not isinstance(error, InternalError):
            absent.put(path, str(error), None)
            refusals.append(error)
        else:
            bugs.append(error)
    try:
        if bugs:
            raise bugs[0]  # noqa: TRY301 - what is open is closed in one place
        if len(bookies) < least:
            only = refusals[0] if len(tasks) == len(refusals) == 1 else None
            raise only or _too_few(bookies, absent, least)  # noqa: TRY301 - as above
        BookiePool(bookies)  # refuses copies
    except BaseException:
        await asyncio.gather(absent.close(), *(bookie.close() for bookie in bookies))
        raise
    return bookies, absent


def _too_few(bookies: Sequence[Bookie], absent: AbsentBookies, least: int) -> StorageError:
    reasons = "; ".join(f"{path}: {reason}" for path, reason in absent.reasons.items())
    return StorageError(
        f"{len(bookies)} of {len(bookies) + len(absent.reasons)} bookies can be opened, at least "
        f"{least} are needed: {reasons}"
    )
