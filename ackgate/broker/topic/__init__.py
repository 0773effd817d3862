"""Topics as they are loaded: producers, messages, subscriptions with their drivers, and the registry."""

from ackgate.broker.topic.consumer import Consumer
from ackgate.broker.topic.disk_space import DISK_LOOK_SECONDS, DiskSpace
from ackgate.broker.topic.latencies import BOUNDS_SECONDS, Latencies, Latency
from ackgate.broker.topic.producer import Producer
from ackgate.broker.topic.registry import TopicConflictError, TopicRegistry
from ackgate.broker.topic.services import SharedServices
from ackgate.broker.topic.subscription import SubscriptionDriver
from ackgate.broker.topic.topic import Topic, clear_delayed

__all__ = [
    "BOUNDS_SECONDS",
    "DISK_LOOK_SECONDS",
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
    "clear_delayed",
]
