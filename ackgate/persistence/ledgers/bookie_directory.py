"""Opening a bookie's directory: who it is, who writes there, what the dead left behind.

Edge: blocking; run in the bookie's storage lane. Joining as a writer happens under the directory's
lock, which nobody holds for longer than a join or a takeover. Opening for reading takes no lock and
changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, CorruptRecordError, StorageError
from ackgate.persistence.ledgers.fences import Fences
from ackgate.persistence.ledgers.fragment_storage import FragmentStorage
from ackgate.persistence.ledgers.journal_view import JournalView
from ackgate.persistence.ledgers.layout import (
    CLUSTER_FILE,
    FENCES_FILE,
    IDENTITY_FILE,
    JOURNAL_DIRECTORY,
    LEDGERS_DIRECTORY,
    LOCK_FILE,
    WRITER_BYTES,
    is_writer_name,
)
from ackgate.persistence.ledgers.takeover import Takeover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ackgate.persistence.ledgers.disk import Disk, DiskLock
    from ackgate.persistence.ledgers.settings import BookieSettings

logger = logging.getLogger(__name__)

_FORMAT: Final = 1
_IDENTITY_BYTES_MAX: Final = 4096


@dataclass(slots=True)
class Writer:
    """Our place among those who write in this directory."""

    name: str
    journal: Path
    lock: DiskLock
    fences: Fences


class BookieDirectory:
    """An opened directory and what belongs to it."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        settings: BookieSettings,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.random_bytes = random_bytes
        self.bookie_id = ""
        self.writer: Writer | None = None
        self.replayed_entries = 0
        self._journals = directory / JOURNAL_DIRECTORY
        self._ledgers = directory / LEDGERS_DIRECTORY
        self._journal_damages: list[str] = []
        self._foreign: tuple[str, ...] = ()
        self.storage = FragmentStorage(disk, self._ledgers, settings, random_bytes)
        self.others = JournalView(disk, self._journals, None)

    def join(self) -> None:
        """Make what is missing, become a writer, take over what dead writers left.

        Raises `StorageError` when the directory cannot be written, `ConfigurationError` when it is
        not a bookie's.
        """
        try:
            for path in (self.directory, self._journals, self._ledgers):
                self.disk.make_directory(path)
            lock = self.disk.lock(self.directory / LOCK_FILE, wait=True)
            assert lock is not None
            try:
                self.bookie_id = self._read_identity() or self._make_identity()
                # Whoever made these names may have died before they were durable, and from now on
                # entries rest on them.
                self.disk.sync_directory(self.directory)
                others = self._take_over_dead()
                self.writer = self._make_writer(is_alone=not others)
            finally:
                lock.release()
            self.others = JournalView(self.disk, self._journals, self.writer.name)
            self._list_foreign()
            self.storage.refresh()
        except OSError as error:
            raise StorageError(f"bookie directory {self.directory}: {_words(error)}") from error

    def look(self) -> None:
        """Open for reading only. Raises `StorageError`, `ConfigurationError`."""
        try:
            bookie_id = self._read_identity()
            if bookie_id is None:
                raise ConfigurationError(
                    f"{self.directory} is not a bookie's directory: it has no {IDENTITY_FILE}"
                )
            self.bookie_id = bookie_id
            self._list_foreign()
            self.storage.refresh()
        except OSError as error:
            raise StorageError(f"bookie directory {self.directory}: {_words(error)}") from error

    def take_over(self) -> int:
        """Take over journals of writers that have gone since.

        The number of entries brought over. Does not wait when another process is at it: that one may
        be stopped in the midst, and what it has not brought over can be read in the journals.
        """
        if not self.others.writers():
            return 0
        before = self.replayed_entries
        lock = self.disk.lock(self.directory / LOCK_FILE, wait=False)
        if lock is None:
            return 0
        try:
            self._take_over_dead()
        finally:
            lock.release()
        return self.replayed_entries - before

    @property
    def damages(self) -> list[str]:
        """Damaged places met so far."""
        return self._journal_damages + self.storage.damages

    @property
    def foreign_files(self) -> tuple[str, ...]:
        """Paths below the directory that are not ours, as of the last listing."""
        return self._foreign + tuple(f"{LEDGERS_DIRECTORY}/{n}" for n in self.storage.foreign_files)

    def _list_foreign(self) -> None:
        ours = {
            *(IDENTITY_FILE, CLUSTER_FILE, LOCK_FILE, FENCES_FILE),
            *(JOURNAL_DIRECTORY, LEDGERS_DIRECTORY),
        }
        foreign = [name for name in self.disk.list(self.directory) if name not in ours]
        foreign += [
            f"{JOURNAL_DIRECTORY}/{name}"
            for name in self.disk.list(self._journals)
            if not is_writer_name(name)
        ]
        self._foreign = tuple(foreign)
        if foreign:
            logger.warning("%s: ignored, not ours: %s", self.directory, ", ".join(foreign[:20]))

    def close(self, *, is_written: bool) -> None:
        """Leave. `is_written`: the fragment files have everything, the journal can go."""
        self.storage.close()
        writer = self.writer
        if writer is None:
            return
        writer.fences.close()
        try:
            if is_written:
                for name in self.disk.list(writer.journal):
                    self.disk.remove(writer.journal / name)
                self.disk.remove_directory(writer.journal)
        finally:
            writer.lock.release()

    def claim(self, cluster: str) -> None:
        """Mark the directory as `cluster`'s, if nobody's mark is there. Read-only: only look.

        Raises `ConfigurationError` when it is another cluster's, `StorageError`.
        """
        try:
            if self.writer is None:
                self._check_cluster(cluster)
                return
            lock = self.disk.lock(self.directory / LOCK_FILE, wait=True)
            assert lock is not None
            try:
                if not self._check_cluster(cluster):
                    self._write_whole(CLUSTER_FILE, {"format": _FORMAT, "cluster": cluster})
                    self.disk.sync_directory(self.directory)
            finally:
                lock.release()
        except OSError as error:
            raise StorageError(f"bookie directory {self.directory}: {_words(error)}") from error

    def _check_cluster(self, cluster: str) -> bool:
        """Whether there is a mark."""
        found = self._read_small(CLUSTER_FILE, "cluster")
        if found is not None and found != cluster:
            raise ConfigurationError(
                f"bookie {self.directory} belongs to another cluster, that of another metadata store"
                f" ({CLUSTER_FILE} says {found}, the metadata store {cluster}): use other"
                " directories, or the metadata store that they were used with"
            )
        return found is not None

    def _read_identity(self) -> str | None:
        return self._read_small(IDENTITY_FILE, "bookie_id")

    def _read_small(self, name: str, key: str) -> str | None:
        path = self.directory / name
        try:
            file = self.disk.open_read(path)
        except FileNotFoundError:
            return None
        try:
            text = file.read(0, _IDENTITY_BYTES_MAX)
        finally:
            file.close()
        try:
            stored = json.loads(text)
            found, value = stored["format"], stored[key]
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(f"{path}: not a bookie's identity: {text[:80]!r}") from None
        if found != _FORMAT or not isinstance(value, str):
            raise ConfigurationError(f"{path}: format {found!r}; this version reads {_FORMAT}")
        return value

    def _make_identity(self) -> str:
        if self.disk.list(self._ledgers):
            raise CorruptRecordError(
                f"{self.directory}: {IDENTITY_FILE} is missing although there are ledgers"
            )
        self._sync_way_here()
        bookie_id = f"{self.directory.name}-{self.random_bytes(4).hex()}"
        self._write_whole(IDENTITY_FILE, {"format": _FORMAT, "bookie_id": bookie_id})
        return bookie_id

    def _write_whole(self, name: str, content: dict[str, object]) -> None:
        """Under its name there is all of it, or nothing."""
        temporary = self.directory / f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove(temporary)
        file = self.disk.create(temporary)
        try:
            file.append(json.dumps(content).encode())
            file.sync()
        finally:
            file.close()
        self.disk.rename(temporary, self.directory / name)

    def _sync_way_here(self) -> None:
        """Make the directory's own name durable, and those of the parents it may have needed."""
        # Those that are not ours to open were not made by us either.
        with contextlib.suppress(PermissionError):
            self.disk.sync_directory(self.directory.parent)
        for directory in self.directory.parents[1:]:
            with contextlib.suppress(OSError):
                self.disk.sync_directory(directory)

    def _take_over_dead(self) -> list[str]:
        """Under the directory's lock. Returns the writers that are alive."""
        alive: list[str] = []
        for writer in self.others.writers():
            journal = self._journals / writer
            lock = self.disk.lock(journal / LOCK_FILE, wait=False)
            if lock is None:
                alive.append(writer)
                continue
            try:
                takeover = Takeover(self.disk, self.storage, self._ledgers, journal, writer)
                takeover.run()
            finally:
                lock.release()
            self.replayed_entries += takeover.entry_count
            self._journal_damages += takeover.damages
            if takeover.entry_count:
                logger.info(
                    "%s: replayed %d entries of writer %s",
                    self.directory,
                    takeover.entry_count,
                    writer,
                )
        return alive

    def _make_writer(self, *, is_alone: bool) -> Writer:
        name = self.random_bytes(WRITER_BYTES).hex()
        journal = self._journals / name
        self.disk.make_directory(journal)
        self.disk.sync_directory(self._journals)
        lock = self.disk.lock(journal / LOCK_FILE, wait=False)
        if lock is None:
            raise StorageError(f"{journal}: the name of a new writer is taken")
        fences = Fences.join(self.disk, self.directory / FENCES_FILE, is_alone=is_alone)
        return Writer(name, journal, lock, fences)


def _words(error: OSError) -> str:
    """What went wrong, for people: making a directory where a file is says "File exists"."""
    if isinstance(error, FileExistsError):
        return f"{error.filename} is no directory"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
