"""Which messages of a producer are new, stored already, or on their way."""

from __future__ import annotations

import pytest

from ackgate.broker.topic.deduplication import (
    Chunk,
    Deduplication,
    SequenceIds,
    Verdict,
    sequence_ids,
)
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.cursor import Position
from ackgate.persistence.messages.frame import seal_entry

AT = Position(0, 0)


def one(sequence_id: int) -> SequenceIds:
    return SequenceIds(sequence_id, sequence_id, sequence_id)


def run_of(first: int, last: int) -> SequenceIds:
    return SequenceIds(first, last, last)


def with_gaps(first: int, last: int) -> SequenceIds:
    return SequenceIds(first, first, last, gapped=7)


def chunk(sequence_id: int, chunk_id: int, checksum: int = 0) -> SequenceIds:
    message = (sequence_id, f"p-{sequence_id}", 3, 30)
    return SequenceIds(sequence_id, sequence_id, sequence_id, Chunk(message, chunk_id, checksum))


def stored(dedup: Deduplication, *all_ids: SequenceIds) -> None:
    for number, ids in enumerate(all_ids):
        assert dedup.check("p", ids) is Verdict.NEW
        dedup.confirmed("p", ids, Position(0, number))


def test_a_message_is_new_once_then_unknown_until_durable_then_a_duplicate() -> None:
    dedup = Deduplication({}, 100)
    assert dedup.check("p", one(0)) is Verdict.NEW
    assert dedup.check("p", one(0)) is Verdict.UNKNOWN
    dedup.confirmed("p", one(0), AT)
    assert dedup.check("p", one(0)) is Verdict.DUPLICATE
    assert dedup.check("p", one(1)) is Verdict.NEW


def test_a_batch_counts_by_its_highest_sequence_id() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, run_of(0, 9))
    assert dedup.check("p", run_of(5, 9)) is Verdict.DUPLICATE
    assert dedup.last_sequence_id("p") == 9


def test_of_a_batch_cut_in_another_way_the_rest_is_wanted() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, run_of(0, 4))
    assert dedup.check("p", run_of(3, 7)) is Verdict.PARTLY
    assert dedup.check("p", run_of(5, 9)) is Verdict.UNKNOWN
    assert dedup.check("p", run_of(2, 9)) is Verdict.UNKNOWN
    dedup.confirmed("p", run_of(3, 7), AT)
    assert dedup.check("p", one(7)) is Verdict.DUPLICATE


def test_batches_whose_ids_interlock_are_both_stored() -> None:
    """Of two keys, as the C++ client makes them: messages 0, 3, 4 and 1, 2, 6."""
    dedup = Deduplication({}, 100)
    stored(dedup, with_gaps(0, 4), with_gaps(1, 6), one(5))
    for ids in (with_gaps(0, 4), with_gaps(1, 6), one(5)):
        assert dedup.check("p", ids) is Verdict.DUPLICATE
    assert dedup.last_sequence_id("p") == 6
    # Of one key more comes, cut anew.
    assert dedup.check("p", with_gaps(0, 8)) is Verdict.PARTLY


def test_what_is_saved_says_it_all() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, one(0), with_gaps(1, 6))
    assert dedup.needed_positions() == [Position(0, 1)]
    again = Deduplication(dedup.saved(), 100)
    assert again.saved() == dedup.saved()
    assert again.last_sequence_id("p") == 6
    assert again.check("p", one(1)) is Verdict.DUPLICATE
    assert again.check("p", one(2)) is Verdict.NEW
    # Of an earlier build: the highest of each producer, and nothing else.
    assert Deduplication({"p": 4}, 100).check("p", run_of(0, 4)) is Verdict.DUPLICATE


def test_what_failed_may_be_sent_again() -> None:
    dedup = Deduplication({"p": 4}, 100)
    assert dedup.check("p", one(5)) is Verdict.NEW
    dedup.failed("p")
    assert dedup.check("p", one(5)) is Verdict.NEW
    assert dedup.check("p", one(4)) is Verdict.DUPLICATE


def test_a_chunked_message_counts_with_its_last_chunk() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, chunk(0, 0), chunk(0, 1))
    assert dedup.last_sequence_id("p") == -1
    stored(dedup, one(0))
    assert dedup.last_sequence_id("p") == 0
    assert dedup.check("p", chunk(0, 0)) is Verdict.DUPLICATE


def test_a_chunk_is_known_by_its_bytes() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, chunk(0, 0, checksum=7))
    assert dedup.check("p", chunk(0, 0, checksum=7)) is Verdict.DUPLICATE
    assert dedup.check("p", chunk(0, 1, checksum=8)) is Verdict.NEW
    assert dedup.check("p", chunk(0, 1, checksum=8)) is Verdict.UNKNOWN
    # Cut in another way: none of its chunks is to be joined with those that are stored.
    assert dedup.check("p", chunk(0, 0, checksum=9)) is Verdict.NEW
    assert dedup.check("p", chunk(0, 1, checksum=8)) is Verdict.NEW


def test_a_chunk_that_failed_may_be_sent_again() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, chunk(0, 0))
    assert dedup.check("p", chunk(0, 1)) is Verdict.NEW
    dedup.failed("p")
    assert dedup.check("p", chunk(0, 0)) is Verdict.DUPLICATE
    assert dedup.check("p", chunk(0, 1)) is Verdict.NEW


def test_the_first_chunk_of_a_message_is_needed_until_it_is_complete() -> None:
    dedup = Deduplication({}, 100)
    stored(dedup, chunk(0, 0), chunk(0, 1))
    assert dedup.needed_positions() == [Position(0, 0)]
    stored(dedup, one(0))
    assert dedup.needed_positions() == []


def test_producers_do_not_disturb_each_other() -> None:
    dedup = Deduplication({"a": 7}, 100)
    assert dedup.check("b", one(0)) is Verdict.NEW
    assert dedup.last_sequence_id("a") == 7
    assert dedup.last_sequence_id("b") == -1


def test_the_least_recently_confirmed_producer_is_forgotten_first() -> None:
    dedup = Deduplication({}, 2)
    for name in ("a", "b", "a", "c"):
        dedup.check(name, one(5))
        dedup.confirmed(name, one(5), AT)
    assert dedup.saved() == {"a": 5, "c": 5}


def ids_of(sequence_id: int, payload: bytes = b"x", **fields: object) -> SequenceIds | None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=1, **fields
    )
    entry = seal_entry(metadata.SerializeToString(), payload)
    return sequence_ids(sequence_id, metadata.highest_sequence_id, entry, metadata)


def batch_of(*ids: int | None) -> bytes:
    parts = []
    for sequence_id in ids:
        single = pb.SingleMessageMetadata(payload_size=1, sequence_id=sequence_id)
        head = single.SerializeToString()
        parts.append(len(head).to_bytes(4, "big") + head + b"x")
    return b"".join(parts)


def test_ids_are_signed() -> None:
    assert ids_of(2**64 - 4) == one(-4)
    dedup = Deduplication({}, 100)
    stored(dedup, one(-4), one(-1), one(0))


def test_the_ids_of_a_batch_stand_in_it() -> None:
    assert ids_of(3, batch_of(3, 4, 5), num_messages_in_batch=3) == run_of(3, 5)
    gapped = ids_of(3, batch_of(3, 5, 9), num_messages_in_batch=3)
    assert gapped is not None
    assert gapped[:3] == with_gaps(3, 9)[:3]
    assert gapped.gapped is not None
    assert gapped != ids_of(3, batch_of(3, 6, 9), num_messages_in_batch=3)
    assert ids_of(3, b"", num_messages_in_batch=3, highest_sequence_id=9) == run_of(3, 9)


@pytest.mark.parametrize(
    "payload",
    [batch_of(None, None, None), batch_of(3, None, 5), batch_of(1, 2, 3), batch_of(3, 5, 4), b"x"],
    ids=["messages without", "some without", "of another count", "in no order", "malformed"],
)
def test_a_batch_whose_messages_do_not_say_counts_by_its_own_id(payload: bytes) -> None:
    """As in Pulsar: producers that number their entries have no other."""
    assert ids_of(3, payload, num_messages_in_batch=3) == one(3)
    assert ids_of(3, batch_of(3, 4), num_messages_in_batch=2, encryption_algo="AES") == one(3)


def test_chunks_and_markers() -> None:
    chunked = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 9}
    piece = ids_of(3, **chunked, chunk_id=0)
    assert piece is not None
    assert piece.chunk is not None
    assert piece.chunk[:2] == ((3, "u", 2, 9), 0)
    assert ids_of(3, **chunked, chunk_id=1) == one(3)
    assert ids_of(3, marker_type=21) is None
