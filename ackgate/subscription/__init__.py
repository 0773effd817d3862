"""One subscription as a state machine without I/O: facts in by method calls, `Ready` out. Pure."""

from ackgate.cursor import WrittenCounts
from ackgate.subscription.entries import EntryFacts, EntryRead
from ackgate.subscription.held import (
    DelayedOfLedger,
    HeldNacks,
    HeldStatistics,
    delayed_by_ledger,
)
from ackgate.subscription.machine import Subscription, SubscriptionSettings
from ackgate.subscription.notes import (
    Acked,
    AckedMixed,
    AckedThrough,
    Attached,
    Detached,
    Dispatched,
    GateEdge,
    GivenBack,
    Moved,
    Note,
    PartialAck,
    ReceiptSent,
)
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
    "Acked",
    "AckedMixed",
    "AckedThrough",
    "ActiveChange",
    "Attached",
    "Awaited",
    "ConsumerCounts",
    "DelayedOfLedger",
    "Delivery",
    "Detached",
    "Dispatched",
    "EntryFacts",
    "EntryRead",
    "GateEdge",
    "GivenBack",
    "HeldNacks",
    "HeldStatistics",
    "Moved",
    "Note",
    "PartialAck",
    "ReadRequest",
    "Ready",
    "Receipt",
    "ReceiptSent",
    "Subscription",
    "SubscriptionSettings",
    "SubscriptionStatistics",
    "Write",
    "WrittenCounts",
    "delayed_by_ledger",
]
