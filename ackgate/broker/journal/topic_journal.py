"""The delivery journal of one open topic: the notes of the event loop, in a bounded queue.

Every call appends one tuple and returns: nothing is built, nothing waits. What does not fit is
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
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from ackgate.broker.journal.notes import (
    DispatchedNote,
    DroppedNote,
    MixedAcksNote,
    NackedNote,
    PublishedNote,
    RowNote,
    WholeAcksNote,
)
from ackgate.dispatcher import KeyShared
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.deliveries.details import (
    REASONS,
    AckedCall,
    ConsumerAdded,
    PersistFailed,
    Subscribed,
)
from ackgate.subscription import (
    Acked,
    AckedMixed,
    AckedThrough,
    Attached,
    Detached,
    Dispatched,
    GateEdge,
    GivenBack,
    Moved,
    ReceiptSent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.broker.journal.notes import Note
    from ackgate.broker.wire import Entry, SubscriptionType
    from ackgate.cursor import CursorSnapshot, Position
    from ackgate.persistence.proto.message_pb2 import MessageMetadata
    from ackgate.persistence.records.outcome import PersistOutcome, PersistWhere, RecoveryReport
    from ackgate.subscription import Note as SubscriptionNote


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
        "_gap",
        "_is_asleep",
        "_next_sequence",
        "_notes",
        "_room",
        "_room_max",
        "_wake",
        "clock_us",
        "events_dropped",
    )

    def __init__(
        self, *, pending_events_max: int, clock_us: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        """`wake`: called when the first note comes after `take` found none."""
        self._notes: deque[Note] = deque()
        self._room = self._room_max = pending_events_max
        self.clock_us = clock_us
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

    def append(self, note: Note) -> None:
        """Add a note, or count its events as dropped."""
        count = note[0]
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
            self._notes.append(DroppedNote(1, self.clock_us(), self._gap))
        self._gap[0] += count

    def take(self, events_max: int) -> Taken | None:
        """Take the oldest notes, about `events_max` events, but at least one note.

        None: there are no notes, and the next one calls `wake`.
        """
        taken: list[Note] = []
        events = 0
        notes = self._notes
        while notes and (not taken or events + notes[0][0] <= events_max):
            note = notes.popleft()
            taken.append(note)
            events += note[0]
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
            self._notes.appendleft(DroppedNote(1, self.clock_us(), [taken.missing]))

    def stop(self) -> None:
        """Take no more notes, and drop those that wait."""
        self.events_dropped += sum(
            note.events for note in self._notes if not isinstance(note, DroppedNote)
        )
        self._notes.clear()
        self._room, self._room_max = -1, 0
        self._gap = None

    # ---------------------------------------------------------------- the topic

    def note_ledger_opened(self, ledger_id: int) -> None:
        """Note that a message ledger takes entries from now on."""
        self.row(EventKind.LEDGER_OPENED, ledger_id=ledger_id)

    def note_ledger_closed(self, ledger_id: int, entry_count: int) -> None:
        """Note that a message ledger was closed with so many entries."""
        self.row(EventKind.LEDGER_CLOSED, ledger_id=ledger_id, entry_id=entry_count - 1)

    def note_ledgers_trimmed(self, ledger_ids: Sequence[int]) -> None:
        """Note that message ledgers were deleted, all at one time."""
        time_us = self.clock_us()
        for ledger_id in ledger_ids:
            self.append(RowNote(1, time_us, EventKind.LEDGER_TRIMMED, {"ledger_id": ledger_id}))

    # ---------------------------------------------------------------- messages

    def note_published(self, entries: Sequence[Entry], contexts: Sequence[Published]) -> None:
        """Note that producers have receipts for these consecutive entries."""
        names = [context.producer.name for context in contexts]
        keys = [context.key for context in contexts]
        self.append(
            PublishedNote(
                len(entries),
                self.clock_us(),
                entries[0].position,
                names[:1] if names.count(names[0]) == len(names) else names,
                array("q", [entry.message_count for entry in entries]),
                array("q", [len(entry.payload) for entry in entries]),
                array("q", [entry.deliver_at_ms for entry in entries]),
                array("q", [context.publish_time_ms for context in contexts]),
                keys if any(keys) else None,
            )
        )

    def note_unsubscribed(self, subscription: str) -> None:
        self.row(EventKind.UNSUBSCRIBED, subscription=subscription)

    def row(self, kind: EventKind, **columns: Any) -> None:  # noqa: ANN401 - by column
        """Append a note of one event."""
        self.append(RowNote(1, self.clock_us(), kind, columns))


class JournaledConsumer(Protocol):
    """What a consumer's events need to know of it."""

    @property
    def label(self) -> str:
        """Its name in the journal, unique within the subscription."""

    @property
    def type(self) -> SubscriptionType:
        """The subscription type that it asked for."""


class SubscriptionRecorder:
    """Records one subscription: the notes of its machine, and its store's attempts to write.

    A `WriteObserver` of the store. Both become events of the topic's journal, in the order in which they
    happened.
    """

    __slots__ = ("_journal", "_name")

    def __init__(self, journal: TopicJournal, name: str) -> None:
        self._journal = journal
        self._name = name

    def subscribed(self, position: Position, *, is_durable: bool) -> None:
        self._row(EventKind.SUBSCRIBED, detail=Subscribed(position, is_durable))

    def recovered(self, report: RecoveryReport, state: CursorSnapshot) -> None:
        """Note that the subscription was opened in this state."""
        self._row(EventKind.RECOVERED, version=state.version, detail=report, state=state)

    def wrote(self, outcome: PersistOutcome) -> None:
        self._row(EventKind.PERSISTED, version=outcome.version, detail=outcome)

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        about = PersistFailed(error, failing_since_ms)
        self._row(EventKind.PERSIST_FAILED, reason=where.value, version=version, detail=about)

    def record(self, made: Sequence[SubscriptionNote]) -> None:
        """Record the notes, in order."""
        for note in made:
            self._record(note)

    def _record(self, note: SubscriptionNote) -> None:
        journal, name, now_us = self._journal, self._name, self._journal.clock_us
        match note:
            case Dispatched(consumer, entries, counts, masks, is_replay):
                journal.append(
                    DispatchedNote(
                        len(entries),
                        now_us(),
                        name,
                        consumer.label,
                        array("q", chain.from_iterable([entry.position for entry in entries])),
                        array("q", [entry.message_count for entry in entries]),
                        None if counts is None else array("q", counts),
                        masks,
                        array("q", [each.deliver_at_ms for each in entries]) if is_replay else None,
                    )
                )
            case Acked(consumer, positions, version, at_once):
                if count := len(positions):
                    flat, label = array("q", chain.from_iterable(positions)), _label(consumer)
                    journal.append(
                        WholeAcksNote(count, now_us(), name, label, flat, version, at_once)
                    )
            case AckedMixed(consumer, whole, parts, version):
                count, label = len(whole) + len(parts), _label(consumer)
                journal.append(MixedAcksNote(count, now_us(), name, label, whole, parts, version))
            case AckedThrough():
                self._record_acked_through(note)
            case ReceiptSent(consumer, version):
                self._row(EventKind.RECEIPT, consumer=consumer.label, version=version)
            case GivenBack(consumer, reason, spans, masks):
                if count := sum(span.stop - span.start for span in spans):
                    label = consumer.label
                    journal.append(NackedNote(count, now_us(), name, label, reason, spans, masks))
            case Attached(consumer, kind):
                is_out_of_order = isinstance(kind, KeyShared) and kind.allow_out_of_order
                detail = {"detail": ConsumerAdded(is_out_of_order)} if is_out_of_order else {}
                type_name = consumer.type.spelling
                self._row(
                    EventKind.CONSUMER_ADDED, consumer=consumer.label, reason=type_name, **detail
                )
            case Detached(consumer):
                self._row(EventKind.CONSUMER_REMOVED, consumer=consumer.label)
            case Moved(move, version):
                reason = REASONS[type(move)]
                self._row(EventKind.RESET, reason=reason, version=version, detail=move)
            case GateEdge(is_open, reasons):
                kind_of_edge = EventKind.GATE_OPENED if is_open else EventKind.GATE_SHUT
                self._row(kind_of_edge, reason=",".join(reasons))
            case _:
                assert_never(note)

    def _record_acked_through(self, note: AckedThrough) -> None:
        """Record a cumulative ack: one event, or two if it completes a batch."""
        label, through = _label(note.consumer), note.through
        columns: dict[str, Any] = {
            "subscription": self._name,
            "consumer": label,
            "ledger_id": through.ledger_id,
            "entry_id": through.entry_id,
            "is_cumulative": True,
            "version": note.version,
        }
        if note.and_whole is None:
            self._journal.row(EventKind.ACKED, **columns, unacked_indexes=note.unacked_mask)
            return
        batch = note.and_whole
        whole = {
            **columns,
            "ledger_id": batch.ledger_id,
            "entry_id": batch.entry_id,
            "is_cumulative": False,
        }
        time_us = self._journal.clock_us()
        for each in ({**columns, "detail": AckedCall(entries=2)}, whole):
            self._journal.append(RowNote(1, time_us, EventKind.ACKED, each))

    def _row(self, kind: EventKind, **columns: Any) -> None:  # noqa: ANN401 - by column
        self._journal.row(kind, subscription=self._name, **columns)


def _label(consumer: JournaledConsumer | None) -> str | None:
    return None if consumer is None else consumer.label


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
