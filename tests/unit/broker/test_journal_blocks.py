"""Blocks of notes can be read again, whichever words their events have."""

from types import SimpleNamespace

from ackgate.broker.journal import SubscriptionRecorder, TopicJournal
from ackgate.broker.journal.note_columns import columns_of_notes
from ackgate.cursor import Position, Span
from ackgate.persistence.deliveries.events import decode_events, encode_events
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.subscription import Dispatched, GivenBack


def test_a_small_block_of_delayed_entries_and_nacks():
    journal = TopicJournal(pending_events_max=10, clock_us=lambda: 7, wake=lambda: None)
    consumer = SimpleNamespace(label="c#1")
    entry = SimpleNamespace(position=Position(1, 0), message_count=1, deliver_at_ms=5)
    SubscriptionRecorder(journal, "s").record(
        [
            Dispatched(consumer, [entry], None, None, is_replay=True),
            GivenBack(consumer, "asked", [Span(1, 0, 1)], {}),
        ]
    )
    taken = journal.take(10)
    assert taken is not None
    block = columns_of_notes(taken.notes, topic="t", owner_epoch=1, first_sequence=0)
    again = decode_events(encode_events(block, Packing(Compression.NONE))).rows()
    assert [(event.kind, event.reason) for event in again] == [
        ("dispatched", "delayed"),
        ("nacked", "asked"),
    ]
