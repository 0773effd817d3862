"""When a broker's process looks for garbage in its whole heap."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from ackgate.broker.collector import GROWTH_BYTES_MAX, Collector, Moment, is_due

BUSY = Moment(busy_share=0.9, seconds=60.0, growth_bytes=0, has_survivors=True)
IDLE = BUSY._replace(busy_share=0.01)


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)
    gc.unfreeze()


def test_idle_moments_are_used_and_busy_ones_are_not() -> None:
    assert is_due(IDLE)
    assert not is_due(BUSY)


def test_idle_moments_are_not_used_again_and_again() -> None:
    assert not is_due(IDLE._replace(seconds=5.0))
    assert not is_due(IDLE._replace(has_survivors=False))


def test_under_load_garbage_has_a_bound_in_bytes_and_in_time() -> None:
    assert is_due(BUSY._replace(growth_bytes=GROWTH_BYTES_MAX))
    assert not is_due(BUSY._replace(growth_bytes=GROWTH_BYTES_MAX - 1))
    assert is_due(BUSY._replace(seconds=1_800.0))


class Ring:
    """A cycle, which only the collector frees."""

    def __init__(self) -> None:
        self.me = self


async def test_the_whole_heap_is_left_alone_until_it_is_time(
    monkeypatch: pytest.MonkeyPatch, thresholds: tuple[int, int, int]
) -> None:
    moments: list[Moment] = []
    answers = iter([False, True])
    monkeypatch.setattr(
        "ackgate.broker.collector.is_due", lambda moment: moments.append(moment) or next(answers)
    )
    collector = Collector()
    task = collector.begin()
    await asyncio.sleep(0)  # the task has begun
    assert gc.get_threshold()[:2] == thresholds[:2]
    ring = Ring()
    seen = weakref.ref(ring)
    gc.collect(1)  # it grows old
    del ring
    gc.collect(1)
    collector.look()
    assert seen() is not None
    collector.look()
    assert seen() is None
    assert moments[0].has_survivors
    task.cancel()
    await asyncio.wait([task])
    assert gc.get_threshold() == thresholds
