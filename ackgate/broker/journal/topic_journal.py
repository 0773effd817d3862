"""The delivery journal of one open topic: the notes of the event loop, in a bounded queue.

Every `note_*` appends one tuple and returns: nothing is built, nothing waits. What does not fit is
dropped and counted, and the journal says where::

    note note note [ 317 dropped ] note note ----> writer: block after block
                   '- one note, whose number grew while the queue was full

The order of the notes is the order in which the event loop did things, and that of the events'
sequence numbers.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from ackgate.broker.journal import notes as forms
from ackgate.broker.journal.notes import (
    DispatchedNote,
    DroppedNote,
    MixedAcksNote,
    NackedNote,
    PublishedNote,
    RowNote,
    WholeAcksNote,
)
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.deliveries.details import (
    REASONS,
    AckedCall,
    ConsumerAdded,
    PersistFailed,
    Subscribed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ackgate.broker.journal.notes import Note
    from ackgate.broker.wire import Entry
    from ackgate.cursor import CursorMove, CursorSnapshot, Position, Span
    from ackgate.persistence.deliveries.details import Configured, Opened
    from ackgate.persistence.proto.message_pb2 import MessageMetadata
    from ackgate.persistence.records.outcome import PersistOutcome, PersistWhere, RecoveryReport
    from ackgate.subscription import PartialAck


UNKNOWN_TIME: Final = -1

_INT64_MAX: Final = 2**63 - 1


class NamedProducer(Protocol):
    """What a producer's events need to know of it."""

    @property
    def name(self) -> str: ...


class Published(Protocol):
    """What is known of an entry between its arrival and its receipt."""

    @property
    def producer(self) -> NamedProducer: ...

    @property
    def publish_time_ms(self) -> int:
        """Publish time by the producer's clock, or `UNKNOWN_TIME`."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """Notes for one block. They keep their room in the queue until `TopicJournal.release`."""

    notes: Sequence[Note]
    first_sequence: int
    events: int

    @property
    def missing(self) -> int:
        """How many events are missing if this block is lost, including those missing already."""
        return sum(
            note.missing[0] if isinstance(note, DroppedNote) else note.events for note in self.notes
        )


class TopicJournal:
    """The queue of notes of one topic."""

    __slots__ = (
        "_clock_us",
        "_gap",
        "_is_asleep",
        "_next_sequence",
        "_notes",
        "_room",
        "_room_max",
        "_wake",
        "events_dropped",
    )

    def __init__(
        self, *, pending_events_max: int, clock_us: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        """`wake`: called when the first note comes after `take` found none."""
        self._notes: deque[Note] = deque()
        self._room = self._room_max = pending_events_max
        self._clock_us = clock_us
        self._wake = wake
        self._is_asleep = True
        self._gap: list[int] | None = None
        """While events are dropped: a list with how many so far."""
        self._next_sequence = 0
        self.events_dropped = 0
        """How many events are missing, wherever they were lost."""

    # ---------------------------------------------------------------- the queue

    @property
    def events_pending(self) -> int:
        """Events that are not written yet."""
        return max(0, self._room_max - self._room)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._notes

    def _append(self, note: Note) -> None:
        count = note[1]
        if count > self._room:
            self._drop(count)
            return
        self._room -= count
        self._gap = None
        self._notes.append(note)
        if self._is_asleep:
            self._is_asleep = False
            self._wake()

    def _drop(self, count: int) -> None:
        self.events_dropped += count
        if not self._room_max:
            return  # stopped
        if self._gap is None:
            self._gap = [0]
            self._room -= 1  # the note itself takes room, or such notes alone could fill the memory
            self._notes.append(DroppedNote(forms.DROPPED, 1, self._clock_us(), self._gap))
        self._gap[0] += count

    def take(self, events_max: int) -> Taken | None:
        """Take the oldest notes, about `events_max` events, but at least one note.

        None: there are no notes, and the next one calls `wake`.
        """
        taken: list[Note] = []
        events = 0
        notes = self._notes
        while notes and (not taken or events + notes[0][1] <= events_max):
            note = notes.popleft()
            taken.append(note)
            events += note[1]
        if not notes:
            self._gap = None  # the block records the number as it is now
        if not taken:
            self._is_asleep = True
            return None
        first_sequence = self._next_sequence
        self._next_sequence += events
        return Taken(taken, first_sequence, events)

    def release(self, taken: Taken) -> None:
        """Free the room of notes that were written."""
        if self._room_max:
            self._room += taken.events

    def lost(self, taken: Taken) -> None:
        """Count the events of notes that will not be written, and record the gap in the journal."""
        self.release(taken)
        reported = sum(note.missing[0] for note in taken.notes if isinstance(note, DroppedNote))
        self.events_dropped += taken.missing - reported
        if self._room_max:
            self._room -= 1
            self._notes.appendleft(DroppedNote(forms.DROPPED, 1, self._clock_us(), [taken.missing]))

    def stop(self) -> None:
        """Take no more notes, and drop those that wait."""
        self.events_dropped += sum(
            note.events for note in self._notes if not isinstance(note, DroppedNote)
        )
        self._notes.clear()
        self._room, self._room_max = -1, 0
        self._gap = None

    # ---------------------------------------------------------------- the topic

    def note_opened(self, opened: Opened) -> None:
        """Note the opening of the topic, always the first event."""
        self._row(EventKind.OPENED, detail=opened)

    def note_configured(self, configured: Configured) -> None:
        """Note changed settings or policies."""
        self._row(EventKind.CONFIGURED, detail=configured)

    def note_ledger_opened(self, ledger_id: int) -> None:
        """Note that a message ledger takes entries from now on."""
        self._row(EventKind.LEDGER_OPENED, ledger_id=ledger_id)

    def note_ledger_closed(self, ledger_id: int, entry_count: int) -> None:
        """Note that a message ledger was closed with so many entries."""
        self._row(EventKind.LEDGER_CLOSED, ledger_id=ledger_id, entry_id=entry_count - 1)

    def note_ledgers_trimmed(self, ledger_ids: Sequence[int]) -> None:
        """Note that message ledgers were deleted, all at one time."""
        time_us = self._clock_us()
        for ledger_id in ledger_ids:
            self._append(
                RowNote(forms.ROW, 1, time_us, EventKind.LEDGER_TRIMMED, {"ledger_id": ledger_id})
            )

    # ---------------------------------------------------------------- messages

    def note_published(self, entries: Sequence[Entry], contexts: Sequence[Published]) -> None:
        """Note that producers have receipts for these consecutive entries."""
        names = [context.producer.name for context in contexts]
        keys = [context.key for context in contexts]
        self._append(
            PublishedNote(
                forms.PUBLISHED,
                len(entries),
                self._clock_us(),
                entries[0].position,
                names[:1] if names.count(names[0]) == len(names) else names,
                array("q", [entry.message_count for entry in entries]),
                array("q", [len(entry.payload) for entry in entries]),
                array("q", [entry.deliver_at_ms for entry in entries]),
                array("q", [context.publish_time_ms for context in contexts]),
                keys if any(keys) else None,
            )
        )

    def note_dispatched(
        self,
        subscription: str,
        consumer: str,
        positions: Sequence[Position],
        batch_sizes: Sequence[int],
        *,
        redelivery_counts: Sequence[int] | None,
        unacked_masks: Sequence[int | None] | None,
        deliver_at_ms: Sequence[int] | None,
    ) -> None:
        """Note that these entries were sent to a consumer. `deliver_at_ms`: only for a replay."""
        self._append(
            DispatchedNote(
                forms.DISPATCHED,
                len(positions),
                self._clock_us(),
                subscription,
                consumer,
                array("q", chain.from_iterable(positions)),
                array("q", batch_sizes),
                None if redelivery_counts is None else array("q", redelivery_counts),
                unacked_masks,
                None if deliver_at_ms is None else array("q", deliver_at_ms),
            )
        )

    def note_acked(
        self,
        subscription: str,
        consumer: str | None,
        positions: Sequence[Position],
        version: int,
        *,
        at_once: bool,
    ) -> None:
        """Note that one call acked whole entries. `at_once`: as in `AckedCall`."""
        count = len(positions)
        if not count:
            return
        self._append(
            WholeAcksNote(
                forms.WHOLE_ACKS,
                count,
                self._clock_us(),
                subscription,
                consumer,
                array("q", chain.from_iterable(positions)),
                version,
                at_once,
            )
        )

    def note_acked_mixed(
        self,
        subscription: str,
        consumer: str | None,
        whole: Sequence[Position],
        partial: Sequence[PartialAck],
        version: int,
    ) -> None:
        """Note that one call acked whole entries, then some messages of batches."""
        self._append(
            MixedAcksNote(
                forms.MIXED_ACKS,
                len(whole) + len(partial),
                self._clock_us(),
                subscription,
                consumer,
                whole,
                partial,
                version,
            )
        )

    def note_acked_through(
        self,
        subscription: str,
        consumer: str | None,
        position: Position,
        version: int,
        *,
        unacked_mask: int | None = None,
    ) -> None:
        """Note a cumulative ack up to the position.

        `unacked_mask`: its messages that stay unacked.
        """
        self._row(
            EventKind.ACKED,
            subscription=subscription,
            consumer=consumer,
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
            unacked_indexes=unacked_mask,
            is_cumulative=True,
            version=version,
        )

    def note_acked_through_batch(
        self,
        subscription: str,
        consumer: str | None,
        before: Position,
        position: Position,
        version: int,
    ) -> None:
        """Note a cumulative ack that completes a batch: everything before it, then the batch."""
        time_us = self._clock_us()
        common = {"subscription": subscription, "consumer": consumer, "version": version}
        through = {
            **common,
            "ledger_id": before.ledger_id,
            "entry_id": before.entry_id,
            "is_cumulative": True,
            "detail": AckedCall(entries=2),
        }
        whole = {
            **common,
            "ledger_id": position.ledger_id,
            "entry_id": position.entry_id,
            "is_cumulative": False,
        }
        for columns in (through, whole):
            self._append(RowNote(forms.ROW, 1, time_us, EventKind.ACKED, columns))

    def note_nacked(
        self,
        subscription: str,
        consumer: str,
        reason: str,
        spans: Sequence[Span],
        unacked_masks: Mapping[Position, int],
    ) -> None:
        """Note entries that a consumer nacked ("asked"), or left unacked ("consumer_closed")."""
        count = sum(span.stop - span.start for span in spans)
        if count:
            self._append(
                NackedNote(
                    forms.NACKED,
                    count,
                    self._clock_us(),
                    subscription,
                    consumer,
                    reason,
                    spans,
                    unacked_masks,
                )
            )

    # ---------------------------------------------------------------- subscriptions

    def note_subscribed(self, subscription: str, position: Position, *, is_durable: bool) -> None:
        self._row(
            EventKind.SUBSCRIBED,
            subscription=subscription,
            detail=Subscribed(position, is_durable),
        )

    def note_unsubscribed(self, subscription: str) -> None:
        self._row(EventKind.UNSUBSCRIBED, subscription=subscription)

    def note_recovered(
        self, subscription: str, report: RecoveryReport, state: CursorSnapshot
    ) -> None:
        """Note that a subscription was opened, with its state at that time."""
        self._row(
            EventKind.RECOVERED,
            subscription=subscription,
            version=state.version,
            detail=report,
            state=state,
        )

    def note_consumer_added(
        self, subscription: str, consumer: str, kind: str, *, is_out_of_order: bool = False
    ) -> None:
        """Note a new consumer. `kind`: the subscription's type."""
        details = {"detail": ConsumerAdded(is_out_of_order)} if is_out_of_order else {}
        self._row(
            EventKind.CONSUMER_ADDED,
            subscription=subscription,
            consumer=consumer,
            reason=kind,
            **details,
        )

    def note_consumer_removed(self, subscription: str, consumer: str) -> None:
        self._row(EventKind.CONSUMER_REMOVED, subscription=subscription, consumer=consumer)

    def note_reset(self, subscription: str, reset: CursorMove, version: int) -> None:
        self._row(
            EventKind.RESET,
            subscription=subscription,
            reason=REASONS[type(reset)],
            version=version,
            detail=reset,
        )

    def note_receipt(self, subscription: str, consumer: str, version: int) -> None:
        """Note that a consumer got the receipt of its acks."""
        self._row(EventKind.RECEIPT, subscription=subscription, consumer=consumer, version=version)

    def note_gate(self, subscription: str, reasons: Iterable[str], *, is_open: bool) -> None:
        """Note that the gate has shut or opened, with the reasons for which it is or was shut."""
        self._row(
            EventKind.GATE_OPENED if is_open else EventKind.GATE_SHUT,
            subscription=subscription,
            reason=",".join(reasons),
        )

    def note_persisted(self, subscription: str, outcome: PersistOutcome) -> None:
        """Note that a cursor's state became durable."""
        self._row(
            EventKind.PERSISTED,
            subscription=subscription,
            version=outcome.version,
            detail=outcome,
        )

    def note_persist_failed(
        self,
        subscription: str,
        where: PersistWhere,
        version: int,
        error: str,
        failing_since_ms: int | None,
    ) -> None:
        """Note that an attempt to write a cursor's state failed."""
        self._row(
            EventKind.PERSIST_FAILED,
            subscription=subscription,
            reason=where.value,
            version=version,
            detail=PersistFailed(error, failing_since_ms),
        )

    def _row(self, kind: EventKind, **columns: Any) -> None:  # noqa: ANN401 - by column
        self._append(RowNote(forms.ROW, 1, self._clock_us(), kind, columns))


def time_of_entry(metadata: MessageMetadata) -> int:
    """Publish time of an entry by the producer's clock, which may be any number."""
    return min(metadata.publish_time, _INT64_MAX)


def key_of_entry(metadata: MessageMetadata) -> str:
    """The partition key, or the ordering key in hexadecimal; empty if there is none."""
    if ordering_key := metadata.ordering_key:
        return ordering_key.hex()
    try:
        return metadata.partition_key
    except UnicodeDecodeError:  # clients may send any bytes
        return ""
