"""The files of several bookies, opened for reading.

Edge: blocking; takes no lock, changes nothing, so it does not disturb a running broker. Made once per
plan and once per task. A plan lists directories and gives each range its files; a task lists them only
for entries that are not in these, since with a hundred thousand ledgers listing takes longer than reading.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import ConfigurationError, StorageError
from ackgate.persistence.bookies.entry_codec import CrcDigest
from ackgate.persistence.bookies.fragment_storage import FragmentStorage
from ackgate.persistence.bookies.journal import JournalView
from ackgate.persistence.bookies.layout import JOURNAL_DIRECTORY, LEDGERS_DIRECTORY
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.ports import DigestType
from ackgate.pipeline.storage.fragment_stream import FragmentStream
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from ackgate.persistence.bookies.entry_codec import Digest, StoredEntry
    from ackgate.persistence.system.disk import Disk, DiskFile
    from ackgate.pipeline.storage.places import BookiePlaces
    from ackgate.pipeline.storage.ranges import EntryRange

_SETTINGS = BookieSettings(open_files_max=32)


@contextlib.contextmanager
def storage_errors(ledger_id: int) -> Iterator[None]:
    """Turns an `OSError` into a `StorageError` that names the ledger and the file."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise StorageError(f"ledger {ledger_id}: {where}{error.strerror or error}") from error


class FoundFile(NamedTuple):
    """A fragment file, as it is found."""

    bookie_id: str
    path: str
    first_entry_id: int
    size: int


class BookieFiles:
    """One bookie's fragment files and journals."""

    def __init__(self, disk: Disk, bookie_id: str, directory: Path) -> None:
        self.bookie_id = bookie_id
        self.directory = directory
        self._disk = disk
        self._ledgers = directory / LEDGERS_DIRECTORY
        self._storage = FragmentStorage(disk, self._ledgers, _SETTINGS, os.urandom)
        self._journals = JournalView(disk, directory / JOURNAL_DIRECTORY, None)
        self._is_listed = False
        disk.names_stamp(self._ledgers)  # raises when the directory is gone

    def names(self, ledger_id: int, *, fragment: int | None = None) -> list[str]:
        """Of the ledger's files, as of the last listing; `fragment`: see `streams`."""
        return [
            str(name)
            for name in self._listed().names(ledger_id)
            if fragment is None or name.first_entry_id == fragment
        ]

    def streams(
        self,
        ledger_id: int,
        digest: Digest,
        *,
        names: Sequence[str] | None = None,
        fragment: int | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> list[FragmentStream]:
        """The ledger's files as of the last listing, each to be read from its front.

        `names`: these, nothing is listed. `fragment`: only those named by a fragment that begins with
        this entry. `first`, `last`: the entries that matter.
        """
        streams = []
        for name in self.names(ledger_id, fragment=fragment) if names is None else names:
            try:
                file = self._disk.open_read(self._ledgers / name)
            except FileNotFoundError:
                continue
            streams.append(
                FragmentStream(
                    file,
                    bookie=self.bookie_id,
                    ledger_id=ledger_id,
                    digest=digest,
                    first=first,
                    last=last,
                )
            )
        return streams

    def fragment_file(self, ledger_id: int, fragment: int) -> DiskFile | None:
        """The file of a fragment, opened; None unless there is exactly one."""
        names = self.names(ledger_id, fragment=fragment)
        try:
            return self._disk.open_read(self._ledgers / names[0]) if len(names) == 1 else None
        except FileNotFoundError:
            return None

    def found_files(self, ledger_id: int) -> list[FoundFile]:
        """The ledger's files as of the last listing, with their sizes now."""
        found = []
        for name in self._listed().names(ledger_id):
            path = self._ledgers / str(name)
            try:
                file = self._disk.open_read(path)
            except FileNotFoundError:
                continue
            found.append(FoundFile(self.bookie_id, str(path), name.first_entry_id, file.size()))
            file.close()
        return found

    def find(self, ledger_id: int, first: int, last: int) -> list[StoredEntry]:
        """Copies of entries first..last, wherever they are; digests are not verified."""
        return self._listed().read(ledger_id, first, last, is_wide=True)

    def find_moving(self, ledger_id: int, first: int, last: int) -> list[StoredEntry]:
        """As `find`, in journals too, and in files made since they were listed."""
        # In this order: what has left a journal is in a fragment file by then.
        self._journals.refresh()
        found = self._journals.read(ledger_id, first, last)
        self._storage.refresh()
        self._is_listed = True
        return found + self.find(ledger_id, first, last)

    def _listed(self) -> FragmentStorage:
        if not self._is_listed:
            with contextlib.suppress(FileNotFoundError):
                self._storage.refresh()
            self._is_listed = True
        return self._storage

    def close(self) -> None:
        self._storage.close()


class OpenBookies:
    """Those bookies of `places` that were asked for so far. Close it, or use it in a `with`."""

    def __init__(self, places: BookiePlaces) -> None:
        self._places = places
        self._open: dict[str, BookieFiles] = {}

    def bookie(self, bookie_id: str) -> BookieFiles | None:
        """The bookie's files; None: it is not among the places, or its directory is gone."""
        files = self._open.get(bookie_id)
        address = self._places.directories.get(bookie_id)
        if files is None and address is not None:
            disk, directory = place_of(address)
            try:
                files = BookieFiles(disk, bookie_id, directory)
            except FileNotFoundError:
                return None
            self._open[bookie_id] = files
        return files

    def files_of(self, ledger_id: int) -> list[FoundFile]:
        """A ledger's files on all bookies, whether or not they should be there.

        Raises `StorageError`.
        """
        with storage_errors(ledger_id):
            found = map(self.bookie, sorted(self._places.directories))
            return [file for files in found if files for file in files.found_files(ledger_id)]

    def located(self, entry_range: EntryRange) -> EntryRange:
        """The same range, and which files hold it as of the last listing. Raises `StorageError`."""
        fragment = entry_range.fragment
        found = {}
        with storage_errors(entry_range.ledger_id):
            for bookie_id in fragment.ensemble:
                files = self.bookie(bookie_id)
                names = files and files.names(
                    entry_range.ledger_id, fragment=fragment.first_entry_id
                )
                if names:
                    found[bookie_id] = tuple(names)
        return replace(entry_range, files=found)

    def digest(self, entry_range: EntryRange) -> Digest:
        """What verifies the range's entries.

        Raises `DigestMismatchError` for a wrong password, `ConfigurationError`.
        """
        digest_type = entry_range.metadata.digest_type
        if digest_type is DigestType.CRC32C:
            return CrcDigest()
        if entry_range.password_check is None:
            raise ConfigurationError(
                f"ledger {entry_range.ledger_id}: its digests ({digest_type.value}) need a password"
            )
        return entry_range.password_check.digest(
            entry_range.ledger_id, digest_type, self._places.password
        )

    def close(self) -> None:
        for files in self._open.values():
            files.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
