"""Scales and ticks of a plot, and how numbers and times are written beside them.

Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

_TIME_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 30, 90, 180, 365, 3650, 36500)),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels, on a straight line."""

    first: float
    last: float
    from_px: float
    until_px: float

    def __call__(self, value: float) -> float:
        """Where a value lies. A scale of one value puts it at its beginning."""
        span = self.last - self.first
        share = (value - self.first) / span if span else 0.0
        return self.from_px + share * (self.until_px - self.from_px)


@dataclass(frozen=True, slots=True)
class XAxis:
    """What lies to the right: a span with its ticks."""

    title: str
    first: float
    last: float
    """Above `first`."""
    ticks: Sequence[tuple[float, str]]


def time_axis(from_ms: int, until_ms: int) -> XAxis:
    """Times, in milliseconds since 1970."""
    days = " to ".join(sorted({day_text(from_ms), day_text(until_ms)}))
    last = max(until_ms, from_ms + 1)
    return XAxis(f"time (UTC), {days}", from_ms, last, time_ticks(from_ms, until_ms))


def count_axis(title: str, top: float) -> XAxis:
    """Numbers from 0 up."""
    ticks = count_ticks(top)
    return XAxis(title, 0, ticks[-1], [(tick, short_text(tick)) for tick in ticks])


def named_axis(title: str, names: Sequence[str]) -> XAxis:
    """Something that has no order: the n-th name stands between n and n + 1. At least one."""
    return XAxis(title, 0, len(names), [(at + 0.5, name) for at, name in enumerate(names)])


def count_ticks(top: float, wanted: int = 5) -> list[float]:
    """0 and up, in steps of 1, 2 or 5 times a power of ten, whole numbers; the last at or above top."""
    raw = max(top, 1.0) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= raw * (1 - 1e-12))
    step = max(step, 1.0)
    return [n * step for n in range(math.ceil(top / step - 1e-9) + 1)] if top > 0 else [0.0, 1.0]


def time_ticks(from_ms: int, until_ms: int, wanted: int = 6) -> list[tuple[int, str]]:
    """Round times within a span, with what to write there."""
    span = max(until_ms - from_ms, 1)
    step = next((one for one in _TIME_STEPS_MS if span / one <= wanted), _TIME_STEPS_MS[-1])
    first = -(-from_ms // step) * step
    return [(at, _time_label(at, step)) for at in range(first, until_ms + 1, step)]


def _time_label(at_ms: int, step_ms: int) -> str:
    when = _utc(at_ms)
    if step_ms >= _DAY:
        return f"{when:%Y-%m-%d}"
    if step_ms >= _MINUTE:
        return f"{when:%H:%M}"
    if step_ms >= _SECOND:
        return f"{when:%H:%M:%S}"
    return f"{when:%M:%S}.{at_ms % 1000:03d}"


def _utc(at_ms: int) -> datetime:
    """What a calendar has no name for (a damaged clock) lies at its ends."""
    return datetime.fromtimestamp(min(max(at_ms, 0), 253_402_300_799_999) / 1000, UTC)


def time_text(at_ms: int) -> str:
    """A time in full, to the second."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}"


def moment_text(at_ms: int) -> str:
    """A time in full, to the millisecond."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def day_text(at_ms: int) -> str:
    """The day."""
    return f"{_utc(at_ms):%Y-%m-%d}"


def count_text(value: float) -> str:
    """A number with its thousands apart."""
    if value == round(value):
        return f"{round(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2g}"


def short_text(value: float) -> str:
    """A number beside an axis: 12k, 3.5M."""
    for power, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power * (10 if unit == "k" else 1):
            return f"{value / power:g}{unit}"
    return f"{value:g}"


def bytes_text(value: float) -> str:
    """Bytes in units of 1024."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << power:
            return f"{value / (1 << power):.1f} {unit}"
    return f"{value:.0f} B"


def span_text(span_ms: int) -> str:
    """How long, in the largest unit of which there are two, or in seconds."""
    for unit_ms, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if span_ms >= 2 * unit_ms:
            return f"{span_ms / unit_ms:.1f} {unit}"
    return f"{span_ms / _SECOND:.1f} s"
