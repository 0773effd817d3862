"""One copy of a fragment, read from front to back: what of it is whole, and where it is not.

Edge: blocking reads. Every entry that comes out of here has been verified by its digest, which covers
its ids too, so nothing read before that is trusted. Damage is noted and stepped over; a torn tail (no
whole block follows) is noted apart, since a broker that runs is just writing there, and one that was
killed has confirmed nothing of it.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from google_crc32c import value as crc32c

from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.bookies.avro_container import read_header, scan
from ackgate.persistence.bookies.entry_codec import CrcDigest, decode_entries
from ackgate.pipeline.storage.block_search import first_entry_at, offset_before
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.entry_columns import PADDING, columns_of, decode_side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.persistence.bookies.avro_container import Block
    from ackgate.persistence.bookies.entry_codec import Digest, StoredEntry
    from ackgate.persistence.system.disk import DiskFile
    from ackgate.pipeline.storage.entry_columns import EntryColumns

_GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Blocks are decoded side by side, in groups of about so many bytes."""

_GROUP_BLOCKS_MIN: Final = 12
"""Fewer are decoded faster one by one: a step costs the same for two as for a hundred."""


class FragmentStream:
    """Verified entries of one file, ascending."""

    def __init__(
        self,
        file: DiskFile,
        *,
        bookie: str,
        ledger_id: int,
        digest: Digest,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """`first`, `last`: the entries to read; others may be skipped."""
        self._first = first
        self._stop = last
        self._file = file
        self._bookie = bookie
        self._ledger_id = ledger_id
        self._digest = digest
        self._pending: EntryColumns | None = None
        self._last = -1
        self.damages: list[Damage] = []
        self.torn_tail: Damage | None = None
        self._groups = self._read_groups()

    def take(self, last: int, *, groups_max: int | None = None) -> list[EntryColumns]:
        """The entries up to `last` (included) that were not taken yet; none of the parts is empty.

        `groups_max`: at most those of so many groups of blocks; nothing when nothing is left.
        """
        taken: list[EntryColumns] = []
        while True:
            pending = self._pending
            if pending is not None:
                count = len(pending.entry_ids)
                cut = int(np.searchsorted(pending.entry_ids, last, side="right"))
                if cut < count:
                    self._pending = pending.part(cut, count)
                    return [*taken, pending.part(0, cut)] if cut else taken
                taken.append(pending)
                self._pending = None
            if len(taken) == groups_max:
                return taken
            self._pending = next(self._groups, None)
            if self._pending is None:
                return taken

    def skip_to(self, first: int) -> None:
        """Pass over the entries before `first`."""
        while self.take(first - 1, groups_max=1):
            pass

    def close(self) -> None:
        self._file.close()

    def _read_groups(self) -> Iterator[EntryColumns]:
        try:
            header = read_header(self._file)
        except CorruptRecordError as error:
            why = str(error).removeprefix(f"{self._file.path}: ")
            damage = self._damage(0, self._file.size(), why)
            is_later = isinstance(error, UnknownFormatError)
            self.damages.append(replace(damage, is_later_format=is_later))
            return
        if header is None:
            torn = self._damage(0, self._file.size(), "torn header")
            self.torn_tail = replace(torn, is_tail=True)
            return
        start = offset_before(self._file, header, self._first) if self._first else header.size
        tail: list[Damage] = []
        group: list[Block] = []
        for block in scan(self._file, header, start):
            if block.is_whole:
                self.damages += tail
                tail.clear()
                if self._is_behind(block):
                    break
                group.append(block)
                if block.end - group[0].offset >= _GROUP_BYTES_MAX:
                    yield from self._decoded(group)
                    group.clear()
                continue
            yield from self._decoded(group)
            group.clear()
            entries, why = self._verified(block)
            tail.append(self._damage(block.offset, block.end, why))
            if entries:
                yield self._kept(columns_of(entries))
        yield from self._decoded(group)
        if tail:
            self.torn_tail = replace(tail[-1], why="torn tail", is_tail=True)

    def _is_behind(self, block: Block) -> bool:
        if self._stop is None:
            return False
        first = first_entry_at(self._file, block.offset)
        return first is not None and first > self._stop

    def _decoded(self, group: Sequence[Block]) -> Iterator[EntryColumns]:
        """The good entries of whole blocks that follow one another."""
        columns = self._side_by_side(group) if len(group) >= _GROUP_BLOCKS_MIN else None
        if columns is not None:
            yield self._kept(columns)
            return
        for block in group:
            entries, why = self._verified(block)
            if why:
                self.damages.append(self._damage(block.offset, block.end, why))
            if entries:
                yield self._kept(columns_of(entries))

    def _side_by_side(self, group: Sequence[Block]) -> EntryColumns | None:
        """None: they must be looked at one by one."""
        if not isinstance(self._digest, CrcDigest):
            return None
        start, size = group[0].data_offset, group[-1].end - group[0].data_offset
        data = self._file.read(start, size)
        if len(data) != size:
            return None
        return decode_side_by_side(
            data + PADDING,
            [block.data_offset - start for block in group],
            [block.data_size for block in group],
            [block.entry_count for block in group],
            self._ledger_id,
        )

    def _kept(self, columns: EntryColumns) -> EntryColumns:
        self._last = int(columns.entry_ids[-1])
        return columns

    def _verified(self, block: Block) -> tuple[list[StoredEntry], str]:
        """The block's good entries, and what is wrong with it ("": nothing)."""
        decoded, is_clean = decode_entries(
            self._file.read(block.data_offset, block.data_size), block.entry_count
        )
        good = matching(decoded, self._digest)
        if any(entry[0] != self._ledger_id for entry in good):
            good = [entry for entry in good if entry.ledger_id == self._ledger_id]
        if is_clean and block.is_whole and len(good) == len(decoded):
            return good, ""
        if not block.is_whole:
            return good, f"no whole block; {len(good)} entries of it can be read"
        return good, f"{len(good)} of its {block.entry_count} entries match their digests"

    def _damage(self, offset: int, end: int, why: str) -> Damage:
        path = str(self._file.path)
        return Damage(self._ledger_id, self._bookie, path, offset, end, why, self._last)


def matching(entries: list[StoredEntry], digest: Digest) -> list[StoredEntry]:
    """The entries whose digest fits.

    A CRC32C costs a third of what `Digest.matches` does for each.
    """
    if isinstance(digest, CrcDigest):
        # Fields by number: by name they take longer than the checksum.
        made = [crc32c(entry[6] + entry[5]) for entry in entries]
        if struct.pack(f">{len(made)}I", *made) == b"".join([entry[4] for entry in entries]):
            return entries
    return [entry for entry in entries if digest.matches(entry)]
