"""In how many seconds will a headroom be used up, if it goes on shrinking as it did?

Pure. The slope is that of the straight line closest to the samples (least squares): one burst of
acks does not turn the answer round. There is none while the headroom does not shrink, before enough
time has been watched, and beyond a day, where the rate says nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SPAN_MS_MIN: Final = 2_000
"""Less than this was watched: no forecast."""

FORECAST_SECONDS_MAX: Final = 86_400.0


def seconds_until_used_up(samples: Sequence[tuple[int, float]]) -> float | None:
    """`samples`: (time in ms, headroom), oldest first, the last one of now.

    0.0 when nothing is left already; None when the rate allows no answer.
    """
    if not samples:
        return None
    now_ms, headroom = samples[-1]
    if headroom <= 0:
        return 0.0
    if now_ms - samples[0][0] < SPAN_MS_MIN:
        return None
    shrinks_per_ms = -_slope(samples)
    if shrinks_per_ms <= 0:
        return None
    seconds = headroom / shrinks_per_ms / 1000
    return seconds if seconds <= FORECAST_SECONDS_MAX else None


def _slope(samples: Sequence[tuple[int, float]]) -> float:
    """Of the least-squares line, per ms. The times must not all be equal."""
    origin_ms = samples[0][0]
    count = len(samples)
    time_mean = sum(at_ms - origin_ms for at_ms, _ in samples) / count
    level_mean = sum(level for _, level in samples) / count
    covariance = variance = 0.0
    for at_ms, level in samples:
        offset = at_ms - origin_ms - time_mean
        covariance += offset * (level - level_mean)
        variance += offset * offset
    return covariance / variance
