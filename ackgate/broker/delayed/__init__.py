"""Delayed messages at a broker: the trackers' storage, the shared index, and cancelling."""

from ackgate.broker.delayed.cancel import (
    POSITIONS_MAX,
    CancelledMessages,
    CancelOutcome,
    PositionOutcome,
    settings_of_cancelled,
)
from ackgate.broker.delayed.shared import SharedDelays, SharedTracking
from ackgate.broker.delayed.tracker_status import DelayStatus
from ackgate.broker.delayed.trackers import TrackerHome

__all__ = [
    "POSITIONS_MAX",
    "CancelOutcome",
    "CancelledMessages",
    "DelayStatus",
    "PositionOutcome",
    "SharedDelays",
    "SharedTracking",
    "TrackerHome",
    "settings_of_cancelled",
]
