"""The journals of other writers, read while they are being written.

Edge: blocking; used from the bookie's storage lane only. Another process that has the same
directory open holds entries in its journal which are in no fragment file yet. A recovery
of one of its ledgers, or a reader, finds them here. Journals first, then fragment files: an entry
that leaves a journal in between is in a fragment file by then.

Their writer may have written these entries without a sync. A recovery must not lose them again in a
crash, so a view with a writer of its own syncs what it has read. Kept in memory: the places of each
ledger's entries, and the block decoded last, since a takeover reads one ledger after the other from
the same few blocks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import read_header
from ackgate.persistence.bookies.entry_codec import decode_entries
from ackgate.persistence.bookies.journal import journal_files, read_journal
from ackgate.persistence.bookies.layout import is_writer_name

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from ackgate.persistence.bookies.avro_container import Block, ContainerHeader
    from ackgate.persistence.bookies.entry_codec import StoredEntry
    from ackgate.persistence.system.disk import Disk

logger = logging.getLogger(__name__)


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
        """Of the blocks in a writer's journal that hold entries of other ledgers than these."""
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
