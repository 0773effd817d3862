"""What a subscription wants done, and the receipts that wait until they may be sent. Pure.

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
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple

from ackgate.cursor import Position, run_of_positions
from ackgate.errors import PersistTimeoutError
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


class ReceiptQueue(Generic[ConsumerT]):
    """Receipts that wait until their acks are durable.

    Versions only grow and every receipt waits equally long, so one queue is in order of both::

        ask    v7  v7  v9  v12  v12          durable(9) takes the first three,
        until  +30 s ------------->          expire(now) those that waited too long

    Invariant: each receipt is answered once, with success only when its version is durable.
    """

    __slots__ = ("_answered", "_waiting", "durable_version")

    def __init__(self, durable_version: int) -> None:
        self._waiting: deque[tuple[int, Receipt[ConsumerT]]] | None = None
        """(deadline in ms, receipt). None until the first: an empty deque takes 700 bytes."""
        self._answered: list[Receipt[ConsumerT]] = []
        self.durable_version = durable_version
        """Everything up to this version is durable."""

    def __len__(self) -> int:
        return len(self._waiting or ())

    @property
    def next_deadline_ms(self) -> int | None:
        """When the oldest receipt has waited too long; None: none waits."""
        return self._waiting[0][0] if self._waiting else None

    def ask(self, receipt: Receipt[ConsumerT], deadline_ms: int) -> None:
        """Answer the receipt when its version is durable, or with an error at the deadline."""
        if receipt.version <= self.durable_version:
            self._answered.append(receipt)
        else:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((deadline_ms, receipt))

    def answer(self, receipt: Receipt[ConsumerT]) -> None:
        """Answer the receipt now, durable or not."""
        self._answered.append(receipt)

    def durable(self, version: int) -> None:
        """Answer the receipts up to this version: it is durable."""
        self.durable_version = max(self.durable_version, version)
        waiting = self._waiting
        while waiting and waiting[0][1].version <= self.durable_version:
            self._answered.append(waiting.popleft()[1])

    def expire(self, now_ms: int) -> None:
        """Answer receipts that have waited too long with `PersistTimeoutError`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ms:
            receipt = waiting.popleft()[1]
            error = PersistTimeoutError(
                f"the ack is applied, but its version {receipt.version} did not become durable in time"
            )
            self._answered.append(receipt._replace(error=error))

    def fail(self, error: AckGateError) -> None:
        """Answer every receipt that waits with this error: no write will ever come."""
        self._answered += [receipt._replace(error=error) for _, receipt in self._waiting or ()]
        self._waiting = None

    def take(self) -> Sequence[Receipt[ConsumerT]]:
        """Take the receipts that were answered since the last call."""
        if not self._answered:
            return ()
        taken, self._answered = self._answered, []
        return taken

    def check(self) -> None:
        versions = [receipt.version for _, receipt in self._waiting or ()]
        assert versions == sorted(versions)
        assert not versions or versions[0] > self.durable_version


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
