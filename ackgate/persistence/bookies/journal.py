"""A writer's journal: every entry first goes here, and is durable once it is here.

Edge: blocking; used from the bookie's journal lane only. One group commit, of any number of
ledgers, is one Avro block, one write, one fdatasync. Once the fragment files hold the same entries
on stable storage the journal files so far are removed; a start replays those that are left.

After a failed write or sync nothing is known of the end of a file, and asking again would get a
false "yes" from the kernel. So the file is never used again: it is cut back to what was synced, and
the same block goes to a new file, once. If that fails too, the commit has failed.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from ackgate.persistence.bookies.avro_container import (
    SYNC_BYTES,
    block_head,
    container_header,
    scan,
)
from ackgate.persistence.bookies.entry_codec import decode_entries, worth_keeping
from ackgate.persistence.bookies.layout import journal_name, parse_journal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.avro_container import Block, ContainerHeader
    from ackgate.persistence.bookies.entry_batch import EntryBatch
    from ackgate.persistence.bookies.entry_codec import StoredEntry
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
    """Those worth keeping."""
    damage: str | None
    """What is wrong with the block, if anything is."""


def read_journal(file: DiskFile, header: ContainerHeader, start: int) -> Iterator[JournalBlock]:
    """Read blocks from `start` on. A torn tail comes last, with what can be saved of it."""
    for block in scan(file, header, start):
        data = file.read(block.data_offset, block.data_size)
        decoded, is_clean = decode_entries(data, block.entry_count)
        kept = worth_keeping(decoded, is_clean=is_clean)
        damage = None
        if not (block.is_whole and is_clean and len(kept) == block.entry_count):
            damage = (
                f"{file.path}: damaged between bytes {block.offset} and {block.end}: "
                f"{len(kept)} of {block.entry_count} entries saved"
            )
        yield JournalBlock(block, kept, damage)
