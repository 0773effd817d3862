"""A cursor described in numbers.

Pure. What `ManagedCursor.statistics` answers: a frozen value, cheap to make, safe to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor.position import Position


@dataclass(frozen=True, slots=True)
class CursorStats:
    """The ack state of one cursor at one moment. Pulsar's name for a field in brackets."""

    version: int
    """Mutations so far."""

    mark_delete: Position
    """Every position at or before it is acked [markDeletePosition]."""

    read_position: Position
    """The next position to read for dispatch [readPosition]."""

    last_confirmed: Position
    """The last entry of the topic."""

    backlog_entries: int
    """Existing entries that are not acked [numberOfEntriesSinceFirstNotAckedMessage]."""

    unread_entries: int
    """Existing, unacked entries from the read position on."""

    acked_count: int
    """Entries acked above the mark-delete."""

    range_count: int
    """Ranges above the mark-delete [totalNonContiguousDeletedMessagesRange]."""

    hole_count: int
    """Runs of unacked entries that lie before some acked one."""

    partly_acked_count: int
    """Entries of which some batch indexes are acked and some are not."""

    byte_estimate: int
    """Upper estimate of the persisted size [nonContiguousDeletedMessagesRangesSerializedSize]."""

    properties: Mapping[str, int]
    """The mark-delete ("long") properties [properties]."""
