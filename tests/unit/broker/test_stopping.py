"""Stopping: in reverse order, each step by its moment, the whole in bounded time whatever steps do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.broker.stopping import Stopping
from tests.support.virtual_time import run_in_virtual_time


def step(
    told: list[str], name: str, seconds: float, *, heeds: bool = True
) -> Callable[..., object]:
    async def end() -> None:
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if heeds:
                    raise
        told.append(name)

    return end


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 3.0, 1e6]), st.integers(1, 6)), min_size=1, max_size=8
    )
)
def test_everything_has_its_turn_and_the_whole_its_bound(steps: list[tuple[float, int]]) -> None:
    told: list[str] = []

    async def main() -> tuple[Stopping, float]:
        stopping = Stopping(lambda: 10.0)
        for number, (seconds, share) in enumerate(steps):
            stopping.then(str(number), step(told, str(number), seconds), share=share)  # type: ignore[arg-type]
        await stopping.run()
        return stopping, asyncio.get_running_loop().time()

    stopping, took = run_in_virtual_time(main())
    assert took <= 10.0 + 1e-6
    assert sorted(told + stopping.cut_short) == sorted(map(str, range(len(steps))))
    assert told == sorted(told, key=int, reverse=True)
    if sum(seconds for seconds, _ in steps) <= 10.0 * min(s for _, s in steps) / sum(
        s for _, s in steps
    ):
        assert not stopping.cut_short


def test_a_step_that_ends_early_leaves_its_time_to_the_next() -> None:
    told: list[str] = []

    async def main() -> Stopping:
        stopping = Stopping(lambda: 10.0)
        stopping.then("second", step(told, "second", 9.5))  # type: ignore[arg-type]
        stopping.then("first", step(told, "first", 0.1), share=9)  # type: ignore[arg-type]
        await stopping.run()
        return stopping

    assert not run_in_virtual_time(main()).cut_short
    assert told == ["first", "second"]


async def test_a_step_that_does_not_heed_its_cancellation_is_left_behind() -> None:
    ended = asyncio.Event()

    async def deaf() -> None:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    stopping = Stopping(lambda: 0.0)
    stopping.then("deaf", deaf)
    await stopping.run()
    assert stopping.cut_short == ["deaf"]
    ended.set()
    await asyncio.sleep(0)


async def test_an_error_waits_until_all_had_their_turn() -> None:
    told: list[str] = []

    def fail() -> None:
        raise OSError("first")

    async def fail_later() -> None:
        raise OSError("second")

    async with Stopping(lambda: 1.0) as stopping:
        stopping.then("last", lambda: told.append("last"))
        stopping.then("fails later", fail_later)
        stopping.then("fails", fail)
        stopping.keep()
    assert told == []
    with pytest.raises(OSError, match="first"):
        await stopping.run()
    await stopping.run()
    assert told == ["last"]


async def test_a_start_that_fails_ends_what_it_began() -> None:
    told: list[str] = []
    with pytest.raises(OSError, match="cannot start"):
        async with Stopping(lambda: 1.0) as stopping:
            stopping.then("begun", lambda: told.append("begun"))
            raise OSError("cannot start")
    assert told == ["begun"]
