"""Opening a bookie's directory: its identity, its writers, and what dead writers left.

Edge: blocking; run in the bookie's storage lane. Joining as a writer happens under the directory's
lock, which is held for a join or a takeover, and no longer. Opening for reading takes no lock and
changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, CorruptRecordError, StorageError
from ackgate.persistence.bookies.fragment_storage import FragmentStorage
from ackgate.persistence.bookies.journal import JournalView, journal_files
from ackgate.persistence.bookies.layout import (
    CLUSTER_FILE,
    DELETED_FILE,
    FENCES_FILE,
    IDENTITY_BYTES_MAX,
    IDENTITY_FILE,
    JOURNAL_DIRECTORY,
    LEDGERS_DIRECTORY,
    LOCK_FILE,
    MARKS_FILE,
    ORIGINS_DIRECTORY,
    WRITER_BYTES,
    Identity,
    is_writer_name,
    read_identity,
    write_identity,
)
from ackgate.persistence.bookies.register import Fences, LedgerRegister
from ackgate.persistence.bookies.takeover import Takeover
from ackgate.persistence.system.disk import read_file
from ackgate.persistence.system.disk_reserve import RESERVE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ackgate.persistence.bookies.settings import BookieSettings
    from ackgate.persistence.system.disk import Disk, DiskLock

_ROOM_BYTES: Final = 256 * 1024
"""What a replay takes beside the entries: heads of files and blocks, names."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Writer:
    """This process as one of the directory's writers."""

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
        self._identity_damages: list[str] = []
        self._journal_damages: list[str] = []
        self._foreign: tuple[str, ...] = ()
        self._left: set[str] = set()
        """Dead writers whose journals stay until there is room to take them over."""
        self.storage = FragmentStorage(disk, self._ledgers, settings, random_bytes)
        self.others = JournalView(disk, self._journals, None)
        self.register = LedgerRegister(disk, directory)

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
                self.bookie_id = (self._mended_identity() or self._make_identity()).bookie_id
                # The process that made these names may have died before they were durable, and from now on
                # entries rest on them.
                self.disk.sync_directory(self.directory)
                others = self._take_over_dead()
                name = self.random_bytes(WRITER_BYTES).hex()
                self.register.join(name, others)
                self._remove_deleted(is_alone=not others)
                self.writer = self._make_writer(name, is_alone=not others)
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
            identity = self._read_identity()
            if identity is None:
                raise ConfigurationError(
                    f"{self.directory} is not a bookie's directory: it has no {IDENTITY_FILE}"
                )
            self.bookie_id = identity.bookie_id
            self._list_foreign()
            self.storage.refresh()
            self.register.look()
        except OSError as error:
            raise StorageError(f"bookie directory {self.directory}: {_words(error)}") from error

    def take_over(self) -> int:
        """Take over journals of writers that have gone since, and of those before, if there is room.

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
        return (
            self._identity_damages
            + self.register.damages
            + self._journal_damages
            + self.storage.damages
        )

    @property
    def foreign_files(self) -> tuple[str, ...]:
        """Paths below the directory that are not ours, as of the last listing."""
        return self._foreign + tuple(f"{LEDGERS_DIRECTORY}/{n}" for n in self.storage.foreign_files)

    def _list_foreign(self) -> None:
        ours = {
            *(IDENTITY_FILE, CLUSTER_FILE, LOCK_FILE, FENCES_FILE, MARKS_FILE, DELETED_FILE),
            *(JOURNAL_DIRECTORY, LEDGERS_DIRECTORY, ORIGINS_DIRECTORY, RESERVE_FILE),
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
        """Leave the directory.

        `is_written`: fragment files hold everything, so the journal can go.
        """
        self.storage.close()
        writer = self.writer
        if writer is None:
            return
        writer.fences.close()
        self.register.close()
        try:
            if is_written:
                for name in self.disk.list(writer.journal):
                    self.disk.remove(writer.journal / name)
                self.disk.remove_directory(writer.journal)
        finally:
            writer.lock.release()

    def claim(self, cluster: str) -> None:
        """Mark the directory as `cluster`'s, if it has no mark. Read-only: only look.

        Raises `ConfigurationError` when it is another cluster's, `StorageError`.
        """
        try:
            if self.writer is None:
                self._check_cluster(self._read_identity(), cluster)
                return
            lock = self.disk.lock(self.directory / LOCK_FILE, wait=True)
            assert lock is not None
            try:
                identity = self._mended_identity()
                self._check_cluster(identity, cluster)
                if identity is not None and identity.cluster is None:
                    for name in (IDENTITY_FILE, CLUSTER_FILE):
                        claimed = identity._replace(cluster=cluster)
                        write_identity(self.disk, self.directory, name, claimed)
                    self.disk.sync_directory(self.directory)
            finally:
                lock.release()
        except OSError as error:
            raise StorageError(f"bookie directory {self.directory}: {_words(error)}") from error

    def cluster(self) -> str | None:
        """The cluster that claimed it; None: none. Raises `OSError`, `ConfigurationError`."""
        identity = self._read_identity()
        return identity.cluster if identity is not None else None

    def _check_cluster(self, identity: Identity | None, cluster: str) -> None:
        found = identity.cluster if identity is not None else None
        if found is not None and found != cluster:
            raise ConfigurationError(
                f"bookie {self.directory} belongs to another cluster, that of another metadata store"
                f" ({CLUSTER_FILE} says {found}, the metadata store {cluster}): use other"
                " directories, or the metadata store that they were used with"
            )

    def _read_identity(self) -> Identity | None:
        stored = read_identity(self.directory, self._read_small)
        self._identity_damages = list(stored.damages)
        return stored.identity

    def _mended_identity(self) -> Identity | None:
        """Read the identity, and restore a lost file from the other. Needs the directory's lock."""
        stored = read_identity(self.directory, self._read_small)
        if stored.identity is None:
            return None
        for name in stored.outdated:
            write_identity(self.disk, self.directory, name, stored.identity)
        for damage in stored.damages:
            self._identity_damages.append(damage)
            logger.warning("%s: restored from the other one of the two files", damage)
        return stored.identity

    def _read_small(self, name: str) -> bytes | None:
        return read_file(self.disk, self.directory / name, IDENTITY_BYTES_MAX)

    def _make_identity(self) -> Identity:
        if self.disk.list(self._ledgers) or self.disk.list(self._journals):
            raise CorruptRecordError(
                f"{self.directory}: {IDENTITY_FILE} is missing although there are ledgers: put it"
                " back from a backup"
            )
        self._sync_way_here()
        identity = Identity(f"{self.directory.name}-{self.random_bytes(4).hex()}")
        write_identity(self.disk, self.directory, IDENTITY_FILE, identity)
        return identity

    def _sync_way_here(self) -> None:
        """Make the directory's own name durable, and those of the parents it may have needed."""
        # Those that are not ours to open were not made by us either.
        with contextlib.suppress(PermissionError):
            self.disk.sync_directory(self.directory.parent)
        for directory in self.directory.parents[1:]:
            with contextlib.suppress(OSError):
                self.disk.sync_directory(directory)

    def _remove_deleted(self, *, is_alone: bool) -> None:
        """Remove files of deleted ledgers that a crash has brought back."""
        deleted = self.register.deleted()
        for ledger_id in deleted:
            self.storage.remove(ledger_id)
        if deleted:
            self.register.origins.forget(deleted)
            self.storage.sync_directory()
        if is_alone and not self._left:
            self.register.all_deleted()

    def _take_over_dead(self) -> list[str]:
        """Take over the journals of dead writers. Needs the directory's lock.

        Returns live writers.
        """
        alive: list[str] = []
        for writer in self.others.writers():
            journal = self._journals / writer
            lock = self.disk.lock(journal / LOCK_FILE, wait=False)
            if lock is None:
                alive.append(writer)
                continue
            deleted = self.register.deleted()
            takeover = Takeover(
                self.disk, self.storage, self._ledgers, journal, writer, deleted=deleted
            )
            try:
                if not self._has_room_for(journal, writer, deleted):
                    continue
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
        self._left.intersection_update(self.others.writers())
        return alive

    def _has_room_for(self, journal: Path, writer: str, deleted: frozenset[int]) -> bool:
        """Whether its entries fit into fragment files. Until they do they are read where they are."""
        free_bytes = self.disk.free_bytes(self.directory)
        if free_bytes is None or free_bytes >= _files_bytes(self.disk, journal) + _ROOM_BYTES:
            return True
        self.others.refresh()
        needed_bytes = self.others.bytes_besides(writer, deleted)
        if not needed_bytes or free_bytes >= needed_bytes + _ROOM_BYTES:
            return True
        if writer not in self._left:
            self._left.add(writer)
            logger.warning(
                "%s: no room to replay %d bytes of writer %s; they are read where they are until"
                " there is",
                self.directory,
                needed_bytes,
                writer,
            )
        return False

    def _make_writer(self, name: str, *, is_alone: bool) -> Writer:
        journal = self._journals / name
        self.disk.make_directory(journal)
        self.disk.sync_directory(self._journals)
        lock = self.disk.lock(journal / LOCK_FILE, wait=False)
        if lock is None:
            raise StorageError(f"{journal}: the name of a new writer is taken")
        fences = Fences.join(self.disk, self.directory / FENCES_FILE, is_alone=is_alone)
        return Writer(name, journal, lock, fences)


def _files_bytes(disk: Disk, journal: Path) -> int:
    size = 0
    for path, _ in journal_files(disk, journal):
        file = disk.open_read(path)
        try:
            size += file.size()
        finally:
            file.close()
    return size


def _words(error: OSError) -> str:
    """What went wrong, for people: making a directory where a file is says "File exists"."""
    if isinstance(error, FileExistsError):
        return f"{error.filename} is no directory"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
