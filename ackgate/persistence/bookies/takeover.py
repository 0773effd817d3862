"""Taking over the journal of a writer that is gone: its entries go to fragment files.

Edge: blocking; used from the bookie's storage lane only, by the holder of the dead writer's lock.
This is the replay after a crash, at start or when another process has died.

The same entries in fragment files are in doubt: the crash may have interrupted their write. So each
file is first cut back to before the first entry that the journal has of its ledger, then the
journal's entries are appended, in the file that the writer had begun. Good entries of the cut piece
that a damaged journal lacks are put back. The journal is removed after a sync of all that; a crash
before it repeats the takeover. Without enough room `directory` leaves the journal where it is.
"""

from __future__ import annotations

import contextlib
import logging
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import read_header, scan
from ackgate.persistence.bookies.entry_codec import (
    batch_of,
    batches_in,
    decode_entries,
    portions,
    runs,
)
from ackgate.persistence.bookies.journal import journal_files, saved_of
from ackgate.persistence.bookies.layout import LOCK_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ackgate.persistence.bookies.avro_container import Block
    from ackgate.persistence.bookies.entry_codec import EntryBatch, StoredEntry
    from ackgate.persistence.bookies.fragment_storage import FragmentStorage
    from ackgate.persistence.system.disk import Disk, DiskFile

logger = logging.getLogger(__name__)

_PORTION_BYTES: Final = 8 * 1024 * 1024
"""Journal bytes carried over at a time: bounds the memory of a replay."""


class Takeover:
    """Carries one dead writer's journal over."""

    def __init__(
        self,
        disk: Disk,
        storage: FragmentStorage,
        ledgers: Path,
        journal: Path,
        writer: str,
        *,
        deleted: frozenset[int] = frozenset(),
    ) -> None:
        """Entries of `deleted` ledgers are left out."""
        self._disk = disk
        self._storage = storage
        self._ledgers = ledgers
        self._journal = journal
        self._writer = writer
        self._deleted = deleted
        self._cut: set[int] = set()
        self._portion: dict[int, list[EntryBatch]] = {}
        self._portion_bytes = 0
        self.entry_count = 0
        """Entries carried over."""
        self.damages: list[str] = []
        """Damaged places of the journal, the torn tail among them."""

    def run(self) -> None:
        """Do it all, and remove the journal.

        Raises `OSError`; then nothing of the journal is lost.
        """
        self._storage.refresh()
        try:
            for path, _ in journal_files(self._disk, self._journal):
                self._carry_file(path)
            self._write_portion()
            self._storage.sync_directory()
        finally:
            self._storage.forget_writer(self._writer)
        for damage in self.damages:
            logger.warning("%s", damage)
        for path, _ in journal_files(self._disk, self._journal):
            self._disk.remove(path)
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(self._journal / LOCK_FILE)
        with contextlib.suppress(OSError):
            # Foreign files keep the directory; it is looked at again at the next start, to no harm.
            self._disk.remove_directory(self._journal)

    def _carry_file(self, path: Path) -> None:
        file = self._disk.open_read(path)
        try:
            header = read_header(file)
            if header is None:
                return
            if header.damage is not None:
                self.damages.append(header.damage)
            for block in scan(file, header, header.size):
                for batch in self._batches_of(file, block):
                    if batch.ledger_id not in self._deleted:
                        self._portion.setdefault(batch.ledger_id, []).append(batch)
                        self.entry_count += batch.entry_count
                self._portion_bytes += block.data_size
                if self._portion_bytes >= _PORTION_BYTES:
                    self._write_portion()
        except CorruptRecordError as error:
            self.damages.append(str(error))
        finally:
            file.close()

    def _batches_of(self, file: DiskFile, block: Block) -> list[EntryBatch]:
        """As a rule the records as they are: objects and a second encoding would be most of a replay."""
        data = file.read(block.data_offset, block.data_size)
        if block.is_whole:
            batches = batches_in(data, block.entry_count, self._storage.block_bytes)
            if batches:
                return batches
        _, entries, damage = saved_of(file, block, data)
        if damage is not None:
            self.damages.append(damage)
        return self._encoded(entries)

    def _encoded(self, entries: Iterable[StoredEntry]) -> list[EntryBatch]:
        return [
            batch_of(portion, portion[0].entry_id)
            for run in runs(entries)
            for portion in portions(run, self._storage.block_bytes)
        ]

    def _write_portion(self) -> None:
        ledgers = [
            (ledger_id, self._to_write(ledger_id, batches))
            for ledger_id, batches in sorted(self._portion.items())
        ]
        step = self._storage.files_per_chunk
        for at in range(0, len(ledgers), step):
            self._storage.write(self._writer, ledgers[at : at + step])
        self._portion.clear()
        self._portion_bytes = 0

    def _to_write(self, ledger_id: int, batches: list[EntryBatch]) -> list[EntryBatch]:
        saved: list[StoredEntry] = []
        if ledger_id not in self._cut:
            self._cut.add(ledger_id)
            saved = self._cut_files(ledger_id, min(batch.first_entry_id for batch in batches))
        if saved or any(b.first_entry_id <= a.last_entry_id for a, b in pairwise(batches)):
            # The journal's first copy of an entry counts, and any of them before the saved one.
            found: dict[int, StoredEntry] = {}
            journaled = [decode_entries(batch.encoded, batch.entry_count)[0] for batch in batches]
            for entry in chain(*journaled, saved):
                found.setdefault(entry.entry_id, entry)
            batches = self._encoded(found[entry_id] for entry_id in sorted(found))
        fragment_id = self._fragment_of(ledger_id, batches[0].first_entry_id)
        return [batch._replace(fragment_id=fragment_id) for batch in batches]

    def _cut_files(self, ledger_id: int, first_journaled: int) -> list[StoredEntry]:
        """Cut the dead writer's files of a ledger back to what is beyond doubt.

        Returns the good entries of what was cut off.
        """
        saved: list[StoredEntry] = []
        for name in self._storage.names(ledger_id):
            if name.writer != self._writer:
                continue
            read = self._storage.file(name)
            if read is None:
                continue
            cut = read.cut_before(first_journaled)
            self._storage.forget_open(name)
            saved += cut.taken
            path = self._ledgers / str(name)
            if not cut.size:
                self._disk.remove(path)
                continue
            file = self._disk.open_append(path)
            try:
                if cut.size < file.size():
                    file.truncate(cut.size)
            finally:
                file.close()
            self._storage.resume(name, cut.sync_marker, cut.last_entry_id)
        return saved

    def _fragment_of(self, ledger_id: int, entry_id: int) -> int:
        """The fragment whose file goes on with this entry: the last one begun before it."""
        begun = [
            name.first_entry_id
            for name in self._storage.names(ledger_id)
            if name.writer == self._writer and name.first_entry_id <= entry_id
        ]
        return max(begun, default=entry_id)
