"""When a gate was shut, out of the delivery journal.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


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
