"""When a gate was shut, by the delivery journal or guessed from cursor records.

Pure. Records show the range count at single moments. The guess: the gate was shut from the first
record with more ranges than the limit until the next record at or below the limit:

    ranges    5    9   12   14   11    8        limit 10
    guessed            |--------------|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GUESSES_MAX: Final = 300
"""Most guesses for one subscription; the newest are kept."""


@dataclass(frozen=True, slots=True)
class GateInterval:
    """A time during which the gate of a subscription was shut."""

    topic: str
    subscription: str
    from_ms: int
    until_ms: int
    is_open_ended: bool
    """The gate was still shut at the owner's last event, or at the last record."""
    reasons: str | None
    """The gate's pause reasons, joined by commas; None: the interval is a guess."""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The time from a record above the range limit to the next record at or below it."""

    from_ms: int
    until_ms: int
    is_open_ended: bool
    """No record at or below the limit follows; `until_ms` is the time of the last record."""


@dataclass(frozen=True, slots=True)
class GateHistory:
    """The pauses of one subscription's gate."""

    intervals: tuple[GateInterval, ...] = ()
    """In order of time; only the newest if there are too many."""
    count: int = 0
    """Number of all pauses, including those that `intervals` leaves out."""
    total_ms: int = 0
    """Total length of all pauses, in ms."""
    is_guessed: bool = False
    """Whether the pauses are guessed, because the topic has no journal."""


def over_limit(
    times_ms: NDArray[np.int64], ranges: NDArray[np.int64], limits: NDArray[np.int64]
) -> list[OverLimit]:
    """Return the times above the limit, the newest `GUESSES_MAX`. `times_ms` ascends, not empty."""
    is_over = np.concatenate(([False], ranges > limits, [False]))
    edges = np.flatnonzero(is_over[1:] != is_over[:-1]).reshape(-1, 2)[-GUESSES_MAX:]
    last = len(times_ms) - 1
    return [
        OverLimit(int(times_ms[first]), int(times_ms[min(end, last)]), end > last)
        for first, end in edges.tolist()
    ]
