"""The fragment files of one bookie: each read by itself, and all of them together.

Edge: blocking; used from the bookie's storage lane only. Writes what the write cache sealed, reads,
removes. A file is written only by the writer whose name it carries, and its entries ascend
strictly; when that does not hold (recovery wrote an earlier entry again, or a write failed and the
end of the file is in doubt) the next entries go to a new file. Readers take an entry from any file
that has it.

Descriptors are bounded: a quarter of `open_files_max` for writing, the rest for reading (least
recently used goes first).
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import (
    LONG_BYTES_MAX,
    SYNC_BYTES,
    block_head,
    container_header,
    decode_long,
    read_header,
    scan,
)
from ackgate.persistence.bookies.entry_codec import StoredEntry, decode_entries, worth_keeping
from ackgate.persistence.bookies.layout import FragmentName, parse_fragment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.avro_container import Block, ContainerHeader
    from ackgate.persistence.bookies.entry_codec import EntryBatch, StoredEntry
    from ackgate.persistence.bookies.settings import BookieSettings
    from ackgate.persistence.system.disk import Disk, DiskFile


logger = logging.getLogger(__name__)

_WRITE_BYTES = 512 * 1024
"""Blocks are gathered up to this size, written and synced: a commit of the journal waits for a sync that
is under way, 30 ms where that is one of 5 MB."""

_DECODED_BLOCKS = 32
"""Decoded blocks kept, some megabytes: so many readers can each walk through a ledger without
decoding a block twice."""


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
                file.sync()
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


# ---- one file, read
#
# The entries of one ledger, strictly ascending. Where its blocks lie is found by hopping from block
# head to block head, once, when the file is first read, and again from where it stopped when the file
# has grown; 28 bytes of memory per block of 32 KiB. A read decodes whole blocks.
#
# Damage is met on the way, not looked for: a head that is no head, a block that does not fit in. What
# can still be read around it is read, and the damage is named in `damages`.
#
# The blocks decoded last are kept. A reader that walks through a ledger asks for some entries of the same
# block again and again; decoding the whole block each time would be most of the work.


BlockKey: TypeAlias = "tuple[Path, int]"
"""A file, and where the block begins in it."""


class DecodedBlocks:
    """A bounded number of blocks, least recently used goes first. Callers must not change them."""

    __slots__ = ("_blocks", "_blocks_max")

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[BlockKey, list[StoredEntry]] = OrderedDict()

    def get(self, key: BlockKey) -> list[StoredEntry] | None:
        """The block's entries, if they are still here."""
        entries = self._blocks.get(key)
        if entries is not None:
            self._blocks.move_to_end(key)
        return entries

    def put(self, key: BlockKey, entries: list[StoredEntry]) -> None:
        """Keep a block for a while."""
        self._blocks[key] = entries
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def forget(self, path: Path) -> None:
        """Drop the blocks of a file that was cut or removed."""
        for key in [key for key in self._blocks if key[0] == path]:
            del self._blocks[key]


class FragmentCut(NamedTuple):
    """Where to cut a file, and what that takes away."""

    size: int
    """Bytes that stay; 0: nothing can be kept, not even the header."""
    sync_marker: bytes
    last_entry_id: int
    """Last entry that stays; -1: none."""
    taken: list[StoredEntry]
    """Good entries of the part that is cut off."""


class FragmentFile:
    """One open fragment file with the places of its blocks."""

    __slots__ = (
        "_counts",
        "_damaged",
        "_decoded",
        "_file",
        "_firsts",
        "_header",
        "_is_ordered",
        "_ledger_id",
        "_offsets",
        "_sizes",
        "damages",
        "indexed_to",
    )

    def __init__(self, file: DiskFile, ledger_id: int, decoded: DecodedBlocks) -> None:
        self._file = file
        self._decoded = decoded
        self._ledger_id = ledger_id
        self._header: ContainerHeader | None = None
        self._firsts = array("q")
        self._offsets = array("q")
        self._sizes = array("q")
        self._counts = array("i")
        self._damaged: set[int] = set()
        """Which of them are stretches that are no whole block."""
        self._is_ordered = True
        self.indexed_to = 0
        """End of the last whole block found; after it may be a torn tail, or a block being written."""
        self.damages: list[str] = []
        """Stretches between whole blocks that are none themselves."""

    def catch_up(self) -> None:
        """Find blocks added since. Raises `CorruptRecordError` for a file that is not ours."""
        if self._header is None:
            self._header = read_header(self._file)
            if self._header is None:
                return
            self.indexed_to = self._header.size
            if self._header.damage is not None:
                self.damages.append(self._header.damage)
        if self._file.size() <= self.indexed_to:
            return
        damaged: list[Block] = []
        for block in scan(self._file, self._header, self.indexed_to):
            if not block.is_whole:
                damaged.append(block)
                continue
            # Damage counts once something whole follows; until then it is the tail.
            for earlier in damaged:
                self.damages.append(
                    f"{self._file.path}: damaged between bytes {earlier.offset} and {earlier.end}"
                )
                self._index(earlier)
            damaged.clear()
            self._index(block)
            self.indexed_to = block.end

    def _index(self, block: Block) -> None:
        head = self._file.read(block.data_offset, min(2 * LONG_BYTES_MAX, block.data_size))
        try:
            _, at = decode_long(head, 0)
            entry_id, _ = decode_long(head, at)
        except (IndexError, ValueError):
            return
        if self._firsts and entry_id <= self._firsts[-1]:
            # A flipped bit in one of the two: the order is not to be trusted any more.
            self._is_ordered = False
            self.damages.append(
                f"{self._file.path}: the block at byte {block.offset} begins with entry {entry_id}, "
                f"the one before it with {self._firsts[-1]}"
            )
        if not block.is_whole:
            self._damaged.add(len(self._firsts))
        self._firsts.append(entry_id)
        self._offsets.append(block.data_offset)
        self._sizes.append(block.data_size)
        self._counts.append(block.entry_count)

    def read(self, first: int, last: int, *, is_wide: bool = False) -> list[StoredEntry]:
        """Entries first..last as far as they are here. Digests are not verified.

        `is_wide`: look into the neighbouring blocks too, for the case that what a block begins with
        was itself damaged.
        """
        self.catch_up()
        start, stop = 0, len(self._firsts)
        if self._is_ordered:
            start = max(bisect.bisect_right(self._firsts, first) - 1 - is_wide, 0)
            stop = min(bisect.bisect_right(self._firsts, last) + is_wide, stop)
        entries: list[StoredEntry] = []
        for i in range(start, stop):
            decoded = self._decode(i)
            if decoded and first <= decoded[0].entry_id and decoded[-1].entry_id <= last:
                entries += decoded
            else:
                entries += [entry for entry in decoded if first <= entry.entry_id <= last]
        return entries

    def last_block(self) -> list[StoredEntry]:
        """Entries of the last whole block."""
        self.catch_up()
        return self._decode(len(self._firsts) - 1) if self._firsts else []

    def cut_before(self, entry_id: int) -> FragmentCut:
        """How to cut the file: no block from `entry_id` on is left, and a whole one comes last.

        Changes nothing itself.
        """
        self.catch_up()
        stop = len(self._firsts)
        keep = next((i for i in range(stop) if self._firsts[i] >= entry_id), stop)
        while keep - 1 in self._damaged:
            # Blocks appended after damage would count as damage.
            keep -= 1
        taken = [entry for i in range(keep, stop) for entry in self._worth_keeping(i)]
        if self._header is None:
            return FragmentCut(0, b"", -1, [])
        if keep == 0:
            return FragmentCut(self._header.size, self._header.sync_marker, -1, taken)
        kept = self._decode(keep - 1)
        last = max((entry.entry_id for entry in kept), default=self._firsts[keep - 1])
        end = self._offsets[keep - 1] + self._sizes[keep - 1] + SYNC_BYTES
        return FragmentCut(end, self._header.sync_marker, last, taken)

    def _worth_keeping(self, i: int) -> list[StoredEntry]:
        data = self._file.read(self._offsets[i], self._sizes[i])
        entries, is_clean = decode_entries(data, self._counts[i])
        kept = worth_keeping(entries, is_clean=is_clean)
        return [entry for entry in kept if entry.ledger_id == self._ledger_id]

    def _decode(self, i: int) -> list[StoredEntry]:
        key = (self._file.path, self._offsets[i])
        entries = self._decoded.get(key)
        if entries is None:
            data = self._file.read(self._offsets[i], self._sizes[i])
            entries = decode_entries(data, self._counts[i])[0]
            if any(entry.ledger_id != self._ledger_id for entry in entries):
                entries = [entry for entry in entries if entry.ledger_id == self._ledger_id]
            self._decoded.put(key, entries)
        return entries

    def close(self) -> None:
        self._file.close()
