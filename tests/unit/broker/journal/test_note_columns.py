"""Notes as columns: many at once are what each would be by itself, and every block can be read back."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from ackgate.broker.journal.note_columns import columns_of_notes, masks_after
from ackgate.broker.journal.notes import (
    DispatchedNote,
    DroppedNote,
    MixedAcksNote,
    NackedNote,
    Note,
    PublishedNote,
    RowNote,
    WholeAcksNote,
)
from ackgate.cursor import ManagedCursor, MessageLedgers, Position, Skipped, Span
from ackgate.persistence.deliveries.columns import DeliveryEvent, EventColumns, EventKind
from ackgate.persistence.deliveries.events import decode_events, encode_events
from ackgate.persistence.records.envelope import Packing
from ackgate.subscription.notes import PartialAck

BITS = 5


def block_of(notes: list[Note]) -> EventColumns:
    return columns_of_notes(notes, topic="t", owner_epoch=3, first_sequence=7)


def events_of(notes: list[Note]) -> list[DeliveryEvent]:
    """Through the bytes that are stored."""
    return decode_events(encode_events(block_of(notes), Packing())).rows()


class Notes:
    """Random ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time_us = 1_000

    def any(self) -> Note:
        self.time_us += self.random.randint(0, 5)
        return self.random.choice(
            [
                self.row,
                self.published,
                self.dispatched,
                self.whole_acks,
                self.mixed_acks,
                self.nacked,
                self.dropped,
            ]
        )()

    def _numbers(self, count: int, most: int = 3) -> array[int]:
        return array("q", (self.random.randint(0, most) for _ in range(count)))

    def _masks(self, count: int) -> list[int | None]:
        return [self.random.choice((None, 0b101, 1 << 70)) for _ in range(count)]

    def _name(self) -> str:
        return self.random.choice(("s", "ü", ""))

    def row(self) -> Note:
        columns = {"subscription": self._name(), "version": 4, "detail": Skipped(Position(1, 2), 3)}
        return RowNote(1, self.time_us, EventKind.RESET, columns)

    def published(self) -> Note:
        count = self.random.randint(1, 4)
        names = self.random.choice((["p"], [self._name() for _ in range(count)]))
        return PublishedNote(
            count,
            self.time_us,
            Position(7, self.random.randint(0, 9)),
            names,
            self._numbers(count),
            self._numbers(count),
            self._numbers(count),
            array("q", (self.random.choice((-1, 0, 2**63 - 1)) for _ in range(count))),
            self.random.choice((None, [self._name() for _ in range(count)])),
        )

    def dispatched(self) -> Note:
        count = self.random.randint(1, 4)
        return DispatchedNote(
            count,
            self.time_us,
            self._name(),
            "c#1",
            self._numbers(2 * count, 2**40),
            self._numbers(count),
            self.random.choice((None, self._numbers(count, 1))),
            self.random.choice((None, self._masks(count))),
            self.random.choice((None, self._numbers(count, 1))),
        )

    def whole_acks(self) -> Note:
        count = self.random.randint(1, 4)
        return WholeAcksNote(
            count,
            self.time_us,
            self._name(),
            self.random.choice((None, "c#1")),
            self._numbers(2 * count, 9),
            self.random.randint(0, 9),
            self.random.random() < 0.5,
        )

    def mixed_acks(self) -> Note:
        whole = [Position(1, entry) for entry in range(self.random.randint(0, 2))]
        parts = [
            PartialAck(
                Position(2, self.random.randint(0, 1)), self.random.getrandbits(3), None, False
            )
            for _ in range(self.random.randint(1, 3))
        ]
        count = len(whole) + len(parts)
        return MixedAcksNote(count, self.time_us, "s", None, whole, parts, 5)

    def nacked(self) -> Note:
        spans = [Span(1, 0, self.random.randint(1, 3)), Span(2, 4, 5)]
        count = sum(span.stop - span.start for span in spans)
        masks = self.random.choice(({}, {Position(2, 4): 6}))
        return NackedNote(count, self.time_us, "s", "c#1", "asked", spans, masks)

    def dropped(self) -> Note:
        return DroppedNote(1, self.time_us, [self.random.randint(1, 99)])


@pytest.mark.parametrize("seed", range(60))
def test_notes_together_are_what_each_is_by_itself(seed: int) -> None:
    random = Notes(seed)
    notes = [random.any() for _ in range(random.random.randint(1, 30))]
    alone = [event for note in notes for event in events_of([note])]
    assert events_of(notes) == alone
    assert len(alone) == sum(note.events for note in notes)
    block = block_of(notes)
    assert (block.topic, block.owner_epoch, block.first_sequence) == ("t", 3, 7)


def test_the_columns_of_one_of_each() -> None:
    replay = DispatchedNote(
        3,
        5,
        "s",
        "c#1",
        array("q", (7, 0, 7, 1, 7, 2)),
        array("q", (1, 2, 1)),
        array("q", (0, 0, 2)),
        [None, 0b10, None],
        array("q", (0, 99, 99)),
    )
    events = events_of([replay])
    assert [event.reason for event in events] == ["redelivery", "delayed", "redelivery"]
    assert [event.unacked_indexes for event in events] == [None, b"\x02", None]
    assert [event.entry_id for event in events] == [0, 1, 2]
    published = PublishedNote(
        2,
        5,
        Position(7, 3),
        ["p"],
        array("q", (1, 2)),
        array("q", (10, 20)),
        array("q", (0, 50)),
        array("q", (-1, 40)),
        ["k", ""],
    )
    assert events_of([published]) == [
        DeliveryEvent(
            EventKind.PUBLISHED, 5, producer="p", ledger_id=7, entry_id=3, batch_size=1,
            key="k", entry_bytes=10,
        ),
        DeliveryEvent(
            EventKind.PUBLISHED, 5, producer="p", ledger_id=7, entry_id=4, batch_size=2,
            publish_time_ms=40, deliver_at_ms=50, entry_bytes=20,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(80))
def test_masks_between_the_acks_of_a_call_are_those_that_the_cursor_has(seed: int) -> None:
    random = Random(seed)
    ledgers = MessageLedgers()
    ledgers.open_ledger(1)
    ledgers.add_entries(1, 4)
    whole, step_by_step = (ManagedCursor(ledgers, Position(1, -1)) for _ in range(2))
    for cursor in (whole, step_by_step):
        cursor.ack(Position(1, 0))
        cursor.ack_mixed([(Position(1, 1), 0b111)])
    acks = [
        (Position(1, random.randint(0, 3)), random.getrandbits(BITS))
        for _ in range(random.randint(1, 8))
    ]
    first = [Position(1, random.randint(0, 3)) for _ in range(random.randint(0, 1))]
    parts = [
        PartialAck(position, mask, whole.unacked_mask(position), whole.is_acked(position))
        for position, mask in acks
    ]
    whole.ack_mixed([*((position, None) for position in first), *acks])
    step_by_step.ack_individual(first)
    expected = []
    for position, mask in acks:
        step_by_step.ack_mixed([(position, mask)])
        expected.append(step_by_step.unacked_mask(position))
    assert masks_after(parts, first) == expected
    assert whole.snapshot() == step_by_step.snapshot()
