"""Positions that wait, by the time that they are due: the store under the delayed trackers. Pure."""

from ackgate.dispatcher.held.run_store import (
    RunStore,
)
from ackgate.dispatcher.held.runs import (
    TIME_MS_MAX,
    IntArray,
    Runs,
    expanded,
    found_in,
    joined,
    no_runs,
    sorted_columns,
)
from ackgate.dispatcher.held.stale_records import (
    StaleRecords,
)

__all__ = [
    "TIME_MS_MAX",
    "IntArray",
    "RunStore",
    "Runs",
    "StaleRecords",
    "expanded",
    "found_in",
    "joined",
    "no_runs",
    "sorted_columns",
]
