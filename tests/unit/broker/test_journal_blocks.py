"""Blocks of notes can be read again, whichever words their events have."""

from ackgate.broker.journal.note_columns import columns_of_notes
from ackgate.broker.journal.topic_journal import TopicJournal
from ackgate.cursor import Position, Span
from ackgate.persistence.deliveries.events import decode_events, encode_events
from ackgate.persistence.records.envelope import Compression, Packing


def test_a_small_block_of_delayed_entries_and_nacks():
    journal = TopicJournal(pending_events_max=10, clock_us=lambda: 7, wake=lambda: None)
    journal.note_dispatched(
        "s",
        "c#1",
        [Position(1, 0)],
        [1],
        redelivery_counts=None,
        unacked_masks=None,
        deliver_at_ms=[5],
    )
    journal.note_nacked("s", "c#1", "asked", [Span(1, 0, 1)], {})
    taken = journal.take(10)
    block = columns_of_notes(taken.notes, topic="t", owner_epoch=1, first_sequence=0)
    again = decode_events(encode_events(block, Packing(Compression.NONE))).rows()
    assert [(event.kind, event.reason) for event in again] == [
        ("dispatched", "delayed"),
        ("nacked", "asked"),
    ]
