"""Which messages of a producer are new, stored already, or on their way."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ackgate.broker.deduplication import Deduplication, Verdict


def test_a_message_is_new_once_then_unknown_until_durable_then_a_duplicate() -> None:
    dedup = Deduplication({}, 100)
    assert dedup.check("p", 0, 0) is Verdict.NEW
    assert dedup.check("p", 0, 0) is Verdict.UNKNOWN
    dedup.confirmed("p", 0, 0)
    assert dedup.check("p", 0, 0) is Verdict.DUPLICATE
    assert dedup.check("p", 1, 1) is Verdict.NEW


def test_a_batch_counts_by_its_highest_sequence_id() -> None:
    dedup = Deduplication({}, 100)
    assert dedup.check("p", 0, 9) is Verdict.NEW
    dedup.confirmed("p", 0, 9)
    assert dedup.check("p", 5, 9) is Verdict.DUPLICATE
    assert dedup.last_sequence_id("p") == 9


def test_what_failed_may_be_sent_again() -> None:
    dedup = Deduplication({"p": 4}, 100)
    assert dedup.check("p", 5, 5) is Verdict.NEW
    dedup.failed("p")
    assert dedup.check("p", 5, 5) is Verdict.NEW
    assert dedup.check("p", 4, 4) is Verdict.DUPLICATE


def test_producers_do_not_disturb_each_other() -> None:
    dedup = Deduplication({"a": 7}, 100)
    assert dedup.check("b", 0, 0) is Verdict.NEW
    assert dedup.last_sequence_id("a") == 7
    assert dedup.last_sequence_id("b") == -1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), max_size=60))
def test_no_sequence_id_is_stored_twice(sends: list[tuple[str, int]]) -> None:
    dedup = Deduplication({}, 100)
    stored: set[tuple[str, int]] = set()
    for name, sequence_id in sends:
        if dedup.check(name, sequence_id, sequence_id) is Verdict.NEW:
            assert (name, sequence_id) not in stored
            stored.add((name, sequence_id))
            dedup.confirmed(name, sequence_id, sequence_id)


def test_the_least_recently_confirmed_producer_is_forgotten_first() -> None:
    dedup = Deduplication({}, 2)
    for name in ("a", "b", "a", "c"):
        dedup.check(name, 5, 5)
        dedup.confirmed(name, 5, 5)
    assert dict(dedup.sequence_ids) == {"a": 5, "c": 5}
