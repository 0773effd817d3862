"""Entries that are in the journal and not yet in fragment files.

Pure: a structure in memory, touched by the event loop only. Reads look here first. The cache has two
halves: *active* takes what was just synced, *sealed* is being written to fragment files and does not
change any more. Entries stay encoded, one batch per ledger and group commit.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final

from ackgate.persistence.ledgers.entry_codec import decode_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.persistence.ledgers.entry_batch import EntryBatch
    from ackgate.persistence.ledgers.entry_codec import StoredEntry

BATCH_OVERHEAD_BYTES: Final = 320
"""What a batch costs in memory beside its bytes: a tuple, its numbers, a place in a list. Counted,
so that a million tiny adds do not take three times the memory that the bound speaks of."""


class CacheHalf:
    """Batches by ledger."""

    __slots__ = ("bytes", "closed", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, list[EntryBatch]] = {}
        """Per ledger ascending by first entry id."""
        self.bytes = 0
        self.closed: set[int] = set()
        """Ledgers of this bookie that take no more entries."""

    def add(self, batch: EntryBatch) -> None:
        batches = self.ledgers.setdefault(batch.ledger_id, [])
        if not batches or batches[-1].first_entry_id <= batch.first_entry_id:
            batches.append(batch)
        else:
            # Recovery writes again what is missing in the middle.
            bisect.insort(batches, batch, key=_first)
        self.bytes += len(batch.encoded) + BATCH_OVERHEAD_BYTES

    def drop(self, ledger_id: int) -> None:
        for batch in self.ledgers.pop(ledger_id, ()):
            self.bytes -= len(batch.encoded) + BATCH_OVERHEAD_BYTES

    def overlapping(self, ledger_id: int, first: int, last: int) -> Iterable[EntryBatch]:
        batches = self.ledgers.get(ledger_id)
        if batches is None:
            return ()
        start = bisect.bisect_right(batches, first, key=_first)
        # Batches overlap only where something was written again; two steps back is past any of that
        # which still matters, since a reader that misses an entry here goes on to the files.
        return [
            batch
            for batch in batches[max(start - 2, 0) : bisect.bisect_right(batches, last, key=_first)]
            if batch.last_entry_id >= first
        ]


def _first(batch: EntryBatch) -> int:
    return batch.first_entry_id


class WriteCache:
    """Both halves."""

    __slots__ = ("_bytes_max", "active", "sealed")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.active = CacheHalf()
        self.sealed: CacheHalf | None = None

    @property
    def is_full(self) -> bool:
        """Whether the active half has reached its bound."""
        return self.active.bytes >= self._bytes_max

    @property
    def bytes(self) -> int:
        """Memory held, both halves."""
        return self.active.bytes + (self.sealed.bytes if self.sealed else 0)

    def add(self, batch: EntryBatch) -> None:
        """Take what was synced to the journal."""
        self.active.add(batch)

    def seal(self) -> CacheHalf:
        """Begin a new active half. While a sealed one is there, returns that one again."""
        if self.sealed is None:
            self.sealed, self.active = self.active, CacheHalf()
        return self.sealed

    def release(self) -> None:
        """The sealed half is in fragment files."""
        self.sealed = None

    def drop(self, ledger_id: int) -> None:
        """Forget a deleted ledger."""
        for half in self._halves():
            half.drop(ledger_id)

    def ledger_ids(self) -> set[int]:
        """Ledgers with entries here."""
        return {ledger_id for half in self._halves() for ledger_id in half.ledgers}

    def read(self, ledger_id: int, first: int, last: int) -> list[StoredEntry]:
        """Entries first..last as far as they are here, ascending."""
        entries: list[StoredEntry] = []
        for half in self._halves():
            for batch in half.overlapping(ledger_id, first, last):
                decoded = decode_entries(batch.encoded, batch.entry_count)[0]
                if first <= batch.first_entry_id and batch.last_entry_id <= last:
                    entries += decoded
                else:
                    entries += [entry for entry in decoded if first <= entry.entry_id <= last]
        return entries

    def last_batch(self, ledger_id: int) -> list[StoredEntry]:
        """Entries of the newest batch of a ledger."""
        for half in reversed(self._halves()):
            batches = half.ledgers.get(ledger_id)
            if batches:
                return decode_entries(batches[-1].encoded, batches[-1].entry_count)[0]
        return []

    def _halves(self) -> list[CacheHalf]:
        return [self.active] if self.sealed is None else [self.sealed, self.active]
