"""One copy of a fragment, read from front to back: what of it is whole, and where it is not.

Edge: blocking reads. Every entry that comes out of here has been verified by its digest, which covers
its ids too, so nothing read before that is trusted. Damage is noted and stepped over; a torn tail (no
whole block follows) is noted apart, since a broker that runs is just writing there, and one that was
killed has confirmed nothing of it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c

from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.ledgers.avro_container import read_header, scan
from ackgate.persistence.ledgers.entry_codec import CrcDigest, decode_entries
from ackgate.pipeline.storage.block_search import offset_before
from ackgate.pipeline.storage.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.persistence.ledgers.avro_container import Block
    from ackgate.persistence.ledgers.disk import DiskFile
    from ackgate.persistence.ledgers.entry_codec import Digest, StoredEntry

_entry_id = attrgetter("entry_id")


class FragmentStream:
    """Verified entries of one file, ascending."""

    __slots__ = (
        "_blocks",
        "_bookie",
        "_digest",
        "_file",
        "_first",
        "_last",
        "_ledger_id",
        "_pending",
        "damages",
        "torn_tail",
    )

    def __init__(
        self, file: DiskFile, *, bookie: str, ledger_id: int, digest: Digest, first: int = 0
    ) -> None:
        """`first`: what is before this entry need not be read."""
        self._first = first
        self._file = file
        self._bookie = bookie
        self._ledger_id = ledger_id
        self._digest = digest
        self._pending: list[StoredEntry] = []
        self._last = -1
        self.damages: list[Damage] = []
        self.torn_tail: Damage | None = None
        self._blocks = self._read_blocks()

    def take(self, last: int, *, blocks_max: int | None = None) -> list[StoredEntry]:
        """The entries up to `last` (included) that were not taken yet.

        `blocks_max`: at most those of so many blocks; empty when nothing is left.
        """
        taken: list[StoredEntry] = []
        blocks = 0
        while True:
            pending = self._pending
            if pending and pending[-1].entry_id > last:
                cut = bisect_right(pending, last, key=_entry_id)
                taken += pending[:cut]
                self._pending = pending[cut:]
                return taken
            taken += pending
            blocks += bool(pending)
            self._pending = []
            if blocks == blocks_max:
                return taken
            following = next(self._blocks, None)
            if following is None:
                return taken
            self._pending = following

    def skip_to(self, first: int) -> None:
        """Pass over the entries before `first`."""
        while self.take(first - 1, blocks_max=1):
            pass

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()

    def _read_blocks(self) -> Iterator[list[StoredEntry]]:
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
        tail: list[Damage] = []
        start = offset_before(self._file, header, self._first) if self._first else header.size
        for block in scan(self._file, header, start):
            entries, why = self._verified(block)
            if not block.is_whole:
                tail.append(self._damage(block.offset, block.end, why))
            else:
                self.damages += tail
                tail.clear()
                if why:
                    self.damages.append(self._damage(block.offset, block.end, why))
            if entries:
                self._last = entries[-1].entry_id
                yield entries
        if tail:
            self.torn_tail = replace(tail[-1], why="torn tail", is_tail=True)

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
    """Those whose digest fits. A CRC32C costs a third of what `Digest.matches` does for each."""
    if isinstance(digest, CrcDigest):
        # Fields by number: by name they take longer than the checksum.
        made = [crc32c(entry[6] + entry[5]) for entry in entries]
        if struct.pack(f">{len(made)}I", *made) == b"".join([entry[4] for entry in entries]):
            return entries
    return [entry for entry in entries if digest.matches(entry)]
