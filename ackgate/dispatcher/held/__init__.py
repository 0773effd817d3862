"""Positions that wait, by the time that they are due: under the delayed trackers and the nacks. Pure."""

from ackgate.dispatcher.held.held_positions import (
    HeldPositions,
)
from ackgate.dispatcher.held.runs import (
    TIME_MS_MAX,
    IntArray,
    sorted_columns,
)

__all__ = [
    "TIME_MS_MAX",
    "HeldPositions",
    "IntArray",
    "sorted_columns",
]
