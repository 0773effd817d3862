"""Statistics of what the broker holds right now.

Edge only in that it looks at live objects; it changes nothing and does no I/O, except where the
publish time of the oldest unacked message is asked for, which may have to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.stats.ack_state import of_subscription
from ackgate.broker.stats.sampler import (
    consumer_numbers,
    producer_numbers,
    subscription_numbers,
    topic_numbers,
)
from ackgate.broker.stats.values import (
    ConsumerStats,
    DelayedState,
    NackStatistics,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)
from ackgate.broker.wire import AccessMode, ConsumerRates, SubscriptionType
from ackgate.described import iso_time
from ackgate.dispatcher import KeyShared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.stats.sampler import StatsSampler
    from ackgate.broker.topic import Consumer, Producer, SubscriptionDriver, Topic
    from ackgate.broker.wire import Entry
    from ackgate.cursor import Position
    from ackgate.dispatcher import ConsumerStatistics
    from ackgate.persistence.messages.managed_ledger import ManagedLedger
    from ackgate.subscription import ConsumerCounts

TYPE_NAMES: Final[Mapping[SubscriptionType | None, str]] = {
    None: "None",
    **{kind: kind.spelling for kind in SubscriptionType},
}
"""Subscription types as Pulsar spells them."""

_ACCESS_MODE_NAMES: Final[Mapping[AccessMode, str]] = {
    mode: mode.name.title().replace("_", "") for mode in AccessMode
}


async def earliest_publish_times(topic: Topic) -> dict[str, int]:
    """Publish time of each subscription's oldest unacked message, in ms since 1970.

    Leaves out subscriptions without a backlog. Raises as `MessageReads.read_one`.
    """
    times = {}
    for name, subscription in list(topic.subscriptions.items()):
        cursor = subscription.cursor
        if cursor.backlog_entries:
            first_unacked = topic.ledger.ledgers.next_valid(cursor.mark_delete)
            entry = await topic.ledger.reads.read_one(first_unacked)
            times[name] = int(entry.metadata.publish_time)
    return times


def topic_stats(
    topic: Topic,
    sampler: StatsSampler,
    *,
    owner: str,
    earliest: Mapping[str, int] | None = None,
    has_publishers: bool = True,
    has_consumers: bool = True,
) -> TopicStats:
    """Statistics of a topic or partition.

    `owner`: address of this broker. `earliest`: what `earliest_publish_times` returned. Without
    `has_publishers` or `has_consumers` these are not listed one by one.
    """
    earliest = earliest or {}
    subscriptions = {
        name: subscription_stats(
            *(subscription, sampler),
            earliest_ms=earliest.get(name, 0),
            has_consumers=has_consumers,
        )
        for name, subscription in topic.subscriptions.items()
    }
    rate_in, throughput_in = sampler.rates(topic, topic_numbers(topic))
    taken = subscriptions.values()
    return TopicStats(
        msg_rate_in=rate_in,
        msg_throughput_in=throughput_in,
        msg_rate_out=sum(stats.msg_rate_out for stats in taken),
        msg_throughput_out=sum(stats.msg_throughput_out for stats in taken),
        bytes_in_counter=topic.bytes_in,
        msg_in_counter=topic.messages_in,
        bytes_out_counter=sum(stats.bytes_out_counter for stats in taken),
        msg_out_counter=sum(stats.msg_out_counter for stats in taken),
        average_msg_size=throughput_in / rate_in if rate_in else 0.0,
        storage_size=topic.ledger.size_bytes,
        backlog_size=max((stats.backlog_size for stats in taken), default=0),
        earliest_msg_publish_time_in_backlogs=min(earliest.values(), default=0),
        waiting_publishers=topic.producers.waiting_count,
        deduplication_status="Enabled" if topic.is_deduplicated else "Disabled",
        non_contiguous_deleted_messages_ranges=sum(
            stats.non_contiguous_deleted_messages_ranges for stats in taken
        ),
        non_contiguous_deleted_messages_ranges_serialized_size=sum(
            stats.non_contiguous_deleted_messages_ranges_serialized_size for stats in taken
        ),
        delayed_message_index_size_in_bytes=sum(
            stats.delayed_message_index_size_in_bytes for stats in taken
        ),
        delayed_index_is_shared=topic.shared_delays.is_on,
        delayed_messages_cancelled=topic.cancelled.count,
        delayed_messages_refused=topic.delays_refused,
        owner_broker=owner,
        publishers=tuple(_publisher_stats(producer, sampler) for producer in topic.producers)
        if has_publishers
        else (),
        subscriptions=subscriptions,
    )


def subscription_stats(
    subscription: SubscriptionDriver,
    sampler: StatsSampler,
    *,
    earliest_ms: int = 0,
    has_consumers: bool = True,
) -> SubscriptionStats:
    """One subscription with its consumers, unless they are not wanted, and its ack state."""
    core, cursor = subscription.core, subscription.cursor
    known = core.statistics()
    dispatch, counts = known.dispatcher, known.total
    rate_out, throughput_out, ack_rate, redeliver_rate, expire_rate, *_ = sampler.rates(
        subscription, subscription_numbers(subscription)
    )
    consumers = tuple(
        _consumer_stats(consumer, seen, known.consumers[consumer], sampler)
        for consumer in subscription.consumers
        if has_consumers and (seen := known.dispatched.get(consumer)) is not None
    )
    active = core.active_consumer
    policy = known.kind if isinstance(known.kind, KeyShared) else None
    store = subscription.store
    delayed = delayed_state(subscription)
    return SubscriptionStats(
        type=TYPE_NAMES[subscription.type],
        is_durable=subscription.is_durable,
        msg_rate_out=rate_out,
        msg_throughput_out=throughput_out,
        msg_rate_redeliver=redeliver_rate,
        message_ack_rate=ack_rate,
        msg_rate_expired=expire_rate,
        msg_out_counter=counts.messages_out,
        bytes_out_counter=subscription.bytes_out,
        msg_backlog=cursor.backlog_entries,
        msg_backlog_no_delayed=max(0, cursor.backlog_entries - delayed.held.delayed_entries),
        msg_delayed=delayed.held.delayed_entries,
        delayed_message_index_size_in_bytes=delayed.held.delayed_bytes,
        backlog_size=_backlog_bytes(subscription.topic.ledger, cursor.mark_delete),
        earliest_msg_publish_time_in_backlog=earliest_ms,
        unacked_messages=dispatch.unacked_messages if dispatch else 0,
        msg_in_replay=dispatch.replay_entries if dispatch else 0,
        blocked_subscription_on_unacked_msgs=bool(
            dispatch and dispatch.is_blocked_on_unacked_messages
        ),
        is_blocked_on_ack_state_persistent=not known.gate.is_open,
        active_consumer_name=(
            (active.name if active is not None else "")
            if subscription.type in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}
            else None
        ),
        key_shared_mode=policy.mode.name if policy is not None else None,
        allow_out_of_order_delivery=policy is not None and policy.allow_out_of_order,
        total_msg_expired=known.entries_expired,
        last_expire_timestamp=known.last_expired_ms,
        last_consumed_flow_timestamp=counts.last_flow_ms,
        last_consumed_timestamp=counts.last_sent_ms,
        last_acked_timestamp=counts.last_acked_ms,
        last_mark_delete_advanced_timestamp=known.last_mark_delete_ms,
        non_contiguous_deleted_messages_ranges=cursor.range_count,
        non_contiguous_deleted_messages_ranges_serialized_size=cursor.byte_estimate,
        subscription_properties=dict(store.cursor_properties) if store is not None else {},
        consumers=consumers,
        ack_state=of_subscription(subscription, sampler.headrooms(subscription)),
        delayed=delayed,
    )


def delayed_state(subscription: SubscriptionDriver) -> DelayedState:
    """What the subscription holds back now."""
    held = subscription.core.statistics().held
    kept = None if subscription.store is None else subscription.store.statistics()
    return DelayedState(
        held=held,
        nacks=NackStatistics(
            pending=held.held_nacks,
            bytes=held.held_nack_bytes,
            next_deadline_ms=held.nack_deadline_ms,
            persisted=0 if kept is None else kept.nacks_persisted,
            dropped=0 if kept is None else kept.nacks_dropped,
        ),
        tracking=subscription.tracking.status,
        buckets=subscription.tracking.statistics(),
    )


def consumer_rates(consumer: Consumer, sampler: StatsSampler) -> ConsumerRates:
    """What a consumer does per second: for its own client."""
    subscription = consumer.subscription
    rate_out, throughput_out, ack_rate, redeliver_rate = sampler.rates(
        consumer, consumer_numbers(consumer)
    )
    expire_rate = sampler.rates(subscription, subscription_numbers(subscription))[4]
    return ConsumerRates(rate_out, throughput_out, redeliver_rate, ack_rate, expire_rate)


def _backlog_bytes(ledger: ManagedLedger[Entry], mark_delete: Position) -> int:
    """Estimate the bytes from the mark-delete on, acked or not, as Pulsar does.

    Counts later ledgers whole, and of the mark-delete's own ledger the share of entries after it.
    """
    total = 0
    for record in ledger.ledger_records:
        entries = ledger.ledgers.entry_count(record.ledger_id)
        if record.ledger_id > mark_delete.ledger_id:
            total += record.size_bytes
        elif record.ledger_id == mark_delete.ledger_id and entries:
            total += record.size_bytes * (entries - 1 - mark_delete.entry_id) // entries
    return total


def _consumer_stats(
    consumer: Consumer, seen: ConsumerStatistics, counts: ConsumerCounts, sampler: StatsSampler
) -> ConsumerStats:
    rate_out, throughput_out, ack_rate, redeliver_rate = sampler.rates(
        consumer, consumer_numbers(consumer)
    )
    return ConsumerStats(
        consumer_name=consumer.name,
        address=f"/{consumer.session.peer}",
        client_version=consumer.session.client_version,
        connected_since=iso_time(consumer.connected_since),
        msg_rate_out=rate_out,
        msg_throughput_out=throughput_out,
        msg_rate_redeliver=redeliver_rate,
        message_ack_rate=ack_rate,
        msg_out_counter=counts.messages_out,
        bytes_out_counter=consumer.bytes_out,
        available_permits=seen.permits,
        unacked_messages=seen.unacked_messages,
        avg_messages_per_entry=round(seen.messages_per_entry_average),
        blocked_consumer_on_unacked_msgs=seen.is_blocked_on_unacked_messages,
        last_acked_timestamp=counts.last_acked_ms,
        last_consumed_timestamp=counts.last_sent_ms,
        last_consumed_flow_timestamp=counts.last_flow_ms,
        key_hash_range_arrays=seen.hash_ranges or None,
        metadata=dict(consumer.metadata),
    )


def _publisher_stats(producer: Producer, sampler: StatsSampler) -> PublisherStats:
    rate_in, throughput_in = sampler.rates(producer, producer_numbers(producer))
    return PublisherStats(
        access_mode=_ACCESS_MODE_NAMES[producer.access_mode],
        producer_id=producer.producer_id,
        producer_name=producer.name,
        address=f"/{producer.session.peer}",
        client_version=producer.session.client_version,
        connected_since=iso_time(producer.connected_since),
        msg_rate_in=rate_in,
        msg_throughput_in=throughput_in,
        average_msg_size=throughput_in / rate_in if rate_in else 0.0,
        metadata=dict(producer.properties),
    )
