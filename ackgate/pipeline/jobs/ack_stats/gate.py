"""When a gate was shut: out of the delivery journal, or guessed from cursor records.

Pure. Records are written at moments; that the gate was shut is guessed from the first record with
more ranges than the limit to the next one with no more:

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
"""Most guesses for one subscription: the newest ones."""


@dataclass(frozen=True, slots=True)
class GateInterval:
    """From one event of the gate to the next."""

    topic: str
    subscription: str
    from_ms: int
    until_ms: int
    is_open_ended: bool
    """It was still shut at the owner's last event."""
    reasons: str | None
    """Joined by commas; None: it is a guess."""


@dataclass(frozen=True, slots=True)
class OverLimit:
    """From a record with more ranges than the limit to the next one with no more."""

    from_ms: int
    until_ms: int
    is_open_ended: bool
    """No such record follows."""


@dataclass(frozen=True, slots=True)
class GateHistory:
    """All that is known about one gate."""

    intervals: tuple[GateInterval, ...] = ()
    """By time: the newest ones, if there are too many."""
    count: int = 0
    total_ms: int = 0
    """Total length of all pauses, in ms."""
    is_guessed: bool = False
    """Whether the pauses are guessed, because the topic has no journal."""


def over_limit(
    times_ms: NDArray[np.int64], ranges: NDArray[np.int64], limits: NDArray[np.int64]
) -> list[OverLimit]:
    """`times_ms`: ascending, at least one."""
    is_over = np.concatenate(([False], ranges > limits, [False]))
    edges = np.flatnonzero(is_over[1:] != is_over[:-1]).reshape(-1, 2)[-GUESSES_MAX:]
    last = len(times_ms) - 1
    return [
        OverLimit(int(times_ms[first]), int(times_ms[min(end, last)]), end > last)
        for first, end in edges.tolist()
    ]
