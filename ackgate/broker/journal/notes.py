"""Notes that the event loop passes to the delivery journal, as cheap to make as a tuple.

Pure values. A note is one or more events of one time, and has their count: a whole bulk of acks is
one note. It holds no text that had to be built, and no JSON; `note_columns` makes events of notes,
later and many at a time.

    (WHOLE_ACKS, 3 events, time, "sub", "c#1", [7:0, 7:1, 7:4], version 12)
    (ROW,        1 event,  time, EventKind.GATE_SHUT, {"subscription": "sub", ...})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from ackgate.cursor import Position, Span
    from ackgate.persistence.deliveries.columns import EventKind
    from ackgate.subscription import PartialAck

Column: TypeAlias = "array[int]"
"""Numbers of a note, by type code ``q``. They are put together while they are at hand anyway, in one
piece: lists of what the call was about would be met again when they are cold, and by the garbage
collector again and again."""

ROW: Final = 0
PUBLISHED: Final = 1
DISPATCHED: Final = 2
WHOLE_ACKS: Final = 3
MIXED_ACKS: Final = 4
NACKED: Final = 5
DROPPED: Final = 6


class RowNote(NamedTuple):
    """One event of whatever kind, by columns. Values that are details or states become it later."""

    form: int
    events: int
    time_us: int
    kind: EventKind
    columns: Mapping[str, Any]


class PublishedNote(NamedTuple):
    """Neighbouring entries that producers have receipts for."""

    form: int
    events: int
    time_us: int
    first: Position
    producers: Sequence[str]
    """One for each entry, or just one that is all of theirs."""
    batch_sizes: Column
    entry_bytes: Column
    deliver_at_ms: Column
    """0: at once."""
    publish_times_ms: Column
    """Below 0: not known."""
    keys: Sequence[str] | None
    """Empty: none. None: none of them has any."""


class DispatchedNote(NamedTuple):
    """Entries that were sent to a consumer."""

    form: int
    events: int
    time_us: int
    subscription: str
    consumer: str
    flat: Column
    """Ledger and entry ids in turn."""
    batch_sizes: Column
    redelivery_counts: Column | None
    """None: all never."""
    unacked_masks: Sequence[int | None] | None
    """None: all whole."""
    deliver_at_ms: Column | None
    """Of a replay; None: it was a normal read."""


class WholeAcksNote(NamedTuple):
    """Whole entries that one call acked."""

    form: int
    events: int
    time_us: int
    subscription: str
    consumer: str | None
    flat: Column
    """Ledger and entry ids in turn."""
    version: int
    at_once: bool


class MixedAcksNote(NamedTuple):
    """Whole entries and parts of batches that one call acked, in this order."""

    form: int
    events: int
    time_us: int
    subscription: str
    consumer: str | None
    whole: Sequence[Position]
    parts: Sequence[PartialAck]
    version: int


class NackedNote(NamedTuple):
    """Entries that a consumer gave back, or had unacked when it closed."""

    form: int
    events: int
    time_us: int
    subscription: str
    consumer: str
    reason: str
    spans: Sequence[Span]
    unacked_masks: Mapping[Position, int]
    """Of those that are partly acked."""


class DroppedNote(NamedTuple):
    """Events that are missing here."""

    form: int
    events: int
    time_us: int
    missing: list[int]
    """One number, which grows as long as this is the last note."""


Note: TypeAlias = (
    RowNote
    | PublishedNote
    | DispatchedNote
    | WholeAcksNote
    | MixedAcksNote
    | NackedNote
    | DroppedNote
)
