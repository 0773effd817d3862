"""Settings of delayed delivery: trackers, buckets, the shared index. Pure."""

from __future__ import annotations

from typing import Literal

from ackgate.config import defaults
from ackgate.config.field import INT_MAX, SettingsGroup, setting

IN_MEMORY_FACTORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
BUCKET_FACTORY = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"


class DelayedSettings(SettingsGroup):
    """Which entries wait for their time, where that is remembered, and how exact it is."""

    delayed_delivery_enabled: bool = setting(
        True,
        "Whether a message with a delivery time waits for it, on Shared and Key_Shared "
        "subscriptions. Namespaces and topics may have their own value.",
        pulsar=True,
    )
    delayed_delivery_tracker_factory_class_name: Literal[
        "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory",
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    ] = setting(
        IN_MEMORY_FACTORY,
        "Which tracker a subscription gets: the first keeps time buckets in memory, the second "
        "keeps sealed buckets in ledgers (PIP-195) and memory small.",
        pulsar=IN_MEMORY_FACTORY,
    )
    delayed_delivery_tick_time_millis: int = setting(
        defaults.DELAY_TICK_MS,
        "How exact delivery times are. Times are kept as multiples of the largest power of two "
        "that is not above it.",
        unit="ms",
        pulsar=1_000,
        ge=1,
        le=INT_MAX,
    )
    is_delayed_delivery_deliver_at_time_strict: bool = setting(
        False,
        "Never deliver before its time, and up to a tick late. When off, up to a tick early.",
        pulsar=False,
    )
    delayed_delivery_fixed_delay_detection_lookahead: int = setting(
        defaults.FIXED_DELAY_LOOKAHEAD,
        "With so many entries waiting whose times only ever grew, a subscription reads no further "
        "until one of them is due. 0: it always reads on.",
        unit="entries",
        pulsar=50_000,
        ge=0,
        le=INT_MAX,
    )
    delayed_delivery_max_delay_in_millis: int = setting(
        0,
        "A message that is to wait longer than this from its publishing on is refused. 0: no "
        "limit. Namespaces and topics may have their own value.",
        unit="ms",
        pulsar=0,
        ge=0,
        le=2**63 - 1,
    )
    delayed_delivery_min_index_count_per_bucket: int = setting(
        defaults.BUCKET_ENTRIES_MIN,
        "A bucket in memory with so many entries is sealed at the next change of ledger.",
        unit="entries",
        pulsar=50_000,
        ge=1,
        le=INT_MAX,
    )
    delayed_delivery_max_index_count_per_bucket: int = setting(
        defaults.BUCKET_ENTRIES_MAX,
        "A bucket in memory with so many entries is sealed within a ledger, too.",
        unit="entries",
        ge=1,
        le=INT_MAX,
    )
    delayed_delivery_max_bucket_age_seconds: int = setting(
        defaults.BUCKET_AGE_SECONDS_MAX,
        "A bucket in memory is sealed when its oldest entry has been in it for so long and it has "
        "a tenth of the entries asked for at least. 0: age seals none.",
        unit="s",
        ge=0,
        le=INT_MAX,
    )
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = setting(
        defaults.SEGMENT_SPAN_SECONDS,
        "A segment of a snapshot spans no more than this.",
        unit="s",
        pulsar=300,
        ge=1,
        le=INT_MAX,
    )
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = setting(
        defaults.SEGMENT_ENTRIES_MAX,
        "A segment of a snapshot has no more entries than this. -1: no limit.",
        unit="entries",
        pulsar=5_000,
        ge=-1,
        le=INT_MAX,
    )
    delayed_delivery_max_num_buckets: int = setting(
        defaults.BUCKETS_MAX,
        "With more sealed buckets than this, neighbours are merged. -1: never.",
        unit="buckets",
        pulsar=-1,
        ge=-1,
        le=INT_MAX,
    )
    delayed_delivery_shared_index_enabled: bool = setting(
        False,
        "Keep one index of delayed messages for each topic, and not one for each subscription.",
    )
