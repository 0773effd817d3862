"""The policy `redeliveryBackoff`: how long the broker holds back what a consumer gave back.

Pure. A namespace or a topic has one, or none: then what is given back comes again at once, as with
Pulsar. The delay grows with the entry's redelivery count, as that of Pulsar's
``MultiplierRedeliveryBackoff`` in its clients::

    {"minDelayMs": 1000, "maxDelayMs": 60000, "multiplier": 2, "jitter": 0.1}

    1st time 1 s, 2nd 2 s, 3rd 4 s ... at most 60 s, each less up to a tenth by chance
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ackgate.errors import CallerError

DELAY_MS_MAX: Final = 10 * 366 * 86_400_000
"""Ten years. More than that is a mistake, or an attempt at an overflow."""

MULTIPLIER_MAX: Final = 1_000.0

_FIELDS: Final = {
    "minDelayMs": "min_delay_ms",
    "maxDelayMs": "max_delay_ms",
    "multiplier": "multiplier",
    "jitter": "jitter",
}
"""JSON's names -> ours."""


@dataclass(frozen=True, slots=True)
class RedeliveryBackoffPolicy:
    """How long entries are held back: 10 s, 20 s, 40 s, ... 10 min unless it says otherwise."""

    min_delay_ms: int = 10_000
    """The first time."""

    max_delay_ms: int = 600_000
    """At most, however often."""

    multiplier: float = 2.0
    """From one time to the next; above 1."""

    jitter: float = 0.0
    """Share of a delay, 0 to 1, that chance may take off it."""

    def __post_init__(self) -> None:
        """Raises `CallerError` naming the field that cannot be."""
        _check_delay("minDelayMs", self.min_delay_ms, 0)
        _check_delay("maxDelayMs", self.max_delay_ms, self.min_delay_ms)
        if not 1 < _number("multiplier", self.multiplier) <= MULTIPLIER_MAX:
            raise CallerError(
                f"redeliveryBackoff: multiplier must be above 1 and at most {MULTIPLIER_MAX:g}, "
                f"not {self.multiplier!r:.80}"
            )
        if not 0 <= _number("jitter", self.jitter) <= 1:
            raise CallerError(f"redeliveryBackoff: jitter must be 0 to 1, not {self.jitter!r:.80}")

    @classmethod
    def from_json(cls, value: object) -> RedeliveryBackoffPolicy:
        """Of the policy's JSON. Raises `CallerError` naming what is wrong with it."""
        if not isinstance(value, dict):
            raise CallerError(f"redeliveryBackoff must be an object, not {value!r:.80}")
        unknown = sorted(map(str, value.keys() - _FIELDS.keys()))
        if unknown:
            raise CallerError(
                f"redeliveryBackoff: no field {', '.join(unknown)}; there are {', '.join(_FIELDS)}"
            )
        return cls(**{_FIELDS[name]: field for name, field in value.items()})

    def to_json(self) -> dict[str, int | float]:
        """The policy's JSON, complete."""
        return {name: getattr(self, field) for name, field in _FIELDS.items()}


def _check_delay(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CallerError(f"redeliveryBackoff: {field} must be a whole number, not {value!r:.80}")
    if not least <= value <= DELAY_MS_MAX:
        raise CallerError(
            f"redeliveryBackoff: {field} must be {least} to {DELAY_MS_MAX} ms, not {value!r:.80}"
        )


def _number(field: str, value: object) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise CallerError(f"redeliveryBackoff: {field} must be a finite number, not {value!r:.80}")
