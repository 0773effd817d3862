"""The one read that may be under way, and whether a normal one may begin.

Pure. A read is known by its number: a rewind or reset abandons it, and its late answer is stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.dispatcher.port import Read, ReadFrom, ReadKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.cursor import Position


class Reading:
    """The one read that may be under way."""

    __slots__ = ("_number", "current")

    def __init__(self) -> None:
        self._number = 0
        self.current: Read | None = None

    def begin_replay(self, positions: tuple[Position, ...], messages_max: int) -> Read:
        return self._begin(ReadKind.REPLAY, positions, len(positions), messages_max, None)

    def begin_normal(
        self,
        *,
        entries_max: int,
        messages_max: int,
        gate_open: bool,
        entry_budget: int | None,
        holes_up_to: Position | None,
    ) -> Read | None:
        """Read on, as far as the gate and its budget allow."""
        if not gate_open and holes_up_to is None:
            return None
        # An entry holds a message at least: more entries than messages can never be placed.
        entries_max = min(entries_max, messages_max)
        if entry_budget is not None:
            entries_max = min(entries_max, entry_budget)
        if entries_max <= 0:
            return None
        up_to = None if gate_open else holes_up_to
        return self._begin(ReadKind.NORMAL, (), entries_max, messages_max, up_to)

    def end(self, read: Read) -> bool:
        """The read is done. Is it the one under way (else it is stale)?"""
        if self.current is None or read.number != self.current.number:
            return False
        self.current = None
        return True

    def fail(self, read: Read, positions: Sequence[Position]) -> tuple[ReadFrom, ...]:
        """The read failed. What it passed over, if it did and is not stale, is read again."""
        if not self.end(read) or read.kind is ReadKind.REPLAY or not positions:
            return ()
        return (ReadFrom(positions[0]),)

    def abandon(self) -> None:
        """Make the read under way stale, if there is one."""
        self.current = None

    def _begin(
        self,
        kind: ReadKind,
        positions: tuple[Position, ...],
        entries_max: int,
        messages_max: int,
        up_to: Position | None,
    ) -> Read:
        assert self.current is None, "one read at a time"
        self._number += 1
        self.current = Read(kind, positions, entries_max, messages_max, up_to, self._number)
        return self.current
