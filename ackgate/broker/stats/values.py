"""What is told of topics, subscriptions, consumers and publishers.

Pure, frozen. Fields carry Pulsar's names in snake case (``msgBacklog`` is `msg_backlog`), and mean
what they mean there; rates are per second over the last minute, times ``*_timestamp`` are ms since
1970 with 0 for never. `ack_state` and `delayed` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.stats.ack_state import AckState
    from ackgate.broker.stats.delayed import DelayedState


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """One consumer of a subscription."""

    consumer_name: str
    address: str
    client_version: str
    connected_since: str
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    msg_out_counter: int
    bytes_out_counter: int
    available_permits: int
    unacked_messages: int
    avg_messages_per_entry: int
    blocked_consumer_on_unacked_msgs: bool
    last_acked_timestamp: int
    last_consumed_timestamp: int
    last_consumed_flow_timestamp: int
    key_hash_range_arrays: tuple[tuple[int, ...], ...] | None
    """Key_Shared: (first, last) hash of each range it owns, both included."""
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """One producer of a topic."""

    access_mode: str
    producer_id: int
    producer_name: str
    address: str
    client_version: str
    connected_since: str
    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """One subscription of a topic."""

    type: str
    """"None" before the first consumer."""
    is_durable: bool
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    msg_rate_expired: float
    msg_out_counter: int
    bytes_out_counter: int
    msg_backlog: int
    """Entries not acked, as Pulsar counts it."""
    msg_backlog_no_delayed: int
    """Of these, the ones that do not wait for their delivery time."""
    msg_delayed: int
    """Entries that do."""
    delayed_message_index_size_in_bytes: int
    """Memory of their index."""
    backlog_size: int
    """Bytes from the mark-delete on."""
    earliest_msg_publish_time_in_backlog: int
    """0 unless asked for (``getEarliestTimeInBacklog=true``)."""
    unacked_messages: int
    """Sent to a consumer and not acked yet."""
    msg_in_replay: int
    """Entries that wait to be sent again."""
    blocked_subscription_on_unacked_msgs: bool
    is_blocked_on_ack_state_persistent: bool
    """Whether the gate is shut. False whenever the feature is off."""
    active_consumer_name: str | None
    """Exclusive and Failover."""
    key_shared_mode: str | None
    allow_out_of_order_delivery: bool
    total_msg_expired: int
    last_expire_timestamp: int
    last_consumed_flow_timestamp: int
    last_consumed_timestamp: int
    last_acked_timestamp: int
    last_mark_delete_advanced_timestamp: int
    non_contiguous_deleted_messages_ranges: int
    non_contiguous_deleted_messages_ranges_serialized_size: int
    subscription_properties: Mapping[str, str]
    consumers: tuple[ConsumerStats, ...]
    ack_state: AckState
    delayed: DelayedState


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic, or one partition."""

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    bytes_in_counter: int
    msg_in_counter: int
    bytes_out_counter: int
    msg_out_counter: int
    average_msg_size: float
    storage_size: int
    backlog_size: int
    earliest_msg_publish_time_in_backlogs: int
    waiting_publishers: int
    deduplication_status: str
    non_contiguous_deleted_messages_ranges: int
    non_contiguous_deleted_messages_ranges_serialized_size: int
    delayed_message_index_size_in_bytes: int
    delayed_index_is_shared: bool
    """One index for all subscriptions; what is told of its buckets is told with each of them. Ours."""
    delayed_messages_cancelled: int
    """Messages that were cancelled and are still stored; acked for every subscription. Ours."""
    delayed_messages_refused: int
    """Publishes that were to wait longer than is allowed, since the topic was loaded. Ours."""
    owner_broker: str
    publishers: tuple[PublisherStats, ...]
    subscriptions: Mapping[str, SubscriptionStats]
