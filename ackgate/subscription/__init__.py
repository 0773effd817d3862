"""One subscription as a state machine without I/O: facts in by method calls, `Ready` out. Pure."""

from ackgate.cursor import WrittenCounts
from ackgate.subscription.entries import EntryFacts, EntryRead
from ackgate.subscription.held import HeldNacks, HeldStatistics
from ackgate.subscription.machine import Subscription, SubscriptionSettings
from ackgate.subscription.ready import (
    ActiveChange,
    Awaited,
    Delivery,
    ReadRequest,
    Ready,
    Receipt,
    Write,
)
from ackgate.subscription.statistics import ConsumerCounts, SubscriptionStatistics

__all__ = [
    "ActiveChange",
    "Awaited",
    "ConsumerCounts",
    "Delivery",
    "EntryFacts",
    "EntryRead",
    "HeldNacks",
    "HeldStatistics",
    "ReadRequest",
    "Ready",
    "Receipt",
    "Subscription",
    "SubscriptionSettings",
    "SubscriptionStatistics",
    "Write",
    "WrittenCounts",
]
