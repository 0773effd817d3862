"""Key_Shared's promise: a key's messages are never delivered out of order, nor to two consumers at a time.

Pure. For every key hash with entries in flight or waiting, this knows how many are in flight and
with whom, and which wait, in order. One hash is in flight with one consumer at most: after a hash
has moved to another owner (a consumer joined or left), its entries wait until the old owner has
acked or given back what it has (Pulsar's "draining hashes", PIP-379).

::

    hash h, owner B now                          may h's next entry go to B?
    -------------------------------------------  ---------------------------
    nothing in flight, nothing waits             yes
    in flight with B, nothing waits              yes
    in flight with A                             no: draining; it waits
    entries of h wait                            only the first of them

Waiting entries of hashes that may go on are grouped by owner, so the cost of a replay grows with what
it finds and not with what waits. With ``is_ordered`` False (out-of-order delivery allowed) nothing waits
for anything but its owner's room.

Entries that were held and fell due arrive without their hash: ``due`` has them until a replay read
brings their keys. Only then do they wait like the others, in order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import merge, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from ackgate.cursor import PositionSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.cursor import Position
    from ackgate.dispatcher.keys import KeyRanges


class _Flight:
    """Entries of one hash in flight."""

    __slots__ = ("consumer", "entries")

    def __init__(self, consumer: int) -> None:
        self.consumer = consumer
        self.entries = 1


class KeyOrder:
    """Which entries of each key hash are in flight, with whom, and which wait."""

    __slots__ = (
        "_filed",
        "_flights",
        "_hashes",
        "_is_ordered",
        "_ranges",
        "_ready",
        "_waiting",
        "due",
        "waiting_entries",
    )

    def __init__(self, ranges: KeyRanges, *, is_ordered: bool) -> None:
        self._ranges = ranges
        self._is_ordered = is_ordered
        self._hashes: dict[Position, int] = {}
        self._flights: dict[int, _Flight] = {}
        self._waiting: dict[int, list[Position]] = {}
        self._ready: dict[int, set[int]] = {}
        """Owner -> waiting hashes that may be given to it."""
        self._filed: dict[int, int] = {}
        """The reverse: hash -> owner that it is filed under."""
        self.waiting_entries = 0
        """Those whose hash is known."""
        self.due = PositionSet()
        """Those whose hash is not."""

    # -- asking ---------------------------------------------------------------------------------

    def may_give_new(self, key_hash: int, consumer: int) -> bool:
        """May an entry that was never given go to this consumer, ahead of none of its key?"""
        if not self._is_ordered:
            return True
        if key_hash in self._waiting:
            return False
        flight = self._flights.get(key_hash)
        return flight is None or flight.consumer == consumer

    def may_give_again(self, position: Position, key_hash: int, consumer: int) -> bool:
        """May this waiting entry go to this consumer now? False also if it does not wait."""
        waiting = self._waiting.get(key_hash)
        if waiting is None:
            return False
        if not self._is_ordered:
            return _has(waiting, position)
        flight = self._flights.get(key_hash)
        return waiting[0] == position and (flight is None or flight.consumer == consumer)

    def replayable(self, owner: int, entries_max: int) -> Iterable[Position]:
        """The lowest waiting entries that may be given to this owner, ascending."""
        ready = self._ready.get(owner)
        if not ready:
            return ()
        waiting = self._waiting
        hashes = nsmallest(entries_max, ready, key=lambda key_hash: waiting[key_hash][0])
        # The lowest of a merge are a prefix of each list merged: no key is overtaken.
        return islice(merge(*(waiting[key_hash] for key_hash in hashes)), entries_max)

    # -- changes --------------------------------------------------------------------------------

    def given(self, position: Position, key_hash: int, consumer: int) -> None:
        """Note that the entry, waiting or new, is in flight with the consumer."""
        waiting = self._waiting.get(key_hash)
        if waiting is not None and position in self._hashes:
            self._stop_waiting(position, key_hash, waiting)
        self._hashes[position] = key_hash
        flight = self._flights.get(key_hash)
        if flight is None:
            self._flights[key_hash] = _Flight(consumer)
        else:
            flight.entries += 1
        if waiting is not None:
            self._file(key_hash)

    def waits(self, position: Position, key_hash: int) -> None:
        """Note a new entry that could not be given."""
        if position in self._hashes:
            return
        self._hashes[position] = key_hash
        self._start_waiting(position, key_hash)

    def fell_due(self, positions: Iterable[Position]) -> None:
        """Note entries that may be given, but whose keys are unknown yet."""
        hashes = self._hashes
        self.due.add_positions([position for position in positions if position not in hashes])

    def due_read(self, positions: Sequence[Position], key_hashes: Sequence[int]) -> None:
        """Note the keys that a replay read brought.

        Entries that fell due wait by key from now on.
        """
        if not self.due.entry_count:
            return
        for position, key_hash in zip(positions, key_hashes, strict=True):
            if self.due.discard(*position):
                self.waits(position, key_hash)

    def returned(self, positions: Iterable[Position]) -> None:
        """Note entries that were in flight and wait now."""
        for position in positions:
            key_hash = self._hashes[position]
            self._land(key_hash)
            self._start_waiting(position, key_hash)

    def gone(self, position: Position) -> bool:
        """Forget an acked entry, wherever it was. Has that freed others of its key?"""
        key_hash = self._hashes.pop(position, None)
        if key_hash is None:
            if self.due.entry_count:
                self.due.discard(*position)
            return False
        waiting = self._waiting.get(key_hash)
        if waiting is None:
            self._land(key_hash)
            return False
        was_filed = key_hash in self._filed
        if _has(waiting, position):
            self._stop_waiting(position, key_hash, waiting)
        else:
            self._land(key_hash)
        self._file(key_hash)
        return not was_filed and key_hash in self._filed

    def gone_through(self, position: Position) -> None:
        """Forget everything up to the position: it is acked."""
        for at in [at for at in self._hashes if at <= position]:
            self.gone(at)
        self.due.take_through(position)

    def owners_changed(self) -> None:
        """Divide what waits anew: the key ranges have changed. O(waiting hashes)."""
        for key_hash in self._waiting:
            self._file(key_hash)

    def clear(self) -> None:
        """Forget everything in flight and waiting."""
        self._hashes.clear()
        self._flights.clear()
        self._waiting.clear()
        self._ready.clear()
        self._filed.clear()
        self.due.clear()
        self.waiting_entries = 0

    def check(self) -> None:
        self.due.check()
        assert not any(position in self._hashes for position in self.due)
        in_flight: dict[int, int] = {}
        for position, key_hash in self._hashes.items():
            if not _has(self._waiting.get(key_hash, []), position):
                in_flight[key_hash] = in_flight.get(key_hash, 0) + 1
        assert in_flight == {key_hash: f.entries for key_hash, f in self._flights.items()}
        assert self.waiting_entries == sum(map(len, self._waiting.values()))
        for key_hash, waiting in self._waiting.items():
            assert waiting, key_hash
            assert waiting == sorted(set(waiting)), key_hash
            assert all(self._hashes[position] == key_hash for position in waiting)
            assert self._filed.get(key_hash) == self._owner_for(key_hash), key_hash
        filed = {key_hash: owner for owner, ready in self._ready.items() for key_hash in ready}
        assert filed == self._filed
        assert self._filed.keys() <= self._waiting.keys()

    # -- filing ---------------------------------------------------------------------------------

    def _owner_for(self, key_hash: int) -> int | None:
        """The consumer that may get waiting entries of the hash now; None: none."""
        owner = self._ranges.owner(key_hash)
        if self._is_ordered:
            flight = self._flights.get(key_hash)
            if flight is not None and flight.consumer != owner:
                return None
        return owner

    def _file(self, key_hash: int) -> None:
        owner = self._owner_for(key_hash) if key_hash in self._waiting else None
        filed = self._filed.get(key_hash)
        if owner == filed:
            return
        if filed is not None:
            del self._filed[key_hash]
            ready = self._ready[filed]
            ready.remove(key_hash)
            if not ready:
                del self._ready[filed]
        if owner is not None:
            self._filed[key_hash] = owner
            self._ready.setdefault(owner, set()).add(key_hash)

    def _start_waiting(self, position: Position, key_hash: int) -> None:
        waiting = self._waiting.get(key_hash)
        if waiting is None:
            self._waiting[key_hash] = [position]
        else:
            insort(waiting, position)
        self.waiting_entries += 1
        self._file(key_hash)

    def _stop_waiting(self, position: Position, key_hash: int, waiting: list[Position]) -> None:
        del waiting[bisect_left(waiting, position)]
        self.waiting_entries -= 1
        if not waiting:
            del self._waiting[key_hash]

    def _land(self, key_hash: int) -> None:
        flight = self._flights[key_hash]
        flight.entries -= 1
        if not flight.entries:
            del self._flights[key_hash]


def _has(ascending: list[Position], position: Position) -> bool:
    place = bisect_left(ascending, position)
    return place < len(ascending) and ascending[place] == position
