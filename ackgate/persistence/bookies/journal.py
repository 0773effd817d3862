"""A writer's journal: every entry first goes here, and is durable once it is here.

Edge: blocking. `Journal` writes in the bookie's journal lane; reading is for its storage lane. One group
commit, of any number of ledgers, is one Avro block, one write, one fdatasync. Once the fragment files hold
the same entries on stable storage the journal files so far are removed; a start replays those that are left.

After a failed write or sync nothing is known of the end of a file, and asking again would get a
false "yes" from the kernel. So the file is never used again: it is cut back to what was synced, and
the same block goes to a new file, once. If that fails too, the commit has failed.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import (
    SYNC_BYTES,
    block_head,
    container_header,
    read_header,
    scan,
)
from ackgate.persistence.bookies.entry_codec import decode_entries, worth_keeping
from ackgate.persistence.bookies.layout import is_writer_name, journal_name, parse_journal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.avro_container import Block, ContainerHeader
    from ackgate.persistence.bookies.entry_codec import EntryBatch, StoredEntry
    from ackgate.persistence.system.disk import Disk, DiskFile

logger = logging.getLogger(__name__)


class Journal:
    """The journal files of one writer, written."""

    __slots__ = (
        "_directory",
        "_disk",
        "_file",
        "_marker",
        "_random_bytes",
        "_sequence",
        "_synced_bytes",
        "unremoved_bytes",
    )

    def __init__(self, disk: Disk, directory: Path, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._directory = directory
        self._random_bytes = random_bytes
        self._file: DiskFile | None = None
        self._marker = b""
        self._sequence = 0
        self._synced_bytes = 0
        self.unremoved_bytes = 0
        """Bytes written since the last `seal`."""

    def commit(self, batches: Sequence[EntryBatch]) -> None:
        """Write one block and sync it. Raises `OSError`: then none of it counts as written."""
        records = b"".join([batch.encoded for batch in batches])
        head = block_head(sum([batch.entry_count for batch in batches]), len(records))
        if self._file is not None:
            try:
                self._write(self._file, head, records)
            except OSError as error:
                logger.warning("%s: %s; going on in a new journal file", self._file.path, error)
                self._abandon(self._file)
            else:
                return
        file = self._create()
        try:
            self._write(file, head, records)
        except OSError:
            self._abandon(file)
            raise

    def probe(self) -> None:
        """Find out whether the disk takes writes: begin a new file. Raises `OSError`."""
        if self._file is not None:
            return
        file = self._create()
        try:
            file.sync()
        except OSError:
            self._abandon(file)
            raise

    def seal(self) -> int:
        """Go on in a new file from the next commit on.

        Returns the number of the last one so far.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        self.unremoved_bytes = 0
        return self._sequence

    def _write(self, file: DiskFile, head: bytes, records: bytes) -> None:
        block = b"".join((head, records, self._marker))
        file.append(block)
        file.sync()
        # A removed or unmounted directory leaves the descriptor working, into nowhere.
        self._disk.names_stamp(self._directory)
        self._synced_bytes += len(block)
        self.unremoved_bytes += len(block)

    def _create(self) -> DiskFile:
        self._sequence += 1
        path = self._directory / journal_name(self._sequence)
        file = self._disk.create(path)
        self._marker = self._random_bytes(SYNC_BYTES)
        header = container_header(self._marker)
        try:
            file.append(header)
            self._disk.sync_directory(self._directory)
        except OSError:
            self._synced_bytes = 0
            self._abandon(file)
            raise
        self._file = file
        self._synced_bytes = len(header)
        return file

    def _abandon(self, file: DiskFile) -> None:
        """Leave a file whose end is unknown. What was synced in it still counts."""
        self._file = None
        with contextlib.suppress(OSError):
            if self._synced_bytes <= len(container_header(self._marker)):
                self._disk.remove(file.path)
            else:
                file.truncate(self._synced_bytes)
        file.close()


def journal_files(disk: Disk, directory: Path) -> list[tuple[Path, int]]:
    """The journal files of a writer with their numbers, in the order they were written."""
    numbered = [(directory / name, parse_journal_name(name)) for name in disk.list(directory)]
    return [(path, number) for path, number in numbered if number is not None]


def remove_journals(disk: Disk, directory: Path, through: int) -> None:
    """Remove a writer's files up to this number: fragment files have it all. Raises `OSError`."""
    for path, number in journal_files(disk, directory):
        if number <= through:
            disk.remove(path)


class JournalBlock(NamedTuple):
    """One block of a journal file, read."""

    block: Block
    entries: list[StoredEntry]
    """Entries of the block that are worth keeping."""
    damage: str | None
    """What is wrong with the block, if anything is."""


def read_journal(file: DiskFile, header: ContainerHeader, start: int) -> Iterator[JournalBlock]:
    """Read blocks from `start` on. A torn tail comes last, with what can be saved of it."""
    for block in scan(file, header, start):
        yield saved_of(file, block, file.read(block.data_offset, block.data_size))


def saved_of(file: DiskFile, block: Block, data: bytes) -> JournalBlock:
    """Decode a damaged or whole block of this file as far as possible; `data` is its bytes."""
    decoded, is_clean = decode_entries(data, block.entry_count)
    kept = worth_keeping(decoded, is_clean=is_clean)
    damage = None
    if not (block.is_whole and is_clean and len(kept) == block.entry_count):
        damage = (
            f"{file.path}: damaged between bytes {block.offset} and {block.end}: "
            f"{len(kept)} of {block.entry_count} entries saved"
        )
    return JournalBlock(block, kept, damage)


# ---- the journals of other writers, read while they are being written
#
# Another process that has the same directory open holds entries in its journal which are in no fragment
# file yet. A recovery of one of its ledgers, or a reader, finds them here. Journals first, then fragment
# files: an entry that leaves a journal in between is in a fragment file by then.
#
# Their writer may have written these entries without a sync. A recovery must not lose them again in a
# crash, so a view with a writer of its own syncs what it has read. Kept in memory: the places of each
# ledger's entries, and the block decoded last, since a takeover reads one ledger after the other from
# the same few blocks.


class _Place(NamedTuple):
    """A block that holds entries of a ledger, between these two ids."""

    path: Path
    block: Block
    first: int
    last: int


@dataclass(slots=True)
class _Seen:
    """How far a journal file has been read."""

    header: ContainerHeader | None = None
    read_to: int = 0
    places: dict[int, list[_Place]] = field(default_factory=dict)


class JournalView:
    """What other writers' journals hold."""

    def __init__(self, disk: Disk, directory: Path, own_writer: str | None) -> None:
        """`own_writer` None: read only, nothing is synced."""
        self._disk = disk
        self._directory = directory
        self._own_writer = own_writer
        self._seen: dict[Path, _Seen] = {}
        self._decoded: tuple[Path, int, dict[int, list[StoredEntry]]] | None = None

    def writers(self) -> list[str]:
        """Names of the other writers whose journals are there, alive or dead."""
        return [
            name
            for name in self._disk.list(self._directory)
            if is_writer_name(name) and name != self._own_writer
        ]

    def refresh(self) -> None:
        """Read what came since the last call. Raises `OSError`."""
        present: set[Path] = set()
        for writer in self.writers():
            try:
                files = journal_files(self._disk, self._directory / writer)
            except (FileNotFoundError, NotADirectoryError):
                continue
            for path, _ in files:
                if self._read_on(path):
                    present.add(path)
        for path in self._seen.keys() - present:
            del self._seen[path]
        if not self._seen:
            self._decoded = None

    def _read_on(self, path: Path) -> bool:
        try:
            file = self._disk.open_read(path)
        except FileNotFoundError:
            return False
        seen = self._seen.setdefault(path, _Seen())
        try:
            if seen.header is None:
                seen.header = read_header(file)
                if seen.header is None:
                    return True
                seen.read_to = seen.header.size
            if file.size() <= seen.read_to:
                return True
            for block, entries, _ in read_journal(file, seen.header, seen.read_to):
                if not block.is_whole and block.end >= file.size():
                    # Perhaps just being written. Read again next time, as far as it is there by then.
                    break
                seen.read_to = block.end
                _note(seen, path, block, entries)
            if self._own_writer is not None:
                file.sync()
        except CorruptRecordError as error:
            logger.warning("ignored: %s", error)
        finally:
            file.close()
        return True

    def ledger_ids(self) -> set[int]:
        """Ledgers with entries in these journals, as of the last `refresh`."""
        return {ledger_id for seen in self._seen.values() for ledger_id in seen.places}

    def bytes_besides(self, writer: str, ledger_ids: Container[int]) -> int:
        """Bytes of those blocks in a writer's journal that hold entries of other ledgers."""
        sizes: dict[tuple[Path, int], int] = {}
        for path, seen in self._seen.items():
            if path.parent.name == writer:
                for ledger_id, places in seen.places.items():
                    if ledger_id not in ledger_ids:
                        sizes.update({(path, p.block.offset): p.block.data_size for p in places})
        return sum(sizes.values())

    def read(self, ledger_id: int, first: int, last: int) -> list[StoredEntry]:
        """Entries first..last as far as these journals hold them, as of the last `refresh`."""
        entries: list[StoredEntry] = []
        for seen in self._seen.values():
            for place in seen.places.get(ledger_id, ()):
                if place.first <= last and place.last >= first:
                    entries += [
                        entry
                        for entry in self._decode(place, ledger_id)
                        if first <= entry.entry_id <= last
                    ]
        return entries

    def last_entries(self, ledger_id: int) -> list[StoredEntry]:
        """Entries of a ledger in the last block that has any, of each journal file."""
        entries: list[StoredEntry] = []
        for seen in self._seen.values():
            places = seen.places.get(ledger_id)
            if places:
                entries += self._decode(places[-1], ledger_id)
        return entries

    def _decode(self, place: _Place, ledger_id: int) -> list[StoredEntry]:
        """The ledger's entries in a block."""
        known = self._decoded
        if known is None or known[:2] != (place.path, place.block.offset):
            try:
                file = self._disk.open_read(place.path)
            except FileNotFoundError:
                return []
            try:
                data = file.read(place.block.data_offset, place.block.data_size)
            finally:
                file.close()
            by_ledger: dict[int, list[StoredEntry]] = {}
            for entry in decode_entries(data, place.block.entry_count)[0]:
                by_ledger.setdefault(entry.ledger_id, []).append(entry)
            known = self._decoded = (place.path, place.block.offset, by_ledger)
        return known[2].get(ledger_id, [])


def _note(seen: _Seen, path: Path, block: Block, entries: list[StoredEntry]) -> None:
    spans: dict[int, tuple[int, int]] = {}
    for entry in entries:
        first, last = spans.get(entry.ledger_id, (entry.entry_id, entry.entry_id))
        spans[entry.ledger_id] = (min(first, entry.entry_id), max(last, entry.entry_id))
    for ledger_id, (first, last) in spans.items():
        seen.places.setdefault(ledger_id, []).append(_Place(path, block, first, last))
