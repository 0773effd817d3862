"""A real Pulsar cluster, looked at from its ZooKeeper and bookies, read-only: docs/pulsar.md.

Edge; needs the extra ``bookkeeper``. It reads formats of another system: nothing of our broker uses it.
"""

from __future__ import annotations

from ackgate.extras import named_extras

with named_extras("bookkeeper"):
    from ackgate.pulsar.admin import LiveCursor, LiveTopic, live_keys, live_topic
    from ackgate.pulsar.cluster import PulsarCluster
    from ackgate.pulsar.formats import (
        BucketPlace,
        DelayedRows,
        PersistedAcks,
        StoredLedger,
        StoredSegment,
        StoredSubscription,
        StoredTopic,
        decode_bucket_head,
        decode_bucket_segment,
        decode_cursor_entry,
        decode_cursor_node,
        decode_managed_ledger,
    )
    from ackgate.pulsar.nodes import PulsarTopic
    from ackgate.pulsar.policies import (
        FOREVER,
        BrokerKeys,
        PulsarPolicies,
        PulsarPolicy,
        PulsarRetention,
        policies_in_force,
    )
    from ackgate.pulsar.reports import (
        SubscriptionReport,
        TopicLedger,
        TopicReport,
        report_topic,
        topic_ledgers,
    )
    from ackgate.pulsar.restarts import (
        AckForm,
        GateOutlook,
        Kept,
        PersistCaps,
        gate_outlook,
        kept_by,
        missing_on_disk,
    )
    from ackgate.pulsar.schemas import TopicSchema, ValueDecoder, decode_schema
    from ackgate.pulsar.views import (
        BucketView,
        CursorView,
        LedgerView,
        PulsarLedgerOwner,
        TopicLook,
        TopicView,
    )

__all__ = [
    "FOREVER",
    "AckForm",
    "BrokerKeys",
    "BucketPlace",
    "BucketView",
    "CursorView",
    "DelayedRows",
    "GateOutlook",
    "Kept",
    "LedgerView",
    "LiveCursor",
    "LiveTopic",
    "PersistCaps",
    "PersistedAcks",
    "PulsarCluster",
    "PulsarLedgerOwner",
    "PulsarPolicies",
    "PulsarPolicy",
    "PulsarRetention",
    "PulsarTopic",
    "StoredLedger",
    "StoredSegment",
    "StoredSubscription",
    "StoredTopic",
    "SubscriptionReport",
    "TopicLedger",
    "TopicLook",
    "TopicReport",
    "TopicSchema",
    "TopicView",
    "ValueDecoder",
    "decode_bucket_head",
    "decode_bucket_segment",
    "decode_cursor_entry",
    "decode_cursor_node",
    "decode_managed_ledger",
    "decode_schema",
    "gate_outlook",
    "kept_by",
    "live_keys",
    "live_topic",
    "missing_on_disk",
    "policies_in_force",
    "report_topic",
    "topic_ledgers",
]
