"""The broker in Prometheus' text form, under Pulsar's names where Pulsar has them.

Edge. All topics are walked at each request; figures that cost more than a look are not here. Beside
Pulsar's stand ours, ``ackgate_*``: the gate, the ranges, the outcomes of persisting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import Reply
from ackgate.broker.admin.exposition import Exposition
from ackgate.broker.admin.router import Route
from ackgate.broker.stats.take import topic_stats
from ackgate.dispatcher.gate import PauseReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.admin.call import Call
    from ackgate.broker.stats.ack_state import AckState
    from ackgate.broker.stats.values import SubscriptionStats, TopicStats
    from ackgate.broker.topic import Topic

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def get_metrics(call: Call) -> Reply:
    """Everything."""
    broker = call.broker
    exposition = Exposition({"cluster": broker.parts.settings.broker.cluster_name})
    told = []
    for topic in broker.registry:
        stats = topic_stats(topic, broker.sampler, owner="")
        told.append(stats)
        _topic(exposition, topic, stats)
    _broker(exposition, call, told)
    return Reply(200, exposition.text().encode(), CONTENT_TYPE)


def _broker(exposition: Exposition, call: Call, told: list[TopicStats]) -> None:
    subscriptions = [stats for topic in told for stats in topic.subscriptions.values()]
    add = exposition.add
    add("pulsar_broker_topics_count", len(told))
    add("pulsar_broker_subscriptions_count", len(subscriptions))
    add("pulsar_broker_producers_count", sum(len(topic.publishers) for topic in told))
    add("pulsar_broker_consumers_count", sum(len(stats.consumers) for stats in subscriptions))
    add("pulsar_broker_rate_in", sum(topic.msg_rate_in for topic in told))
    add("pulsar_broker_rate_out", sum(topic.msg_rate_out for topic in told))
    add("pulsar_broker_throughput_in", sum(topic.msg_throughput_in for topic in told))
    add("pulsar_broker_throughput_out", sum(topic.msg_throughput_out for topic in told))
    add("pulsar_broker_storage_size", sum(topic.storage_size for topic in told))
    add("pulsar_broker_msg_backlog", sum(stats.msg_backlog for stats in subscriptions))
    add("pulsar_active_connections", call.broker.connection_count)
    add("ackgate_uptime_seconds", time.time() - call.broker.started_at)
    cache = call.broker.parts.cache
    add("ackgate_entry_cache_bytes", cache.size_bytes)


def _topic(exposition: Exposition, topic: Topic, stats: TopicStats) -> None:
    labels = {"namespace": str(topic.name.namespace_name), "topic": str(topic.name)}
    add = exposition.add
    add("pulsar_subscriptions_count", len(stats.subscriptions), labels)
    add("pulsar_producers_count", len(stats.publishers), labels)
    add(
        "pulsar_consumers_count",
        sum(len(subscription.consumers) for subscription in stats.subscriptions.values()),
        labels,
    )
    add("pulsar_rate_in", stats.msg_rate_in, labels)
    add("pulsar_rate_out", stats.msg_rate_out, labels)
    add("pulsar_throughput_in", stats.msg_throughput_in, labels)
    add("pulsar_throughput_out", stats.msg_throughput_out, labels)
    add("pulsar_in_messages_total", stats.msg_in_counter, labels)
    add("pulsar_in_bytes_total", stats.bytes_in_counter, labels)
    add("pulsar_out_messages_total", stats.msg_out_counter, labels)
    add("pulsar_out_bytes_total", stats.bytes_out_counter, labels)
    add("pulsar_storage_size", stats.storage_size, labels)
    add("pulsar_storage_backlog_size", stats.backlog_size, labels)
    backlog = sum(subscription.msg_backlog for subscription in stats.subscriptions.values())
    add("pulsar_msg_backlog", backlog, labels)
    for name, subscription in stats.subscriptions.items():
        _subscription(exposition, {**labels, "subscription": name}, subscription)
        if subscription.is_durable:
            _cursor(exposition, topic, name, subscription.ack_state)


def _subscription(
    exposition: Exposition, labels: Mapping[str, str], stats: SubscriptionStats
) -> None:
    add = exposition.add
    prefix = "pulsar_subscription"
    add(f"{prefix}_back_log", stats.msg_backlog, labels)
    add(f"{prefix}_back_log_no_delayed", stats.msg_backlog_no_delayed, labels)
    add(f"{prefix}_unacked_messages", stats.unacked_messages, labels)
    add(f"{prefix}_blocked_on_unacked_messages", stats.blocked_subscription_on_unacked_msgs, labels)
    add(f"{prefix}_in_replay", stats.msg_in_replay, labels)
    add(f"{prefix}_consumers_count", len(stats.consumers), labels)
    add(f"{prefix}_msg_rate_out", stats.msg_rate_out, labels)
    add(f"{prefix}_msg_throughput_out", stats.msg_throughput_out, labels)
    add(f"{prefix}_msg_rate_redeliver", stats.msg_rate_redeliver, labels)
    add(f"{prefix}_msg_ack_rate", stats.message_ack_rate, labels)
    add(f"{prefix}_msg_rate_expired", stats.msg_rate_expired, labels)
    add(f"{prefix}_total_msg_expired", stats.total_msg_expired, labels)
    add(f"{prefix}_last_expire_timestamp", stats.last_expire_timestamp, labels)
    add(f"{prefix}_last_acked_timestamp", stats.last_acked_timestamp, labels)
    add(f"{prefix}_last_consumed_timestamp", stats.last_consumed_timestamp, labels)
    add(f"{prefix}_last_consumed_flow_timestamp", stats.last_consumed_flow_timestamp, labels)
    add(
        f"{prefix}_last_mark_delete_advanced_timestamp",
        stats.last_mark_delete_advanced_timestamp,
        labels,
    )
    _gate(exposition, labels, stats.ack_state)


def _gate(exposition: Exposition, labels: Mapping[str, str], state: AckState) -> None:
    add, gate = exposition.add, state.gate
    add("ackgate_ack_ranges", state.ranges_live, labels)
    add("ackgate_ack_ranges_persisted", state.ranges_persisted, labels)
    add("ackgate_ack_holes", state.cursor.hole_count, labels)
    add("ackgate_entries_dropped", state.entries_dropped, labels)
    add("ackgate_batches_partly_acked", state.cursor.partly_acked_count, labels)
    add("ackgate_batch_indexes_dropped", state.batch_indexes_dropped, labels)
    if gate is None:
        return
    add("ackgate_ack_ranges_max", gate.ranges_max, labels)
    add("ackgate_gate_open", gate.is_open, labels)
    add("ackgate_gate_shut_total", gate.shut_count, labels)
    for reason in PauseReason:
        stands = reason in gate.reasons
        add("ackgate_gate_reason", stands, {**labels, "reason": reason.value})
    if gate.budget_entries is not None:
        add("ackgate_gate_budget_entries", gate.budget_entries, labels)
    if state.forecast is not None and state.forecast.gate_shuts_in_seconds is not None:
        add("ackgate_gate_shuts_in_seconds", state.forecast.gate_shuts_in_seconds, labels)


def _cursor(exposition: Exposition, topic: Topic, name: str, state: AckState) -> None:
    store = state.store
    if store is None:
        return
    labels = {
        "namespace": str(topic.name.namespace_name),
        "ledger_name": topic.path.removeprefix("/managed-ledgers/"),
        "cursor_name": name,
    }
    add = exposition.add
    prefix = "pulsar_ml_cursor"
    add(f"{prefix}_persistLedgerSucceed", store.ledger_writes, labels)
    add(f"{prefix}_persistLedgerErrors", store.ledger_errors, labels)
    add(f"{prefix}_persistZookeeperSucceed", store.metadata_writes, labels)
    add(f"{prefix}_persistZookeeperErrors", store.metadata_errors, labels)
    add(f"{prefix}_nonContiguousDeletedMessagesRange", state.ranges_live, labels)
    add(f"{prefix}_writeLedgerSize", store.bytes_written, labels)
    add("ackgate_cursor_dirty_versions", store.dirty_versions, labels)
    add("ackgate_cursor_receipts_waiting", store.receipts_waiting, labels)
    add("ackgate_cursor_on_fallback", store.is_on_fallback, labels)
    add("ackgate_cursor_failing", store.failing_since_ms is not None, labels)
    if store.outcome is not None:
        add("ackgate_persist_bytes", store.outcome.bytes_written, labels)
        add("ackgate_persist_duration_seconds", store.outcome.duration_ms / 1000, labels)
        add("ackgate_persist_timestamp_seconds", store.outcome.at_ms / 1000, labels)


ROUTES: Final = (Route("GET", "/metrics", get_metrics),)
