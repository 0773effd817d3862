"""The nack tracker: when nacked entries come back, what takes them away, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, LATEST, Position
from ackgate.dispatcher.nacks import (
    WHOLE,
    MultiplierRedeliveryBackoff,
    NackSettings,
    NackTracker,
)
from ackgate.errors import CallerError, PositionError

NOW = 1_700_000_000_123
HERE = Position(3, 1)
THERE = Position(3, 2)


def exact() -> NackTracker:
    return NackTracker(NackSettings(precision_bits=0))


def due_at(tracker: NackTracker, *times_ms: int) -> list[list[Position]]:
    popped = []
    for at_ms in times_ms:
        popped.append(tracker.pop_due(at_ms, 1_000).positions)
        tracker.check()
    return popped


# -- when


@pytest.mark.parametrize("bits", range(13))
def test_never_late_and_early_by_less_than_a_bucket(bits: int) -> None:
    tracker = NackTracker(NackSettings(delay_ms=2_000, precision_bits=bits))
    for now_ms in range(NOW, NOW + 5_000, 37):
        deadline_ms = tracker.add(HERE, now_ms)
        assert now_ms + 2_000 - 2**bits < deadline_ms <= now_ms + 2_000
        assert tracker.next_deadline_ms == deadline_ms
        assert due_at(tracker, deadline_ms - 1, deadline_ms) == [[], [HERE]]


def test_configured_delay_has_a_floor_that_backoff_has_not() -> None:
    assert NackSettings(delay_ms=10).delay_of(0) == 100
    assert NackSettings(backoff=MultiplierRedeliveryBackoff(10, 100)).delay_of(0) == 10
    tracker = NackTracker(NackSettings(delay_ms=10, precision_bits=0))
    assert tracker.add(HERE, NOW) == NOW + 100
    assert tracker.add(HERE, NOW, delay_ms=10) == NOW + 10


def test_backoff_by_redelivery_count() -> None:
    backoff = MultiplierRedeliveryBackoff(10, 100, jitter=0.5)
    tracker = NackTracker(NackSettings(backoff=backoff, precision_bits=0))
    waits = [tracker.add(HERE, NOW, redelivery_count=count) - NOW for count in range(6)]
    assert waits == [10, 20, 40, 80, 100, 100]
    assert tracker.add(HERE, NOW, redelivery_count=1, chance=0.5) == NOW + 15
    tracker.add_many(3, [5, 6], NOW, redelivery_counts=[0, 2])
    assert due_at(tracker, NOW + 10, NOW + 15, NOW + 40) == [
        [Position(3, 5)],
        [HERE],
        [Position(3, 6)],
    ]


def test_no_delay_is_due_at_once() -> None:
    tracker = NackTracker()
    assert tracker.add(HERE, NOW, delay_ms=0) <= NOW
    assert due_at(tracker, NOW) == [[HERE]]


def test_settings_hold_from_the_next_nack_on() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=333)
    tracker.configure(NackSettings(precision_bits=8, delay_ms=1_000))
    assert tracker.add(THERE, NOW) == (NOW + 1_000) & -256
    assert tracker.next_deadline_ms == NOW + 333


# -- again, and away


def test_shorter_later_nack_is_on_time() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=60_000)
    tracker.add(THERE, NOW + 1, delay_ms=500)
    assert tracker.next_deadline_ms == NOW + 501
    assert due_at(tracker, NOW + 500, NOW + 501, NOW + 60_000) == [[], [THERE], [HERE]]


@pytest.mark.parametrize(("first", "then"), [(500, 9_000), (9_000, 500)])
def test_later_nack_of_the_same_entry_counts(first: int, then: int) -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=first)
    tracker.add(HERE, NOW, delay_ms=then)
    assert (len(tracker), tracker.next_deadline_ms) == (1, NOW + then)
    assert due_at(tracker, NOW + then - 1, NOW + then, NOW + 90_000) == [[], [HERE], []]


def test_messages_of_a_batch_wait_each_for_its_own_time() -> None:
    """PIP-393: message 1 after 10 s, message 2 after 20 s; upstream's old tracker: both after 20."""
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=10_000, indexes=0b010)
    tracker.add(HERE, NOW, delay_ms=20_000, indexes=0b100)
    assert (tracker.whole_count, len(tracker)) == (0, 2)
    assert tracker.tracked(3) is None, "other messages of the entry are not held back"
    assert tracker.pop_due(NOW + 10_000, 9) == ([HERE], {HERE: 0b010})
    assert tracker.indexes(HERE) == 0b100
    assert tracker.pop_due(NOW + 20_000, 9) == ([HERE], {HERE: 0b100})


def test_messages_due_together_come_together() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=10, indexes=0b010)
    tracker.add(HERE, NOW, delay_ms=20, indexes=0b100)
    tracker.add(THERE, NOW, delay_ms=15)
    assert tracker.pop_due(NOW + 20, 9) == ([HERE, THERE], {HERE: 0b110})


def test_a_message_taken_out_of_the_whole() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=100)
    tracker.add(HERE, NOW, delay_ms=50, indexes=0b1)
    tracker.add(THERE, NOW, delay_ms=100)
    assert tracker.pop_due(NOW + 50, 9).indexes == {HERE: 0b1}
    assert tracker.pop_due(NOW + 100, 9) == ([HERE, THERE], {HERE: ~0b1})


def test_whole_nack_replaces_those_of_messages() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=50, indexes=0b1)
    tracker.add(HERE, NOW, delay_ms=100)
    assert (len(tracker), tracker.indexes(HERE)) == (1, WHOLE)
    assert tracker.pop_due(NOW + 100, 9) == ([HERE], {})


def test_ack_takes_a_nack_away() -> None:
    tracker = exact()
    tracker.add(HERE, NOW)
    assert tracker.discard(HERE)
    assert not tracker.discard(HERE)
    assert HERE not in tracker
    assert (len(tracker), tracker.next_deadline_ms, tracker.byte_estimate) == (0, None, 0)


def test_nack_after_an_ack_counts_alone() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=10)
    tracker.add(THERE, NOW, delay_ms=5)
    tracker.discard(HERE)
    tracker.add(HERE, NOW, delay_ms=20)
    assert due_at(tracker, NOW + 10, NOW + 19, NOW + 20) == [[THERE], [], [HERE]]


def test_ack_of_messages() -> None:
    tracker = exact()
    tracker.add(HERE, NOW, delay_ms=5, indexes=0b110)
    assert tracker.discard_indexes(HERE, 0b011)
    assert not tracker.discard_indexes(HERE, 0b011)
    assert tracker.pop_due(NOW + 5, 9).indexes == {HERE: 0b100}
    tracker.add(HERE, NOW, delay_ms=5)
    assert tracker.discard_indexes(HERE, 0b1)
    assert not tracker.discard_indexes(HERE, 0b1)
    assert not tracker.discard_indexes(THERE, 0b1)
    assert tracker.tracked(3) == BitMap([1])
    assert tracker.pop_due(NOW + 5, 9).indexes == {HERE: ~0b1}


def test_what_is_below_the_mark_delete_is_forgotten() -> None:
    tracker = exact()
    for ledger_id in (1, 2, 3):
        tracker.add_many(ledger_id, np.arange(100_000), NOW, delays_ms=ledger_id)
    tracker.add(Position(2, 5), NOW, delay_ms=9, indexes=1)
    assert tracker.forget_through(Position(0, 7)) == 0
    assert tracker.forget_through(Position(2, 69_999)) == 170_000
    tracker.check()
    assert tracker.tracked(1) is None
    assert tracker.tracked(2) == BitMap(range(70_000, 100_000))
    assert tracker.forget_through(Position(2, 69_999)) == 0
    assert tracker.next_deadline_ms == NOW + 2
    assert tracker.forget_through(LATEST) == 130_000
    assert len(tracker) == 0


def test_pop_takes_the_lowest_of_a_bucket_first() -> None:
    tracker = NackTracker()
    tracker.add_many(9, [70_000, 3], NOW, delays_ms=0)
    tracker.add_many(4, [8, 9], NOW, delays_ms=0)
    first = tracker.pop_due(NOW, 3).positions
    assert first == [Position(4, 8), Position(4, 9), Position(9, 3)]
    assert tracker.pop_due(NOW, 3).positions == [Position(9, 70_000)]


def test_what_was_popped_is_the_callers() -> None:
    tracker = NackTracker()
    tracker.add(HERE, NOW, delay_ms=0)
    assert due_at(tracker, NOW, NOW) == [[HERE], []]
    assert HERE not in tracker
    tracker.add(HERE, NOW, delay_ms=0)
    assert due_at(tracker, NOW) == [[HERE]]


def test_a_million_in_runs_take_kilobytes() -> None:
    """10,000 nacks a second, an hour's delay each: Pulsar's old map takes 53 bytes for each."""
    tracker = NackTracker()
    ids = np.arange(50_000)
    for ledger_id in range(20):
        delays = 3_600_000 + (ids + 50_000 * ledger_id) // 10
        assert tracker.add_many(ledger_id, ids, NOW, delays_ms=delays) == 50_000
    tracker.add(Position(20, 0), NOW + 1_000)
    assert tracker.byte_estimate < 1_000_000 * 53 / 100
    assert tracker.whole_count == 1_000_001


# -- as values


def full() -> NackTracker:
    tracker = NackTracker()
    tracker.add_many(3, np.arange(10), NOW, delays_ms=np.arange(0, 10_000, 1_000))
    tracker.add_many(2**63 - 1, [0, ENTRY_ID_MAX], NOW, delays_ms=5_000)
    tracker.add(Position(3, 9), NOW, delay_ms=700, indexes=0b11)
    tracker.add(Position(8, 8), NOW, delay_ms=900, indexes=0b11)
    return tracker


def test_parts_and_back() -> None:
    tracker = full()
    kept = NackTracker.restore(tracker.parts())
    kept.check()
    assert kept.whole_count == tracker.whole_count == 12
    assert [(*part[:2], list(part[2])) for part in kept.parts()] == [
        (*part[:2], list(part[2])) for part in tracker.parts()
    ]
    assert len(NackTracker.restore(())) == 0


def test_past_keys_are_due_after_a_restart() -> None:
    tracker = NackTracker.restore([(0, 3, BitMap([1]))])
    assert tracker.next_deadline_ms == 0
    assert due_at(tracker, NOW) == [[HERE]]


# -- what is refused


@pytest.mark.parametrize(
    "delay", [-1, 2**63, 2**63 - NOW, 10**30, 1.5, math.nan, math.inf, True, "5"]
)
def test_delays_that_cannot_be(delay: object) -> None:
    tracker = full()
    before = str(list(tracker.parts()))
    with pytest.raises(CallerError, match=r"delay|now"):
        tracker.add(HERE, NOW, delay_ms=delay)  # type: ignore[arg-type]
    for delays in (delay, [delay, delay], [5, -1]):
        with pytest.raises(CallerError, match=r"delay|now"):
            tracker.add_many(3, [1, 2], NOW, delays_ms=delays)  # type: ignore[arg-type]
    assert str(list(tracker.parts())) == before
    assert len(tracker) == 14


def test_longest_delay() -> None:
    tracker = NackTracker()
    tracker.add(HERE, NOW, delay_ms=2**63 - 1 - NOW)
    tracker.add_many(3, [2], NOW, delays_ms=[2**63 - 1 - NOW])
    assert tracker.next_deadline_ms == 2**63 - 256
    assert due_at(tracker, NOW, 2**63 - 1) == [[], [HERE, THERE]]


@pytest.mark.parametrize(
    "position", [(-1, 0), (3, -1), (3, 2**32), (2**63, 0), (3, 1.0), (math.nan, 1), (True, 1)]
)
def test_positions_that_cannot_be(position: tuple) -> None:
    tracker = full()
    with pytest.raises(PositionError):
        tracker.add(Position(*position), NOW)
    with pytest.raises(PositionError):
        tracker.add_many(position[0], [0, position[1]], NOW)
    assert len(tracker) == 14
    tracker.check()


@pytest.mark.parametrize("indexes", [0, -2, 1.5, True, pytest.param(1 << (1 << 20), id="too long")])
def test_masks_that_cannot_be(indexes: int) -> None:
    tracker = full()
    with pytest.raises(CallerError, match="mask"):
        tracker.add(HERE, NOW, indexes=indexes)
    with pytest.raises(CallerError, match="mask"):
        tracker.discard_indexes(HERE, indexes)
    assert len(tracker) == 14


def test_columns_that_do_not_pair() -> None:
    tracker = full()
    with pytest.raises(CallerError, match="3 delays do not pair with 2 entries"):
        tracker.add_many(3, [1, 2], NOW, delays_ms=[1, 2, 3])
    with pytest.raises(CallerError, match="1 delays do not pair with 2 entries"):
        tracker.add_many(3, [1, 2], NOW, delays_ms=[1])
    tracker.configure(NackSettings(backoff=MultiplierRedeliveryBackoff()))
    with pytest.raises(CallerError, match="1 delays do not pair with 2 entries"):
        tracker.add_many(3, [1, 2], NOW, redelivery_counts=[1])
    assert tracker.add_many(3, [], NOW) == 0
    assert len(tracker) == 14


@pytest.mark.parametrize("bits", [-1, 41, 1.5, True, math.nan])
def test_precision_that_cannot_be(bits: int) -> None:
    with pytest.raises(CallerError, match="precision bits must be 0 to 40"):
        NackSettings(precision_bits=bits)
