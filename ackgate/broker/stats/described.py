"""A statistic described once: what a field means, its unit, and the metric that exposes it.

Pure. The description is part of the field of the frozen dataclass that holds the value. JSON takes its key
from the field's name (`json_form`), ``/metrics`` its HELP line and the reference pages their text.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Final, NamedTuple

_KEY: Final = "statistic"


class Description(NamedTuple):
    """The meaning of a field, its unit and its metric."""

    meaning: str
    """A sentence without its full stop."""
    unit: str = ""
    """``bytes``, ``per second``, ``ms since 1970``; empty: a number, a name or a switch."""
    metric: str = ""
    """The metric that exposes it; empty: none does."""

    @property
    def text(self) -> str:
        """The meaning with its unit."""
        return f"{self.meaning}, {self.unit}" if self.unit else self.meaning


def statistic(meaning: str, unit: str = "", metric: str = "") -> Any:  # noqa: ANN401 - a field
    """A field of a statistics dataclass, with its description."""
    return field(metadata={_KEY: Description(meaning, unit, metric)})


def descriptions(kind: type) -> dict[str, Description]:
    """The described fields of a dataclass, by name, in their order."""
    return {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}
