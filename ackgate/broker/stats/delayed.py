"""What a subscription holds back, in which index, and how that is kept.

Pure, frozen: the statistics that the parts give of themselves, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.broker.delayed.statistics import DelayedStatistics, NackStatistics
from ackgate.broker.delayed.tracker_status import DelayStatus

if TYPE_CHECKING:
    from ackgate.broker.subscription import Subscription
    from ackgate.dispatcher.trackers.bucket_statistics import BucketStatistics


@dataclass(frozen=True, slots=True)
class DelayedState:
    """The held entries of one subscription."""

    held: DelayedStatistics = field(default_factory=DelayedStatistics)
    nacks: NackStatistics = field(default_factory=NackStatistics)
    tracking: DelayStatus = field(default_factory=DelayStatus)
    buckets: BucketStatistics | None = None
    """None: the tracker keeps no buckets in storage."""

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed entry is due, ms since 1970; in the past: it waits for a consumer."""
        if self.buckets is not None:
            return self.buckets.next_due_ms
        return self.held.delayed_deadline_ms

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is not as it should be, in sentences."""
        why = self.tracking.why
        return ((why,) if why else ()) + (() if self.buckets is None else self.buckets.degraded)


def delayed_state(subscription: Subscription) -> DelayedState:
    """What it holds back now."""
    return DelayedState(
        held=subscription.held.statistics(),
        nacks=subscription.nack_statistics(),
        tracking=subscription.tracking.status,
        buckets=subscription.tracking.statistics(),
    )
