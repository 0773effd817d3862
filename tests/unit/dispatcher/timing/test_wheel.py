"""The timing wheel: what Kafka's, Netty's and asyncio's tests and bugs ask of one."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

from ackgate.dispatcher.timing import TIMERS_MAX_PER_ADVANCE, TimingWheel
from ackgate.errors import CallerError

NOW = 1_700_000_000_123


def fire(wheel: TimingWheel, now_ms: int, most: int = 1_000_000) -> list:
    wheel.check()
    handed = list(wheel.advance(now_ms, most))
    wheel.check()
    return handed


@pytest.mark.parametrize("tick_ms", [1, 2, 7, 10, 1_000])
@pytest.mark.parametrize("phase", [0, 1, 6, 999])
def test_never_early_and_late_by_less_than_a_tick(tick_ms: int, phase: int) -> None:
    start = NOW + phase
    wheel = TimingWheel(tick_ms=tick_ms, slots_per_level=4, start_ms=start)
    for delay in range(200):
        wheel.schedule(start + delay, start + delay)
    fired = {}
    for now in range(start, start + 200 + tick_ms):
        fired |= dict.fromkeys(wheel.advance(now), now)
    assert len(fired) == 200
    assert all(0 <= now - deadline < tick_ms for deadline, now in fired.items())


@pytest.mark.parametrize("beyond", [2**63 - 2, 2**63 - 1, 2**63, 2**64, 2**200])
def test_a_deadline_near_or_beyond_64_bits_is_kept_and_disturbs_nothing(beyond: int) -> None:
    wheel = TimingWheel(slots_per_level=20, start_ms=NOW)
    far = wheel.schedule("far", beyond)
    wheel.schedule("near", NOW + 5)
    assert wheel.next_deadline_ms == NOW + 5
    assert fire(wheel, NOW + 5) == ["near"]
    assert fire(wheel, 2**63 - 3) == []
    assert wheel.size == 1
    assert (fire(wheel, 2**70) == ["far"]) == (beyond == 2**63 - 2)  # the last tick there is
    assert wheel.cancel(far) == (beyond > 2**63 - 2)
    assert wheel.next_deadline_ms is None


@pytest.mark.parametrize("deadline", [NOW, NOW - 1, 0, -1, -(2**63), -(2**90)])
def test_what_is_due_already_is_handed_out_at_once_and_once(deadline: int) -> None:
    wheel = TimingWheel(start_ms=NOW)
    wheel.schedule("now", deadline)
    assert wheel.size == 1
    assert wheel.next_deadline_ms == NOW
    assert fire(wheel, NOW) == ["now"]
    assert fire(wheel, NOW + 1_000) == []
    assert wheel.size == 0


def test_every_id_once_and_sorted_from_a_wheel_of_three() -> None:
    wheel = TimingWheel(slots_per_level=3)
    delays = list(range(500)) * 2
    random.Random(7).shuffle(delays)
    for number, delay in enumerate(delays):
        wheel.schedule((delay, number), delay)
    handed = []
    for now in range(500):
        handed += wheel.advance(now)
    assert handed == sorted((delay, number) for number, delay in enumerate(delays))


def test_rearming_moves_and_leaves_no_orphan() -> None:
    wheel = TimingWheel(start_ms=NOW)
    first = wheel.schedule("a", NOW + 10)
    second = wheel.rearm(first, NOW + 500_000)
    assert wheel.size == 1
    assert not wheel.is_live(first)
    assert not wheel.cancel(first)
    assert fire(wheel, NOW + 10) == []
    third = wheel.rearm(second, NOW + 20)
    assert wheel.next_deadline_ms == NOW + 20
    assert fire(wheel, NOW + 600_000) == ["a"]
    with pytest.raises(CallerError, match="not live"):
        wheel.rearm(third, NOW)


def test_cancel_twice_after_the_hand_out_and_of_what_was_never_there() -> None:
    wheel = TimingWheel(start_ms=NOW)
    timer = wheel.schedule("a", NOW + 10)
    assert wheel.cancel(timer)
    assert not wheel.cancel(timer)
    handed = wheel.schedule("b", NOW + 10)
    assert fire(wheel, NOW + 10) == ["b"]
    assert not wheel.cancel(handed)
    assert not wheel.cancel(2**40 + 10_000_000)


def test_a_handle_of_old_never_means_a_new_timer() -> None:
    wheel = TimingWheel(start_ms=NOW)
    handles = set()
    for _ in range(1_000):
        timer = wheel.schedule("a", NOW + 10)
        assert timer not in handles
        handles.add(timer)
        assert wheel.cancel(timer)
        assert wheel.next_deadline_ms is None
    assert not any(map(wheel.cancel, handles))


def test_a_cancelled_timer_lets_go_of_its_item_at_once() -> None:
    class Item:
        pass

    wheel: TimingWheel[Item] = TimingWheel(start_ms=NOW)
    timer = wheel.schedule(Item(), NOW + 10)
    item = weakref.ref(wheel.item(timer))
    wheel.cancel(timer)
    gc.collect()
    assert item() is None
    assert wheel.item(timer) is None


def test_what_is_carried_out_cancels_one_that_is_due_with_it() -> None:
    wheel = TimingWheel(start_ms=NOW)
    timers = {name: wheel.schedule(name, NOW + 5) for name in "abcd"}
    handed = []
    for name in wheel.advance(NOW + 5):
        handed.append(name)
        if name == "b":
            assert wheel.cancel(timers["c"])
            assert wheel.size == 1
    assert handed == ["a", "b", "d"]


def test_what_is_carried_out_cancels_in_the_middle_of_a_cascade() -> None:
    wheel = TimingWheel(slots_per_level=4, start_ms=0)
    timers = {delay: wheel.schedule(delay, delay) for delay in range(1, 60)}
    for delay in wheel.advance(100):
        for other in (delay + 1, delay + 7):
            if other in timers:
                wheel.cancel(timers[other])
        wheel.check()
    assert wheel.size == 0


def test_what_is_carried_out_schedules_for_now_and_for_later() -> None:
    wheel = TimingWheel(start_ms=NOW)
    wheel.schedule("first", NOW + 5)
    handed = []
    for name in wheel.advance(NOW + 100):
        handed.append(name)
        if name == "first":
            wheel.schedule("now", NOW)
            wheel.schedule("soon", NOW + 50)
            wheel.schedule("later", NOW + 101)
    assert handed == ["first", "now", "soon"]
    assert wheel.size == 1


def test_one_that_schedules_itself_for_now_does_not_hold_the_advance_for_ever() -> None:
    wheel = TimingWheel(start_ms=NOW)
    wheel.schedule("again", NOW)
    count = 0
    for name in wheel.advance(NOW):
        count += 1
        wheel.schedule(name, NOW)
    assert count == TIMERS_MAX_PER_ADVANCE
    assert wheel.size == 1


def test_what_is_not_fetched_stays_due() -> None:
    """As when carrying out one of them raises."""
    wheel = TimingWheel(start_ms=NOW)
    for number in range(5):
        wheel.schedule(number, NOW + number)
    for number in wheel.advance(NOW + 10):
        if number == 2:
            break
    assert wheel.size == 2
    assert wheel.next_deadline_ms <= NOW + 10
    assert fire(wheel, NOW + 10) == [3, 4]


def test_one_slot_serves_several_rounds() -> None:
    """Netty #12888: a timer of a later round in the same slot ended the search."""
    wheel = TimingWheel(slots_per_level=4)
    for delay in (65, 1, 17, 33, 2):
        wheel.schedule(delay, delay)
    assert [fire(wheel, now) for now in (1, 2, 17, 33, 65)] == [[1], [2], [17], [33], [65]]


def test_a_slot_is_used_again_after_the_wheel_has_turned() -> None:
    wheel = TimingWheel(slots_per_level=4)
    for now in range(40):
        wheel.schedule(now, now + 3)
        assert fire(wheel, now) == ([now - 3] if now >= 3 else [])


def test_a_million_in_one_tick_are_handed_out_in_bounded_steps() -> None:
    wheel = TimingWheel(start_ms=NOW)
    count = 200_000  # enough for many steps of every kind
    deadline = NOW + 10_000_000
    for number in range(count):
        wheel.schedule(number, deadline)
    handed: list[int] = []
    moved = []
    while wheel.size:
        before = wheel._levels.moved_count
        handed += wheel.advance(deadline, 1_000)
        moved.append(wheel._levels.moved_count - before)
    assert handed == list(range(count))
    assert max(moved) <= 3 * 16_384


def test_an_idle_wheel_does_not_wake() -> None:
    wheel = TimingWheel(start_ms=NOW)
    assert wheel.next_deadline_ms is None
    timer = wheel.schedule("a", NOW + 86_400_000)
    steps = 0
    while wheel.size:
        steps += 1
        assert len(fire(wheel, wheel.next_deadline_ms)) == (wheel.size == 0)
    assert steps <= wheel.level_count
    assert not wheel.is_live(timer)


def test_years_of_emptiness_cost_nothing() -> None:
    year = 365 * 86_400_000
    wheel = TimingWheel(slots_per_level=20, start_ms=NOW)
    wheel.schedule("a", NOW + 1_000 * year + 1)
    assert fire(wheel, NOW + 1_000 * year) == []
    assert wheel._levels.moved_count <= 20
    assert fire(wheel, NOW + 1_000 * year + 1) == ["a"]


def test_next_deadline_forgets_what_was_cancelled() -> None:
    wheel = TimingWheel(start_ms=NOW)
    timers = [wheel.schedule(delay, NOW + delay) for delay in (5, 5, 9, 70_000)]
    assert wheel.next_deadline_ms == NOW + 5
    wheel.cancel(timers[0])
    assert wheel.next_deadline_ms == NOW + 5
    wheel.cancel(timers[1])
    assert wheel.next_deadline_ms == NOW + 9
    wheel.cancel(timers[2])
    assert NOW + 9 < wheel.next_deadline_ms <= NOW + 70_000
    wheel.cancel(timers[3])
    assert wheel.next_deadline_ms is None


def test_cancelled_timers_are_bounded_by_the_live_ones() -> None:
    """A request a millisecond, answered at once, with a time-out of an hour."""
    wheel = TimingWheel(start_ms=NOW)
    wheel.schedule("long", NOW + 10**9)
    for number in range(50_000):
        timer = wheel.schedule(number, NOW + 3_600_000)
        if number > 100:
            wheel.cancel(timer)
    assert wheel.size == 102
    assert len(wheel._timers) < 1_000
    wheel.check()


def test_time_does_not_go_back() -> None:
    wheel = TimingWheel(start_ms=NOW)
    wheel.schedule("a", NOW + 10)
    assert fire(wheel, NOW - 1_000) == []
    assert fire(wheel, NOW + 5) == []
    wheel.schedule("b", NOW + 4)
    assert fire(wheel, NOW) == ["b"]


@pytest.mark.parametrize(
    "wrong", [float("nan"), 1.5, 5.0, float("inf"), "7", None, True, np.float64(3), np.arange(2)]
)
def test_what_is_no_whole_number_is_refused_by_name(wrong: object) -> None:
    wheel = TimingWheel(start_ms=NOW)
    timer = wheel.schedule("a", NOW + 10)
    for call in (
        lambda: wheel.schedule("b", wrong),
        lambda: wheel.rearm(timer, wrong),
        lambda: wheel.advance(wrong),
        lambda: TimingWheel(tick_ms=wrong),
    ):
        with pytest.raises(CallerError) as error:
            call()
        assert repr(wrong) in str(error.value)
    assert wheel.size == 1
    assert fire(wheel, NOW + 10) == ["a"]


def test_numpys_whole_numbers_are_taken() -> None:
    wheel = TimingWheel(start_ms=NOW)
    wheel.schedule("a", np.int64(NOW + 10))
    wheel.schedule("b", np.uint64(2**64 - 1))
    assert fire(wheel, np.int64(NOW + 10)) == ["a"]


@pytest.mark.parametrize("settings", [{"tick_ms": 0}, {"slots_per_level": 1}, {"tick_ms": -1}])
def test_impossible_wheels_are_refused(settings: dict) -> None:
    with pytest.raises(CallerError, match="must lie in"):
        TimingWheel(**settings)
