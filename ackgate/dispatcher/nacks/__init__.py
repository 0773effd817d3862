"""Negatively acknowledged entries, each until its time (PIP-393). Pure."""

from ackgate.dispatcher.nacks.settings import (
    MultiplierRedeliveryBackoff,
    NackSettings,
    deadline_ms,
)
from ackgate.dispatcher.nacks.tracker import (
    WHOLE,
    DueNacks,
    NackTracker,
)

__all__ = [
    "WHOLE",
    "DueNacks",
    "MultiplierRedeliveryBackoff",
    "NackSettings",
    "NackTracker",
    "deadline_ms",
]
