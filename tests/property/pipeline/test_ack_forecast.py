"""Whatever the series, a forecast is made of numbers, and in order."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from ackgate.pipeline.jobs.ack_stats.forecast import forecast, sufficient_limit

series = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), min_size=1, max_size=60
).map(lambda points: (np.array(sorted(p[0] for p in points)), np.array([p[1] for p in points])))


@given(series, st.integers(0, 10**6), st.one_of(st.none(), st.integers(1, 10**9)))
@settings(max_examples=60, deadline=None)
def test_curves_are_finite_and_ordered(points, limit: int, horizon_ms: int | None):
    times, ranges = points
    told = forecast(times, ranges, limit=limit, horizon_ms=horizon_ms)
    enough = sufficient_limit(times, ranges, limit=limit)

    assert ranges.max() <= enough.low <= enough.expected <= enough.high
    if told is None:
        assert len(set(times.tolist())) < 8
        return
    curve = told.curve
    assert np.isfinite([curve.low, curve.expected, curve.high]).all()
    assert (curve.low >= 0).all()
    assert (curve.low <= curve.expected).all()
    assert (curve.expected <= curve.high).all()
    known = [at for at in (told.crossing.earliest_ms, told.crossing.expected_ms) if at is not None]
    assert known == sorted(known)
    assert told.crossing.expected_ms is None or told.crossing.earliest_ms is not None
    assert all(told.now_ms <= at <= told.now_ms + told.horizon_ms for at in known)


@given(st.integers(8, 150), st.integers(1, 500), st.integers(0, 1000), st.integers(1, 10_000))
@settings(max_examples=40, deadline=None)
def test_steady_growth_is_foretold_exactly(count: int, rise: int, base: int, step_ms: int):
    times = np.arange(count, dtype=np.int64) * step_ms
    ranges = base + np.arange(count, dtype=np.int64) * rise
    limit = int(ranges[-1]) + rise * (count // 2)
    told = forecast(times, ranges, limit=limit)

    assert told is not None
    reached = int(times[-1]) + step_ms * (count // 2)
    for at in (told.crossing.earliest_ms, told.crossing.expected_ms, told.crossing.latest_ms):
        assert at is not None
        assert abs(at - reached) <= 1
