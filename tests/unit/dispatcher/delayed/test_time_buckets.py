"""The time-bucket tracker: upstream's tests of its in-memory tracker, and its known defects."""

from __future__ import annotations

import numpy as np
import pytest

from ackgate.cursor import ENTRY_ID_MAX, LEDGER_ID_MAX, Position
from ackgate.dispatcher.delayed import DelayedTracker, DelaySettings, TimeBucketTracker
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CallerError, PositionError

FIVE = [(1, 2, 20), (2, 1, 10), (3, 3, 30), (4, 5, 50), (5, 4, 40)]


def tracker_of(
    tick_ms: int = 1, *, is_strict: bool = False, lookahead: int = 0
) -> TimeBucketTracker:
    return TimeBucketTracker(
        DelaySettings(tick_ms=tick_ms, is_strict=is_strict, fixed_delay_lookahead=lookahead)
    )


def filled(tracker: TimeBucketTracker) -> TimeBucketTracker:
    for ledger_id, entry_id, deliver_at_ms in FIVE:
        assert tracker.add(Position(ledger_id, entry_id), deliver_at_ms, 0)
    return tracker


def test_it_is_a_delayed_tracker() -> None:
    tracker: DelayedTracker = tracker_of()
    assert tracker.entry_count == 0
    assert tracker.next_deadline_ms is None
    assert not tracker.has_due(TIME_MS_MAX)
    assert tracker.pop_due(TIME_MS_MAX, 10) == []


# -- time and cutoff (AbstractDeliveryTrackerTest)


def test_nothing_is_due_before_its_time() -> None:
    tracker = filled(tracker_of())
    assert tracker.entry_count == 5
    assert not tracker.has_due(0)
    assert tracker.pop_due(0, 10) == []


def test_what_is_due_already_is_refused_and_the_rest_comes_by_time() -> None:
    tracker = filled(tracker_of())
    assert not tracker.add(Position(6, 6), 10, 15)
    assert tracker.entry_count == 5
    assert tracker.has_due(15)
    assert tracker.pop_due(15, 10) == [Position(2, 1)]
    assert tracker.pop_due(60, 2) == [Position(1, 2), Position(3, 3)]
    assert tracker.pop_due(60, 10) == [Position(5, 4), Position(4, 5)]


def test_the_deadline_is_that_of_the_first_entry_whatever_comes_later() -> None:
    tracker = tracker_of(is_strict=True)
    tracker.add(Position(1, 1), 20, 0)
    assert tracker.next_deadline_ms == 20
    tracker.add(Position(1, 2), 10, 0)
    assert tracker.next_deadline_ms == 10
    tracker.add(Position(1, 3), 30, 0)
    assert tracker.next_deadline_ms == 10
    tracker.discard(Position(1, 2))
    assert tracker.next_deadline_ms == 20
    tracker.pop_due(20, 10)
    assert tracker.next_deadline_ms == 30
    tracker.discard(Position(1, 3))
    assert tracker.next_deadline_ms is None


def test_the_deadline_of_what_is_due_lies_in_the_past() -> None:
    """Upstream armed no timer then, and Key_Shared waited for ever (#26236, #21554)."""
    tracker = filled(tracker_of())
    assert tracker.next_deadline_ms == 10
    assert tracker.has_due(100)


def test_strict_takes_what_is_one_millisecond_ahead() -> None:
    tracker = tracker_of(is_strict=True)
    assert not tracker.add(Position(1, 1), 9, 10)
    assert not tracker.add(Position(4, 4), 10, 10)
    assert tracker.add(Position(1, 1), 11, 10)
    assert tracker.entry_count == 1
    assert not tracker.has_due(10)
    assert tracker.has_due(11)


@pytest.mark.parametrize(("deliver_at_ms", "tick_ms"), [(500_005, 1), (502_000, 500)])
def test_strict_is_asked_for_at_its_time(deliver_at_ms: int, tick_ms: int) -> None:
    tracker = tracker_of(tick_ms, is_strict=True)
    tracker.add(Position(1, 1), deliver_at_ms, 500_000)
    deadline = tracker.next_deadline_ms
    assert deadline is not None
    assert deliver_at_ms <= deadline < deliver_at_ms + tick_ms
    assert not tracker.has_due(deadline - 1)
    assert tracker.pop_due(deadline, 1) == [Position(1, 1)]


def test_not_strict_refuses_what_is_a_tick_ahead_at_most() -> None:
    tracker = tracker_of(1_000)
    assert not tracker.add(Position(1, 1), 11_000, 10_000)
    assert tracker.add(Position(1, 1), 11_001, 10_000)


def test_a_shorter_tick_takes_what_the_longer_one_refused() -> None:
    tracker = tracker_of(100)
    assert not tracker.add(Position(1, 1), 1_050, 1_000)
    tracker.configure(DelaySettings(tick_ms=10))
    assert tracker.add(Position(1, 1), 1_050, 1_000)


# -- the in-memory tracker (InMemoryDeliveryTrackerTest)


def test_not_paused_with_fewer_than_the_lookahead() -> None:
    assert not filled(tracker_of(8, lookahead=100)).pauses_reads(0)


def delayed_alike(count: int = 100, **settings: int) -> TimeBucketTracker:
    tracker = tracker_of(8, lookahead=100, **settings)
    for entry_id in range(count):
        assert tracker.add(Position(1, entry_id), 100 + entry_id, 0)
    return tracker


def test_paused_while_all_wait_equally_long_and_none_is_due() -> None:
    tracker = delayed_alike()
    assert tracker.pauses_reads(0)
    assert not tracker.pauses_reads(100)
    tracker.pop_due(100, 1_000)
    assert not tracker.pauses_reads(100), "fewer than the lookahead are left"


def test_a_time_before_that_of_an_earlier_entry_unpauses() -> None:
    tracker = delayed_alike()
    assert tracker.add(Position(2, 1), 199 - 8, 0)
    assert tracker.pauses_reads(0), "a tick is nothing"
    assert tracker.add(Position(2, 2), 199 - 9, 0)
    assert not tracker.pauses_reads(0)


def test_an_entry_that_does_not_wait_unpauses_until_all_are_gone() -> None:
    tracker = delayed_alike()
    assert not tracker.add(Position(2, 1), -1, 0)
    assert not tracker.pauses_reads(0)
    tracker.pop_due(1_000, 1_000)
    for entry_id in range(100):
        tracker.add(Position(3, entry_id), 5_000, 1_000)
    assert tracker.pauses_reads(1_000)


def test_arrays_are_watched_for_their_delay_too() -> None:
    tracker = tracker_of(8, lookahead=100)
    ids = np.arange(100)
    tracker.add_many(1, ids, 100 + ids, 0)
    assert tracker.pauses_reads(0)
    tracker.add_many(2, ids, 300 - ids, 0)
    assert not tracker.pauses_reads(0)


def test_a_lookahead_of_none_never_pauses() -> None:
    tracker = delayed_alike()
    tracker.configure(DelaySettings(tick_ms=8, fixed_delay_lookahead=0))
    assert not tracker.pauses_reads(0)


def test_clearing_forgets_the_pause_too() -> None:
    tracker = delayed_alike()
    tracker.add(Position(2, 1), 50, 0)
    tracker.clear()
    assert tracker.entry_count == 0
    assert not tracker.has_due(TIME_MS_MAX)
    assert tracker.next_deadline_ms is None
    assert not tracker.pauses_reads(0)
    for entry_id in range(100):
        tracker.add(Position(1, entry_id), 20 + entry_id, 0)
    assert tracker.pauses_reads(0), "what came before the clear is forgotten"


def test_within_a_bucket_entries_come_by_position() -> None:
    tracker = tracker_of(1_024)
    shuffled = [(2, 7), (1, 9), (2, 3), (1, 1), (10, 0)]
    for ledger_id, entry_id in shuffled:
        tracker.add(Position(ledger_id, entry_id), 5_000 + entry_id, 0)
    assert tracker.pop_due(9_000, 2) == [Position(1, 1), Position(1, 9)]
    assert tracker.pop_due(9_000, 9) == [Position(2, 3), Position(2, 7), Position(10, 0)]


def test_a_position_counts_once_and_keeps_its_first_time() -> None:
    tracker = tracker_of(is_strict=True)
    for deliver_at_ms in (50, 50, 90, 20):
        assert tracker.add(Position(1, 1), deliver_at_ms, 0)
    assert tracker.entry_count == 1
    assert tracker.next_deadline_ms == 50
    assert tracker.pop_due(100, 10) == [Position(1, 1)]
    assert tracker.pop_due(100, 10) == []


def test_a_position_that_is_offered_again_as_due_leaves() -> None:
    """Upstream asked "is it tracked" first, and nobody ever delivered it (#26230)."""
    tracker = tracker_of(is_strict=True)
    tracker.add(Position(1, 1), 50, 0)
    assert not tracker.add(Position(1, 1), 5, 10)
    assert Position(1, 1) not in tracker
    assert tracker.tracked(1) is None
    assert tracker.pop_due(100, 10) == []


@pytest.mark.parametrize("is_strict", [True, False])
def test_what_was_popped_is_not_taken_back(is_strict: bool) -> None:
    """Upstream popped early, read, and took the entry back into the bucket that was due (#25996)."""
    for deliver_at_ms in range(60_000, 62_050, 50):
        tracker = tracker_of(1_000, is_strict=is_strict)
        assert tracker.add(Position(1, 1), deliver_at_ms, 0)
        now_ms = tracker.next_deadline_ms
        assert now_ms is not None
        assert deliver_at_ms <= now_ms < deliver_at_ms + 512
        if not is_strict:
            now_ms -= 1_000  # with another entry
            assert deliver_at_ms - 1_000 <= now_ms < deliver_at_ms
        assert tracker.pop_due(now_ms - 1, 10) == []
        assert tracker.pop_due(now_ms, 10) == [Position(1, 1)]
        assert not tracker.add(Position(1, 1), deliver_at_ms, now_ms)


# -- discards


def test_what_was_discarded_and_comes_again_has_its_new_time() -> None:
    tracker = tracker_of(is_strict=True)
    tracker.add(Position(1, 1), 50, 0)
    tracker.add(Position(1, 2), 50, 0)
    assert tracker.discard(Position(1, 1))
    assert not tracker.discard(Position(1, 1))
    assert tracker.add(Position(1, 1), 90, 0)
    assert tracker.pop_due(60, 10) == [Position(1, 2)]
    assert tracker.add(Position(1, 1), 40, 0), "it is tracked, and keeps its time"
    assert tracker.next_deadline_ms == 90
    assert tracker.pop_due(90, 10) == [Position(1, 1)]
    tracker.check()


def test_discards_of_half_of_all_cost_no_memory_for_long() -> None:
    tracker = tracker_of(is_strict=True)
    for ledger_id in range(20):
        ids = np.arange(10_000)
        tracker.add_many(ledger_id, ids, 1_000 + ids * 7 % 9_973, 0)
    full = tracker.byte_estimate
    assert tracker.forget_through(Position(18, 9_999)) == 190_000
    assert tracker.byte_estimate < full / 3
    assert tracker.entry_count == 10_000
    tracker.check()
    assert len(tracker.pop_due(20_000, 100_000)) == 10_000
    assert tracker.byte_estimate < 10_000


def test_deadlines_stay_exact_while_the_first_ones_are_acked_one_by_one() -> None:
    tracker = tracker_of(is_strict=True)
    for entry_id in range(300):
        tracker.add(Position(1, entry_id), 100 + entry_id // 100, 0)
    for entry_id in range(299):
        tracker.discard(Position(1, entry_id))
        assert tracker.next_deadline_ms == 100 + (entry_id + 1) // 100


# -- arrays


def test_arrays_say_for_each_entry_whether_it_is_tracked() -> None:
    tracker = tracker_of(is_strict=True)
    tracker.add(Position(1, 3), 70, 0)
    tracked = tracker.add_many(1, [5, 3, 4, 9], [50, 20, 10, -1], 10)
    assert tracked.tolist() == [True, True, False, False]
    assert tracker.pop_due(100, 10) == [Position(1, 5), Position(1, 3)]


def test_an_array_that_names_an_entry_twice_is_taken_in_its_order() -> None:
    tracker = tracker_of(is_strict=True)
    assert tracker.add_many(1, [5, 5, 6, 6], [50, 20, 5, 70], 10).tolist() == [
        True,
        True,
        False,
        True,
    ]
    assert tracker.next_deadline_ms == 50
    tracker.check()


def test_an_empty_array_changes_nothing() -> None:
    tracker = tracker_of()
    assert tracker.add_many(1, [], [], 10).tolist() == []
    assert tracker.entry_count == 0


# -- input that makes no sense


@pytest.mark.parametrize("deliver_at_ms", [-(2**63), -5, -1, 0, 1, 10])
def test_times_that_are_over_are_not_delays(deliver_at_ms: int) -> None:
    tracker = tracker_of(is_strict=True)
    assert not tracker.add(Position(1, 1), deliver_at_ms, 10)
    assert not tracker.add_many(1, [1], [deliver_at_ms], 10).any()
    assert tracker.entry_count == 0


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("deliver_at_ms", [TIME_MS_MAX, TIME_MS_MAX - 1, TIME_MS_MAX - 700])
def test_the_last_times_there_are_stay_times(deliver_at_ms: int, is_strict: bool) -> None:
    tracker = tracker_of(1_000, is_strict=is_strict)
    assert tracker.add(Position(1, 1), deliver_at_ms, 0)
    assert tracker.add_many(1, [2], [deliver_at_ms], 0).all()
    deadline = tracker.next_deadline_ms
    assert deadline is not None
    assert 0 < deadline <= TIME_MS_MAX
    assert deadline >= deliver_at_ms
    assert tracker.has_due(deadline)
    assert tracker.pop_due(TIME_MS_MAX, 5) == [Position(1, 1), Position(1, 2)]


@pytest.mark.parametrize("wrong", [2**63, 1.5, float("nan"), float("inf"), "9", None])
def test_times_that_are_none_are_refused_and_change_nothing(wrong: object) -> None:
    tracker = filled(tracker_of())
    with pytest.raises(CallerError):
        tracker.add(Position(1, 9), wrong, 0)  # type: ignore[arg-type]
    with pytest.raises(CallerError):
        tracker.add_many(1, [9], [wrong], 0)  # type: ignore[list-item]
    if not isinstance(wrong, int):
        with pytest.raises(CallerError):
            tracker.add(Position(1, 9), 50, wrong)  # type: ignore[arg-type]
    with pytest.raises(CallerError):
        tracker.add_many(1, [8, 9], [50], 0)
    assert tracker.entry_count == 5
    tracker.check()


@pytest.mark.parametrize(
    "position",
    [(1, -1), (-1, 1), (1, ENTRY_ID_MAX + 1), (LEDGER_ID_MAX + 1, 1), (-1, -1)],
)
def test_positions_that_no_entry_has_are_refused(position: tuple[int, int]) -> None:
    tracker = filled(tracker_of())
    with pytest.raises(PositionError):
        tracker.add(Position(*position), 50, 0)
    with pytest.raises(PositionError):
        tracker.add_many(position[0], [7, position[1]], [50, 50], 0)
    assert Position(*position) not in tracker
    assert not tracker.discard(Position(*position))
    assert tracker.entry_count == 5


def test_numbers_of_numpy_are_numbers() -> None:
    tracker = tracker_of(is_strict=True)
    assert tracker.add(Position(1, 1), np.int64(50), np.int64(0))  # type: ignore[arg-type]
    assert tracker.next_deadline_ms == 50


@pytest.mark.slow
def test_counts_and_memory_are_known_at_any_time() -> None:
    tracker = tracker_of(1_024)
    empty = tracker.byte_estimate
    ids = np.arange(50_000)
    for ledger_id in range(4):
        tracker.add_many(ledger_id, ids, 5_000_000 + (ledger_id * 50_000 + ids) // 4, 0)
    assert tracker.entry_count == 200_000
    assert tracker.byte_estimate - empty < 12_000, "runs cost next to nothing"
    assert len(tracker.pop_due(10_000_000, 2_000_000)) == 200_000
    assert tracker.byte_estimate == empty
