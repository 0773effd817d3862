"""A statistic described once: what a field means, its unit, its word in a terminal and its metric.

Pure. The description is part of the field of the frozen dataclass that holds the value, in whichever room
that is. ``/metrics`` takes its HELP lines from there, `ackgate stats` its words and units, and the reference
page ``docs/metrics.md`` its tables.
"""

from __future__ import annotations

from dataclasses import MISSING, field, fields
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

_KEY: Final = "statistic"

PER_SECOND: Final = "per second"


class Description(NamedTuple):
    """The meaning of a field, its unit, its metric and its word."""

    meaning: str
    """A sentence without its full stop."""
    unit: str = ""
    """``bytes``, ``per second``, ``ms since 1970``; empty: a number, a name or a switch."""
    metric: str = ""
    """The metric that exposes it; empty: none does."""
    title: str = ""
    """Its word in a terminal; empty: no line shows it as a figure."""

    @property
    def text(self) -> str:
        """The meaning with its unit."""
        return f"{self.meaning}, {self.unit}" if self.unit else self.meaning

    @property
    def suffix(self) -> str:
        """After a figure, or after its title above a column."""
        return "/s" if self.unit == PER_SECOND else ""

    def figure(self, value: float) -> str:
        """The value as a terminal shows it, without the suffix."""
        return f"{value:,.1f}" if self.unit == PER_SECOND else f"{value:,}"


_SECONDS_OF: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: `1 ledger`, `1,200 ledgers`. `many`: the plural, if it is not `one` + s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def span(milliseconds: float) -> str:
    """A length of time in its largest unit."""
    seconds = max(0.0, milliseconds / 1000)
    for length, unit in _SECONDS_OF:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.1f} s"


def statistic(
    meaning: str,
    unit: str = "",
    metric: str = "",
    *,
    title: str = "",
    default: Any = MISSING,  # noqa: ANN401 - a field's
) -> Any:  # noqa: ANN401 - a field
    """A field of a statistics dataclass, with its description."""
    about = Description(meaning, unit, metric, title)
    return field(default=default, metadata={_KEY: about})


def descriptions(kind: type) -> dict[str, Description]:
    """The described fields of a dataclass, by name, in their order."""
    return {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}


def iso_time(seconds: float) -> str:
    """A time (seconds since 1970) in ISO 8601, UTC, to the millisecond: how statistics spell one."""
    whole = datetime.fromtimestamp(int(seconds), UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(seconds * 1000) % 1000:03d}Z"
