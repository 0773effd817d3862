"""A stream against a topic that grows, rolls over and is trimmed: each entry once, none unnoticed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError
from ackgate.pipeline.source.stream_offsets import (
    LedgerEnd,
    behind,
    decode_offset,
    earliest,
    encode_offset,
    end_of,
    end_within,
    entry_count,
    is_trimmed,
    shares,
    spans,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 20)),
        st.tuples(st.just("roll"), st.integers(1, 3)),
        st.tuples(st.just("trim"), st.just(0)),
        st.tuples(st.just("batch"), st.integers(0, 15)),  # 0: no limit
        st.tuples(st.just("again"), st.just(0)),
    ),
    max_size=40,
)


class TopicModel:
    """Every entry that ever was, as a set; the ledgers that are left."""

    def __init__(self) -> None:
        self.ledgers: list[LedgerEnd] = [LedgerEnd(3, -1)]
        self.lost: set[tuple[int, int]] = set()
        self.added: list[tuple[int, int]] = []

    def add(self, count: int) -> None:
        ledger_id, last = self.ledgers[-1]
        self.added += [(ledger_id, last + 1 + i) for i in range(count)]
        self.ledgers[-1] = LedgerEnd(ledger_id, last + count)

    def roll(self, gap: int) -> None:
        self.ledgers.append(LedgerEnd(self.ledgers[-1].ledger_id + gap, -1))

    def trim(self) -> None:
        if len(self.ledgers) > 1:
            ledger_id, last = self.ledgers.pop(0)
            self.lost |= {(ledger_id, entry) for entry in range(last + 1)}


def entries(start: Position, end: Position, ledgers: list[LedgerEnd]) -> list[tuple[int, int]]:
    return [
        (ledger_id, entry)
        for ledger_id, first, last in spans(start, end, ledgers)
        for entry in range(first, last + 1)
    ]


@given(STEPS)
def test_each_entry_once_in_order_and_no_gap_unnoticed(steps: list[tuple[str, int]]) -> None:
    topic = TopicModel()
    at = earliest(topic.ledgers)
    read: list[tuple[int, int]] = []
    told: set[tuple[int, int]] = set()
    last_batch: tuple[Position, Position, list[tuple[int, int]]] | None = None
    for word, number in [*steps, ("batch", 0)]:
        if word == "batch":
            missed = topic.lost.difference(read)
            if is_trimmed(at, topic.ledgers):
                told |= missed
            assert missed <= told, "a gap that nobody was told of"
            end = end_within(at, topic.ledgers, number or None)
            found = entries(at, end, topic.ledgers)
            assert end >= at
            assert not number or len(found) <= number
            assert found or entry_count(at, topic.ledgers) == 0
            read += found
            last_batch, at = (at, end, found), end
        elif word == "again" and last_batch is not None:
            start, end, found = last_batch
            if not is_trimmed(start, topic.ledgers):
                assert entries(start, end, topic.ledgers) == found
        elif word in {"add", "roll"}:
            getattr(topic, word)(number)
        elif word == "trim":
            topic.trim()
    assert read == sorted(set(read))
    assert set(topic.added) - set(read) == told


def test_a_read_ledger_that_rolled_over_is_not_missed() -> None:
    ledgers = [LedgerEnd(4, 9), LedgerEnd(7, -1)]
    end = end_within(Position(4, -1), ledgers, 10)
    assert end == Position(7, -1)
    assert not is_trimmed(end, ledgers[1:])
    assert is_trimmed(Position(4, 9), ledgers[1:])
    assert not is_trimmed(EARLIEST, ledgers)


def test_where_a_stream_begins() -> None:
    ledgers = [LedgerEnd(4, 9), LedgerEnd(7, 2)]
    assert entries(behind(Position(4, 8)), end_of(ledgers), ledgers)[0] == (4, 8)
    assert entries(behind(Position(4, -1)), end_of(ledgers), ledgers)[0] == (4, 0)
    assert entries(behind(Position(5, 6)), end_of(ledgers), ledgers)[0] == (7, 0)
    assert earliest([]) == end_of([]) == EARLIEST
    assert end_within(Position(9, 1), ledgers, None) == Position(9, 1), "never back"


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 50), min_size=1, max_size=6),
    st.integers(0, 100),
)
def test_shares_give_out_all_that_can_be_given(pending: dict[str, int], most: int) -> None:
    found = shares(pending, most)
    assert sum(found.values()) == min(most, sum(pending.values()))
    assert all(found[topic] <= count for topic, count in pending.items())
    short = [topic for topic in pending if found[topic] < pending[topic]]
    assert (
        max((found[t] for t in found), default=0) - min((found[t] for t in short), default=most)
        <= 1
    )


@given(
    st.dictionaries(
        st.text(),
        st.builds(Position, st.integers(0, 2**62), st.integers(-1, 2**32 - 1)) | st.just(EARLIEST),
    )
)
def test_an_offset_is_json_and_comes_back(positions: dict[str, Position]) -> None:
    assert decode_offset(json.loads(json.dumps(encode_offset(positions)))) == positions


def test_a_checkpoint_of_something_else() -> None:
    with pytest.raises(CallerError, match="checkpoint is not of this data source"):
        decode_offset({"logOffset": "x"})
