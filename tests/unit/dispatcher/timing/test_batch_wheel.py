"""The wheel for arrays: what its arguments may be, and that it is the same wheel."""

from __future__ import annotations

import numpy as np
import pytest

from ackgate.dispatcher.timing import BatchWheel, TimingWheel
from ackgate.errors import CallerError

NOW = 1_700_000_000_123


def test_it_hands_out_what_the_other_wheel_does_in_the_same_order() -> None:
    numbers = np.random.default_rng(3)
    delays = numbers.integers(-100, 3_000_000, 20_000)
    batch = BatchWheel(start_ms=NOW)
    single: TimingWheel[int] = TimingWheel(start_ms=NOW)
    batch.add(np.arange(delays.size), NOW + delays)
    timers = [single.schedule(each, NOW + delay) for each, delay in enumerate(delays.tolist())]
    cancelled = numbers.permutation(delays.size)[:7_000]
    assert batch.cancel(cancelled) == 7_000
    for each in cancelled.tolist():
        single.cancel(timers[each])
    now = NOW
    while batch.size:
        assert batch.size == single.size
        assert batch.next_deadline_ms == single.next_deadline_ms
        now += int(numbers.integers(1, 300_000))
        assert batch.advance(now, 1 << 30).tolist() == list(single.advance(now, 1 << 30))
    batch.check()


def test_an_id_twice_in_one_array_means_the_last() -> None:
    wheel = BatchWheel(start_ms=NOW)
    wheel.add([7, 7, 8, 7], [NOW + 1, NOW + 2, NOW + 3, NOW + 4])
    assert wheel.size == 2
    assert wheel.advance(NOW + 10, 10).tolist() == [8, 7]


def test_adding_again_moves() -> None:
    wheel = BatchWheel(start_ms=NOW)
    wheel.add([1, 2, 3], [NOW + 10] * 3)
    wheel.add([2], [NOW + 50_000])
    assert wheel.size == 3
    assert wheel.advance(NOW + 10, 10).tolist() == [1, 3]
    wheel.add([2], [NOW + 20])
    assert wheel.next_deadline_ms == NOW + 20
    assert wheel.advance(NOW + 100_000, 10).tolist() == [2]
    wheel.check()


def test_cancelling_what_is_not_there_counts_nothing() -> None:
    wheel = BatchWheel(start_ms=NOW)
    wheel.add([1, 2], [NOW + 10] * 2)
    assert wheel.cancel([2, 2, 5, 1_000_000]) == 1
    assert wheel.cancel([2]) == 0
    assert wheel.cancel([]) == 0
    assert wheel.is_live([1, 2, 3]).tolist() == [True, False, False]


def test_what_is_due_and_not_taken_can_still_be_cancelled() -> None:
    wheel = BatchWheel(start_ms=NOW)
    wheel.add(np.arange(10), np.full(10, NOW + 5))
    assert wheel.advance(NOW + 5, 3).tolist() == [0, 1, 2]
    assert wheel.next_deadline_ms == NOW + 5
    assert wheel.cancel([3, 4, 9]) == 3
    assert wheel.advance(NOW + 5, 100).tolist() == [5, 6, 7, 8]
    assert wheel.next_deadline_ms is None


def test_deadlines_of_any_size() -> None:
    wheel = BatchWheel(tick_ms=10, start_ms=NOW)
    wheel.add([1, 2, 3], np.array([2**64 - 1, 2**63, NOW], dtype=np.uint64))
    wheel.add([4, 5], np.array([-(2**63), 2**63 - 1]))
    assert wheel.advance(NOW, 10).tolist() == [4]
    assert wheel.advance(NOW + 10, 10).tolist() == [3]
    assert wheel.advance(2**62, 10).size == 0
    assert wheel.cancel([1, 2, 5]) == 3


@pytest.mark.parametrize(
    ("ids", "deadlines", "says"),
    [
        ([1], [float("nan")], "nan"),
        ([1], [1.5], "1.5"),
        ([1.0], [1], "ids must be integers"),
        ([True], [1], "ids must be integers"),
        ([-1], [1], "id -1"),
        ([100], [1], "id 100"),
        ([1, 2], [1], "2 ids do not pair with 1 deadlines"),
        ([[1]], [1], "one-dimensional"),
        ([1, [2]], [1, 2], "no array"),
        ([1], [2**64], "deadlines_ms"),
    ],
)
def test_bad_arrays_are_refused_and_change_nothing(ids: list, deadlines: list, says: str) -> None:
    wheel = BatchWheel(start_ms=NOW, ids_max=100)
    wheel.add([1], [NOW + 10])
    with pytest.raises(CallerError, match=says):
        wheel.add(ids, deadlines)
    assert wheel.size == 1
    assert wheel.advance(NOW + 10, 10).tolist() == [1]
    wheel.check()


def test_a_timer_costs_some_tens_of_bytes() -> None:
    count = 200_000
    wheel = BatchWheel(start_ms=NOW)
    wheel.add(np.arange(count), NOW + np.random.default_rng(1).integers(0, 600_000, count))
    assert wheel.byte_size < 64 * count
    for begin in range(0, count, 10_000):  # what is cancelled and added again takes no more room
        ids = np.arange(begin, begin + 10_000)
        wheel.cancel(ids)
        wheel.add(ids, np.full(ids.size, NOW + 5_000_000))
    assert wheel.byte_size < 128 * count
