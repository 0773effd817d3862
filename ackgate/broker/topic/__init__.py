"""Topics that are loaded: their producers, messages, subscriptions with drivers, and the registry.

The face of the room. Each name is imported from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.topic.disk_space import DISK_LOOK_SECONDS, DiskSpace
    from ackgate.broker.topic.latencies import BOUNDS_SECONDS, Latencies, Latency
    from ackgate.broker.topic.producers import Producer
    from ackgate.broker.topic.registry import TopicConflictError, TopicRegistry
    from ackgate.broker.topic.services import SharedServices
    from ackgate.broker.topic.subscription import Consumer, SubscriptionDriver
    from ackgate.broker.topic.topic import OWN_PREFIX, Topic, clear_delayed
    from ackgate.broker.topic.tracing import Tracing, send_last_spans

__all__ = [
    "BOUNDS_SECONDS",
    "DISK_LOOK_SECONDS",
    "OWN_PREFIX",
    "Consumer",
    "DiskSpace",
    "Latencies",
    "Latency",
    "Producer",
    "SharedServices",
    "SubscriptionDriver",
    "Topic",
    "TopicConflictError",
    "TopicRegistry",
    "Tracing",
    "clear_delayed",
    "send_last_spans",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.topic.disk_space": ("DISK_LOOK_SECONDS", "DiskSpace"),
        "ackgate.broker.topic.latencies": ("BOUNDS_SECONDS", "Latencies", "Latency"),
        "ackgate.broker.topic.producers": ("Producer",),
        "ackgate.broker.topic.registry": ("TopicConflictError", "TopicRegistry"),
        "ackgate.broker.topic.services": ("SharedServices",),
        "ackgate.broker.topic.subscription": ("Consumer", "SubscriptionDriver"),
        "ackgate.broker.topic.topic": ("OWN_PREFIX", "Topic", "clear_delayed"),
        "ackgate.broker.topic.tracing": ("Tracing", "send_last_spans"),
    },
)
