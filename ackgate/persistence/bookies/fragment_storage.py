"""All fragment files of one bookie.

Edge: blocking; used from the bookie's storage lane only. Writes what the write cache sealed, reads,
removes. A file is written only by the writer whose name it carries, and its entries ascend
strictly; when that does not hold (recovery wrote an earlier entry again, or a write failed and the
end of the file is in doubt) the next entries go to a new file. Readers take an entry from any file
that has it.

Descriptors are bounded: a quarter of `open_files_max` for writing, the rest for reading (least
recently used goes first).
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import SYNC_BYTES, block_head, container_header
from ackgate.persistence.bookies.fragment_file import DecodedBlocks, FragmentFile
from ackgate.persistence.bookies.layout import FragmentName, parse_fragment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.entry_batch import EntryBatch
    from ackgate.persistence.bookies.entry_codec import StoredEntry
    from ackgate.persistence.bookies.settings import BookieSettings
    from ackgate.persistence.system.disk import Disk, DiskFile

logger = logging.getLogger(__name__)

_WRITE_BYTES = 1024 * 1024
"""Blocks are gathered up to this size per write call."""

_DECODED_BLOCKS = 32
"""Some megabytes; as many readers as that walk through ledgers without decoding blocks twice."""


@dataclass(slots=True)
class _Growing:
    """A fragment file that this writer appends to."""

    name: FragmentName
    marker: bytes
    last_entry_id: int


class FragmentStorage:
    """Fragment files: index by ledger, reading, writing."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        settings: BookieSettings,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._random_bytes = random_bytes
        self._names: dict[int, list[FragmentName]] = {}
        self._growing: dict[tuple[str, int, int], _Growing] = {}
        self._open: OrderedDict[FragmentName, FragmentFile] = OrderedDict()
        self._decoded = DecodedBlocks(_DECODED_BLOCKS)
        self._stamp: int | None = None
        self._reported: set[str] = set()
        self.files_per_chunk = max(settings.open_files_max // 4, 1)
        self._open_for_reading_max = settings.open_files_max - self.files_per_chunk
        self.foreign_files: tuple[str, ...] = ()
        """Names in the directory that are not ours."""
        self.damages: list[str] = []
        """Damage met so far, each place once."""

    # ------------------------------------------------------------------------------- what is there

    def refresh(self) -> None:
        """List the directory again if it may have changed. Raises `OSError`."""
        stamp = self._disk.names_stamp(self._directory)
        if stamp is not None and stamp == self._stamp:
            return
        names: dict[int, list[FragmentName]] = {}
        foreign: list[str] = []
        for text in self._disk.list(self._directory):
            name = parse_fragment_name(text)
            if name is None:
                foreign.append(text)
            else:
                names.setdefault(name.ledger_id, []).append(name)
        self._names = names
        self._stamp = stamp
        new = tuple(foreign)
        if new != self.foreign_files:
            self.foreign_files = new
            if new:
                logger.warning("%s: ignored, not ours: %s", self._directory, ", ".join(new[:20]))

    def ledger_ids(self) -> set[int]:
        """Ledgers that have files here, as of the last `refresh`."""
        return set(self._names)

    def names(self, ledger_id: int) -> Sequence[FragmentName]:
        """Files of a ledger, as of the last `refresh`."""
        return self._names.get(ledger_id, ())

    @property
    def open_count(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------------------------------- reading

    def read(
        self, ledger_id: int, first: int, last: int, *, is_wide: bool = False
    ) -> list[StoredEntry]:
        """Entries first..last as far as files here hold them; an entry may come more than once."""
        entries: list[StoredEntry] = []
        for name in tuple(self._names.get(ledger_id, ())):
            if name.first_entry_id <= last:
                file = self._file(name)
                if file is not None:
                    entries += file.read(first, last, is_wide=is_wide)
                    self._report(file)
        return entries

    def last_blocks(self, ledger_id: int) -> list[StoredEntry]:
        """Entries of the last block of each of a ledger's files."""
        entries: list[StoredEntry] = []
        for name in tuple(self._names.get(ledger_id, ())):
            file = self._file(name)
            if file is not None:
                entries += file.last_block()
                self._report(file)
        return entries

    def file(self, name: FragmentName) -> FragmentFile | None:
        """A file, opened. None when it is gone or not ours."""
        return self._file(name)

    def _file(self, name: FragmentName) -> FragmentFile | None:
        file = self._open.get(name)
        if file is not None:
            self._open.move_to_end(name)
            return file
        try:
            opened = self._disk.open_read(self._directory / str(name))
        except FileNotFoundError:
            return None
        file = FragmentFile(opened, name.ledger_id, self._decoded)
        try:
            file.catch_up()
        except CorruptRecordError as error:
            file.close()
            self._report_once(str(error))
            return None
        except BaseException:
            file.close()
            raise
        while len(self._open) >= self._open_for_reading_max:
            self._open.popitem(last=False)[1].close()
        self._open[name] = file
        return file

    def forget_open(self, name: FragmentName) -> None:
        """Close a file that was read, since it was cut."""
        self._decoded.forget(self._directory / str(name))
        file = self._open.pop(name, None)
        if file is not None:
            file.close()

    def _report(self, file: FragmentFile) -> None:
        for damage in file.damages:
            self._report_once(damage)

    def _report_once(self, damage: str) -> None:
        if damage not in self._reported:
            self._reported.add(damage)
            self.damages.append(damage)
            logger.error("%s", damage)

    # ------------------------------------------------------------------------------------- writing

    def write(self, writer: str, ledgers: Sequence[tuple[int, Sequence[EntryBatch]]]) -> None:
        """Append batches (per ledger, ascending) and sync. At most `files_per_chunk` ledgers.

        Raises `OSError`; then the files touched are left as they were before, or cut back to it,
        and the same call may be made again.
        """
        touched: list[tuple[DiskFile, int]] = []
        keys: list[tuple[str, int, int]] = []
        try:
            for ledger_id, batches in ledgers:
                at = 0
                while at < len(batches):
                    fragment_id = batches[at].fragment_id
                    end = at + 1
                    while (
                        end < len(batches)
                        and batches[end].fragment_id == fragment_id
                        and batches[end].first_entry_id > batches[end - 1].last_entry_id
                    ):
                        end += 1
                    keys.append((writer, ledger_id, fragment_id))
                    self._append(writer, batches[at:end], touched)
                    at = end
            self._disk.sync_files([file for file, _ in touched])
        except OSError:
            for file, size_before in touched:
                self._decoded.forget(file.path)
                with contextlib.suppress(OSError):
                    if size_before:
                        file.truncate(size_before)
                    else:
                        self._disk.remove(file.path)
            for key in keys:
                self._growing.pop(key, None)
            raise
        finally:
            for file, _ in touched:
                file.close()

    def _append(
        self, writer: str, batches: Sequence[EntryBatch], touched: list[tuple[DiskFile, int]]
    ) -> None:
        first = batches[0]
        key = (writer, first.ledger_id, first.fragment_id)
        growing = self._growing.get(key)
        if growing is None or first.first_entry_id <= growing.last_entry_id:
            growing = self._begin(writer, first, touched)
            self._growing[key] = growing
        else:
            file = self._disk.open_append(self._directory / str(growing.name))
            touched.append((file, file.size()))
        file = touched[-1][0]
        pieces: list[bytes] = []
        size = 0
        for block in _blocks(batches, self._settings.block_bytes, growing.marker):
            pieces.append(block)
            size += len(block)
            if size >= _WRITE_BYTES:
                file.append(b"".join(pieces))
                pieces.clear()
                size = 0
        if pieces:
            file.append(b"".join(pieces))
        growing.last_entry_id = batches[-1].last_entry_id

    def _begin(
        self, writer: str, batch: EntryBatch, touched: list[tuple[DiskFile, int]]
    ) -> _Growing:
        name = FragmentName(batch.ledger_id, batch.fragment_id, writer)
        while True:
            try:
                file = self._disk.create(self._directory / str(name))
                break
            except FileExistsError:
                name = name._replace(attempt=name.attempt + 1)
        touched.append((file, 0))
        marker = self._random_bytes(SYNC_BYTES)
        file.append(container_header(marker))
        known = self._names.setdefault(batch.ledger_id, [])
        if name not in known:
            known.append(name)
        return _Growing(name, marker, -1)

    def resume(self, name: FragmentName, marker: bytes, last_entry_id: int) -> None:
        """Go on appending to a file that a dead writer left, whose lock we hold."""
        key = (name.writer, name.ledger_id, name.first_entry_id)
        self._growing[key] = _Growing(name, marker, last_entry_id)

    def stop_growing(self, ledger_ids: Container[int]) -> None:
        """Forget where these ledgers would be appended to."""
        for key in [key for key in self._growing if key[1] in ledger_ids]:
            del self._growing[key]

    def forget_writer(self, writer: str) -> None:
        """Forget where a dead writer's ledgers would be appended to."""
        for key in [key for key in self._growing if key[0] == writer]:
            del self._growing[key]

    @property
    def block_bytes(self) -> int:
        """Size at which a block of a fragment file is full."""
        return self._settings.block_bytes

    def sync_directory(self) -> None:
        """Make created and removed files durable. Raises `OSError`."""
        self._disk.sync_directory(self._directory)

    def remove(self, ledger_id: int) -> None:
        """Remove every file of a ledger. Raises `OSError`."""
        self.refresh()
        self.stop_growing([ledger_id])
        for name in self._names.pop(ledger_id, []):
            self.forget_open(name)
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(self._directory / str(name))

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


def _blocks(batches: Sequence[EntryBatch], block_bytes: int, marker: bytes) -> Iterable[bytes]:
    records: list[bytes] = []
    count = size = 0
    for batch in batches:
        records.append(batch.encoded)
        count += batch.entry_count
        size += len(batch.encoded)
        if size >= block_bytes:
            yield b"".join((block_head(count, size), *records, marker))
            records.clear()
            count = size = 0
    if records:
        yield b"".join((block_head(count, size), *records, marker))
