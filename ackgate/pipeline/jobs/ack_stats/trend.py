r"""Where a series goes if it goes on as before, and by how much such forecasts missed.

Pure, on a grid of equal steps. The line is Theil and Sen's: its slope is the median of the slopes
between all pairs of points, so that single bursts do not turn it round. How much of the past counts
(the last eighth, quarter, half, all of it), and whether there is growth at all or only up and down
around a level, is what would have told this very series best. The band around it is what forecasts
made at earlier points missed by, lead for lead:

    ranges                       . - '  high
       |          __/\__ . - ' _ _ _ _  expected
       |    /\__/        ' - . .
       |___/                     ' - .  low
       +--------------------|-----------------
                           now    lead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

POINTS_MIN: Final = 8
"""With fewer points there is no forecast."""

LINE_POINTS_MIN: Final = POINTS_MIN // 2
"""The fewest that a line is laid through."""

WINDOW_SHARES: Final = (8, 4, 2, 1)
"""Divisors of the number of points: what part of the past a line is laid through."""

LOW_QUANTILE: Final = 0.05
HIGH_QUANTILE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Trend:
    """A line from the last point on, in steps of the grid, with a band."""

    level: float
    """At the last point."""
    slope: float
    """Per step."""
    leads: NDArray[np.float64]
    """Steps ahead that errors are known for, ascending from 0."""
    errors_low: NDArray[np.float64]
    errors_high: NDArray[np.float64]

    def expected(self, leads: NDArray[np.float64]) -> NDArray[np.float64]:
        """The line, never below 0."""
        return np.maximum(self.level + self.slope * leads, 0.0)

    def low(self, leads: NDArray[np.float64]) -> NDArray[np.float64]:
        """The band's lower edge."""
        errors = _beyond(leads, self.leads, self.errors_low)
        return np.maximum(self.level + self.slope * leads + errors, 0.0)

    def high(self, leads: NDArray[np.float64]) -> NDArray[np.float64]:
        """The band's upper edge."""
        errors = _beyond(leads, self.leads, self.errors_high)
        return np.maximum(self.level + self.slope * leads + errors, 0.0)


class _Rule(NamedTuple):
    """How a line is laid."""

    share: int
    """Divisor of the number of points: what part of the past counts."""
    has_slope: bool


_RULES: Final = tuple(
    _Rule(share, has_slope) for has_slope in (True, False) for share in WINDOW_SHARES
)


def trend_of(values: NDArray[np.float64]) -> Trend:
    """`values`: at least `POINTS_MIN`. O(points^2) per window and point: meant for short grids."""
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
    """1, 2, 4 ... as long as a few forecasts can be checked at each; at least one."""
    leads = [1]
    while leads[-1] * 2 <= lead_max * 3 // 4:
        leads.append(leads[-1] * 2)
    return leads


def _errors(
    values: NDArray[np.float64], rule: _Rule, first_origin: int, leads: list[int]
) -> list[NDArray[np.float64]]:
    """For each lead: what came minus what was predicted, from each earlier point."""
    lines = np.array(
        [_line(values[: origin + 1], rule) for origin in range(first_origin, len(values) - 1)]
    ).reshape(-1, 2)
    errors = []
    for lead in leads:
        came = values[first_origin + lead :]
        told = lines[: len(came), 0] + lines[: len(came), 1] * lead
        errors.append(came - np.maximum(told, 0.0))
    return errors


def _line(values: NDArray[np.float64], rule: _Rule) -> tuple[float, float]:
    """Level at the last point and slope per step of the line through the last part."""
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
    """Errors at any lead: between those known on a line, beyond the last in proportion to the lead."""
    return np.interp(leads, known, errors) * np.maximum(leads / known[-1], 1.0)
