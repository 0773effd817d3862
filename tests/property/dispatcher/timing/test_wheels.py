"""Both wheels against a dumb model: a dictionary of deadlines that is sorted at every question.

Every machine runs with the loops and with the array operations, and with cascades that stop after a
few timers, so that every step in between is seen.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from ackgate.dispatcher.timing import BatchWheel, Timer, TimingWheel
from ackgate.dispatcher.timing import levels as levels_module
from ackgate.dispatcher.timing import wheel as wheel_module
from ackgate.dispatcher.timing.levels import TICK_MAX
from ackgate.errors import CallerError

SIZES = st.sampled_from([2, 3, 5, 20, 64])
TICKS = st.sampled_from([1, 7, 10, 1_000])
STARTS = st.sampled_from([0, 1, 999, 1_700_000_000_123, 2**62 - 5])
DELAYS = st.one_of(
    st.integers(-20, 60),
    st.integers(-20, 60),
    st.integers(0, 5_000),
    st.integers(0, 2**40),
    st.sampled_from([2**62, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63), -(2**70)]),
)
STEPS = st.one_of(st.integers(0, 30), st.integers(0, 3_000), st.integers(0, 2**41), st.just(-50))
BOUNDS = st.one_of(st.integers(0, 4), st.just(1_000))


class Expected(NamedTuple):
    """A live timer of the model."""

    tick: int
    number: int  # in order of scheduling
    deadline_ms: int
    is_late: bool  # its time had passed when it was scheduled


class Clock:
    """What both machines share: sizes, time, and who is due."""

    def __init__(self) -> None:
        self.patches = ExitStack()

    def set_up(self, tick_ms: int, start_ms: int, cascade_max: int, array_min: int) -> None:
        for module in (levels_module, wheel_module):
            self.patches.enter_context(patch.object(module, "CASCADE_MAX", cascade_max))
            self.patches.enter_context(patch.object(module, "ARRAY_MIN", array_min))
        self.tick_ms = tick_ms
        self.now_ms = self.latest_ms = start_ms
        self.number = 0
        self.is_caught_up = True  # the last advance had room to do all that there was

    @property
    def now_tick(self) -> int:
        return min(max(self.latest_ms // self.tick_ms, 0), TICK_MAX - 1)

    def move(self, step_ms: int, most: int) -> None:
        self.is_caught_up = most == 1_000
        self.now_ms = max(self.latest_ms + step_ms, 0)
        self.latest_ms = max(self.latest_ms, self.now_ms)

    def expected(self, deadline_ms: int) -> Expected:
        self.number += 1
        tick = min(max(-(-deadline_ms // self.tick_ms), 0), TICK_MAX)
        return Expected(tick, self.number, deadline_ms, tick <= self.now_tick)

    def is_due(self, timer: Expected) -> bool:
        return timer.tick <= self.now_tick

    def check_next(self, next_ms: int | None, live: list[Expected]) -> None:
        assert (next_ms is None) == (not live)
        if next_ms is not None:
            assert next_ms <= min(live).tick * self.tick_ms or any(map(self.is_due, live))
            if self.is_caught_up and not any(map(self.is_due, live)):
                assert next_ms > self.now_tick * self.tick_ms, "it would wake for nothing"


class TimingWheelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    @initialize(
        size=SIZES,
        tick_ms=TICKS,
        start_ms=STARTS,
        cascade_max=st.sampled_from([1, 3, 10_000]),
        array_min=st.sampled_from([1, 4, 10_000]),
    )
    def start(
        self, size: int, tick_ms: int, start_ms: int, cascade_max: int, array_min: int
    ) -> None:
        self.clock.set_up(tick_ms, start_ms, cascade_max, array_min)
        self.wheel: TimingWheel[int] = TimingWheel(
            tick_ms=tick_ms, slots_per_level=size, start_ms=start_ms
        )
        self.live: dict[Timer, Expected] = {}
        self.gone: list[Timer] = []
        self.timers: list[Timer] = []  # by item

    def teardown(self) -> None:
        self.clock.patches.close()

    def schedule_at(self, deadline_ms: int) -> None:
        self.timers.append(self.wheel.schedule(len(self.timers), deadline_ms))
        self.know(self.timers[-1], deadline_ms)

    def know(self, timer: Timer, deadline_ms: int) -> None:
        assert timer not in self.live
        assert timer not in self.gone
        self.live[timer] = self.clock.expected(deadline_ms)

    def pick(self, choice: int) -> Timer | None:
        timers = list(self.live)
        return timers[choice % len(timers)] if timers else None

    def cancel_one(self, choice: int) -> None:
        timer = self.pick(choice)
        if timer is not None:
            assert self.wheel.item(timer) == self.timers.index(timer)
            assert self.wheel.cancel(timer)
            self.forget(timer)
            assert self.wheel.item(timer) is None

    def forget(self, timer: Timer) -> Expected:
        self.gone.append(timer)
        return self.live.pop(timer)

    @rule(delays=st.lists(DELAYS, max_size=8))
    def schedule(self, delays: list[int]) -> None:
        for delay in delays:
            self.schedule_at(self.clock.now_ms + delay)

    @rule(choice=st.integers(0, 1_000))
    def cancel(self, choice: int) -> None:
        self.cancel_one(choice)

    @rule(choice=st.integers(0, 1_000))
    def cancel_what_is_gone(self, choice: int) -> None:
        if self.gone:
            assert not self.wheel.cancel(self.gone[choice % len(self.gone)])

    @rule()
    def cancel_all(self) -> None:
        for timer in list(self.live):
            assert self.wheel.cancel(timer)
            self.forget(timer)

    @rule(choice=st.integers(0, 1_000), delay=DELAYS)
    def rearm(self, choice: int, delay: int) -> None:
        timer = self.pick(choice)
        if timer is not None:
            self.forget(timer)
            item = self.timers.index(timer)
            self.timers[item] = self.wheel.rearm(timer, self.clock.now_ms + delay)
            self.know(self.timers[item], self.clock.now_ms + delay)
            with pytest.raises(CallerError, match="not live"):
                self.wheel.rearm(timer, 0)

    @rule(step_ms=STEPS, most=BOUNDS)
    def advance(self, step_ms: int, most: int) -> None:
        self.clock.move(step_ms, most)
        due = {timer for timer, each in self.live.items() if self.clock.is_due(each)}
        handed = [self.take(item) for item in self.wheel.advance(self.clock.now_ms, most)]
        assert len(handed) <= most
        if most >= len(due) + len(self.live):
            assert len(handed) == len(due)
        timely = [each for each in handed if not each.is_late]
        assert timely == sorted(timely, key=lambda each: (each.tick, each.number))

    def take(self, item: int) -> Expected:
        """One was handed out: it must be live, and due."""
        expected = self.forget(self.timers[item])
        assert self.clock.is_due(expected)
        assert expected.deadline_ms <= self.clock.latest_ms, "early"
        assert self.wheel.size == len(self.live)
        return expected

    @rule(
        step_ms=STEPS,
        most=BOUNDS,
        actions=st.lists(st.tuples(st.sampled_from("scna"), st.integers(0, 1_000), DELAYS)),
    )
    def advance_and_act(self, step_ms: int, most: int, actions: list[tuple[str, int, int]]) -> None:
        """What is carried out schedules, cancels, looks, and advances once more."""
        self.clock.move(step_ms, most)
        self.clock.is_caught_up = False
        plan = iter(actions)
        for item in self.wheel.advance(self.clock.now_ms, most):
            self.take(item)
            action, choice, delay = next(plan, ("", 0, 0))
            if action == "s":
                self.schedule_at(self.clock.now_ms + delay)
            elif action == "c":
                self.cancel_one(choice)
            elif action == "n":
                self.looks_ahead()
            elif action == "a":
                for inner in self.wheel.advance(self.clock.now_ms, choice % 3):
                    self.take(inner)
                if choice % 2:
                    return  # what was not fetched stays due
        self.clock.is_caught_up = most == 1_000

    @rule()
    def comes_to_the_earliest(self) -> None:
        """Advancing from deadline to deadline, it takes one step a level to get to a timer."""
        if not self.live or min(self.live.values()).tick == TICK_MAX:
            return
        for _ in range(5_000):
            next_ms = self.wheel.next_deadline_ms
            assert next_ms is not None
            self.clock.move(max(next_ms - self.clock.latest_ms, 0), 1_000)
            handed = [self.take(each) for each in self.wheel.advance(self.clock.now_ms, 1_000)]
            if handed:
                return
        raise AssertionError("nothing was ever handed out")

    @invariant()
    def looks_ahead(self) -> None:
        if hasattr(self, "wheel"):
            self.clock.check_next(self.wheel.next_deadline_ms, list(self.live.values()))

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "wheel"):
            self.wheel.check()
            assert self.wheel.size == len(self.wheel) == len(self.live)
            assert all(map(self.wheel.is_live, self.live))
            assert not any(map(self.wheel.is_live, self.gone))


class BatchWheelMachine(RuleBasedStateMachine):
    IDS = 40

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    @initialize(
        size=SIZES,
        tick_ms=TICKS,
        start_ms=STARTS,
        cascade_max=st.sampled_from([1, 3, 10_000]),
        array_min=st.sampled_from([1, 4, 10_000]),
        chunk=st.sampled_from([3, 10_000]),
        strip=st.sampled_from([1, 3, 256]),
    )
    def start(
        self,
        size: int,
        tick_ms: int,
        start_ms: int,
        cascade_max: int,
        array_min: int,
        chunk: int,
        strip: int,
    ) -> None:
        self.clock.set_up(tick_ms, start_ms, cascade_max, array_min)
        for name, number in (("_CHUNK", chunk), ("_STRIP", strip)):
            self.clock.patches.enter_context(
                patch(f"ackgate.dispatcher.timing.batch_wheel.{name}", number)
            )
        self.wheel = BatchWheel(
            tick_ms=tick_ms, slots_per_level=size, start_ms=start_ms, ids_max=self.IDS
        )
        self.live: dict[int, Expected] = {}

    def teardown(self) -> None:
        self.clock.patches.close()

    @rule(timers=st.lists(st.tuples(st.integers(0, IDS - 1), DELAYS), max_size=12))
    def add(self, timers: list[tuple[int, int]]) -> None:
        deadlines = [
            min(max(self.clock.now_ms + delay, -(2**63)), 2**63 - 1) for _, delay in timers
        ]
        ids = np.array([each for each, _ in timers], dtype=np.int32)
        self.wheel.add(ids, np.array(deadlines, dtype=np.int64))
        for (each, _), deadline_ms in zip(timers, deadlines, strict=True):
            self.live[each] = self.clock.expected(deadline_ms)

    @rule(ids=st.lists(st.integers(0, IDS - 1), max_size=12))
    def cancel(self, ids: list[int]) -> None:
        assert self.wheel.cancel(ids) == len(set(ids) & set(self.live))
        for each in ids:
            self.live.pop(each, None)

    @rule(step_ms=STEPS, most=BOUNDS)
    def advance(self, step_ms: int, most: int) -> None:
        self.clock.move(step_ms, most)
        due = [each for each, expected in self.live.items() if self.clock.is_due(expected)]
        ids = self.wheel.advance(self.clock.now_ms, most).tolist()
        assert len(ids) == len(set(ids)) == min(most, len(due))
        handed = [self.live.pop(each) for each in ids]
        assert all(each.deadline_ms <= self.clock.latest_ms for each in handed)
        timely = [each for each in handed if not each.is_late]
        assert timely == sorted(timely, key=lambda each: (each.tick, each.number))

    @rule(bad=st.sampled_from([-1, IDS, 2**40]))
    def refuses(self, bad: int) -> None:
        for call in (lambda: self.wheel.add([0, bad], [0, 0]), lambda: self.wheel.cancel([0, bad])):
            with pytest.raises(CallerError, match=str(bad)):
                call()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "wheel"):
            self.wheel.check()
            assert self.wheel.size == len(self.live)
            every = list(range(self.IDS))
            assert self.wheel.is_live(every).tolist() == [each in self.live for each in every]

    @invariant()
    def looks_ahead(self) -> None:
        if hasattr(self, "wheel"):
            self.clock.check_next(self.wheel.next_deadline_ms, list(self.live.values()))


TestTimingWheel = TimingWheelMachine.TestCase
TestBatchWheel = BatchWheelMachine.TestCase
