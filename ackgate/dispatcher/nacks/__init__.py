"""Negatively acknowledged entries, each until its time (PIP-393). Pure."""

from ackgate.dispatcher.nacks.frozen import (
    NOTHING_FROZEN,
    FrozenNacks,
    MemberNack,
)
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
    "NOTHING_FROZEN",
    "WHOLE",
    "DueNacks",
    "FrozenNacks",
    "MemberNack",
    "MultiplierRedeliveryBackoff",
    "NackSettings",
    "NackTracker",
    "deadline_ms",
]
