"""Reading a topic's messages: from the cache, from the ledger being written, from closed ledgers.

Edge. Keeps a few closed ledgers open; refuses nothing but what the ledgers refuse.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ackgate.broker.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.entry_cache import EntryCache
    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position
    from ackgate.cursor.unacked_entries import Span
    from ackgate.persistence.ports import LedgerClient, LedgerReader

READERS_MAX: Final = 8
"""Closed ledgers of one topic that are kept open for reading."""


class MessageReads:
    """The reading side of one managed ledger."""

    def __init__(
        self, client: LedgerClient, password: bytes, cache: EntryCache, facts: MessageLedgers
    ) -> None:
        self._client = client
        self._password = password
        self._cache = cache
        self._facts = facts
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self.current: LedgerReader | None = None
        """The ledger that is being written."""

    def keep(self, reader: LedgerReader) -> None:
        """Use this reader for its ledger from now on."""
        self._readers[reader.ledger_id] = reader
        while len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        """The ledger goes."""
        self._readers.pop(ledger_id, None)
        self._cache.drop_ledger(ledger_id)

    def cached(self, spans: Sequence[Span]) -> list[Entry] | None:
        """The entries of all spans if every one is in the cache."""
        if len(spans) == 1:
            ledger_id, start, stop = spans[0]
            return self._cache.get(ledger_id, start, stop)
        entries: list[Entry] = []
        for ledger_id, start, stop in spans:
            found = self._cache.get(ledger_id, start, stop)
            if found is None:
                return None
            entries += found
        return entries

    async def read(self, spans: Sequence[Span]) -> list[Entry]:
        """The entries of all spans, from cache or ledgers. Raises as `LedgerReader.read`."""
        entries: list[Entry] = []
        for ledger_id, start, stop in spans:
            found = self._cache.get(ledger_id, start, stop)
            if found is None:
                reader = await self._reader(ledger_id)
                stored = await reader.read(start, stop - 1)
                found = [Entry.stored(ledger_id, entry) for entry in stored]
            entries += found
        return entries

    async def read_one(self, position: Position) -> Entry:
        """One entry. Raises as `LedgerReader.read`."""
        ledger_id, entry_id = position
        cached = self._cache.get(ledger_id, entry_id, entry_id + 1)
        if cached:
            return cached[0]
        reader = await self._reader(ledger_id)
        return Entry.stored(ledger_id, (await reader.read(entry_id, entry_id))[0])

    async def first_published_at(self, publish_time_ms: int) -> Position:
        """The first entry published at or after this time; the end if there is none.

        Binary search: reads one entry for each halving. Clocks of producers may disagree, then the
        answer is one of the places where the times cross.
        """
        facts = self._facts
        low, high = 0, facts.total_entries
        while low < high:
            middle = (low + high) // 2
            entry = await self.read_one(facts.position_after(facts.first_position, middle + 1))
            if entry.metadata.publish_time < publish_time_ms:
                low = middle + 1
            else:
                high = middle
        if low >= facts.total_entries:
            return facts.next_valid(facts.last_confirmed)
        return facts.position_after(facts.first_position, low + 1)

    async def _reader(self, ledger_id: int) -> LedgerReader:
        if self.current is not None and self.current.ledger_id == ledger_id:
            return self.current
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._client.open_without_recovery(ledger_id, password=self._password)
            self.keep(reader)
        else:
            self._readers.move_to_end(ledger_id)
        return reader
