"""What a subscription holds back, in which index, and how that index is stored.

Pure, frozen: the statistics of the services involved, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.broker.delayed import DelayStatus
from ackgate.described import statistic
from ackgate.subscription import HeldStatistics

if TYPE_CHECKING:
    from ackgate.broker.topic import SubscriptionDriver
    from ackgate.dispatcher.buckets import BucketStatistics


@dataclass(frozen=True, slots=True)
class NackStatistics:
    """Negatively acked entries of one subscription that wait for their backoff."""

    pending: int = statistic(
        "Entries that wait after a negative ack", "", "ackgate_nacks_held", default=0
    )
    bytes: int = statistic("Memory of these", "bytes", "ackgate_nacks_held_bytes", default=0)
    next_deadline_ms: int | None = statistic(
        "When the next is due; in the past if it waits for consumers, null if none waits",
        "ms since 1970",
        default=None,
    )
    persisted: int = statistic(
        "Of these, the ones in the newest durable image", "", "ackgate_nacks_persisted", default=0
    )
    dropped: int = statistic(
        "Of these, the ones left out of it for their size: after a crash they come at once",
        "",
        "ackgate_nacks_dropped",
        default=0,
    )


@dataclass(frozen=True, slots=True)
class DelayedState:
    """The held entries of one subscription."""

    held: HeldStatistics = field(default_factory=HeldStatistics)
    nacks: NackStatistics = field(default_factory=NackStatistics)
    tracking: DelayStatus = field(default_factory=DelayStatus)
    buckets: BucketStatistics | None = None
    """None if the tracker stores no buckets."""

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed entry is due, in ms since 1970.

        A time in the past: a consumer is missing.
        """
        if self.buckets is not None:
            return self.buckets.next_due_ms
        return self.held.delayed_deadline_ms

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is worse than configured, in sentences."""
        why = self.tracking.why
        return ((why,) if why else ()) + (() if self.buckets is None else self.buckets.degraded)


def delayed_state(subscription: SubscriptionDriver) -> DelayedState:
    """What the subscription holds back now."""
    held = subscription.core.statistics().held
    kept = None if subscription.store is None else subscription.store.statistics()
    return DelayedState(
        held=held,
        nacks=NackStatistics(
            pending=held.held_nacks,
            bytes=held.held_nack_bytes,
            next_deadline_ms=held.nack_deadline_ms,
            persisted=0 if kept is None else kept.nacks_persisted,
            dropped=0 if kept is None else kept.nacks_dropped,
        ),
        tracking=subscription.tracking.status,
        buckets=subscription.tracking.statistics(),
    )
