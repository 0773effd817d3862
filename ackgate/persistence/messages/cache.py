"""A cache of recently written entries, bounded by bytes.

One cache serves all topics: message ledger ids are unique, so a ledger is the unit. Within a ledger
the cached entries are one unbroken run, so a lookup is two subtractions. Oldest ledgers lose their
oldest entries first; entries that every subscription has acked are dropped at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic

from ackgate.persistence.messages.entries import EntryT

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRY_OVERHEAD_BYTES: Final = 200
"""Python's cost of one cached entry beside its payload (object, position, list slot)."""


class _Run(Generic[EntryT]):
    """Cached entries of one ledger: ids ``first .. first + len(entries) - 1``.

    `head` entries at the front of the list are already dropped; the list is cut when half is.
    """

    __slots__ = ("entries", "first", "head")

    def __init__(self, first: int) -> None:
        self.first = first
        self.head = 0
        self.entries: list[EntryT | None] = []


class EntryCache(Generic[EntryT]):
    """Recently written entries by ledger."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._runs: dict[int, _Run[EntryT]] = {}
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def insert(self, ledger_id: int, entries: Sequence[EntryT]) -> None:
        """Add entries that follow the cached ones of this ledger (a gap restarts its run)."""
        first = entries[0].position.entry_id
        run = self._runs.get(ledger_id)
        if run is None or run.first + len(run.entries) != first:
            self.drop_ledger(ledger_id)
            run = self._runs[ledger_id] = _Run(first)
        run.entries.extend(entries)
        self.size_bytes += sum(len(entry.payload) for entry in entries) + (
            ENTRY_OVERHEAD_BYTES * len(entries)
        )
        while self.size_bytes > self.bytes_max and self._runs:
            self._evict_some()

    def get(self, ledger_id: int, start: int, stop: int) -> list[EntryT] | None:
        """Entries start..stop-1 if all of them are cached, else None."""
        run = self._runs.get(ledger_id)
        if run is not None:
            low = start - run.first
            if low >= run.head and stop - run.first <= len(run.entries):
                self.hits += stop - start
                return run.entries[low : stop - run.first]  # type: ignore[return-value]
        self.misses += stop - start
        return None

    def drop_through(self, ledger_id: int, entry_id: int) -> None:
        """Forget entries of this ledger up to and including `entry_id`."""
        run = self._runs.get(ledger_id)
        if run is not None:
            self._drop_head(ledger_id, run, entry_id + 1 - run.first)

    def drop_ledger(self, ledger_id: int) -> None:
        run = self._runs.get(ledger_id)
        if run is not None:
            self._drop_head(ledger_id, run, len(run.entries))
            self._runs.pop(ledger_id, None)

    def _evict_some(self) -> None:
        ledger_id, run = next(iter(self._runs.items()))
        step = max(1, (len(run.entries) - run.head) // 16)
        self._drop_head(ledger_id, run, run.head + step)

    def _drop_head(self, ledger_id: int, run: _Run[EntryT], new_head: int) -> None:
        new_head = min(new_head, len(run.entries))
        if new_head <= run.head:
            return
        for index in range(run.head, new_head):
            entry = run.entries[index]
            run.entries[index] = None
            if entry is not None:
                self.size_bytes -= len(entry.payload) + ENTRY_OVERHEAD_BYTES
        run.head = new_head
        if new_head == len(run.entries):
            del self._runs[ledger_id]
        elif new_head > len(run.entries) // 2:
            del run.entries[:new_head]
            run.first += new_head
            run.head = 0
