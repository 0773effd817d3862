"""A fragment file, read: the entries of one ledger, strictly ascending.

Edge: blocking; used from the bookie's storage lane only. Where its blocks lie is found by hopping
from block head to block head, once, when the file is first read, and again from where it stopped
when the file has grown; 28 bytes of memory per block of 32 KiB. A read decodes whole blocks.

Damage is met on the way, not looked for: a head that is no head, a block that does not fit in. What
can still be read around it is read, and the damage is named in `damages`.

The blocks decoded last are kept. A reader that walks through a ledger asks for some entries of the same
block again and again; decoding the whole block each time would be most of the work.
"""

from __future__ import annotations

import bisect
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ackgate.persistence.bookies.avro_container import (
    LONG_BYTES_MAX,
    SYNC_BYTES,
    decode_long,
    read_header,
    scan,
)
from ackgate.persistence.bookies.entry_codec import StoredEntry, decode_entries, worth_keeping

if TYPE_CHECKING:
    from pathlib import Path

    from ackgate.persistence.bookies.avro_container import Block, ContainerHeader
    from ackgate.persistence.system.disk import DiskFile


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
        """A file was cut or removed."""
        for key in [key for key in self._blocks if key[0] == path]:
            del self._blocks[key]


class FragmentCut(NamedTuple):
    """Where to cut a file, and what that takes away."""

    size: int
    """0: nothing of it can be kept, the header neither."""
    sync_marker: bytes
    last_entry_id: int
    """Last entry that stays; -1: none."""
    taken: list[StoredEntry]
    """Those worth keeping."""


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
