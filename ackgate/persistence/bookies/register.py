"""A bookie's record of its ledgers: which it has seen, begun and deleted.

Edge: blocking; used from the bookie's storage lane only. It reveals a metadata store that is
older than its bookies, and restores ledgers that such a store has forgotten. ::

    marks                   next ledger id (8) | run (8) | CRC32C (4), each record twice, appended
    origins/<ledger>.json   a ledger's metadata when it was begun here, with a CRC32C
    origins/begun-<n>       the same, a line each, of ledgers whose own file is not synced yet
    deleted                 ledger id (8) | CRC32C (4), appended

*Marks*: the highest of each number counts. The next ledger id is the metadata store's own counter, so a
store whose counter is lower has been put back to an older state; so is one that has counted fewer runs.

*Origins*: one is written before the first entry is confirmed, and deleted with the ledger. The file's
name prevents a ledger id from being begun twice: the second attempt is rejected. Origins written at the
same time share one sync, of the log; the next checkpoint syncs the files, and empties the log.

*Deleted*: written and synced before any file of a ledger is removed. A journal that a crash left may
still hold its entries; a takeover leaves them out. A writer that joins alone empties the list when no
journal is left.

Several processes may have the directory open. They append records, and make and remove whole files; no
two write the same one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_crc32c import value as crc32c

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.layout import DELETED_FILE, MARKS_FILE, ORIGINS_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ackgate.persistence.system.disk import Disk, DiskFile

logger = logging.getLogger(__name__)

_MARK: Final = struct.Struct(">QQI")
_DELETED: Final = struct.Struct(">QI")
_ORIGIN_NAME: Final = re.compile(r"(\d{19})\.json")
_ORIGIN_FORMAT: Final = 1
_LOG_NAME: Final = re.compile(r"begun-\d{1,9}")
_LOG_BYTES_MAX: Final = 1024 * 1024
"""Of the log of origins: then their files are synced, which takes a second or so."""

_SYNCS_AT_ONCE: Final = 4
"""As many as the disk syncs at a time; each is an open file."""
_MARKS_BYTES_MAX: Final = 256 * 1024
"""Of a file that a writer who joins alone makes short again: a record for 100 ledgers, or for a run."""


class Mark(NamedTuple):
    """How far a metadata store was when the bookie last saw it."""

    next_ledger_id: int = 0
    """Every ledger id seen is lower."""
    run: int = -1
    """The highest number of a start of a broker (or of an embedding host)."""

    def with_(self, other: Mark) -> Mark:
        """The higher of each number."""
        return Mark(max(self.next_ledger_id, other.next_ledger_id), max(self.run, other.run))


class LedgerOrigin(NamedTuple):
    """A ledger as it was when the bookie began to keep entries of it."""

    ledger_id: int
    metadata: bytes
    """The value of the ledger's metadata node then."""


class LedgerRegister:
    """The three kinds of files of one bookie."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._origins = directory / ORIGINS_DIRECTORY
        self._mark = Mark()
        self._begun: DiskFile | None = None
        """The log of the origins whose own files are not synced."""
        self._unsynced: set[int] = set()
        self.damages: list[str] = []
        """Damaged places met, each with its file."""

    # --------------------------------------------------------------------------------- joining

    def join(self, *, is_alone: bool) -> None:
        """Make what is missing, as a writer that starts. Under the directory's lock. Raises `OSError`."""
        self._disk.make_directory(self._origins)
        self._replay_logs(is_alone=is_alone)
        self.look()
        path = self._directory / MARKS_FILE
        data = self._read(path)
        is_long = len(data or b"") > _MARKS_BYTES_MAX
        if is_alone and (is_long or self.damages):
            self._replace(path, 2 * _encode_mark(self._mark))
            self._disk.sync_directory(self._directory)

    def look(self) -> None:
        """Read the marks. Raises `OSError`."""
        path = self._directory / MARKS_FILE
        data = self._read(path)
        origin_ids = self.origin_ids()
        # A ledger that is here was seen, whatever the marks say.
        known, unread = Mark(max(origin_ids, default=-1) + 1), 0
        at = 0
        while data is not None and at < len(data):
            mark = _decode_mark(data[at : at + _MARK.size])
            unread += mark is None
            known = known.with_(mark) if mark is not None else known
            at += 1 if mark is None else _MARK.size
        if unread:
            self._report(f"{path}: {unread} of {len(data or b'')} bytes are damaged")
        if not data and origin_ids:
            self._report(f"{path} is missing or empty although there are ledgers")
        self._mark = known

    @property
    def mark(self) -> Mark:
        """How far the metadata store was, as far as it is known here."""
        return self._mark

    def raise_mark(self, mark: Mark) -> None:
        """Remember how far the metadata store is; durable when this returns. Raises `OSError`."""
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

    def begin(self, origins: Sequence[LedgerOrigin], mark: Mark) -> set[int]:
        """Keep the origins of new ledgers; durable when this returns. Raises `OSError`.

        Returns the ids that are taken: of those nothing was changed.
        """
        self.raise_mark(mark)
        taken: set[int] = set()
        made: list[LedgerOrigin] = []
        try:
            for origin in origins:
                try:
                    file = self._disk.create(self._origin_path(origin.ledger_id))
                except FileExistsError:
                    if self._encoded(origin.ledger_id) != _encode_origin(origin):
                        taken.add(origin.ledger_id)
                    continue
                made.append(origin)
                try:
                    file.append(_encode_origin(origin))
                finally:
                    file.close()
            if made:
                self._log(made)
        except OSError:
            self.forget(origin.ledger_id for origin in made)
            raise
        return taken

    def _log(self, origins: Sequence[LedgerOrigin]) -> None:
        """One sync for all of them; their own files are synced later, by `flush`."""
        file = self._begun
        try:
            if file is None:
                file = self._create_log()
            file.append(b"".join(_encode_origin(origin) + b"\n" for origin in origins))
            file.sync()
        except OSError:
            # Nothing is known of its end: it is read as far as it goes, and written no more.
            self._begun = None
            if file is not None:
                file.close()
            raise
        self._begun = file
        self._unsynced.update(origin.ledger_id for origin in origins)
        if file.size() > _LOG_BYTES_MAX:
            self.flush()

    def _create_log(self) -> DiskFile:
        number = 0
        while True:
            try:
                file = self._disk.create(self._origins / f"begun-{number}")
                break
            except FileExistsError:
                number += 1
        self._disk.sync_directory(self._origins)
        return file

    def flush(self) -> None:
        """Sync the origins' own files, and empty the log of them. Raises `OSError`."""
        ids = sorted(self._unsynced)
        present = self.origin_ids() if ids else set()
        for start in range(0, len(ids), _SYNCS_AT_ONCE):
            files = []
            try:
                for ledger_id in ids[start : start + _SYNCS_AT_ONCE]:
                    if ledger_id not in present:
                        continue  # deleted meanwhile
                    files.append(self._disk.open_append(self._origin_path(ledger_id)))
                    if not files[-1].size():  # another process deleted it this moment
                        self._disk.remove(files[-1].path)
                if files:
                    self._disk.sync_files(files)
            finally:
                for file in files:
                    file.close()
        if ids:
            self._disk.sync_directory(self._origins)
        self._unsynced.difference_update(ids)
        if self._begun is not None and not self._unsynced and self._begun.size():
            self._begun.truncate(0)

    def close(self) -> None:
        """Leave no log behind, unless its origins cannot be synced."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            self.flush()
            self._disk.remove(begun.path)
        except OSError as error:
            logger.warning("%s is left to the next start: %s", begun.path, error)
        finally:
            begun.close()

    def _replay_logs(self, *, is_alone: bool) -> None:
        """Bring origins back that a crash took before their own files were synced."""
        deleted = self.deleted()
        logs = [name for name in self._disk.list(self._origins) if _LOG_NAME.fullmatch(name)]
        for name in logs:
            for line in (self._read(self._origins / name) or b"").split(b"\n"):
                origin = _decode_origin(line)
                if origin is None or origin.ledger_id in deleted:
                    continue
                with contextlib.suppress(CorruptRecordError):
                    if self.origin(origin.ledger_id) is not None:
                        continue
                path = self._origin_path(origin.ledger_id)
                self._replace(path, _encode_origin(origin))
                logger.warning("%s was damaged or gone, and is restored from %s", path, name)
        if logs:
            self._disk.sync_directory(self._origins)
        if is_alone:
            for name in logs:
                self._disk.remove(self._origins / name)

    def keep(self, origin: LedgerOrigin) -> None:
        """Rewrite a ledger's origin: it has come to this bookie, or its fragments have changed.

        Raises `OSError`.
        """
        self._replace(self._origin_path(origin.ledger_id), _encode_origin(origin))
        self._disk.sync_directory(self._origins)

    def origin_ids(self) -> set[int]:
        """Ledgers that were begun here and not deleted. Raises `OSError`."""
        try:
            names = self._disk.list(self._origins)
        except FileNotFoundError:
            return set()
        return {int(match.group(1)) for name in names if (match := _ORIGIN_NAME.fullmatch(name))}

    def origin(self, ledger_id: int) -> LedgerOrigin | None:
        """None: it was not begun here, or an earlier version did. Raises `CorruptRecordError`."""
        encoded = self._encoded(ledger_id)
        if encoded is None:
            return None
        origin = _decode_origin(encoded)
        if origin is None or origin.ledger_id != ledger_id:
            path = self._origin_path(ledger_id)
            raise CorruptRecordError(f"{path} is damaged: {encoded[:80]!r}")
        return origin

    def readable_origin(self, ledger_id: int) -> LedgerOrigin | None:
        """As `origin`; a damaged one is reported, and none."""
        try:
            return self.origin(ledger_id)
        except CorruptRecordError as error:
            self.damages.append(str(error))
            logger.warning("%s", error)
            return None

    def _encoded(self, ledger_id: int) -> bytes | None:
        return self._read(self._origin_path(ledger_id))

    def _origin_path(self, ledger_id: int) -> Path:
        return self._origins / f"{ledger_id:019d}.json"

    # -------------------------------------------------------------------------------- deletions

    def delete(self, ledger_ids: Iterable[int]) -> None:
        """Note that these ledgers were deleted; durable when this returns. Raises `OSError`.

        Their files are still there; `forget` comes when they are gone.
        """
        path = self._directory / DELETED_FILE
        file = self._disk.open_append(path)
        try:
            size = file.size()
            file.append(b"".join(map(_encode_deleted, ledger_ids)))
            file.sync()
        finally:
            file.close()
        if not size:
            self._disk.sync_directory(self._directory)

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Remove the origins of deleted ledgers. Raises `OSError`."""
        for ledger_id in ledger_ids:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(self._origin_path(ledger_id))

    def deleted(self) -> frozenset[int]:
        """Ledgers whose files may come back, and must not. Raises `OSError`."""
        data = self._read(self._directory / DELETED_FILE) or b""
        found: set[int] = set()
        at = 0
        while at + _DELETED.size <= len(data):
            ledger_id, digest = _DELETED.unpack_from(data, at)
            if digest == crc32c(data[at : at + 8]):
                found.add(ledger_id)
                at += _DELETED.size
            else:
                at += 1  # part of a record that a crash cut off; look after it
        return frozenset(found)

    def all_deleted(self) -> None:
        """Nothing can bring the deleted ledgers back any more. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            file = self._disk.open_append(self._directory / DELETED_FILE)
            try:
                if file.size():
                    file.truncate(0)
            finally:
                file.close()

    # ------------------------------------------------------------------------------------------

    def _read(self, path: Path) -> bytes | None:
        try:
            file = self._disk.open_read(path)
        except FileNotFoundError:
            return None
        try:
            return file.read(0, max(file.size(), 1))
        finally:
            file.close()

    def _replace(self, path: Path, content: bytes) -> None:
        """Under its name there is all of it, or what was there before."""
        temporary = path.with_name(path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(temporary)
        file = self._disk.create(temporary)
        try:
            file.append(content)
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)

    def _report(self, damage: str) -> None:
        if damage not in self.damages:
            self.damages.append(damage)
            logger.warning("%s; the ledgers themselves hold the same facts", damage)


def _encode_mark(mark: Mark) -> bytes:
    numbers = mark.next_ledger_id.to_bytes(8) + (mark.run + 1).to_bytes(8)
    return _MARK.pack(mark.next_ledger_id, mark.run + 1, crc32c(numbers))


def _decode_mark(data: bytes) -> Mark | None:
    if len(data) < _MARK.size:
        return None
    next_ledger_id, run, digest = _MARK.unpack(data)
    return Mark(next_ledger_id, run - 1) if digest == crc32c(data[:16]) else None


def _encode_deleted(ledger_id: int) -> bytes:
    return _DELETED.pack(ledger_id, crc32c(ledger_id.to_bytes(8)))


def _decode_origin(encoded: bytes) -> LedgerOrigin | None:
    """Returns None if it is damaged."""
    try:
        outer: dict[str, Any] = json.loads(encoded)
        ledger_id, inner = int(outer["ledger_id"]), outer["ledger"].encode()
        is_whole = (
            outer["format"] == _ORIGIN_FORMAT
            and crc32c(inner + str(ledger_id).encode()) == outer["crc32c"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return LedgerOrigin(ledger_id, inner) if is_whole else None


def _encode_origin(origin: LedgerOrigin) -> bytes:
    crc = crc32c(origin.metadata + str(origin.ledger_id).encode())
    return json.dumps(
        {
            "format": _ORIGIN_FORMAT,
            "crc32c": crc,
            "ledger_id": origin.ledger_id,
            "ledger": origin.metadata.decode(),
        }
    ).encode()
