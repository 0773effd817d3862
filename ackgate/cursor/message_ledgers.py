"""Which message ledgers a topic has, and how many entries each of them holds.

Pure. One instance per topic. The managed ledger reports changes to it (opened, grown, closed,
trimmed); every cursor of the topic reads it. It knows the order of positions: the next one, the
count between two, the n-th entry.

Positions are sparse, so counting goes through *ordinals*: the ordinal of a position is the number
of entries at or before it since the topic began.

    ledger     3 (3 entries)   5 (none)   8 (2 entries)     9 (none yet)
    entry      0    1    2                0    1
    ordinal    1    2    3                4    5            next_valid(8:1) = 9:0
    start      0               3          3                 5

A trim at the front takes entries away but moves no ordinal; entries that are gone are simply not
counted between two positions any more.

Invariants: ids ascend; only the last ledger grows; ``starts[i + 1] == starts[i] + count(ids[i])``.
All questions cost O(log ledgers) at most, except that runs of empty ledgers are walked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ackgate.cursor.position import EARLIEST, ENTRY_ID_MAX, LEDGER_ID_MAX, Position
from ackgate.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENTRIES_PER_LEDGER_MAX: Final = ENTRY_ID_MAX + 1
"""An ack bitmap has 32-bit members, so a ledger cannot hold more entries."""


class MessageLedgers:
    """The message ledgers of one topic, in order."""

    __slots__ = (
        "_counts",
        "_end",
        "_ids",
        "_is_last_open",
        "_last_confirmed",
        "_newest_id",
        "_starts",
        "_trimmed",
        "_trimmed_through",
        "entry_counts",
    )

    entry_counts: Mapping[int, int]
    """Live read-only view: ledger id -> entries. For hot paths; everyone else asks the methods."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._counts: dict[int, int] = {}
        self._starts: list[int] = []
        self._end = 0
        self._newest_id = -1
        self._is_last_open = False
        self._last_confirmed = EARLIEST
        self._trimmed: list[Position] = []
        self._trimmed_through = EARLIEST
        self.entry_counts = MappingProxyType(self._counts)

    def copy(self) -> MessageLedgers:
        copy = MessageLedgers()
        for name in self.__slots__:
            if name != "entry_counts":
                value = getattr(self, name)
                setattr(copy, name, value.copy() if isinstance(value, list | dict) else value)
        copy.entry_counts = MappingProxyType(copy._counts)
        return copy

    # -- changes, reported by the managed ledger

    def open_ledger(self, ledger_id: int) -> None:
        """Add a ledger that takes entries from now on; the one before it takes no more."""
        newest = self._newest_id
        if not newest < ledger_id <= LEDGER_ID_MAX:
            raise PositionError(f"ledger {ledger_id} cannot be opened after ledger {newest}")
        self._newest_id = ledger_id
        self._ids.append(ledger_id)
        self._counts[ledger_id] = 0
        self._starts.append(self._end)
        self._is_last_open = True
        if self._last_confirmed == EARLIEST:
            self._last_confirmed = Position(ledger_id, -1)

    def add_entries(self, ledger_id: int, count: int) -> None:
        """Count `count` further confirmed entries of the open ledger."""
        if not self._is_last_open or self._ids[-1] != ledger_id:
            raise PositionError(f"ledger {ledger_id} takes no entries: it is not the open ledger")
        entries = self._counts[ledger_id] + count
        if count < 0 or entries > ENTRIES_PER_LEDGER_MAX:
            raise PositionError(
                f"{count} entries cannot be added to ledger {ledger_id}, which holds "
                f"{entries - count} (at most {ENTRIES_PER_LEDGER_MAX})"
            )
        if count == 0:
            return
        self._counts[ledger_id] = entries
        self._end += count
        self._last_confirmed = Position(ledger_id, entries - 1)

    def close_ledger(self, ledger_id: int, entry_count: int) -> None:
        """Close the ledger with `entry_count` entries. Those not reported before are added."""
        known = self._counts.get(ledger_id)
        if known is None:
            raise PositionError(f"ledger {ledger_id} cannot be closed: it is not known")
        is_open = self._is_last_open and self._ids[-1] == ledger_id
        if entry_count < known or (entry_count > known and not is_open):
            raise PositionError(
                f"ledger {ledger_id} cannot be closed with {entry_count} entries: "
                f"{known} are confirmed"
            )
        if is_open:
            self.add_entries(ledger_id, entry_count - known)
            self._is_last_open = False

    def trim_ledger(self, ledger_id: int) -> None:
        """Remove a ledger whose entries are gone.

        Cursors need their own call (`ledger_trimmed`).
        """
        count = self._counts.pop(ledger_id, None)
        if count is None:
            return
        index = bisect_left(self._ids, ledger_id)
        is_front = index == 0
        if self._is_last_open and index == len(self._ids) - 1:
            self._is_last_open = False
        del self._ids[index], self._starts[index]
        if not is_front:
            # A hole in the middle (a lost ledger): later ordinals close up over it.
            self._end -= count
            for later in range(index, len(self._starts)):
                self._starts[later] -= count
        if count:
            self._trimmed.append(Position(ledger_id, count - 1))
        first = self._ids[0] if self._ids else LEDGER_ID_MAX + 1
        gone = [position for position in self._trimmed if position.ledger_id < first]
        self._trimmed = [position for position in self._trimmed if position.ledger_id > first]
        self._trimmed_through = max([self._trimmed_through, *gone])

    # -- what there is

    @property
    def ledger_ids(self) -> Sequence[int]:
        return self._ids

    def entry_count(self, ledger_id: int) -> int | None:
        """Confirmed entries of the ledger; None when it does not exist (any more)."""
        return self._counts.get(ledger_id)

    @property
    def total_entries(self) -> int:
        """Confirmed entries of all existing ledgers."""
        return self._end - self._starts[0] if self._starts else 0

    @property
    def last_confirmed(self) -> Position:
        """The last entry ever confirmed; ``(first ledger, -1)`` when there never was one.

        It stays when its ledger is trimmed.
        """
        return self._last_confirmed

    @property
    def first_position(self) -> Position:
        """Just before the first existing entry: ``(first existing ledger, -1)``."""
        return Position(self._ids[0], -1) if self._ids else self._last_confirmed

    @property
    def trimmed_through(self) -> Position:
        """The highest entry that was trimmed and has no existing ledger below it."""
        return self._trimmed_through

    def exists(self, position: Position) -> bool:
        """Whether the position has a confirmed entry."""
        ledger_id, entry_id = position
        return 0 <= entry_id < self._counts.get(ledger_id, 0)

    # -- order

    def at_or_after(self, position: Position) -> Position:
        """The position itself when it may hold an entry, else the next one that may.

        After the last entry that is the place where the next entry is expected.
        """
        return position if self.exists(position) else self.next_valid(position)

    def readable_at(self, position: Position) -> Position:
        """Where reading begins that is to begin at `position`: an entry, or the next one to come.

        `EARLIEST`, `LATEST` and anything between them will do.
        """
        end = self.next_valid(self.last_confirmed)
        if position >= end:
            return end
        first = self.first_position
        return self.next_valid(first if position <= first else self.previous(position))

    def next_valid(self, position: Position) -> Position:
        """The next existing entry after `position`; Pulsar's getNextValidPosition.

        Skips empty and trimmed ledgers. After the last entry: where the next one is expected.
        """
        ledger_id, entry_id = position
        following = entry_id + 1 if entry_id >= 0 else 0
        if following < self._counts.get(ledger_id, 0):
            return Position(ledger_id, following)
        ids = self._ids
        for index in range(bisect_right(ids, ledger_id), len(ids)):
            if self._counts[ids[index]]:
                return Position(ids[index], 0)
        if ids:
            return Position(ids[-1], self._counts[ids[-1]])
        last_ledger_id, last_entry_id = self._last_confirmed
        if ledger_id > last_ledger_id:
            return Position(ledger_id, following)
        return Position(last_ledger_id, last_entry_id + 1)

    def previous(self, position: Position) -> Position:
        """The existing entry before `position`; ``(its ledger, -1)`` when there is none.

        While there is no ledger at all, a position after the last entry follows that entry.
        """
        ledger_id, entry_id = position
        if not self._ids and position > self._last_confirmed:
            return self._last_confirmed
        before = min(entry_id, self._counts.get(ledger_id, 0))
        if before > 0:
            return Position(ledger_id, before - 1)
        ids = self._ids
        for index in range(bisect_left(ids, ledger_id) - 1, -1, -1):
            count = self._counts[ids[index]]
            if count:
                return Position(ids[index], count - 1)
        return Position(ledger_id, -1)

    def count_between(self, after: Position, up_to: Position) -> int:
        """Existing entries in ``(after, up_to]``; 0 when `up_to` is not after `after`."""
        return max(0, self._ordinal(up_to) - self._ordinal(after))

    def count_after(self, position: Position) -> int:
        """Existing entries after the position."""
        return self._end - self._ordinal(position)

    def position_after(self, start: Position, n: int) -> Position:
        """The n-th existing entry after `start`, clamped to the last one; `start` when n is 0."""
        if n <= 0:
            return start
        ordinal = self._ordinal(start) + n
        if ordinal > self._end:
            return max(start, self._last_confirmed)
        index = bisect_left(self._starts, ordinal) - 1
        return Position(self._ids[index], ordinal - self._starts[index] - 1)

    def _ordinal(self, position: Position) -> int:
        """Entries at or before the position since the topic began, trimmed ones included."""
        ledger_id, entry_id = position
        index = bisect_left(self._ids, ledger_id)
        if index == len(self._ids):
            return self._end
        start = self._starts[index]
        if self._ids[index] != ledger_id:
            return start
        return start + min(entry_id + 1, self._counts[ledger_id])

    def check(self) -> None:
        assert len(self._ids) == len(self._starts) == len(self._counts), self._ids
        assert all(before < after for before, after in pairwise(self._ids)), self._ids
        ends = [*self._starts[1:], self._end]
        for ledger_id, start, end in zip(self._ids, self._starts, ends, strict=False):
            assert end - start == self._counts[ledger_id], (ledger_id, start, end)
        assert self._trimmed_through < self.first_position or not self._ids
