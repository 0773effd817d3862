"""Numbers, times and names as text for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999. A damaged clock may show a time that no calendar has."""


def calendar_ms(at_ms: float) -> int:
    """The time, or the nearest one that a calendar has."""
    return int(min(max(at_ms, 0), _LATEST_MS))


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(calendar_ms(at_ms) / 1000, UTC)


def time_text(at_ms: int) -> str:
    """To the second: ``2027-01-15 08:00:00``."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}"


def moment_text(at_ms: int) -> str:
    """To the millisecond: ``2027-01-15 08:00:00.007``."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def count_text(value: float) -> str:
    """With thousands apart: ``1,234``, ``12.5``, ``0.12``."""
    if value == round(value):
        return f"{round(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2g}"


def bytes_text(value: float) -> str:
    """In units of 1,024: ``2.0 KiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << power:
            return f"{value / (1 << power):.1f} {unit}"
    return f"{value:.0f} B"


def span_text(span_ms: float) -> str:
    """In the largest unit of which there are two, or in seconds: ``2.5 h``."""
    for unit_ms, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if span_ms >= 2 * unit_ms:
            return f"{span_ms / unit_ms:.1f} {unit}"
    return f"{span_ms / _SECOND:.1f} s"


def us_text(us: int | None) -> str:
    """Microseconds, to three digits: ``12.3 ms``. None is a dash."""
    if us is None:
        return "-"
    for size, unit in ((1_000_000, "s"), (1_000, "ms")):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us} µs"


def largest_unit(longest_ms: float) -> tuple[str, int]:
    """Name and milliseconds of the largest unit of which there are two; seconds for less."""
    units = (("days", _DAY), ("hours", _HOUR), ("minutes", _MINUTE))
    return next((one for one in units if longest_ms >= 2 * one[1]), ("seconds", _SECOND))


def shortened(text: str, length: int = 24) -> str:
    """At most `length` characters. The middle of a name says the least."""
    if len(text) <= length:
        return text
    kept = length - 1
    return f"{text[: kept - kept // 2]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - kept // 2 :]}"
