"""Timing wheels, and a purgatory of operations that wait: Kafka's designs. Pure. See docs/timing.md."""

from ackgate.dispatcher.timing.batch_wheel import (
    BatchWheel,
)
from ackgate.dispatcher.timing.purgatory import (
    PURGE_INTERVAL,
    DelayedOperation,
    Purgatory,
    PurgatoryStatistics,
)
from ackgate.dispatcher.timing.wheel import (
    SLOTS_PER_LEVEL,
    TIMERS_MAX_PER_ADVANCE,
    Timer,
    TimingWheel,
)

__all__ = [
    "PURGE_INTERVAL",
    "SLOTS_PER_LEVEL",
    "TIMERS_MAX_PER_ADVANCE",
    "BatchWheel",
    "DelayedOperation",
    "Purgatory",
    "PurgatoryStatistics",
    "Timer",
    "TimingWheel",
]
