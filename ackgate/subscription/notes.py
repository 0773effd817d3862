"""Notes of a subscription for a delivery journal: one value for each event. Pure.

The subscription makes notes only if it was made so. A note holds references, no copies and no text:
the journal turns notes into rows, later and many at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.cursor import CursorMove, Position, Span
    from ackgate.dispatcher import SubscriptionKind


class Attached(NamedTuple):
    """A consumer was attached, and asked for this kind of subscription."""

    consumer: Any
    kind: SubscriptionKind


class Detached(NamedTuple):
    """A consumer left. What it had was noted as `GivenBack` before."""

    consumer: Any


class Dispatched(NamedTuple):
    """Entries were assigned to a consumer."""

    consumer: Any
    entries: Sequence[Any]
    redelivery_counts: Sequence[int] | None
    unacked_masks: Sequence[int | None] | None
    is_replay: bool
    """False: by a normal read."""


class Acked(NamedTuple):
    """One call acked whole entries."""

    consumer: Any
    """None: without a consumer, for example a cancel."""
    positions: Sequence[Position]
    version: int
    at_once: bool
    """Applied as arrays: the version grew by one for each ledger, not for each entry."""


class PartialAck(NamedTuple):
    """An acked part of a batch; masks hold what is not acked."""

    position: Position
    mask: int
    """Bits of the messages that stay unacked, as the consumer sent them."""
    before: int | None
    """The same before the call, as the cursor had it; None: it was not partly acked."""
    was_acked: bool
    """Whether the whole entry was acked before the call."""


class AckedMixed(NamedTuple):
    """One call acked whole entries, and then parts of entries."""

    consumer: Any
    whole: Sequence[Position]
    parts: Sequence[PartialAck]
    version: int


class AckedThrough(NamedTuple):
    """A cumulative ack: everything up to `through`, but for the messages in `unacked_mask`."""

    consumer: Any
    through: Position
    unacked_mask: int | None
    and_whole: Position | None
    """This entry became acked by it as well: what was left of its batch."""
    version: int


class GivenBack(NamedTuple):
    """A consumer asked for redelivery ("asked"), or closed with entries in flight ("consumer_closed")."""

    consumer: Any
    reason: str
    spans: Sequence[Span]
    unacked_masks: Mapping[Position, int]
    """Of those that are partly acked."""


class Moved(NamedTuple):
    """The cursor was moved by other means than acks."""

    move: CursorMove
    version: int


class GateEdge(NamedTuple):
    """The gate shut, or opened; for these reasons, which stand or stood."""

    is_open: bool
    reasons: Sequence[str]


class ReceiptSent(NamedTuple):
    """A consumer gets a receipt: its acks up to this version are durable."""

    consumer: Any
    version: int


Note: TypeAlias = (
    Attached
    | Detached
    | Dispatched
    | Acked
    | AckedMixed
    | AckedThrough
    | GivenBack
    | Moved
    | GateEdge
    | ReceiptSent
)
