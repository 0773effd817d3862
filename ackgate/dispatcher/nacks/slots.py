"""Positions as 32-bit numbers, so that one Roaring bitmap holds entries of many ledgers.

Pure. A **block** is 65,536 consecutive entries of one ledger, which one Roaring container covers.
A block in use has a number; an entry's **slot** is its block's number and its place in the block::

    ledger 7, entry 70_001   ->  block (7, 1), number 3   ->  slot 3 << 16 | 4_465

A bitmap per (time bucket, ledger) costs some 300 bytes however little is in it; a container in a
bitmap of its time bucket costs 64. With entries scattered over time and ledgers that is the
difference between less and more than a flat table of the same.

A slot means nothing once its block is released; the owner of the slots releases empty blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, Position
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

BLOCK_BITS: Final = 16
BLOCK_ENTRIES: Final = 1 << BLOCK_BITS
BLOCKS_MAX: Final = 1 << (32 - BLOCK_BITS)
"""Blocks in use at one time; a ledger of Pulsar's default size is one."""

SCATTERED_MAX: Final = 8
"""So few slots of each block are turned into positions one by one."""

_from_pair = partial(tuple.__new__, Position)

_PLACE: Final = BLOCK_ENTRIES - 1


class SlotTable:
    """Which block has which number. Lookups cost a dictionary's; order is that of positions."""

    __slots__ = ("_free", "_names", "_numbers", "_order")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No block is in use."""
        self._numbers: dict[int, int] = {}
        """Name (ledger id and block of the ledger, as one int) -> number."""
        self._names: dict[int, int] = {}
        self._order: list[int] = []
        """Names, ascending: the order of positions."""
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._order)

    def numbers(self) -> Iterable[int]:
        """Numbers of the blocks in use."""
        return self._names

    # -- from positions

    def find(self, ledger_id: int, entry_id: int) -> int | None:
        """The entry's slot if its block is in use."""
        number = self._numbers.get(ledger_id << BLOCK_BITS | entry_id >> BLOCK_BITS)
        return None if number is None else number << BLOCK_BITS | entry_id & _PLACE

    def slot(self, ledger_id: int, entry_id: int) -> int:
        """The entry's slot; its block is in use from now on. Raises `CallerError` if too many are."""
        name = ledger_id << BLOCK_BITS | entry_id >> BLOCK_BITS
        number = self._numbers.get(name)
        if number is None:
            number = self._take(name)
        return number << BLOCK_BITS | entry_id & _PLACE

    def slots(self, ledger_id: int, entry_ids: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """As `slot`, for entries of one ledger. Raises `CallerError` with nothing changed."""
        ids: NDArray[np.int64] = entry_ids.astype(np.int64)
        first, last = int(ids.min()) >> BLOCK_BITS, int(ids.max()) >> BLOCK_BITS
        blocks = [first] if first == last else np.unique(ids >> BLOCK_BITS).tolist()
        names = [ledger_id << BLOCK_BITS | block for block in blocks]
        new = [name for name in names if name not in self._numbers]
        self._check_room(len(new))
        for name in new:
            self._take(name)
        numbers = [self._numbers[name] for name in names]
        if len(blocks) == 1:
            return ids + ((numbers[0] - first) << BLOCK_BITS)
        offsets = (np.array(numbers, dtype=np.int64) - np.array(blocks)) << BLOCK_BITS
        ids += offsets[np.searchsorted(blocks, ids >> BLOCK_BITS)]
        return ids

    def _take(self, name: int) -> int:
        self._check_room(1)
        number = self._free.pop() if self._free else len(self._order)
        self._numbers[name] = number
        self._names[number] = name
        insort(self._order, name)
        return number

    def _check_room(self, blocks: int) -> None:
        if len(self._order) + blocks > BLOCKS_MAX:
            raise CallerError(
                f"entries of more than {BLOCKS_MAX} ledgers (or blocks of {BLOCK_ENTRIES} entries) "
                "at once are not tracked"
            )

    def release(self, number: int) -> None:
        """Free the block: no slot of it is kept anywhere."""
        name = self._names.pop(number)
        del self._numbers[name]
        del self._order[bisect_left(self._order, name)]
        self._free.append(number)
        if not self._order:
            self._free.clear()

    # -- to positions

    def position(self, slot: int) -> Position:
        name = self._names[slot >> BLOCK_BITS]
        entry_id = (name & _PLACE) << BLOCK_BITS | slot & _PLACE
        return _from_pair((name >> BLOCK_BITS, entry_id))

    def parts(self, slots: BitMap) -> list[tuple[int, int, BitMap]]:
        """The slots block by block in the order of positions: (ledger, first entry, slots)."""
        names = sorted((self._names[number], number) for number in blocks_of(slots))
        if len(names) == 1:
            return [(*_block_start(names[0][0]), slots)]
        return [(*_block_start(name), slots & block_slots(number)) for name, number in names]

    def positions(self, slots: BitMap) -> list[Position]:
        """Whose slots these are, in the order of positions."""
        members = members_uint32(slots)
        numbers = members >> BLOCK_BITS
        borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), members.size]
        if len(borders) * SCATTERED_MAX > members.size:
            return sorted(map(self.position, members.tolist()))
        parts = sorted(
            (self._names[int(numbers[start])], start, stop) for start, stop in pairwise(borders)
        )
        positions: list[Position] = []
        for name, start, stop in parts:
            ledger_id, first_entry = _block_start(name)
            entry_ids = (members[start:stop] & _PLACE) + np.int64(first_entry)
            positions.extend(map(_from_pair, zip(repeat(ledger_id), entry_ids.tolist())))
        return positions

    def by_ledger(self, slots: BitMap) -> list[tuple[int, BitMap]]:
        """The slots as entry ids of each ledger, ledgers ascending."""
        ledgers: list[tuple[int, BitMap]] = []
        for ledger_id, first_entry, part in self.parts(slots):
            entry_ids = _moved(part, first_entry)
            if ledgers and ledgers[-1][0] == ledger_id:
                ledgers[-1][1].update(entry_ids)
            else:
                ledgers.append((ledger_id, entry_ids))
        return ledgers

    # -- sets of entries of one ledger

    def take_all(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        slots = BitMap()
        for block in list(blocks_of(entry_ids)):
            part = entry_ids & block_slots(block)
            slots |= _moved(part, self.slot(ledger_id, block << BLOCK_BITS))
        return slots

    def find_all(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        """The slots of those whose blocks are in use."""
        slots = BitMap()
        for number, first_entry in self.ledger(ledger_id):
            part = entry_ids & block_slots(first_entry >> BLOCK_BITS)
            slots |= _moved(part, number << BLOCK_BITS)
        return slots

    def entry_ids(self, ledger_id: int, slots: BitMap) -> BitMap:
        """The entries of one ledger that have any of these slots."""
        entry_ids = BitMap()
        for number, first_entry in self.ledger(ledger_id):
            entry_ids |= _moved(slots & block_slots(number), first_entry)
        return entry_ids

    # -- ranges of positions

    def is_all_beyond(self, position: Position) -> bool:
        """Whether every block in use lies beyond the position's. O(1)."""
        ledger_id, entry_id = position
        name = ledger_id << BLOCK_BITS | min(max(entry_id, 0), ENTRY_ID_MAX) >> BLOCK_BITS
        return not self._order or self._order[0] > name

    def ledger(self, ledger_id: int) -> Sequence[tuple[int, int]]:
        """The blocks of one ledger in order: (number, first entry)."""
        start = bisect_left(self._order, ledger_id << BLOCK_BITS)
        stop = bisect_left(self._order, (ledger_id + 1) << BLOCK_BITS)
        return [
            (self._numbers[name], (name & _PLACE) << BLOCK_BITS) for name in self._order[start:stop]
        ]

    def through(self, position: Position) -> tuple[list[int], BitMap]:
        """Blocks that lie wholly before the position's, and all slots up to and with it."""
        ledger_id, entry_id = position
        entry_id = min(entry_id, ENTRY_ID_MAX)
        name = ledger_id << BLOCK_BITS | max(entry_id, 0) >> BLOCK_BITS
        before = [self._numbers[lower] for lower in self._order[: bisect_left(self._order, name)]]
        slots = BitMap()
        for number in before:
            slots.add_range(number << BLOCK_BITS, (number + 1) << BLOCK_BITS)
        number_of_last = self._numbers.get(name)
        if number_of_last is not None and entry_id >= 0:
            start = number_of_last << BLOCK_BITS
            slots.add_range(start, start + (entry_id & _PLACE) + 1)
        return before, slots

    def check(self) -> None:
        assert self._order == sorted(self._numbers)
        assert {number: name for name, number in self._numbers.items()} == self._names
        assert sorted([*self._names, *self._free]) == list(
            range(len(self._names) + len(self._free))
        )


def block_slots(number: int) -> BitMap:
    """All slots of a block."""
    return BitMap(range(number << BLOCK_BITS, (number + 1) << BLOCK_BITS))


def blocks_of(slots: BitMap) -> Iterator[int]:
    """Numbers of the blocks that these slots lie in."""
    slot = slots.min() if slots else None
    while slot is not None:
        number = slot >> BLOCK_BITS
        yield number
        slot = next_member(slots, (number + 1) << BLOCK_BITS)


def next_member(slots: BitMap, start: int) -> int | None:
    """The first member at or above `start`."""
    if start >= 1 << 32:
        return None
    try:
        return slots.next_set_bit(start)
    except ValueError:
        return None


def members_uint32(slots: BitMap) -> NDArray[np.uint32]:
    """The members in ascending order. Read only."""
    return np.frombuffer(slots.to_array(), dtype=np.uint32)


def _moved(part: BitMap, start: int) -> BitMap:
    """The members of one block, as members of the block that begins at `start`."""
    return part.shift(start - (part.min() & ~_PLACE)) if part else part


def _block_start(name: int) -> tuple[int, int]:
    return name >> BLOCK_BITS, (name & _PLACE) << BLOCK_BITS
