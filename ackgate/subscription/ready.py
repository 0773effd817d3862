"""What a subscription wants done. Pure values.

`Ready` is taken once per turn and carried out whole; nothing in it is offered twice::

    ready.read         read these entries, then call `read_done` or `read_failed`
    ready.deliveries   send these entries to these consumers
    ready.write        make this version of the ack state durable, then call `persisted`
    ready.receipts     these acks are durable (or failed): answer the consumers
    ready.wake_at_ms   call `ready` again by then, even if nothing happens

Model: `Ready` of etcd-io/raft.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple

from ackgate.cursor import Position, run_of_positions
from ackgate.subscription.entries import ConsumerT, EntryT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.cursor import CursorSnapshot, ManagedCursor, NackImage, Span
    from ackgate.dispatcher import Read
    from ackgate.errors import AckGateError
    from ackgate.subscription.held import HeldNacks
    from ackgate.subscription.notes import Note


class ReadRequest(NamedTuple):
    """Read these entries. Those that do not exist any more may be missing from the answer."""

    spans: Sequence[Span]
    """Runs of entries, in the order in which they must be returned."""

    dispatched: Read | None
    """The dispatcher's read; None: entries whose delivery time was lost are read again."""

    has_gaps: bool = False
    """Whether the spans hold entries that are only read through."""

    stop: Position | None = None
    """Where a normal read has moved the read position to."""

    @property
    def positions(self) -> list[Position]:
        """The entries one by one."""
        return [
            position
            for span in self.spans
            for position in run_of_positions(span.ledger_id, span.start, span.stop)
        ]


class Delivery(NamedTuple, Generic[ConsumerT, EntryT]):
    """Send these entries to this consumer, in this order."""

    consumer: ConsumerT
    entries: Sequence[EntryT]
    redelivery_counts: Sequence[int] | None
    """How often each was redelivered before; None: all never."""
    unacked_masks: Sequence[int | None] | None
    """Of each entry the batch indexes that are unacked, None: all. None for all: no batch is partly
    acked."""
    message_count: int
    """Messages in all of them: so many permits were used up."""
    epoch: int | None
    """The consumer's epoch, if it ever named one."""


class Write:
    """A version of the ack state to be made durable. The state is that at the time of the call.

    A store that writes deltas takes them from the cursor itself; others take `snapshot`. What is
    acked after `Write` was offered may be in the snapshot: its own version counts.
    """

    __slots__ = ("_cursor", "_nacks", "version")

    def __init__(self, cursor: ManagedCursor, nacks: HeldNacks | None) -> None:
        self._cursor = cursor
        self._nacks = nacks
        self.version = cursor.version

    def snapshot(self) -> CursorSnapshot:
        """The whole ack state, in copies."""
        return self._cursor.take_snapshot()

    def held_nacks(self, bytes_max: int) -> NackImage | None:
        """What is held back after negative acks, in so many bytes; None: nothing ever was."""
        return None if self._nacks is None else self._nacks.image(bytes_max)


class Receipt(NamedTuple, Generic[ConsumerT]):
    """A receipt: the acks are durable. With an `error` it is unknown whether they are."""

    consumer: ConsumerT
    token: object
    """The receipt token that came with the ack."""
    version: int
    """Version of the ack state that holds the acks."""
    error: AckGateError | None = None


class ActiveChange(NamedTuple, Generic[ConsumerT]):
    """Failover: notify this consumer whether it is the active one."""

    consumer: ConsumerT
    is_active: bool


class Awaited(enum.Enum):
    """What the next normal read waits for, beside permits and acks."""

    ENTRIES = "entries"
    GATE = "gate"


@dataclass(slots=True, eq=False)
class Ready(Generic[ConsumerT, EntryT]):
    """Everything there is to do now. False when that is nothing but to wait."""

    read: ReadRequest | None
    deliveries: Sequence[Delivery[ConsumerT, EntryT]]
    write: Write | None
    receipts: Sequence[Receipt[ConsumerT]]
    active_changes: Sequence[ActiveChange[ConsumerT]]
    notes: Sequence[Note]
    """Notes for a delivery journal, in order; empty unless the subscription makes notes."""
    wake_at_ms: int | None
    """The next deadline; None: time alone changes nothing."""
    awaited: Awaited | None

    def __bool__(self) -> bool:
        return bool(
            self.read is not None
            or self.deliveries
            or self.receipts
            or self.active_changes
            or self.write is not None
            or self.notes
        )
