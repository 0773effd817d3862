"""Partly acked entries: which messages of a batch are still unacked.

Pure. An entry that holds a batch can be acked message by message. Kept is the set of its *unacked*
indexes, as an int: bit i set = message i is not acked yet (the polarity of the wire's `ack_set`).

    stored      1 1 1 0 1      message 1 was acked (bit 1 of 0..4 is the second from the right)
    ack set     1 0 1 1 1      a client that knows only of message 3
    result      1 0 1 0 1      AND: acks only ever clear bits, none comes back

Invariants: no kept set is empty (that is a full ack, and belongs to the ranges); the heap holds
every kept position, and perhaps some that are no longer kept.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ackgate.cursor.position import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap


class BatchAcks:
    """Unacked indexes by position. Dropping below a position costs O(log n) per set dropped."""

    __slots__ = ("_lowest_first", "unacked")

    unacked: dict[Position, int]
    """Position -> unacked indexes, never 0. Others read it; only this class writes it."""

    def __init__(self) -> None:
        self.unacked = {}
        self._lowest_first: list[Position] = []

    def restrict(self, position: Position, unacked_mask: int) -> int:
        """Clear what the mask does not hold. Returns what is left; 0: the entry is acked now."""
        stored = self.unacked.get(position)
        left = unacked_mask if stored is None else stored & unacked_mask
        if left == 0:
            self.unacked.pop(position, None)
            return 0
        if stored is None:
            heappush(self._lowest_first, position)
        self.unacked[position] = left
        return left

    def discard(self, position: Position) -> None:
        """The entry was acked as a whole."""
        self.unacked.pop(position, None)

    def discard_bitmap(self, ledger_id: int, acked: BitMap) -> None:
        """The entries of one ledger were acked as a whole. O(the smaller of the two sets)."""
        if len(self.unacked) <= len(acked):
            gone = [p for p in self.unacked if p[0] == ledger_id and p[1] in acked]
        else:
            gone = [Position(ledger_id, entry_id) for entry_id in acked]
        for position in gone:
            self.unacked.pop(position, None)

    def drop_through(self, position: Position) -> None:
        """Forget everything at or before the position."""
        heap = self._lowest_first
        while heap and heap[0] <= position:
            self.unacked.pop(heappop(heap), None)

    def drop_ledger(self, ledger_id: int) -> bool:
        """Forget one ledger. Returns whether there was anything."""
        gone = [position for position in self.unacked if position[0] == ledger_id]
        for position in gone:
            del self.unacked[position]
        return bool(gone)

    def replace(self, unacked: Mapping[Position, int]) -> None:
        """Hold exactly these sets."""
        self.unacked = dict(unacked)
        self._lowest_first = list(self.unacked)
        heapify(self._lowest_first)

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        assert all(mask > 0 for mask in self.unacked.values()), self.unacked
        assert set(self._lowest_first) >= set(self.unacked)
        assert len(self._lowest_first) == len(set(self._lowest_first))
