"""The numbers that bound dispatch, in one frozen value that may be replaced at run time."""

from __future__ import annotations

from dataclasses import dataclass

from ackgate.config import defaults
from ackgate.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """What every kind of dispatcher is bounded by; Pulsar's key in brackets.

    A setting has its default in `ackgate.config.dispatcher`; for the other keys this broker has
    Pulsar's default only.
    """

    read_entries_max: int = defaults.READ_ENTRIES_MAX
    """Entries of one read (``dispatcherMaxReadBatchSize``)."""

    round_robin_entries_max: int = defaults.ROUND_ROBIN_ENTRIES_MAX
    """Entries given to one consumer before it is the next one's turn, if there are several
    (``dispatcherMaxRoundRobinBatchSize``)."""

    unacked_messages_per_consumer_max: int = defaults.UNACKED_MESSAGES_PER_CONSUMER_MAX
    """A consumer that owes this many acks gets nothing new until it owes half; 0 = no limit
    (``maxUnackedMessagesPerConsumer``)."""

    unacked_messages_per_subscription_max: int = defaults.UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX
    """All consumers together owe this many: normal reads stop until they owe less than half;
    0 = no limit (``maxUnackedMessagesPerSubscription``)."""

    hole_closing_redelivery_first: bool = True
    """While the gate is shut, replays that merge ack ranges go before older ones
    (``dispatcherHoleClosingRedeliveryFirst``, own)."""

    hole_scan_entries_max: int = 1_000
    """How many of the oldest replays are looked at for that; keeps one read below a millisecond."""

    failover_delay_ms: int = defaults.FAILOVER_DELAY_MS
    """How long the new active consumer of a Failover subscription waits, so that what the old one
    was sent may still be acked (``activeConsumerFailoverDelayTimeMillis``)."""

    failover_consistent_hashing: bool = False
    """Failover on a partition chooses by hash ring instead of partition index
    (``activeConsumerFailoverConsistentHashing``). Without partitions the ring is always used."""

    key_shared_ring_points: int = 100
    """Points of one consumer on the hash ring
    (``subscriptionKeySharedConsistentHashingReplicaPoints``)."""

    key_shared_look_ahead_per_consumer_max: int = 2_000
    """Key_Shared reads on past entries whose key is blocked until this many wait for replay, times
    the consumers; 0 = only the next limit
    (``keySharedLookAheadMsgInReplayThresholdPerConsumer``)."""

    key_shared_look_ahead_per_subscription_max: int = 20_000
    """The same for the whole subscription; 0 = no limit
    (``keySharedLookAheadMsgInReplayThresholdPerSubscription``)."""

    def __post_init__(self) -> None:
        for name in ("read_entries_max", "round_robin_entries_max", "key_shared_ring_points"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "unacked_messages_per_consumer_max",
            "unacked_messages_per_subscription_max",
            "hole_scan_entries_max",
            "failover_delay_ms",
            "key_shared_look_ahead_per_consumer_max",
            "key_shared_look_ahead_per_subscription_max",
        ):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative, got {getattr(self, name)}")
