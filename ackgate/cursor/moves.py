"""Moves of a cursor by other means than acks: seek, skip, clear the backlog, expire.

Pure values. Each is the record of a move that was made and knows how to make it again, so the
delivery journal stores them and a replay repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

# pydantic reads the annotations where these values are stored as JSON.
from ackgate.cursor.position import Position  # noqa: TC001

if TYPE_CHECKING:
    from ackgate.cursor.managed_cursor import ManagedCursor


@dataclass(frozen=True, slots=True)
class Sought:
    """`ManagedCursor.reset`, and the acked part of a batch that was sought into."""

    mark_delete: Position
    """The mark-delete after the move; likewise in the other three."""

    target: Position
    unacked_mask: int | None
    """Bits of the batch at `target` that stay unacked; None: no part of it was acked."""

    def move(self, cursor: ManagedCursor) -> None:
        """Repeat the move; likewise in the other three."""
        cursor.reset(self.target)
        if self.unacked_mask is not None:
            cursor.ack_mixed([(self.target, self.unacked_mask)])


@dataclass(frozen=True, slots=True)
class Skipped:
    """`ManagedCursor.skip` acked the first unacked entries."""

    mark_delete: Position
    entries: int
    """How many were skipped."""

    def move(self, cursor: ManagedCursor) -> None:
        cursor.skip(self.entries)


@dataclass(frozen=True, slots=True)
class Cleared:
    """`ManagedCursor.clear_backlog` acked everything."""

    mark_delete: Position
    entries: int
    """How many were not acked."""

    def move(self, cursor: ManagedCursor) -> None:
        cursor.clear_backlog()


@dataclass(frozen=True, slots=True)
class Expired:
    """`ManagedCursor.ack_cumulative`, for the time to live or an administrator."""

    mark_delete: Position
    position: Position
    """Everything up to here was acked."""

    def move(self, cursor: ManagedCursor) -> None:
        cursor.ack_cumulative(self.position)


CursorMove: TypeAlias = Sought | Skipped | Cleared | Expired
