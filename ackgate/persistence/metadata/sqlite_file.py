r"""The files of a SQLite metadata store: opened by one writer, verified, repaired; or read beside it.

Edge: files and SQLite; blocking, in the store's worker thread. ::

    metadata.sqlite          the tree, as of the last checkpoint
    metadata.sqlite-wal      SQLite's log of the commits since; -shm is its index, rebuilt
    metadata.sqlite-log      ours, with checksums: the same commits, and a sum of each page of the
                             database as of the last checkpoint (`commit_log`)
    metadata.sqlite-mirror   a second copy of the database, as of the last checkpoint
    metadata.sqlite-lock     held by the writer as long as it lives

What one of these has lost the others have. The writer checks, in this order:

    1  database == sums?         pages that do not fit come from the mirror
    2  SQLite's log read by it   the pages that it brings along need not fit; if it is damaged in a
                                 way that leaves a mixture, it is removed
    3  its last commit == ours?  SQLite has fewer: the rest is repeated from our log
                                 we have fewer: our log is damaged, and a new one begins

Each repair is logged in one line. Damage beyond repair is rejected with advice: a store that is older
than what it has confirmed would hand out the same ledger ids again. An older copy of the database
that was put there is rejected as well, although the mirror could repair it.

A *reader* changes no file. Commits that only our log has, since the writer was killed between the two, it
reads from there; where pages are damaged it raises `CorruptRecordError`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import time
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from google_crc32c import value as crc32c

from ackgate.errors import (
    ConfigurationError,
    CorruptRecordError,
    DataDirectoryBusyError,
    MetadataDiskFullError,
    MetadataStoreError,
)
from ackgate.persistence.metadata.commit_log import (
    CommitLog,
    LogHeader,
    StoredLog,
    decode_changes,
    encode_changes,
    read_log,
)
from ackgate.persistence.metadata.node_table import (
    FORMAT_VERSION,
    NodeTable,
    prepare,
    read_progress,
    write_progress,
)
from ackgate.persistence.metadata.sqlite_pages import (
    Mirror,
    PageFile,
    read_wal,
    sums_after,
    unlike,
    wal_path,
    write_pages,
)
from ackgate.persistence.system import platform_files
from ackgate.persistence.system.data_directory import FILE_MODE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sized
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ackgate.persistence.metadata.node_table import CommitProgress
    from ackgate.persistence.metadata.sqlite_pages import WalFrames

T = TypeVar("T")

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_SECONDS: Final = 5.0
"""A reader that copies the file may hold it for a moment."""

_JOURNAL_BYTES_MAX: Final = 16 * 1024 * 1024
"""SQLite's log is cut back to this after a checkpoint that let it grow."""

_CHECKPOINT_PAGES: Final = 8000
"""Pages changed, about, after which there is a checkpoint: what a start after a crash has to repeat."""

_PAGES_PER_COMMIT: Final = 3
"""The number of the commit, and the ends of two trees."""

_READ_ATTEMPTS: Final = 20
_READ_PAUSE_SECONDS: Final = 0.05
"""A reader that finds the database older than our log retries: the writer may be about to commit."""

_WAY_BACK: Final = (
    "put a backup in its place and run `ackgate ledgers adopt`"
    " (docs/operations.md, Backup and restore)"
)


def has_writer(path: Path) -> bool:
    """Whether a process has opened the file for writing; True also if nobody may look."""
    try:
        descriptor = os.open(_lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not platform_files.lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-lock")


class SoleWriter:
    """The lock that makes this process the file's only writer."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises `DataDirectoryBusyError` naming who holds it."""
        self._path = _lock_path(path)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            is_ours = platform_files.lock(self._descriptor, wait=False)
        except BaseException:
            os.close(self._descriptor)
            raise
        if not is_ours:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise DataDirectoryBusyError(f"{path} is held by process {holder or 'unknown'}")
        os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):  # a full disk: the lock itself needs no room
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the file. The lock file stays: removing it would race."""
        os.close(self._descriptor)


class Database:
    """The database of a store, opened by its one writer, who holds the lock."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, log: CommitLog, number: int
    ) -> None:
        self._path = path
        self._log = log
        self._mirror = Mirror(path)
        self._has_mirror = log.header.has_mirror
        self._changed_pages = 0
        self._frames_to_describe: int | None = None
        """Those that SQLite has written into the database file, and our log does not describe yet."""
        self.connection = connection
        self.number = number
        """Of the last commit that changed anything."""

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open it, made if absent; repair what can be repaired.

        Raises `ConfigurationError` (not a store of ours, or an older copy), `CorruptRecordError`
        (damage beyond repair), `sqlite3.Error`, `OSError`.
        """
        return _Opening(path).run()

    def transact(self, table: NodeTable, run: Callable[[], T]) -> T:
        """Run inside one transaction, durable when this returns; or nothing of it was done.

        Raises what `run` raises, `sqlite3.Error`, `OSError`.
        """
        self._describe_file()
        connection = self.connection
        table.changes = []
        logged: bytes | None = None
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = run()
            if table.changes:
                write_progress(connection, self.number + 1)
                payload = encode_changes(table.changes)
                self._log.append(self.number + 1, payload)
                logged = payload
            connection.execute("COMMIT")
        except BaseException:
            # SQLite may have rolled back by itself.
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if logged is not None:
                self._log.revoke(logged)
            raise
        if logged is not None:
            self.number += 1
            self._changed_pages += len(table.changes) + _PAGES_PER_COMMIT
        return result

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether so much was changed since the last one that there should be one."""
        return self._changed_pages >= _CHECKPOINT_PAGES

    def checkpoint(self) -> bool:
        """Bring the database file up to date, and begin a new log.

        False when a reader prevents it: then SQLite's log and ours continue, as they do when this
        raises `sqlite3.Error` or `OSError`.
        """
        self._describe_file()
        self._changed_pages = 0
        (page_count,) = self.connection.execute("PRAGMA page_count").fetchone()
        # The new log must not fail for want of room once SQLite has changed the file.
        self._log.make_room(page_count)
        frames = _checkpointed_frames(self.connection)
        if frames is None:
            return False
        if frames or self._log.header.base != self.number:
            self._frames_to_describe = frames
            self._describe_file()
        return True

    def _describe_file(self) -> None:
        """Begin a new log, with the sums of the pages that SQLite's checkpoint has written.

        Until that succeeds there is no commit: it would overwrite SQLite's log, without which the old
        sums and the changed file contradict each other. Raises `OSError`.
        """
        frames = self._frames_to_describe
        if frames is None:
            return
        header = self._log.header
        wal = read_wal(self._path, frames)
        sums = sums_after(header.sums, wal)
        self._has_mirror = self._has_mirror and self._bring_mirror_up_to_date(wal, len(sums))
        self._log.restart(header._replace(base=self.number, sums=sums, has_mirror=self._has_mirror))
        self._frames_to_describe = None

    def _bring_mirror_up_to_date(self, wal: WalFrames, page_count: int) -> bool:
        pages = ((n, content) for n, content in wal.newest().contents() if n < page_count)
        try:
            self._mirror.write(pages, self._log.header.page_bytes, page_count)
        except OSError as error:
            logger.warning("%s: given up until the next start: %s", self._mirror.path, error)
            self._mirror.remove()
            return False
        return True

    def close(self) -> None:
        """Leave one verified file, if no other process has it open."""
        try:
            is_done = self.checkpoint()
        except (sqlite3.Error, OSError) as error:
            logger.warning("%s: not brought up to date: %s", self._path, error)
            is_done = False
        _close(self._path, self.connection, keep_log=not is_done)
        self._log.close()


def _checkpointed_frames(connection: sqlite3.Connection) -> int | None:
    """Write SQLite's log into the database file.

    Returns the frames of the log; None when a reader keeps some of them from being written.
    """
    _, frames, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(frames) if frames == done and frames >= 0 else None


def _close(path: Path, connection: sqlite3.Connection, *, keep_log: bool) -> None:
    """The last to close a database writes SQLite's log into it, except a reader."""
    keeper = None
    if keep_log:
        with contextlib.suppress(sqlite3.Error):
            keeper = _connect_reading(path, "mode=ro")
            keeper.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.close()
    if keeper is not None:
        keeper.close()


class _Opening:
    """One opening by the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = log_path(path)
        self._mirror = Mirror(path)
        self._stored: StoredLog | None = None
        self._mirror_fits = False
        self._mended: list[str] = []

    def run(self) -> Database:
        self._stored = stored = read_log(self._log_path)
        header = stored.header if stored is not None else None
        is_new = self._make_file(header)
        with PageFile(self._path) as file:
            _refuse_later_format(self._path, file)
            if header is not None:
                self._look_at_mirror(header)
                self._mend_pages(file, header)
            try:
                database = self._through_sqlite(file, header, is_new=is_new)
            except (sqlite3.DatabaseError, CorruptRecordError) as error:
                if header is None:
                    raise
                if not self._go_back_to_base(file, header):
                    if isinstance(error, CorruptRecordError):
                        raise
                    raise self._damaged(str(error)) from error
                database = self._through_sqlite(file, header, is_new=is_new)
        self._mended += stored.damages if stored is not None else []
        for line in self._mended:
            logger.warning("%s", line)
        return database

    # ----------------------------------------------------------------------------- before SQLite

    def _make_file(self, header: LogHeader | None) -> bool:
        """Make the database file if there is none.

        Returns whether nothing was stored here before.
        """
        path = self._path
        if path.exists() and path.stat().st_size:
            return False
        left = [p for p in (self._log_path, self._mirror.path, wal_path(path)) if _has_bytes(p)]
        if header is not None:
            numbers, sums, page_bytes = range(len(header.sums)), header.sums, header.page_bytes
            if header.has_mirror and not unlike(self._mirror.sums(page_bytes), sums):
                write_pages(
                    path, self._mirror.good(numbers, sums, page_bytes), page_bytes, len(sums)
                )
                self._mended.append(
                    f"{path} was gone or empty, and was restored from {self._mirror.path}"
                )
                return False
        if left:
            raise self._damaged(f"gone or empty, though there is {' and '.join(map(str, left))}")
        # SQLite would make it for everybody to read, and gives its other files the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        return True

    def _look_at_mirror(self, header: LogHeader) -> None:
        if not header.has_mirror:
            return
        path, sums = self._mirror.path, header.sums
        found = self._mirror.sums(header.page_bytes)
        wrong = unlike(found, sums)
        self._mirror_fits = not wrong
        bad = _unexplained(self._path, found, wrong)
        if bad:
            self._mended.append(
                f"{path}: {_pages_text(bad, sums)} were damaged or gone; restored from {self._path}"
            )

    def _mend_pages(self, file: PageFile, header: LogHeader) -> None:
        """Bring pages back that neither the last checkpoint nor SQLite's log explains."""
        path, sums, page_bytes = self._path, header.sums, header.page_bytes
        found = file.sums(page_bytes)
        wrong = unlike(found, sums)
        bad = _unexplained(path, found, wrong)
        if not bad:
            return
        if len(bad) > 1:
            _refuse_older_copy(path, header)
        good = dict(self._mirror.good(bad, sums, page_bytes))
        # Pages that the database should not have need only be cut off.
        if any(number < len(sums) and number not in good for number in bad):
            return  # SQLite's log may have them: seen once SQLite has read it
        last = max((number for number in wrong if number not in bad), default=-1)
        write_pages(path, good.items(), page_bytes, max(len(sums), last + 1))
        self._mended.append(
            f"{path}: {_pages_text(bad, sums)} were damaged, the first at byte"
            f" {bad[0] * page_bytes}; brought back from {self._mirror.path}"
        )

    def _go_back_to_base(self, file: PageFile, header: LogHeader) -> bool:
        """Without SQLite's log, which is damaged: the file as of the last checkpoint.

        A checkpoint may have been under way. False: the mirror does not have what is needed.
        """
        path, sums, page_bytes = self._path, header.sums, header.page_bytes
        wrong = unlike(file.sums(page_bytes), sums)
        good = dict(self._mirror.good(wrong, sums, page_bytes))
        if any(number < len(sums) and number not in good for number in wrong):
            return False
        if wrong:
            write_pages(path, good.items(), page_bytes, len(sums))
        log = wal_path(path)
        if log.exists():
            log.unlink()
            self._mended.append(f"{log} was damaged, and was removed")
        return True

    # ---------------------------------------------------------------------------- through SQLite

    def _through_sqlite(
        self, file: PageFile, header: LogHeader | None, *, is_new: bool
    ) -> Database:
        connection = _connect_writer(self._path)
        try:
            return self._opened(connection, file, header, is_new=is_new)
        except BaseException:
            _close(self._path, connection, keep_log=True)
            raise

    def _opened(
        self,
        connection: sqlite3.Connection,
        file: PageFile,
        header: LogHeader | None,
        *,
        is_new: bool,
    ) -> Database:
        path, stored = self._path, self._stored
        _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if header is not None:
            self._check_pages(file, header, max(frames, 0))
        elif not is_new:
            self._check_integrity(connection, max(frames, 0))
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        prepare(connection, str(path), is_writing=True)
        connection.execute("COMMIT")
        progress = read_progress(connection)
        if progress is None:
            raise self._damaged("its commits have no numbers")
        if header is not None and (header.store != progress.store or progress.number < header.base):
            raise self._damaged(f"{wal_path(path)} is of another time or another database")
        if stored is None and progress.number and version == FORMAT_VERSION:
            self._mended.append(f"{self._log_path} was gone, and is rebuilt")
        missing = self._missing_commits(progress.number)
        # A log with the present sums comes first: the repeated commits overwrite SQLite's log.
        log = self._log_that_goes_on(frames) or self._begin_log(connection, file, progress, missing)
        if missing:
            _repeat_commits(connection, missing)
        return Database(path, connection, log, progress.number + len(missing))

    def _check_pages(self, file: PageFile, header: LogHeader, frames: int) -> None:
        """Every page is as the last checkpoint left it, or comes out of SQLite's log."""
        logged = read_wal(self._path, frames).pages
        wrong = unlike(file.sums(header.page_bytes), header.sums)
        bad = [number for number in wrong if number not in logged]
        if bad:
            raise self._damaged(
                f"{len(bad)} of {len(header.sums)} pages are not as they were written, the first at"
                f" byte {bad[0] * header.page_bytes}, and {self._mirror.path} does not have them"
            )

    def _check_integrity(self, connection: sqlite3.Connection, frames: int) -> None:
        """Let SQLite check the file, where there are no sums of the pages."""
        (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise self._damaged(verdict)
        log = wal_path(self._path)
        is_cut = len(read_wal(self._path).places) > frames or (_has_bytes(log) and not frames)
        if self._stored is not None and is_cut:
            raise self._damaged(f"{self._log_path} and {log} have both lost commits")

    def _damaged(self, what: str) -> CorruptRecordError:
        return CorruptRecordError(f"{self._path} is damaged: {what}: {_WAY_BACK}")

    def _missing_commits(self, number: int) -> list[tuple[int, bytes]]:
        """Those after this one, which our log has and SQLite has lost."""
        stored, path = self._stored, self._path
        if stored is None:
            return []
        if stored.last < number:
            if stored.header is not None:
                lacking = number - stored.last
                self._mended.append(f"{self._log_path} lacks {lacking} commits that {path} has")
            return []
        missing = stored.after(number)
        if len(missing) < stored.last - number:
            raise self._damaged(
                f"{stored.last - number} commits behind {self._log_path}, which is damaged itself, so"
                " that they cannot be repeated"
            )
        if missing:
            self._mended.append(
                f"{wal_path(path)} was torn, damaged or gone: {len(missing)} commits were brought"
                f" back from {self._log_path}"
            )
        return missing

    def _log_that_goes_on(self, frames: int) -> CommitLog | None:
        """Continue our log if the last writer stopped cleanly; None: a new one must begin."""
        stored = self._stored
        if stored is None or stored.header is None or stored.commits or frames:
            return None
        if self._mended or stored.damages or not self._mirror_fits:
            return None
        return CommitLog.resume(self._log_path, stored)

    def _begin_log(
        self,
        connection: sqlite3.Connection,
        file: PageFile,
        progress: CommitProgress,
        missing: list[tuple[int, bytes]],
    ) -> CommitLog:
        """Begin a log that has the sums of the file as it is now, and what the file still lacks."""
        stored = self._stored
        before = stored.header if stored is not None else None
        if _checkpointed_frames(connection) is None:
            if stored is None or before is None:
                raise MetadataStoreError(f"{self._path} is held by a reader: try again")
            return CommitLog.resume(self._log_path, stored)
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        sums = file.sums(page_bytes)
        has_mirror = self._make_mirror(file, sums, page_bytes)
        header = LogHeader(progress.store, progress.number, page_bytes, sums, has_mirror)
        return CommitLog.begin(self._log_path, header, missing)

    def _make_mirror(self, file: PageFile, sums: NDArray[np.uint32], page_bytes: int) -> bool:
        mirror = self._mirror
        wrong = unlike(mirror.sums(page_bytes), sums)
        pages = ((number, file.page(number, page_bytes)) for number in wrong if number < len(sums))
        try:
            mirror.write(pages, page_bytes, len(sums))
        except OSError as error:
            self._mended.append(f"{mirror.path} cannot be written: {error}")
            mirror.remove()
            return False
        return True


def log_path(database: Path) -> Path:
    """Our log of a database."""
    return database.with_name(database.name + "-log")


def _refuse_later_format(path: Path, file: PageFile) -> None:
    """Before anything is proved: a later version may have other files beside this one."""
    found = file.header()
    if found is None or found.format_version <= FORMAT_VERSION:
        return
    with contextlib.suppress(sqlite3.Error):  # damaged: it only looks like a later version
        connection = _connect_reading(path, "mode=ro&immutable=1")
        try:
            prepare(connection, str(path), is_writing=False)
        finally:
            connection.close()


def _has_bytes(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _unexplained(path: Path, found: NDArray[np.uint32], wrong: Collection[int]) -> list[int]:
    """Those of the pages that SQLite's log does not have as they are: a checkpoint was under way."""
    if not wrong:
        return []
    logged = {(number, crc32c(content)) for number, content in read_wal(path).contents(set(wrong))}
    return [n for n in wrong if n >= len(found) or (n, int(found[n])) not in logged]


def _pages_text(bad: Collection[int], sums: Sized) -> str:
    """Which share of the pages this is; some may be beyond the last that there should be."""
    beyond = sum(number >= len(sums) for number in bad)
    more = f", and {beyond} beyond the last," if beyond else ""
    return f"{len(bad) - beyond} of {len(sums)} pages{more}"


def _refuse_older_copy(path: Path, header: LogHeader) -> None:
    """Raise `ConfigurationError` if the file is whole, and of an earlier moment."""
    try:
        connection = _connect_reading(path, "mode=ro&immutable=1")
        try:
            progress = read_progress(connection)
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except (sqlite3.Error, CorruptRecordError):
        return
    if verdict != "ok" or (progress is not None and progress.number >= header.base):
        return
    number = progress.number if progress is not None else "none"
    beside = " ".join(path.name + end for end in ("-log", "-mirror", "-wal"))
    raise ConfigurationError(
        f"{path} is an older copy (commit {number}, of {header.base}): to go on with the newest"
        " state remove it, and it is restored from the files beside it; to go on with the copy"
        f" remove those ({beside}) and run `ackgate ledgers adopt` (docs/operations.md, Backup and"
        " restore)"
    )


# --------------------------------------------------------------------------------- connections


def _connect_writer(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_SECONDS, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # Our own log is what makes a commit durable.
        connection.execute("PRAGMA synchronous = NORMAL")
        # Where SQLite does sync, fully: of effect on macOS only, see `platform_files`.
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")
        # A checkpoint that we know nothing of would change pages.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES_MAX}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_reading(path: Path, parameters: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{parameters}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_SECONDS,
        check_same_thread=False,
    )


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, beside a writer or on a read-only directory.

    It is of a copy in memory when only our log has the last commits: the writer was killed, or stopped,
    before SQLite had them.

    Raises `ConfigurationError`, `CorruptRecordError` (damage), `sqlite3.Error`, `OSError`.
    """
    if not path.exists():
        raise ConfigurationError(f"there is no metadata store at {path}")
    for attempt in range(_READ_ATTEMPTS):
        if attempt:
            time.sleep(_READ_PAUSE_SECONDS)
        stored = read_log(log_path(path))
        trouble = _trouble_of_pages(path, stored)
        connection = _checked_reader(path)
        if trouble is None:
            lacking = _lacking(connection, stored)
            if lacking == 0:
                return connection
            trouble = f"{path} lacks {lacking} commits that {log_path(path)} has"
            if attempt == _READ_ATTEMPTS - 1 and stored is not None:
                repeated = _copy_with_commits(connection, stored, lacking)
                if repeated is not None:
                    return repeated
        connection.close()
    raise CorruptRecordError(f"{trouble}; a broker that starts on it repairs what can be repaired")


def _checked_reader(path: Path) -> sqlite3.Connection:
    try:
        return _prepared_reader(path, "mode=ro")
    except sqlite3.OperationalError:
        # WAL needs its index file even to read. After a clean shutdown it is gone, and on a
        # read-only directory it cannot be made; then no process can be writing either.
        if not wal_path(path).exists():
            return _prepared_reader(path, "mode=ro&immutable=1")
        if os.access(path.parent, os.W_OK) or path.with_name(f"{path.name}-shm").exists():
            raise
        return _copy_with_wal(path)  # a copy that was made without it


def _copy_with_wal(path: Path) -> sqlite3.Connection:
    """The database in memory, with the commits of SQLite's log, which nobody writes to."""
    import shutil  # noqa: PLC0415 - hardly ever wanted
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="ackgate-metadata-") as scratch:
        beside = type(path)(scratch, path.name)
        for source, target in ((path, beside), (wal_path(path), wal_path(beside))):
            shutil.copyfile(source, target)
        with contextlib.closing(_prepared_reader(beside, "mode=rw")) as connection:
            copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            try:
                connection.backup(copy)
            except BaseException:
                copy.close()
                raise
    return copy


def _prepared_reader(path: Path, parameters: str) -> sqlite3.Connection:
    connection = _connect_reading(path, parameters)
    try:
        prepare(connection, str(path), is_writing=False)
    except BaseException:
        connection.close()
        raise
    return connection


def _trouble_of_pages(path: Path, stored: StoredLog | None) -> str | None:
    """What is wrong with the file, unless a writer is just changing it."""
    with PageFile(path) as file:
        _refuse_later_format(path, file)
        if stored is None or stored.header is None:
            return None
        header = stored.header
        found = file.sums(header.page_bytes)
    bad = _unexplained(path, found, unlike(found, header.sums))
    if not bad:
        return None
    return (
        f"{path} is damaged, or another copy: {len(bad)} of {len(header.sums)} pages are not as they"
        f" were written, the first at byte {bad[0] * header.page_bytes}"
    )


def _lacking(connection: sqlite3.Connection, stored: StoredLog | None) -> int:
    """Commits that our log has and SQLite has not."""
    progress = read_progress(connection)
    if stored is None or progress is None:
        return 0
    return max(0, stored.last - progress.number)


def _copy_with_commits(
    connection: sqlite3.Connection, stored: StoredLog, lacking: int
) -> sqlite3.Connection | None:
    """The database in memory, with the commits of our log. None: these have a gap themselves."""
    commits = stored.after(stored.last - lacking)
    if len(commits) < lacking:
        return None
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with contextlib.closing(connection):
            connection.backup(copy)
        _repeat_commits(copy, commits)
    except BaseException:
        copy.close()
        raise
    return copy


def _repeat_commits(connection: sqlite3.Connection, commits: list[tuple[int, bytes]]) -> None:
    table = NodeTable(connection, lambda: 0)
    connection.execute("BEGIN IMMEDIATE")
    for _, payload in commits:
        table.repeat(decode_changes(payload))
    write_progress(connection, commits[-1][0])
    connection.execute("COMMIT")


def translated(path: Path, error: sqlite3.Error | OSError) -> MetadataStoreError:
    """Our error for one of SQLite's or of the file system's."""
    if isinstance(error, OSError):
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    else:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if is_full:
        return MetadataDiskFullError(f"the disk is full: {path}: {error}")
    return MetadataStoreError(f"{path}: {error}")
