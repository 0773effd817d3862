"""Delayed messages at a broker: the trackers' storage, the shared index, and cancelling.

A name is imported from its home at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.delayed.cancel import (
        POSITIONS_MAX,
        CancelledMessages,
        CancelOutcome,
        PositionOutcome,
        settings_of_cancelled,
    )
    from ackgate.broker.delayed.shared import (
        SharedDelays,
        SharedTracking,
    )
    from ackgate.broker.delayed.tracker_status import (
        DelayStatus,
    )
    from ackgate.broker.delayed.trackers import (
        TrackerHome,
    )

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

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.delayed.cancel": (
            "POSITIONS_MAX",
            "CancelledMessages",
            "CancelOutcome",
            "PositionOutcome",
            "settings_of_cancelled",
        ),
        "ackgate.broker.delayed.shared": ("SharedDelays", "SharedTracking"),
        "ackgate.broker.delayed.tracker_status": ("DelayStatus",),
        "ackgate.broker.delayed.trackers": ("TrackerHome",),
    },
)
