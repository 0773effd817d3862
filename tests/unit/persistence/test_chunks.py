"""Chunks: cut, and joined from the last to the first."""

from __future__ import annotations

import pytest

from ackgate.errors import CorruptRecordError
from ackgate.persistence.records.chunks import BackwardJoiner, cut
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import ChunkRecord, Stamp

STAMP = Stamp(1, 30)
RECORD = bytes(range(256)) * 40


def chunks_of(
    record: bytes, stamp: Stamp = STAMP, entry_bytes_max: int = 1000
) -> list[ChunkRecord]:
    chunks = []
    for entry in cut(record, stamp, entry_bytes_max):
        assert len(entry) <= entry_bytes_max
        chunk = decode_record(entry)
        assert isinstance(chunk, ChunkRecord)
        chunks.append(chunk)
    return chunks


def test_a_record_that_fits_is_one_entry_as_it_is() -> None:
    assert cut(RECORD, STAMP, len(RECORD)) == [RECORD]


@pytest.mark.parametrize("entry_bytes_max", [100, 1000, len(RECORD) - 1])
def test_chunks_join_again_from_the_last(entry_bytes_max: int) -> None:
    joiner = BackwardJoiner()
    *later, first = reversed(chunks_of(RECORD, entry_bytes_max=entry_bytes_max))
    for chunk in later:
        assert joiner.add(chunk) is None
        assert joiner.is_begun
    assert joiner.add(first) == RECORD
    assert not joiner.is_begun
    assert joiner.abandon() is None


def test_chunks_keep_their_size_with_the_largest_numbers() -> None:
    for entry in cut(RECORD, Stamp(2**62, 2**62), 500):
        assert len(entry) <= 500


def test_without_the_committing_chunk_none_counts() -> None:
    joiner = BackwardJoiner()
    for chunk in reversed(chunks_of(RECORD)[:-1]):
        assert not joiner.expects(chunk)
        with pytest.raises(CorruptRecordError, match="not committed"):
            joiner.add(chunk)


def test_a_record_whose_first_chunk_is_missing_is_given_up_and_named() -> None:
    joiner = BackwardJoiner()
    chunks = chunks_of(RECORD)
    for chunk in reversed(chunks[1:]):
        joiner.add(chunk)
    assert joiner.abandon() == f"chunk 0 of {len(chunks)} (epoch 1 version 30) is missing"


def test_chunks_of_two_records_never_mix() -> None:
    older, newer = chunks_of(RECORD, Stamp(1, 29)), chunks_of(RECORD, Stamp(1, 30))
    joiner = BackwardJoiner()
    joiner.add(newer[-1])
    assert not joiner.expects(older[-2])
    assert not joiner.expects(newer[-3])
    assert joiner.expects(newer[-2])
