"""One clock for all that waits: nothing early, nothing twice, and no wake-up without a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any

from ackgate.broker.topic.waits import WAKES_MAX, Waits
from tests.support.virtual_time import run_in_virtual_time


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a loop whose time jumps."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


class Overdue(list):
    """Receipts that a cursor's store was told of as overdue."""


@virtual
async def test_deadlines_come_in_order_and_never_early() -> None:
    waits, heard = Waits(), []
    await asyncio.sleep(0.0123456)
    began = now_ms()
    for delay_ms in (70_000, 0, 5, 5, 1_500, -3):
        waits.wake_in(
            delay_ms, lambda delay_ms=delay_ms: heard.append((delay_ms, now_ms() - began))
        )
    await asyncio.sleep(80)
    assert [delay_ms for delay_ms, _ in heard] == [0, -3, 5, 5, 1_500, 70_000]
    assert all(-0.01 <= at - max(delay_ms, 0) < 1 for delay_ms, at in heard)
    assert waits.deadline_count == 0


@virtual
async def test_an_idle_clock_does_not_wake() -> None:
    waits = Waits()
    waits.wake_in(3_600_000, lambda: None)
    await asyncio.sleep(3_700)
    assert waits.wakes <= 3  # one a level
    timers = [waits.wake_in(1_000 + delay, lambda: None) for delay in range(100)]
    for timer in timers:
        waits.cancel(timer)
    before = waits.wakes
    await asyncio.sleep(10)
    assert waits.wakes == before


@virtual
async def test_an_earlier_deadline_is_heard_before_a_later_one_that_was_there_first() -> None:
    waits, heard = Waits(), []
    waits.wake_in(10_000, partial(heard.append, "late"))
    waits.wake_in(10, partial(heard.append, "early"))
    await asyncio.sleep(0.011)
    assert heard == ["early"]
    await asyncio.sleep(10)
    assert heard == ["early", "late"]


@virtual
async def test_what_is_woken_may_wait_again_and_cancel_others() -> None:
    waits, heard = Waits(), []
    timers = {}

    def again() -> None:
        heard.append("again")
        if len(heard) < 3:
            waits.wake_in(7, again)
        waits.cancel(timers["other"])

    waits.wake_in(5, again)
    timers["other"] = waits.wake_in(5, partial(heard.append, "other"))
    await asyncio.sleep(1)
    assert heard == ["again"] * 3


@virtual
async def test_one_that_fails_does_not_take_the_others_with_it() -> None:
    waits, heard, faults = Waits(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    waits.wake_in(5, partial(int, "no number"))
    waits.wake_in(5, partial(heard.append, "other"))
    await asyncio.sleep(1)
    assert heard == ["other"]
    assert len(faults) == 1


@virtual
async def test_many_at_once_leave_others_their_turn() -> None:
    waits, heard, turns = Waits(), [], []
    for number in range(3 * WAKES_MAX):
        waits.wake_in(5, partial(heard.append, number))
    loop = asyncio.get_running_loop()

    def turn() -> None:
        turns.append(len(heard))
        if len(heard) < 3 * WAKES_MAX:
            loop.call_later(0, turn)

    loop.call_at(0.005, turn)
    await asyncio.sleep(1)
    assert heard == list(range(3 * WAKES_MAX))
    assert set(turns) >= {WAKES_MAX, 2 * WAKES_MAX}


# ---------------------------------------------------------------- reads


class Awaited:
    """Something that a read waits for."""

    def __init__(self, waits: Waits) -> None:
        self.is_there = False
        self.heard: list[str] = []
        self._waits = waits

    def park(self, delay_ms: int | None = None):
        return self._waits.park(
            self,
            lambda: self.is_there,
            partial(self.heard.append, "came"),
            delay_ms=delay_ms,
            expire=partial(self.heard.append, "expired"),
        )


@virtual
async def test_a_read_is_woken_once_when_what_it_waits_for_has_come() -> None:
    waits = Waits()
    entries, gate = Awaited(waits), Awaited(waits)
    entries.park(1_000)
    gate.park()
    waits.came(entries)
    assert entries.heard == []  # somebody else's entries
    entries.is_there = True
    waits.came(entries)
    waits.came(entries)
    await asyncio.sleep(2)
    assert (entries.heard, gate.heard) == (["came"], [])
    assert (waits.read_stats.size, waits.read_stats.completed) == (1, 1)


@virtual
async def test_a_read_whose_deadline_comes_first_is_told_so() -> None:
    waits = Waits()
    awaited = Awaited(waits)
    awaited.park(1_000)
    await asyncio.sleep(0.999)
    assert awaited.heard == []
    await asyncio.sleep(0.002)
    awaited.is_there = True
    waits.came(awaited)
    assert awaited.heard == ["expired"]


@virtual
async def test_a_read_does_not_wait_for_what_is_there() -> None:
    waits = Waits()
    awaited = Awaited(waits)
    awaited.is_there = True
    assert awaited.park(10) is None
    await asyncio.sleep(1)
    assert awaited.heard == []
    assert waits.wakes == 0


@virtual
async def test_a_read_that_waits_no_more_is_not_told() -> None:
    waits = Waits()
    awaited = Awaited(waits)
    timer = awaited.park(10)
    assert timer is not None
    waits.unpark(timer)
    awaited.is_there = True
    waits.came(awaited)
    await asyncio.sleep(1)
    assert awaited.heard == []
    assert waits.wakes == 0


@virtual
async def test_reads_that_wait_for_no_time_hardly_wake_anybody() -> None:
    waits = Waits()
    for _ in range(100):
        Awaited(waits).park()
    await asyncio.sleep(12 * 3_600)
    assert waits.wakes <= 4  # one a level
