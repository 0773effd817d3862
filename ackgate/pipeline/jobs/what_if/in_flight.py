"""Entries that were delivered and are neither acked nor given back. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap

if TYPE_CHECKING:
    from ackgate.cursor.position import Position


class InFlight:
    """Which they are, and how many."""

    __slots__ = ("_ledgers", "count")

    def __init__(self) -> None:
        self._ledgers: dict[int, BitMap] = {}
        self.count = 0

    def began(self, position: Position) -> None:
        """It was delivered; it may have been before."""
        ledger_id, entry_id = position
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            entries = self._ledgers[ledger_id] = BitMap()
        if entry_id not in entries:
            entries.add(entry_id)
            self.count += 1

    def ended(self, position: Position) -> None:
        """It was acked, or given back; it need not have been delivered."""
        ledger_id, entry_id = position
        entries = self._ledgers.get(ledger_id)
        if entries is not None and entry_id in entries:
            entries.remove(entry_id)
            self.count -= 1
            if not entries:
                del self._ledgers[ledger_id]

    def ended_through(self, position: Position) -> None:
        """Everything up to this one was acked."""
        ledger_id, entry_id = position
        for known in [known for known in self._ledgers if known <= ledger_id]:
            entries = self._ledgers[known]
            before = len(entries)
            if known < ledger_id:
                entries.clear()
            elif entry_id >= 0:
                entries.remove_range(0, entry_id + 1)
            self.count -= before - len(entries)
            if not entries:
                del self._ledgers[known]

    def clear(self) -> None:
        """All were given back."""
        self._ledgers.clear()
        self.count = 0
