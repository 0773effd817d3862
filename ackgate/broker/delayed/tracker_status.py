"""Which kind of tracker a subscription has, which it was to have, and why they differ. Pure, frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class TrackerStep(enum.Enum):
    """From the best down. A tracker that fails goes one step down, and says so."""

    BUCKETS = "buckets"
    """Sealed buckets in ledgers, PIP-195."""
    TIME_BUCKETS = "time buckets"
    """In memory; after a restart they are read again from the topic."""
    OFF = "off"
    """Delivered at once."""


@dataclass(frozen=True, slots=True)
class DelayStatus:
    """How a subscription's delayed entries are tracked."""

    step: TrackerStep = TrackerStep.OFF
    """OFF also until the first delayed message."""
    wanted: TrackerStep = TrackerStep.OFF
    """What the settings ask for."""
    why: str = ""
    """Why `step` is not `wanted`; empty when it is."""
    since_ms: int = 0
    """Since when it is as it is."""
