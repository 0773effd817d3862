"""Entries that are in the journal and not yet in fragment files.

Pure: a structure in memory, touched by the event loop only. Reads look here first. The cache has
two halves: *active* takes what was just synced, *sealed* is being written to fragment files and
does not change any more. Entries stay encoded, joined to blocks of the size that fragment files
have: a million tiny adds make a few thousand objects, which matters to the garbage collector more
than to memory.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final

from ackgate.persistence.bookies.entry_codec import EntryBatch, decode_entries

if TYPE_CHECKING:
    from ackgate.persistence.bookies.entry_codec import StoredEntry

BLOCK_OVERHEAD_BYTES: Final = 400
"""What a block costs in memory beside its bytes. Counted, so that a hundred thousand ledgers with an
entry each do not take several times what the bound speaks of."""


class CacheBlock:
    """Entries of one ledger and fragment, ascending, encoded one after another."""

    __slots__ = ("encoded", "entry_count", "first_entry_id", "fragment_id", "last_entry_id")

    def __init__(self, batch: EntryBatch) -> None:
        self.fragment_id = batch.fragment_id
        self.first_entry_id = batch.first_entry_id
        self.last_entry_id = batch.last_entry_id
        self.entry_count = batch.entry_count
        self.encoded = bytearray(batch.encoded)

    def takes(self, batch: EntryBatch, block_bytes: int) -> bool:
        """Whether the batch follows on what is here, and there is room for it."""
        return (
            batch.first_entry_id > self.last_entry_id
            and batch.fragment_id == self.fragment_id
            and len(self.encoded) + len(batch.encoded) <= block_bytes
        )

    def extend(self, batch: EntryBatch) -> None:
        self.encoded += batch.encoded
        self.last_entry_id = batch.last_entry_id
        self.entry_count += batch.entry_count

    def entries(self) -> list[StoredEntry]:
        return decode_entries(bytes(self.encoded), self.entry_count)[0]


class CacheHalf:
    """Entry blocks by ledger, with their total size."""

    __slots__ = ("_block_bytes", "_decoded", "_overlapping", "bytes", "closed", "ledgers")

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self.ledgers: dict[int, list[CacheBlock]] = {}
        """Per ledger ascending by first entry id."""
        self._overlapping: set[int] = set()
        """Ledgers in which entries were written again: their blocks reach into one another."""
        self._decoded: tuple[CacheBlock, list[StoredEntry]] | None = None
        self.bytes = 0
        self.closed: set[int] = set()
        """Ledgers of this bookie that take no more entries."""

    def add(self, batch: EntryBatch) -> None:
        blocks = self.ledgers.get(batch.ledger_id)
        if blocks is None:
            blocks = self.ledgers[batch.ledger_id] = []
        self.bytes += len(batch.encoded)
        if blocks and blocks[-1].takes(batch, self._block_bytes):
            blocks[-1].extend(batch)
            return
        self.bytes += BLOCK_OVERHEAD_BYTES
        if blocks and blocks[-1].last_entry_id >= batch.first_entry_id:
            self._overlapping.add(batch.ledger_id)
            bisect.insort(blocks, CacheBlock(batch), key=_first)
        else:
            blocks.append(CacheBlock(batch))

    def drop(self, ledger_id: int) -> None:
        for block in self.ledgers.pop(ledger_id, ()):
            self.bytes -= len(block.encoded) + BLOCK_OVERHEAD_BYTES

    def part(self, ledgers_max: int, bytes_max: int) -> list[tuple[int, list[CacheBlock]]]:
        """First blocks of up to `ledgers_max` ledgers, about `bytes_max` bytes; empty: none."""
        part: list[tuple[int, list[CacheBlock]]] = []
        size = 0
        for ledger_id, blocks in self.ledgers.items():
            count = 0
            while count < len(blocks) and size < bytes_max:
                size += len(blocks[count].encoded)
                count += 1
            part.append((ledger_id, blocks[:count]))
            if len(part) == ledgers_max or size >= bytes_max:
                break
        return part

    def drop_first(self, ledger_id: int, blocks: list[CacheBlock]) -> None:
        """Forget the first blocks of a ledger, unless it was dropped meanwhile."""
        kept = self.ledgers.get(ledger_id)
        if kept is None:
            return
        self.bytes -= sum(len(block.encoded) + BLOCK_OVERHEAD_BYTES for block in blocks)
        del kept[: len(blocks)]
        if not kept:
            del self.ledgers[ledger_id]

    def read(self, ledger_id: int, first: int, last: int) -> list[StoredEntry]:
        """Entries first..last as far as they are here, ascending."""
        blocks = self.ledgers.get(ledger_id)
        if blocks is None:
            return []
        start, stop = 0, len(blocks)
        if ledger_id not in self._overlapping:
            start = max(bisect.bisect_right(blocks, first, key=_first) - 1, 0)
            stop = bisect.bisect_right(blocks, last, key=_first)
        entries: list[StoredEntry] = []
        for block in blocks[start:stop]:
            if block.last_entry_id < first or block.first_entry_id > last:
                continue
            decoded = self._decode(block)
            if first <= block.first_entry_id and block.last_entry_id <= last:
                entries += decoded
            else:
                entries += [entry for entry in decoded if first <= entry.entry_id <= last]
        return entries

    def _decode(self, block: CacheBlock) -> list[StoredEntry]:
        """The block's entries; the block decoded last is kept, for sequential reads."""
        known = self._decoded
        if known is None or known[0] is not block or len(known[1]) != block.entry_count:
            known = self._decoded = (block, block.entries())
        return known[1]


def _first(block: CacheBlock) -> int:
    return block.first_entry_id


class WriteCache:
    """Entries that are in no fragment file yet: the half that fills and the half being written."""

    __slots__ = ("_block_bytes", "_bytes_max", "active", "sealed")

    def __init__(self, bytes_max: int, block_bytes: int) -> None:
        self._bytes_max = bytes_max
        self._block_bytes = block_bytes
        self.active = CacheHalf(block_bytes)
        self.sealed: CacheHalf | None = None

    @property
    def is_full(self) -> bool:
        """Whether the active half has reached its bound."""
        return self.active.bytes >= self._bytes_max

    @property
    def bytes(self) -> int:
        return self.active.bytes + (self.sealed.bytes if self.sealed else 0)

    def add(self, batch: EntryBatch) -> None:
        """Take what was synced to the journal."""
        self.active.add(batch)

    def seal(self) -> CacheHalf:
        """Begin a new active half. While a sealed one is there, returns that one again."""
        if self.sealed is None:
            self.sealed, self.active = self.active, CacheHalf(self._block_bytes)
        return self.sealed

    def release(self) -> None:
        """Drop the sealed half: fragment files have it."""
        self.sealed = None

    def drop(self, ledger_id: int) -> None:
        for half in self._halves():
            half.drop(ledger_id)

    def ledger_ids(self) -> set[int]:
        return {ledger_id for half in self._halves() for ledger_id in half.ledgers}

    def read(self, ledger_id: int, first: int, last: int) -> list[StoredEntry]:
        """Entries first..last as far as they are here."""
        if self.sealed is None:
            return self.active.read(ledger_id, first, last)
        return self.sealed.read(ledger_id, first, last) + self.active.read(ledger_id, first, last)

    def last_block(self, ledger_id: int) -> list[StoredEntry]:
        """Entries of the newest block of a ledger."""
        for half in reversed(self._halves()):
            blocks = half.ledgers.get(ledger_id)
            if blocks:
                return blocks[-1].entries()
        return []

    def _halves(self) -> list[CacheHalf]:
        return [self.active] if self.sealed is None else [self.sealed, self.active]


def batches_of(ledger_id: int, blocks: list[CacheBlock]) -> list[EntryBatch]:
    """Blocks of a sealed half as they go to a fragment file."""
    return [
        EntryBatch(
            ledger_id,
            block.fragment_id,
            block.first_entry_id,
            block.last_entry_id,
            block.entry_count,
            bytes(block.encoded),
        )
        for block in blocks
    ]
