"""Forecasts of shapes whose future everybody knows."""

from __future__ import annotations

import numpy as np
import pytest

from ackgate.pipeline.jobs.ack_stats.forecast import BackTest, Crossing, forecast, sufficient_limit

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
START_MS = 1_800_000_000_000


def times(count):
    return START_MS + np.arange(count, dtype=np.int64) * MINUTE_MS


def test_growth_that_goes_on_is_foretold_to_the_minute():
    told = forecast(times(100), np.arange(100) * 10, limit=1500)

    assert told is not None
    assert told.ranges_per_hour == pytest.approx(600)
    reached = START_MS + 150 * MINUTE_MS
    assert told.crossing.expected_ms == pytest.approx(reached, abs=1000)
    assert told.crossing.earliest_ms == pytest.approx(reached, abs=1000)
    assert told.crossing.latest_ms == pytest.approx(reached, abs=1000)
    assert told.back_test is not None
    assert (told.back_test.coverage, told.back_test.error_median) == (
        1.0,
        pytest.approx(0, abs=1e-6),
    )
    assert told.back_test.crossings_in_band == told.back_test.crossings_tested == 8


def test_what_is_beyond_the_horizon_has_no_time():
    told = forecast(times(100), np.arange(100) * 10, limit=1500, horizon_ms=50 * MINUTE_MS)

    assert told is not None
    assert told.crossing.expected_ms is None


@pytest.mark.parametrize("level", [0, 7, 999])
def test_what_stays_as_it_is_reaches_nothing(level):
    told = forecast(times(50), np.full(50, level), limit=1000, horizon_ms=1000 * HOUR_MS)

    assert told is not None
    assert told.crossing == Crossing(None, None, None)
    assert told.curve.high.tolist() == [level] * len(told.curve.high)


@pytest.mark.parametrize(("count", "tooth"), [(300, 30), (81, 20), (80, 20), (100, 20), (110, 20)])
def test_a_saw_tooth_is_no_growth(count, tooth):
    teeth = np.arange(count) % tooth * 10
    told = forecast(times(count), teeth, limit=tooth * 30)

    assert told is not None
    assert told.crossing.expected_ms is None
    assert told.ranges_per_hour < 100
    assert told.curve.expected.max() < tooth * 10
    assert told.back_test is not None
    assert told.back_test.coverage > 0.7


def test_growth_that_began_late_counts_more_than_the_quiet_before_it():
    ranges = np.concatenate((np.full(150, 20), 20 + np.arange(50) * 8))
    told = forecast(times(200), ranges, limit=800)

    assert told is not None
    assert told.crossing.expected_ms == pytest.approx(
        START_MS + 199 * MINUTE_MS + (800 - 412) / 8 * MINUTE_MS, abs=15 * MINUTE_MS
    )


def test_at_the_limit_it_is_now():
    told = forecast(times(20), np.arange(20) * 5, limit=95)

    assert told is not None
    now_ms = START_MS + 19 * MINUTE_MS
    assert told.crossing == Crossing(now_ms, now_ms, now_ms)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_a_few_records_tell_nothing(count):
    assert forecast(times(count), np.arange(count), limit=5) is None


def test_many_records_of_one_moment_tell_nothing():
    assert forecast(np.full(50, START_MS), np.arange(50), limit=5) is None


def test_the_limit_that_would_have_sufficed_is_the_highest_count():
    enough = sufficient_limit(times(5), np.array([1, 80, 3, 4, 2]), limit=100)

    assert (enough.low, enough.expected, enough.high, enough.is_bound) == (80, 80, 80, False)


def test_a_count_that_the_gate_held_down_is_foretold_from_before_it_shut():
    ranges = np.minimum(np.arange(100) * 10, 500)
    enough = sufficient_limit(times(100), ranges, limit=500)

    assert enough.expected == pytest.approx(990, abs=1)
    assert not enough.is_bound


def test_a_count_that_was_at_the_limit_from_the_beginning_gives_a_bound_only():
    enough = sufficient_limit(times(30), np.full(30, 500), limit=500)

    assert (enough.low, enough.is_bound) == (500, True)


def test_noise_around_growth_widens_the_band_and_stays_in_it():
    random = np.random.default_rng(7)
    counts = (np.arange(400) * 5 + random.normal(0, 40, 400)).clip(0).astype(np.int64)
    told = forecast(times(400), counts, limit=3000)

    assert told is not None
    crossing = told.crossing
    assert crossing.earliest_ms is not None
    assert crossing.expected_ms is not None
    assert crossing.earliest_ms <= crossing.expected_ms
    assert crossing.expected_ms == pytest.approx(START_MS + 600 * MINUTE_MS, abs=20 * MINUTE_MS)
    assert told.back_test is not None
    assert told.back_test.coverage > 0.75


def test_coverage_is_a_share():
    assert BackTest(8, 6, 0.0, 0, 0).coverage == 0.75


def test_a_limit_that_was_raised_held_the_count_down_only_until_then():
    ranges = np.minimum(np.arange(100) * 10, 300)
    limits = np.full(100, 300)
    held = sufficient_limit(times(100), ranges, limit=limits)
    free = sufficient_limit(times(100), ranges, limit=np.full(100, 400))

    assert held.expected == pytest.approx(990, abs=1)
    assert free.expected == 300


def test_far_ahead_only_the_highest_count_seen_is_certain():
    ranges = np.minimum(np.arange(300) * 10, 300)
    far = sufficient_limit(times(300), ranges, limit=300)
    near = sufficient_limit(times(44), ranges[:44], limit=300)

    assert (far.low, far.expected) == (300, pytest.approx(2990, abs=1))
    assert near.low == near.expected == pytest.approx(430, abs=1)
