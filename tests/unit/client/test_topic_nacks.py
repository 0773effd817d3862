"""One topic's nacks in a consumer: copies that are acked, too, and what is forgotten when."""

from __future__ import annotations

from ackgate.client.topic_nacks import NO_BATCH, Arrival, Redelivery, TopicNacks
from ackgate.cursor import Position
from ackgate.dispatcher.nacks import NackSettings

NOW = 1_000_000
ENTRY = Position(3, 1)


def topic() -> TopicNacks:
    return TopicNacks(NackSettings(precision_bits=0))


def nack(
    nacks: TopicNacks, index: int, delay_ms: int, original: object = None, at: Position = ENTRY
) -> None:
    nacks.nack(at, index, NOW, delay_ms=delay_ms, redelivery_count=0, chance=0.0, original=original)


def test_a_copy_that_was_kept_back_is_acked_with_the_message() -> None:
    """The client tells the broker of a batch once all of one delivery is acked."""
    nacks = topic()
    for index in range(4):
        assert nacks.arrived(ENTRY, index, f"first {index}") is Arrival.DELIVER
    assert nacks.acked(ENTRY, 0) is None
    nack(nacks, 1, 100)
    nack(nacks, 2, 9_000)
    assert nacks.pop_due(NOW + 100, 9) == [Redelivery(ENTRY, None)]
    arrivals = [nacks.arrived(ENTRY, index, f"second {index}") for index in range(4)]
    assert arrivals == [
        Arrival.ACK_AGAIN,
        Arrival.DELIVER,
        Arrival.KEEP_BACK,
        Arrival.KEEP_BACK,
    ]
    assert nacks.acked(ENTRY, 1) is None, "the application has that of the second delivery"
    assert nacks.acked(ENTRY, 2) == "second 2"
    assert nacks.acked(ENTRY, 3) == "second 3"
    assert len(nacks) == 0


def test_kept_back_once_for_each_time_it_was_asked_for() -> None:
    nacks = topic()
    for index in range(2):
        nacks.arrived(ENTRY, index)
    nack(nacks, 0, 0)
    nacks.pop_due(NOW, 9)
    assert nacks.arrived(ENTRY, 0) is Arrival.DELIVER
    assert nacks.arrived(ENTRY, 1) is Arrival.KEEP_BACK
    assert nacks.arrived(ENTRY, 1) is Arrival.DELIVER, "the connection was lost, say"


def test_settled_batches_are_forgotten() -> None:
    nacks = topic()
    for entry_id in range(100):
        for index in range(3):
            nacks.arrived(Position(3, entry_id), index)
            nacks.acked(Position(3, entry_id), index)
    assert nacks.batch_count == 1
    nacks.acked_through(Position(3, 99), 2)
    nacks.arrived(Position(4, 0), 0)
    assert nacks.batch_count == 1


def test_cumulative_ack_within_a_batch() -> None:
    nacks = topic()
    for index in range(3):
        nacks.arrived(ENTRY, index)
        nack(nacks, index, 100)
    nack(nacks, NO_BATCH, 100, at=Position(3, 0))
    nacks.acked_through(ENTRY, 1)
    assert nacks.pop_due(NOW + 100, 9) == [Redelivery(ENTRY, None)]
    assert [nacks.arrived(ENTRY, index) for index in range(3)] == [
        Arrival.ACK_AGAIN,
        Arrival.ACK_AGAIN,
        Arrival.DELIVER,
    ]


def test_an_id_that_cannot_be_made_anew_is_kept_with_its_nack() -> None:
    nacks = topic()
    nack(nacks, NO_BATCH, 5, original="chunked")
    nack(nacks, NO_BATCH, 5, original="acked", at=Position(3, 2))
    nacks.acked(Position(3, 2), NO_BATCH)
    nacks.check()
    assert nacks.pop_due(NOW + 5, 9) == [Redelivery(ENTRY, "chunked")]
    nack(nacks, NO_BATCH, 5, original="forgotten")
    nacks.clear()
    nacks.check()
    assert (len(nacks), nacks.next_deadline_ms, nacks.byte_estimate) == (0, None, 0)
