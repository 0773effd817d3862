"""When will the range count reach the limit, and what limit would have sufficed?

Pure and without chance: the same records give the same answer. A forecast reaches as far ahead as it
is told to, by default as long as was watched; where the count does not get to the limit within that,
there is no time, which is not to say that it never will. How good such forecasts are on this very
series is found by making them at earlier points and looking at what came (`BackTest`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.pipeline.jobs.ack_stats.trend import POINTS_MIN, Trend, trend_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRID_POINTS: Final = 64
"""Points that a series is laid on: enough for its shape, few enough for all pairs."""

CURVE_POINTS: Final = 65
ORIGINS: Final = 8
"""Earlier points that a back test foretells from."""

TOLERANCE: Final = 1e-9
"""Relative; sums of the same numbers in another order differ by this much."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Range counts to come."""

    times_ms: NDArray[np.float64]
    low: NDArray[np.float64]
    expected: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Crossing:
    """When the limit is reached; None: not within the horizon."""

    earliest_ms: int | None
    expected_ms: int | None
    latest_ms: int | None


@dataclass(frozen=True, slots=True)
class BackTest:
    """How forecasts from earlier points did."""

    counts_told: int
    """Range counts foretold."""
    counts_in_band: int
    error_median: float
    """Between what was expected and what came, in ranges."""
    crossings_told: int
    """New peaks of the count, each taken as a limit whose time was to be foretold."""
    crossings_in_band: int

    @property
    def coverage(self) -> float:
        """Share of the counts that came to lie in the band."""
        return self.counts_in_band / self.counts_told


@dataclass(frozen=True, slots=True)
class SufficientLimit:
    """The lowest limit that the count would not have gone over in the time watched."""

    low: int
    expected: int
    high: int
    is_bound: bool
    """Only the low one is known: the limit held the count down before there was a trend."""


@dataclass(frozen=True, slots=True)
class RangeForecast:
    """The forecast of one subscription."""

    now_ms: int
    horizon_ms: int
    ranges_per_hour: float
    crossing: Crossing
    curve: Curve
    back_test: BackTest | None
    """None: too short a series."""


def forecast(
    times_ms: NDArray[np.int64],
    ranges: NDArray[np.int64],
    *,
    limit: int,
    horizon_ms: int | None = None,
) -> RangeForecast | None:
    """`times_ms`: ascending. None when too little is known for a trend."""
    grid = _Grid.of(times_ms, ranges)
    if grid is None:
        return None
    now_ms = int(times_ms[-1])
    horizon_ms = now_ms - int(times_ms[0]) if horizon_ms is None else horizon_ms
    trend = trend_of(grid.values)
    leads = np.linspace(0.0, horizon_ms / grid.step_ms, CURVE_POINTS)
    crossing = _crossing(trend, leads, float(limit))
    if ranges[-1] >= limit:
        crossing = 0.0, 0.0, 0.0
    return RangeForecast(
        now_ms=now_ms,
        horizon_ms=horizon_ms,
        ranges_per_hour=trend.slope / grid.step_ms * 3_600_000,
        crossing=Crossing(*(grid.at(now_ms, lead) for lead in crossing)),
        curve=Curve(
            now_ms + leads * grid.step_ms,
            trend.low(leads),
            trend.expected(leads),
            trend.high(leads),
        ),
        back_test=back_test(grid.values),
    )


def sufficient_limit(
    times_ms: NDArray[np.int64], ranges: NDArray[np.int64], *, limit: int | NDArray[np.int64]
) -> SufficientLimit:
    """The highest count seen: the gate shuts above a limit, not at it. At least one point.

    `limit`: one for all times, or one for each. Where it was reached the count was (or may have been)
    held down from there on; then it is foretold from what came before, up to the last time. Further
    ahead than half of what came before, where no back test reaches, nothing but the highest count seen
    bounds it from below.
    """
    seen = int(ranges.max())
    at_limit = np.flatnonzero(ranges >= limit)
    if not len(at_limit):
        return SufficientLimit(seen, seen, seen, is_bound=False)
    first = int(at_limit[0]) + 1
    ahead_ms = int(times_ms[-1] - times_ms[first - 1])
    before = forecast(times_ms[:first], ranges[:first], limit=seen, horizon_ms=ahead_ms)
    if before is None:
        return SufficientLimit(seen, seen, seen, is_bound=True)
    low, expected, high = (
        max(seen, math.ceil(float(edge.max()) * (1 - TOLERANCE)))
        for edge in (before.curve.low, before.curve.expected, before.curve.high)
    )
    is_tested = 2 * ahead_ms <= times_ms[first - 1] - times_ms[0]
    return SufficientLimit(low if is_tested else seen, expected, high, is_bound=False)


def back_test(values: NDArray[np.float64]) -> BackTest | None:
    """Forecast from earlier points, without what came later. None: too few points."""
    first = max(POINTS_MIN + 1, len(values) // 2)
    if first >= len(values):
        return None
    inside, errors, told, covered = 0, [], 0, 0
    origins = np.unique(np.linspace(first, len(values) - 1, ORIGINS + 1).astype(int)[:-1])
    for origin in origins:
        trend = trend_of(values[:origin])
        came = values[origin : origin + origin // 2]
        leads = np.arange(1, len(came) + 1, dtype=np.float64)
        slack = TOLERANCE * (1 + np.abs(came))
        is_inside = (trend.low(leads) <= came + slack) & (came <= trend.high(leads) + slack)
        inside += int(is_inside.sum())
        errors.append(np.abs(came - trend.expected(leads)))
        peak = int(np.argmax(came))
        if came[peak] > values[:origin].max():
            told += 1
            covered += _is_told(_crossing(trend, leads, float(came[peak])), peak + 1)
    all_errors = np.concatenate(errors)
    return BackTest(len(all_errors), inside, float(np.median(all_errors)), told, covered)


def _is_told(crossing: tuple[float | None, float | None, float | None], lead: int) -> bool:
    """Whether the forecast had the limit reached at `lead`, to within a step."""
    earliest, _, latest = crossing
    if earliest is None:
        return False
    return earliest <= lead + 1 and (latest is None or latest >= lead - 1)


def _crossing(
    trend: Trend, leads: NDArray[np.float64], limit: float
) -> tuple[float | None, float | None, float | None]:
    """Leads at which high, expected and low get to the limit."""
    return (
        _first_at(leads, trend.high(leads), limit),
        _first_at(leads, trend.expected(leads), limit),
        _first_at(leads, trend.low(leads), limit),
    )


def _first_at(
    leads: NDArray[np.float64], counts: NDArray[np.float64], limit: float
) -> float | None:
    """The first lead at which a curve of straight pieces is at the limit."""
    reached = np.flatnonzero(counts >= limit * (1 - TOLERANCE))
    if not len(reached):
        return None
    at = int(reached[0])
    if at == 0:
        return float(leads[0])
    rise = float(counts[at] - counts[at - 1])
    share = min(max((limit - float(counts[at - 1])) / rise, 0.0), 1.0) if rise > 0 else 1.0
    return float(leads[at - 1] + share * (leads[at] - leads[at - 1]))


@dataclass(frozen=True, slots=True)
class _Grid:
    """A series at equal steps: between two records the count is taken to go straight."""

    values: NDArray[np.float64]
    step_ms: float

    @classmethod
    def of(cls, times_ms: NDArray[np.int64], ranges: NDArray[np.int64]) -> _Grid | None:
        """None: too few records at different times."""
        is_last = np.append(np.diff(times_ms) > 0, [True])[: len(times_ms)]
        times, counts = times_ms[is_last], ranges[is_last]
        if len(times) < POINTS_MIN:
            return None
        points = np.linspace(0.0, float(times[-1] - times[0]), min(GRID_POINTS, len(times)))
        values = np.interp(points, (times - times[0]).astype(np.float64), counts)
        return cls(values, float(points[1]))

    def at(self, now_ms: int, lead: float | None) -> int | None:
        """The time that so many steps from now are."""
        return None if lead is None else now_ms + round(lead * self.step_ms)
