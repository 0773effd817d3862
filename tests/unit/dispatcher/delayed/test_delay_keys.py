"""Rounding and bounds of deliver-at times."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from ackgate.dispatcher.delayed import DelayKeys, time_ms, times_ms
from ackgate.dispatcher.delayed.port import key_bits
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CallerError

TICKS = st.one_of(st.integers(1, 70), st.sampled_from([500, 512, 1000, 1024, 60_000]))
TIMES = st.one_of(
    st.integers(0, 5_000),
    st.integers(TIME_MS_MAX - 5_000, TIME_MS_MAX),
    st.integers(0, TIME_MS_MAX),
)


@pytest.mark.parametrize(
    ("tick_ms", "bits"),
    [
        *[(0, 0), (1, 0), (8, 3), (100, 6), (256, 8), (500, 8), (512, 9), (1000, 9), (1023, 9)],
        *[(1024, 10), (2000, 10), (5000, 12), (60_000, 15)],
    ],
)
def test_precision_is_the_largest_power_of_two_within_the_tick(tick_ms: int, bits: int) -> None:
    assert key_bits(tick_ms) == bits


def test_a_later_tick_moves_the_bounds_and_not_the_width() -> None:
    keys = DelayKeys(1000, is_strict=False)
    keys.set_tick(10)
    assert keys.bits == 9
    assert keys.refused_through(5_000) == 5_010


def test_strict_keys_are_never_below_the_time_and_stop_at_the_last_time() -> None:
    keys = DelayKeys(1000, is_strict=True)
    assert keys.key(512) == 512
    assert keys.key(513) == 1024
    assert keys.key(TIME_MS_MAX) == TIME_MS_MAX
    assert keys.key(TIME_MS_MAX - 600) == TIME_MS_MAX - 511
    assert keys.keys(np.array([TIME_MS_MAX - 600, TIME_MS_MAX - 1, TIME_MS_MAX])).tolist() == [
        TIME_MS_MAX - 511,
        TIME_MS_MAX,
        TIME_MS_MAX,
    ]


@given(TICKS, st.booleans(), st.lists(TIMES, max_size=8))
def test_arrays_are_rounded_as_single_times_are(
    tick_ms: int, is_strict: bool, times: list[int]
) -> None:
    keys = DelayKeys(tick_ms, is_strict=is_strict)
    assert keys.keys(np.array(times, dtype=np.int64)).tolist() == [keys.key(each) for each in times]


@given(TICKS, TICKS, TIMES, st.integers(0, TIME_MS_MAX))
def test_not_strict_is_early_by_a_tick_at_most_whatever_the_tick_becomes(
    tick_ms: int, later_tick_ms: int, deliver_at_ms: int, now_ms: int
) -> None:
    keys = DelayKeys(tick_ms, is_strict=False)
    due_ms = keys.due_ms(keys.key(deliver_at_ms))
    assert deliver_at_ms - tick_ms <= due_ms <= deliver_at_ms
    keys.set_tick(later_tick_ms)
    due_ms = keys.due_ms(keys.key(deliver_at_ms))
    assert deliver_at_ms - later_tick_ms <= due_ms < deliver_at_ms + keys.width_ms
    assert (keys.key(deliver_at_ms) <= keys.cutoff(now_ms)) == (due_ms <= now_ms)


@given(TICKS, TIMES)
def test_strict_is_never_early_and_less_than_a_tick_late(tick_ms: int, deliver_at_ms: int) -> None:
    keys = DelayKeys(tick_ms, is_strict=True)
    due_ms = keys.due_ms(keys.key(deliver_at_ms))
    assert deliver_at_ms <= due_ms < deliver_at_ms + tick_ms


@given(TICKS, st.booleans(), TIMES, st.integers(0, TIME_MS_MAX))
def test_what_is_due_in_a_bucket_would_be_refused(
    tick_ms: int, is_strict: bool, deliver_at_ms: int, now_ms: int
) -> None:
    keys = DelayKeys(tick_ms, is_strict=is_strict)
    if keys.key(deliver_at_ms) <= keys.cutoff(now_ms):
        assert deliver_at_ms <= keys.refused_through(now_ms)


@pytest.mark.parametrize("wrong", [1.0, float("nan"), "5", None, 2**63, 2**70])
def test_times_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(CallerError):
        time_ms(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [[1.5], [float("nan")], ["5"], [[1]], [True], [2**63], [2**70], [[1], [2, 3]], [None]]
)
def test_arrays_with_times_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(CallerError):
        times_ms(wrong)  # type: ignore[arg-type]


def test_a_tick_below_a_millisecond_is_refused() -> None:
    with pytest.raises(CallerError, match="below 1 ms"):
        DelayKeys(0, is_strict=True)


def test_negative_times_are_times() -> None:
    assert times_ms(np.array([-1, 5], dtype=np.int32)).tolist() == [-1, 5]
    assert time_ms(-1) == -1
