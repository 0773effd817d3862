"""Which brokers there are, which of them owns what, and the settings and policies that all share.

The face of the room. Each name is imported from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.cluster.audit import AUDIT_LOOK_SECONDS, BrokerAudit
    from ackgate.broker.cluster.bundles import (
        BadBundleError,
        Bundle,
        BundleState,
        NamespaceBundles,
    )
    from ackgate.broker.cluster.dynamic_configuration import DynamicConfiguration
    from ackgate.broker.cluster.namespaces import Namespaces
    from ackgate.broker.cluster.ownership import LOCATE_SECONDS_MAX, Lease, Ownership
    from ackgate.broker.cluster.partition_counts import (
        change_partitioned_properties,
        create_partition_count,
        partitioned_topic_path,
        partitioned_topics_path,
        raise_partition_count,
        read_partition_count,
        read_partitioned_properties,
        restore_partition_count,
    )
    from ackgate.broker.cluster.policies import (
        AUTO_SUBSCRIPTION_CREATION,
        AUTO_TOPIC_CREATION,
        DEDUPLICATION,
        MAX_CONSUMERS,
        MAX_CONSUMERS_PER_SUBSCRIPTION,
        MAX_MESSAGE_BYTES,
        MAX_PRODUCERS,
        MAX_SUBSCRIPTIONS,
        MAX_TOPICS,
        MAX_UNACKED_PER_CONSUMER,
        MAX_UNACKED_PER_SUBSCRIPTION,
        MESSAGE_TTL_SECONDS,
        NAMESPACE_PROPERTIES,
        PAUSE_ON_ACK_STATE,
        POLICY_FORMS,
        REDELIVERY_BACKOFF,
        RETENTION_MB,
        RETENTION_MINUTES,
        AutoTopicCreation,
        EffectivePolicies,
        PolicyStore,
        namespace_policy_path,
        topic_policy_path,
    )
    from ackgate.broker.cluster.services import BrokerServices

__all__ = [
    "AUDIT_LOOK_SECONDS",
    "AUTO_SUBSCRIPTION_CREATION",
    "AUTO_TOPIC_CREATION",
    "DEDUPLICATION",
    "LOCATE_SECONDS_MAX",
    "MAX_CONSUMERS",
    "MAX_CONSUMERS_PER_SUBSCRIPTION",
    "MAX_MESSAGE_BYTES",
    "MAX_PRODUCERS",
    "MAX_SUBSCRIPTIONS",
    "MAX_TOPICS",
    "MAX_UNACKED_PER_CONSUMER",
    "MAX_UNACKED_PER_SUBSCRIPTION",
    "MESSAGE_TTL_SECONDS",
    "NAMESPACE_PROPERTIES",
    "PAUSE_ON_ACK_STATE",
    "POLICY_FORMS",
    "REDELIVERY_BACKOFF",
    "RETENTION_MB",
    "RETENTION_MINUTES",
    "AutoTopicCreation",
    "BadBundleError",
    "BrokerAudit",
    "BrokerServices",
    "Bundle",
    "BundleState",
    "DynamicConfiguration",
    "EffectivePolicies",
    "Lease",
    "NamespaceBundles",
    "Namespaces",
    "Ownership",
    "PolicyStore",
    "change_partitioned_properties",
    "create_partition_count",
    "namespace_policy_path",
    "partitioned_topic_path",
    "partitioned_topics_path",
    "raise_partition_count",
    "read_partition_count",
    "read_partitioned_properties",
    "restore_partition_count",
    "topic_policy_path",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.cluster.audit": ("AUDIT_LOOK_SECONDS", "BrokerAudit"),
        "ackgate.broker.cluster.bundles": (
            "BadBundleError",
            "Bundle",
            "BundleState",
            "NamespaceBundles",
        ),
        "ackgate.broker.cluster.dynamic_configuration": ("DynamicConfiguration",),
        "ackgate.broker.cluster.namespaces": ("Namespaces",),
        "ackgate.broker.cluster.ownership": ("LOCATE_SECONDS_MAX", "Lease", "Ownership"),
        "ackgate.broker.cluster.partition_counts": (
            "change_partitioned_properties",
            "create_partition_count",
            "partitioned_topic_path",
            "partitioned_topics_path",
            "raise_partition_count",
            "read_partition_count",
            "read_partitioned_properties",
            "restore_partition_count",
        ),
        "ackgate.broker.cluster.policies": (
            "AUTO_SUBSCRIPTION_CREATION",
            "AUTO_TOPIC_CREATION",
            "AutoTopicCreation",
            "DEDUPLICATION",
            "EffectivePolicies",
            "MAX_CONSUMERS",
            "MAX_CONSUMERS_PER_SUBSCRIPTION",
            "MAX_MESSAGE_BYTES",
            "MAX_PRODUCERS",
            "MAX_SUBSCRIPTIONS",
            "MAX_TOPICS",
            "MAX_UNACKED_PER_CONSUMER",
            "MAX_UNACKED_PER_SUBSCRIPTION",
            "MESSAGE_TTL_SECONDS",
            "NAMESPACE_PROPERTIES",
            "PAUSE_ON_ACK_STATE",
            "POLICY_FORMS",
            "PolicyStore",
            "REDELIVERY_BACKOFF",
            "RETENTION_MB",
            "RETENTION_MINUTES",
            "namespace_policy_path",
            "topic_policy_path",
        ),
        "ackgate.broker.cluster.services": ("BrokerServices",),
    },
)
