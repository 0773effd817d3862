"""Which kind of tracker a subscription has, which it was to have, and why they differ. Pure, frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class TrackerStep(enum.Enum):
    """Kinds of tracker, the best one first.

    A tracker that fails goes one step down, and reports it.
    """

    BUCKETS = "buckets"
    """Sealed buckets in ledgers, PIP-195."""
    TIME_BUCKETS = "time buckets"
    """Buckets in memory; after a restart the entries are read again from the topic."""
    OFF = "off"
    """No tracker: messages are delivered at once."""


@dataclass(frozen=True, slots=True)
class DelayStatus:
    """Which tracker a subscription has, and why not a better one."""

    step: TrackerStep = TrackerStep.OFF
    """The tracker in use. OFF also until the first delayed message."""
    wanted: TrackerStep = TrackerStep.OFF
    """The tracker that the settings ask for."""
    why: str = ""
    """Why `step` is not `wanted`; empty when it is."""
    since_ms: int = 0
    """When the tracker last changed, in ms since 1970."""
