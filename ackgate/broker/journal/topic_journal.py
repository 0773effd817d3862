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
    """A producer, as its entries' events name it."""

    @property
    def name(self) -> str: ...


class Published(Protocol):
    """What is known of an entry between its coming and its receipt."""

    @property
    def producer(self) -> NamedProducer: ...

    @property
    def publish_time_ms(self) -> int:
        """When, by the producer's clock; or `UNKNOWN_TIME`."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """Notes for one block. Their room in the queue is theirs until `TopicJournal.release`."""

    notes: Sequence[Note]
    first_sequence: int
    events: int

    @property
    def missing(self) -> int:
        """Events that are missing if this block is: with those that were missing already."""
        return sum(
            note.missing[0] if isinstance(note, DroppedNote) else note.events for note in self.notes
        )


class TopicJournal:
    """The notes of one topic."""

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
        """`wake`: called when there is a note, after there was none."""
        self._notes: deque[Note] = deque()
        self._room = self._room_max = pending_events_max
        self._clock_us = clock_us
        self._wake = wake
        self._is_asleep = True
        self._gap: list[int] | None = None
        """While events are being dropped: how many so far."""
        self._next_sequence = 0
        self.events_dropped = 0
        """All that are missing, wherever they were lost."""

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
            return  # it takes no more
        if self._gap is None:
            self._gap = [0]
            self._room -= 1  # of its own, so that this alone cannot fill the memory either
            self._notes.append(DroppedNote(forms.DROPPED, 1, self._clock_us(), self._gap))
        self._gap[0] += count

    def take(self, events_max: int) -> Taken | None:
        """The oldest notes, of about so many events; None: there is none; `wake` is called when there is."""
        taken: list[Note] = []
        events = 0
        notes = self._notes
        while notes and (not taken or events + notes[0][1] <= events_max):
            note = notes.popleft()
            taken.append(note)
            events += note[1]
        if not notes:
            self._gap = None  # its number goes into the block as it is now
        if not taken:
            self._is_asleep = True
            return None
        first_sequence = self._next_sequence
        self._next_sequence += events
        return Taken(taken, first_sequence, events)

    def release(self, taken: Taken) -> None:
        """They are written: others may have their room."""
        if self._room_max:
            self._room += taken.events

    def lost(self, taken: Taken) -> None:
        """They will not be written. The next event says so, as far as they were not missing yet."""
        self.release(taken)
        reported = sum(note.missing[0] for note in taken.notes if isinstance(note, DroppedNote))
        self.events_dropped += taken.missing - reported
        if self._room_max:
            self._room -= 1
            self._notes.appendleft(DroppedNote(forms.DROPPED, 1, self._clock_us(), [taken.missing]))

    def stop(self) -> None:
        """Take no more; what waits is dropped."""
        self.events_dropped += sum(
            note.events for note in self._notes if not isinstance(note, DroppedNote)
        )
        self._notes.clear()
        self._room, self._room_max = -1, 0
        self._gap = None

    # ---------------------------------------------------------------- the topic

    def note_opened(self, opened: Opened) -> None:
        """The topic was opened: the first event."""
        self._row(EventKind.OPENED, detail=opened)

    def note_configured(self, configured: Configured) -> None:
        """Settings or policies have changed."""
        self._row(EventKind.CONFIGURED, detail=configured)

    def note_ledger_opened(self, ledger_id: int) -> None:
        """A message ledger takes entries from now on."""
        self._row(EventKind.LEDGER_OPENED, ledger_id=ledger_id)

    def note_ledger_closed(self, ledger_id: int, entry_count: int) -> None:
        """A message ledger is closed with so many entries."""
        self._row(EventKind.LEDGER_CLOSED, ledger_id=ledger_id, entry_id=entry_count - 1)

    def note_ledgers_trimmed(self, ledger_ids: Sequence[int]) -> None:
        """Message ledgers are gone, all of them at one time."""
        time_us = self._clock_us()
        for ledger_id in ledger_ids:
            self._append(
                RowNote(forms.ROW, 1, time_us, EventKind.LEDGER_TRIMMED, {"ledger_id": ledger_id})
            )

    # ---------------------------------------------------------------- messages

    def note_published(self, entries: Sequence[Entry], contexts: Sequence[Published]) -> None:
        """Producers have receipts for these entries, which follow each other."""
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
        """A consumer was sent these. `deliver_at_ms`: of a replay only."""
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
        """One call has acked whole entries; `at_once` as in `AckedCall`."""
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
        parts: Sequence[PartialAck],
        version: int,
    ) -> None:
        """One call has acked whole entries, and then parts of entries."""
        self._append(
            MixedAcksNote(
                forms.MIXED_ACKS,
                len(whole) + len(parts),
                self._clock_us(),
                subscription,
                consumer,
                whole,
                parts,
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
        """A cumulative ack: everything up to the position, but for these messages of its batch."""
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
        """A cumulative ack of the rest of a batch: everything before it, and then the batch itself."""
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
        """A consumer gave these back ("asked"), or closed with them unacked ("consumer_closed")."""
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
        """A subscription was opened, with this state to begin with."""
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
        """A consumer was attached; `kind`: the subscription's type."""
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
        """A consumer got the receipt of its acks."""
        self._row(EventKind.RECEIPT, subscription=subscription, consumer=consumer, version=version)

    def note_gate(self, subscription: str, reasons: Iterable[str], *, is_open: bool) -> None:
        """The gate has shut, or opened; for these reasons, which stand or stood."""
        self._row(
            EventKind.GATE_OPENED if is_open else EventKind.GATE_SHUT,
            subscription=subscription,
            reason=",".join(reasons),
        )

    def note_persisted(self, subscription: str, outcome: PersistOutcome) -> None:
        """A cursor's state is durable."""
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
        """An attempt to write a cursor's state has failed."""
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
    """When it was published, by the producer's clock; clients may say anything."""
    return min(metadata.publish_time, _INT64_MAX)


def key_of_entry(metadata: MessageMetadata) -> str:
    """The partition key, or the ordering key in hexadecimal; empty: none."""
    if ordering_key := metadata.ordering_key:
        return ordering_key.hex()
    try:
        return metadata.partition_key
    except UnicodeDecodeError:  # clients may send any bytes
        return ""
