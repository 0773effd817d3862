"""Which tracker of delayed entries a subscription gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.dispatcher.trackers.time_buckets import TimeBucketTracker

if TYPE_CHECKING:
    from ackgate.broker.subscription import Subscription
    from ackgate.dispatcher.trackers.delayed import DelayedTracker, DelaySettings


def make_tracker(subscription: Subscription, settings: DelaySettings) -> DelayedTracker:
    """The tracker of this subscription."""
    del subscription
    return TimeBucketTracker(settings)
