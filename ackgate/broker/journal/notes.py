"""Notes that the event loop passes to the delivery journal, as cheap to make as a tuple.

Pure values. A note is one or more events of one time, and has their count: a whole bulk of acks is
one note. It holds no text that had to be built, and no JSON; `note_columns` makes events of notes,
later and many at a time.

    WholeAcksNote(3 events, time, "sub", "c#1", [7:0, 7:1, 7:4], version 12)
    RowNote(1 event, time, EventKind.GATE_SHUT, {"subscription": "sub", ...})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from ackgate.cursor import Position, Span
    from ackgate.persistence.deliveries.columns import EventKind
    from ackgate.subscription import PartialAck

Column: TypeAlias = "array[int]"
"""Numbers of a note, by type code ``q``. The caller collects them in one piece while they are at
hand. Lists of the call's own objects would be read again when they are cold, and the garbage
collector would visit them again and again."""


class RowNote(NamedTuple):
    """One event of any kind, by columns. Details and states are encoded later."""

    events: int
    time_us: int
    kind: EventKind
    columns: Mapping[str, Any]


class PublishedNote(NamedTuple):
    """Consecutive entries that producers have receipts for."""

    events: int
    time_us: int
    first: Position
    producers: Sequence[str]
    """One name per entry, or a single one for all."""
    batch_sizes: Column
    entry_bytes: Column
    deliver_at_ms: Column
    """0: deliver at once."""
    publish_times_ms: Column
    """Below 0: not known."""
    keys: Sequence[str] | None
    """One per entry, empty for an entry without a key. None: no entry has one."""


class DispatchedNote(NamedTuple):
    """Entries that were sent to a consumer."""

    events: int
    time_us: int
    subscription: str
    consumer: str
    flat: Column
    """Alternating ledger and entry ids."""
    batch_sizes: Column
    redelivery_counts: Column | None
    """None: no entry was redelivered."""
    unacked_masks: Sequence[int | None] | None
    """None: all entries are whole."""
    deliver_at_ms: Column | None
    """Delivery times of a replay; None: it was a normal read."""


class WholeAcksNote(NamedTuple):
    """Whole entries that one call acked."""

    events: int
    time_us: int
    subscription: str
    consumer: str | None
    flat: Column
    """Alternating ledger and entry ids."""
    version: int
    at_once: bool


class MixedAcksNote(NamedTuple):
    """Whole entries, then batches of which some messages were acked, in one call."""

    events: int
    time_us: int
    subscription: str
    consumer: str | None
    whole: Sequence[Position]
    partial: Sequence[PartialAck]
    version: int


class NackedNote(NamedTuple):
    """Entries that a consumer nacked, or had not acked when it closed."""

    events: int
    time_us: int
    subscription: str
    consumer: str
    reason: str
    spans: Sequence[Span]
    unacked_masks: Mapping[Position, int]
    """Unacked batch indexes of the partly acked entries."""


class DroppedNote(NamedTuple):
    """Marks the place of events that were dropped."""

    events: int
    time_us: int
    missing: list[int]
    """One number: how many are missing. It grows while this is the last note."""


Note: TypeAlias = (
    RowNote
    | PublishedNote
    | DispatchedNote
    | WholeAcksNote
    | MixedAcksNote
    | NackedNote
    | DroppedNote
)
