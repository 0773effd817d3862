"""Delayed entries: the port of their trackers, and the trackers that keep them in memory. Pure."""

from ackgate.dispatcher.delayed.port import (
    DelayedTracker,
    DelayKeys,
    DelaySettings,
    HeldSource,
    offered_columns,
    refuse_position,
    time_ms,
    times_ms,
)
from ackgate.dispatcher.delayed.shared_index import (
    SharedIndex,
    SharedView,
)
from ackgate.dispatcher.delayed.time_buckets import (
    TimeBucketTracker,
)

__all__ = [
    "DelayKeys",
    "DelaySettings",
    "DelayedTracker",
    "HeldSource",
    "SharedIndex",
    "SharedView",
    "TimeBucketTracker",
    "offered_columns",
    "refuse_position",
    "time_ms",
    "times_ms",
]
