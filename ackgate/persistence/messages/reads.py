"""Reading a topic's messages: from the cache, from the ledger being written, from closed ledgers.

Edge. Keeps a few closed ledgers open; refuses nothing but what the ledgers refuse.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, NamedTuple

from ackgate.cursor import Span
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.entries import EntryT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.cursor import MessageLedgers, Position
    from ackgate.persistence.messages.cache import EntryCache
    from ackgate.persistence.messages.entries import EntryForm
    from ackgate.persistence.ports import LedgerClient, LedgerReader

READERS_MAX: Final = 8
"""Closed ledgers of one topic that are kept open for reading."""

WINDOW_BYTES: Final = 256 * 1024
"""Payload bytes read ahead at once: four blocks of a ledger's file."""

WINDOW_ENTRIES_MAX: Final = 2_000
WINDOWS_MAX: Final = 4
"""Windows kept per topic: one for each of so many subscriptions that lag behind the cache."""


class _Window(NamedTuple, Generic[EntryT]):
    """Entries read ahead: ``first .. first + len(entries) - 1`` of one ledger."""

    ledger_id: int
    first: int
    entries: list[EntryT]

    @property
    def stop(self) -> int:
        return self.first + len(self.entries)


class MessageReads(Generic[EntryT]):
    """The reading side of one managed ledger."""

    def __init__(
        self,
        client: LedgerClient,
        password: bytes,
        cache: EntryCache[EntryT],
        ledgers: MessageLedgers,
        *,
        form: EntryForm[EntryT],
    ) -> None:
        self._client = client
        self._password = password
        self._cache = cache
        self._ledgers = ledgers
        self._form = form
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._windows: list[_Window[EntryT]] = []
        """The last one used last."""
        self.current: LedgerReader | None = None
        """The ledger that is being written."""

    def keep(self, reader: LedgerReader) -> None:
        """Use this reader for its ledger from now on."""
        self._readers[reader.ledger_id] = reader
        while len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        self._readers.pop(ledger_id, None)
        for window in [w for w in self._windows if w.ledger_id == ledger_id]:
            self._windows.remove(window)
        self._cache.drop_ledger(ledger_id)

    def cached(self, spans: Sequence[Span]) -> list[EntryT] | None:
        """The entries of all spans if every one is in the cache."""
        if len(spans) == 1:
            ledger_id, start, stop = spans[0]
            return self._cache.get(ledger_id, start, stop)
        entries: list[EntryT] = []
        for ledger_id, start, stop in spans:
            found = self._cache.get(ledger_id, start, stop)
            if found is None:
                return None
            entries += found
        return entries

    async def read(self, spans: Sequence[Span]) -> list[EntryT]:
        """The entries of all spans, from cache or ledgers. Raises as `LedgerReader.read`."""
        entries: list[EntryT] = []
        for ledger_id, start, stop in spans:
            while start < stop:
                found = self._cache.get(ledger_id, start, stop)
                if found is None:
                    window = await self._window(ledger_id, start)
                    found = window[: stop - start]
                entries += found
                start += len(found)  # noqa: PLW2901 - the rest of the span
        return entries

    async def read_one(self, position: Position) -> EntryT:
        """One entry. Raises as `LedgerReader.read`."""
        ledger_id, entry_id = position
        return (await self.read([Span(ledger_id, entry_id, entry_id + 1)]))[0]

    async def _window(self, ledger_id: int, entry_id: int) -> list[EntryT]:
        """Entries from this one on, as many as were read ahead; at least one.

        Holes are read through: what lies between two spans comes with the same block of the file,
        and asking for each span alone would decode that block for each.
        """
        for window in self._windows:
            if window.ledger_id == ledger_id and window.first <= entry_id < window.stop:
                self._windows.remove(window)
                self._windows.append(window)
                return window.entries[entry_id - window.first :]
        reader = await self._reader(ledger_id)
        last = min(
            entry_id + self._entries_ahead(reader) - 1, max(entry_id, reader.last_add_confirmed)
        )
        while True:
            try:
                stored = await reader.read(entry_id, last)
            except CorruptRecordError:
                if last == entry_id:
                    raise
                last = entry_id + (last - entry_id) // 2  # the bad one may be further on
            else:
                break
        form = self._form.stored
        read = _Window(ledger_id, entry_id, [form(ledger_id, entry) for entry in stored])
        self._windows.append(read)
        del self._windows[:-WINDOWS_MAX]
        return read.entries

    def _entries_ahead(self, reader: LedgerReader) -> int:
        average = reader.length_bytes // (reader.last_add_confirmed + 1 or 1)
        return max(1, min(WINDOW_ENTRIES_MAX, WINDOW_BYTES // max(1, average)))

    async def first_published_at(self, publish_time_ms: int) -> Position:
        """The first entry published at or after this time; the end if there is none.

        Binary search: reads one entry for each halving. Clocks of producers may disagree, then the
        answer is one of the places where the times cross.
        """
        ledgers = self._ledgers
        low, high = 0, ledgers.total_entries
        while low < high:
            middle = (low + high) // 2
            entry = await self.read_one(ledgers.position_after(ledgers.first_position, middle + 1))
            if entry.published_ms < publish_time_ms:
                low = middle + 1
            else:
                high = middle
        if low >= ledgers.total_entries:
            return ledgers.next_valid(ledgers.last_confirmed)
        return ledgers.position_after(ledgers.first_position, low + 1)

    async def _reader(self, ledger_id: int) -> LedgerReader:
        if self.current is not None and self.current.ledger_id == ledger_id:
            return self.current
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._client.open_without_recovery(ledger_id, password=self._password)
            if reader.last_add_confirmed + 1 < (self._ledgers.entry_count(ledger_id) or 0):
                # Its writer was about to close it when a recovery began, whose process is gone.
                reader = await self._client.open(ledger_id, password=self._password)
            self.keep(reader)
        else:
            self._readers.move_to_end(ledger_id)
        return reader
