"""Settings of the dispatcher: the gate, and how much may be on its way to consumers. Pure."""

from __future__ import annotations

from ackgate.config import defaults
from ackgate.config.field import INT_MAX, SettingsGroup, setting


class DispatcherSettings(SettingsGroup):
    """What may be delivered, and when it has to wait."""

    # --- the gate

    dispatcher_pause_on_ack_state_persistent_enabled: bool = setting(
        False,
        "Pause new deliveries of Shared and Key_Shared subscriptions while their acknowledgements "
        "cannot all be persisted. Redeliveries go on, and fill the holes. Namespaces and topics "
        "may have their own value.",
        pulsar=False,
        dynamic=True,
    )
    dispatcher_pause_on_ack_state_resume_ranges: int = setting(
        0,
        "Once paused, go on only when no more ranges than this are left. 0: as soon as the limit "
        "(`managedLedgerMaxUnackedRangesToPersist`) is no longer exceeded.",
        unit="ranges",
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )
    dispatcher_pause_on_ack_state_strict_enabled: bool = setting(
        False,
        "Deliver only as much as cannot exceed the limit, whatever the consumers acknowledge of "
        "it. When off, what is on its way as the gate shuts may exceed the limit, as in Pulsar.",
        dynamic=True,
    )
    ack_state_persist_failure_pause_seconds: int = setting(
        defaults.PERSIST_FAILURE_PAUSE_SECONDS,
        "Pause, too, when persisting has been failing for this long.",
        unit="s",
        dynamic=True,
        ge=0,
        le=86_400,
    )
    dispatcher_hole_closing_redelivery_first: bool = setting(
        True,
        "While paused, redeliver first what joins two ranges into one.",
        dynamic=True,
    )

    # --- how much is on its way

    max_unacked_messages_per_consumer: int = setting(
        defaults.UNACKED_MESSAGES_PER_CONSUMER_MAX,
        "A consumer with this many unacknowledged messages gets no more. 0: no limit.",
        unit="messages",
        pulsar=50_000,
        ge=0,
        le=INT_MAX,
    )
    max_unacked_messages_per_subscription: int = setting(
        defaults.UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX,
        "A shared subscription with this many unacknowledged messages pauses until half of them "
        "are acknowledged. 0: no limit.",
        unit="messages",
        pulsar=200_000,
        ge=0,
        le=INT_MAX,
    )
    dispatcher_max_read_batch_size: int = setting(
        defaults.READ_ENTRIES_MAX,
        "Most entries read at once for a subscription.",
        unit="entries",
        pulsar=100,
        dynamic=True,
        ge=1,
        le=100_000,
    )
    dispatcher_max_read_size_bytes: int = setting(
        5 * 1024 * 1024,
        "Most bytes read at once for a subscription; one entry is always read.",
        unit="bytes",
        pulsar=5 * 1024 * 1024,
        dynamic=True,
        ge=1,
        le=INT_MAX,
    )
    dispatcher_max_round_robin_batch_size: int = setting(
        defaults.ROUND_ROBIN_ENTRIES_MAX,
        "Most entries sent to one consumer before the next consumer's turn.",
        unit="entries",
        pulsar=20,
        dynamic=True,
        ge=1,
        le=100_000,
    )
    active_consumer_failover_delay_time_millis: int = setting(
        defaults.FAILOVER_DELAY_MS,
        "How long a new active consumer of a Failover subscription waits before it gets messages, "
        "so that the former one's acknowledgements can arrive.",
        unit="ms",
        pulsar=1_000,
        ge=0,
        le=INT_MAX,
    )
