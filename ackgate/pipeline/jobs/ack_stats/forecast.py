r"""When will the range count reach the limit, and what limit would have sufficed?

Pure and deterministic: the same records give the same answer. By default, a forecast looks as far
ahead as the history is long. If the count does not reach the limit within that horizon, the
forecast has no time; the count may still reach the limit later. `BackTest` measures the quality: it
forecasts the same series from earlier points, and compares the forecasts with what followed.

A `Trend` extends a series, resampled to equal steps, by a straight line. The line is a Theil-Sen
line: its slope is the median of the slopes between all pairs of points, so single bursts do not
turn it. The trend uses the part of the past (last eighth, quarter, half, or all) and the kind of
line (sloped or level) that would have forecast this series best. The band around the line shows the
errors, for each lead, of forecasts from earlier points::

    ranges                       . - '  high
       |          __/\__ . - ' _ _ _ _  expected
       |    /\__/        ' - . .
       |___/                     ' - .  low
       +--------------------|-----------------
                           now    lead
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

POINTS_MIN: Final = 8
"""With fewer points there is no forecast."""

LINE_POINTS_MIN: Final = POINTS_MIN // 2
"""Fewest points that a line is fitted to."""

WINDOW_SHARES: Final = (8, 4, 2, 1)
"""Divisors of the number of points: a line is fitted to the last 1/8, 1/4, 1/2 or all of them."""

LOW_QUANTILE: Final = 0.05
HIGH_QUANTILE: Final = 0.95

GRID_POINTS: Final = 64
"""Most points of a resampled series: enough for its shape, few enough for all pairs."""

CURVE_POINTS: Final = 65
"""Points of a forecast curve, its beginning and its end included."""

ORIGINS: Final = 8
"""Most earlier points from which a back test forecasts."""

TOLERANCE: Final = 1e-9
"""Relative tolerance: the rounding error of a sum depends on the order of its terms."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line from the last point on, with an error band. Leads are in steps of the grid."""

    level: float
    """Value of the line at the last point."""
    slope: float
    """Change per step."""
    leads: NDArray[np.float64]
    """Steps ahead at which the errors are known, ascending from 0."""
    errors_low: NDArray[np.float64]
    errors_high: NDArray[np.float64]
    """`errors_low` and `errors_high`: 5 % and 95 % quantiles of the errors at each of `leads`."""

    def expected(self, leads: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the line's value at each lead, at least 0."""
        return np.maximum(self.level + self.slope * leads, 0.0)

    def low(self, leads: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the band's lower edge at each lead, at least 0."""
        errors = _beyond(leads, self.leads, self.errors_low)
        return np.maximum(self.level + self.slope * leads + errors, 0.0)

    def high(self, leads: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the band's upper edge at each lead, at least 0."""
        errors = _beyond(leads, self.leads, self.errors_high)
        return np.maximum(self.level + self.slope * leads + errors, 0.0)


class _Rule(NamedTuple):
    """How `_line` fits a line to a series."""

    share: int
    """Divisor of the number of points: the line is fitted to the last 1/`share` of them."""
    has_slope: bool
    """False: a level line at the median."""


_RULES: Final = tuple(
    _Rule(share, has_slope) for has_slope in (True, False) for share in WINDOW_SHARES
)


def trend_of(values: NDArray[np.float64]) -> Trend:
    """Fit the trend whose forecasts from earlier points had the smallest mean absolute errors.

    Requires at least `POINTS_MIN` values. Each line takes O(points^2), so the series must be short.
    """
    count = len(values)
    first_origin = max(LINE_POINTS_MIN, count // 4) - 1
    leads = _leads(count - 1 - first_origin)
    best: tuple[float, _Rule, list[NDArray[np.float64]]] | None = None
    for rule in _RULES:
        errors = _errors(values, rule, first_origin, leads)
        score = sum(float(np.mean(np.abs(of_lead))) for of_lead in errors)
        if best is None or score < best[0]:
            best = score, rule, errors
    assert best is not None
    _, rule, errors = best
    level, slope = _line(values, rule)
    low = np.array([0.0, *(np.quantile(of_lead, LOW_QUANTILE) for of_lead in errors)])
    high = np.array([0.0, *(np.quantile(of_lead, HIGH_QUANTILE) for of_lead in errors)])
    return Trend(
        level=level,
        slope=slope,
        leads=np.array([0.0, *leads]),
        errors_low=np.minimum.accumulate(low),
        errors_high=np.maximum.accumulate(high),
    )


def _leads(lead_max: int) -> list[int]:
    """Return the leads 1, 2, 4 and so on up to 3/4 of `lead_max`; at least the first."""
    leads = [1]
    while leads[-1] * 2 <= lead_max * 3 // 4:
        leads.append(leads[-1] * 2)
    return leads


def _errors(
    values: NDArray[np.float64], rule: _Rule, first_origin: int, leads: list[int]
) -> list[NDArray[np.float64]]:
    """Return for each lead the errors (actual minus forecast) of forecasts from earlier points."""
    lines = np.array(
        [_line(values[: origin + 1], rule) for origin in range(first_origin, len(values) - 1)]
    ).reshape(-1, 2)
    errors = []
    for lead in leads:
        came = values[first_origin + lead :]
        expected = lines[: len(came), 0] + lines[: len(came), 1] * lead
        errors.append(came - np.maximum(expected, 0.0))
    return errors


def _line(values: NDArray[np.float64], rule: _Rule) -> tuple[float, float]:
    """Fit a line to the last part of a series; return its last value and its slope per step."""
    window = values[-max(LINE_POINTS_MIN, len(values) // rule.share) :]
    if not rule.has_slope:
        return float(np.median(window)), 0.0
    ages = np.arange(len(window), dtype=np.float64) - (len(window) - 1)
    later, earlier = np.tril_indices(len(window), -1)
    slope = float(np.median((window[later] - window[earlier]) / (later - earlier)))
    return float(np.median(window - slope * ages)), slope


def _beyond(
    leads: NDArray[np.float64], known: NDArray[np.float64], errors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate the errors; beyond the last known lead, scale the last error with the lead."""
    return np.interp(leads, known, errors) * np.maximum(leads / known[-1], 1.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """A forecast of range counts: the expected count and its band at each time."""

    times_ms: NDArray[np.float64]
    low: NDArray[np.float64]
    expected: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Crossing:
    """When upper edge, line and lower edge reach the limit; None: not within the horizon."""

    earliest_ms: int | None
    expected_ms: int | None
    latest_ms: int | None


@dataclass(frozen=True, slots=True)
class BackTest:
    """The accuracy of forecasts made from earlier points of the same series."""

    counts_tested: int
    """Number of range counts that were forecast."""
    counts_in_band: int
    error_median: float
    """Median absolute difference between expected and actual count, in ranges."""
    crossings_tested: int
    """New peaks of the count, each taken as a limit; the time of reaching it was forecast."""
    crossings_in_band: int

    @property
    def coverage(self) -> float:
        """Share of the actual counts that lie within the band, 0 to 1."""
        return self.counts_in_band / self.counts_tested


@dataclass(frozen=True, slots=True)
class SufficientLimit:
    """The lowest limit that the range count would not have exceeded during the history."""

    low: int
    expected: int
    high: int
    is_bound: bool
    """True: a lower bound only, since the count reached the limit before there was a trend."""


@dataclass(frozen=True, slots=True)
class RangeForecast:
    """The forecast of one subscription's range count."""

    now_ms: int
    horizon_ms: int
    ranges_per_hour: float
    crossing: Crossing
    curve: Curve
    back_test: BackTest | None
    """None: the series is too short."""


def forecast(
    times_ms: NDArray[np.int64],
    ranges: NDArray[np.int64],
    *,
    limit: int,
    horizon_ms: int | None = None,
) -> RangeForecast | None:
    """Forecast the range count and the time at which it reaches `limit`.

    `times_ms` must ascend. None when fewer than `POINTS_MIN` times differ.
    """
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
    """Estimate the lowest limit that the count would not have exceeded. Requires one point or more.

    `limit` is one limit for all times, or one for each. If the count never reached it, the answer
    is the highest count seen, since the gate shuts above a limit, not at it. If it did, the limit
    may have held the count down from then on: the answer is the peak of a forecast from the points
    before, up to the last time. No back test covers a forecast longer than half of the time before
    it; its lower bound is then only the highest count seen.
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
    """Forecast from earlier points and compare with what followed. None: too few points."""
    first = max(POINTS_MIN + 1, len(values) // 2)
    if first >= len(values):
        return None
    inside, errors, crossings, covered = 0, [], 0, 0
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
            crossings += 1
            covered += _is_within(_crossing(trend, leads, float(came[peak])), peak + 1)
    all_errors = np.concatenate(errors)
    return BackTest(len(all_errors), inside, float(np.median(all_errors)), crossings, covered)


def _is_within(crossing: tuple[float | None, float | None, float | None], lead: int) -> bool:
    """Whether `lead` lies between the earliest and the latest crossing, give or take one step."""
    earliest, _, latest = crossing
    if earliest is None:
        return False
    return earliest <= lead + 1 and (latest is None or latest >= lead - 1)


def _crossing(
    trend: Trend, leads: NDArray[np.float64], limit: float
) -> tuple[float | None, float | None, float | None]:
    """Return the leads at which upper edge, line and lower edge reach the limit; None: never."""
    return (
        _first_at(leads, trend.high(leads), limit),
        _first_at(leads, trend.expected(leads), limit),
        _first_at(leads, trend.low(leads), limit),
    )


def _first_at(
    leads: NDArray[np.float64], counts: NDArray[np.float64], limit: float
) -> float | None:
    """Return the first lead at which a piecewise linear curve reaches the limit; None: never."""
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
    """A series resampled at equal steps, by linear interpolation between records."""

    values: NDArray[np.float64]
    step_ms: float

    @classmethod
    def of(cls, times_ms: NDArray[np.int64], ranges: NDArray[np.int64]) -> _Grid | None:
        """Resample a series. None when fewer than `POINTS_MIN` times differ."""
        is_last = np.append(np.diff(times_ms) > 0, [True])[: len(times_ms)]
        times, counts = times_ms[is_last], ranges[is_last]
        if len(times) < POINTS_MIN:
            return None
        points = np.linspace(0.0, float(times[-1] - times[0]), min(GRID_POINTS, len(times)))
        values = np.interp(points, (times - times[0]).astype(np.float64), counts)
        return cls(values, float(points[1]))

    def at(self, now_ms: int, lead: float | None) -> int | None:
        """Return the time, in ms, at `lead` steps after `now_ms`; None for None."""
        return None if lead is None else now_ms + round(lead * self.step_ms)
