"""The broker in Prometheus' text form, under Pulsar's names where Pulsar has them.

Edge. All topics are walked at each request; figures that cost more than a look are not here. Beside
Pulsar's stand ours, ``ackgate_*``: the gate, the ranges, the outcomes of persisting.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import Reply
from ackgate.broker.admin.delayed_metrics import KINDS, subscription_metrics, topic_metrics
from ackgate.broker.admin.exposition import Exposition
from ackgate.broker.admin.router import Route
from ackgate.broker.stats.take import topic_stats
from ackgate.dispatcher.gate import PauseReason
from ackgate.persistence.ledgers.client import BookieLedgerClient

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call
    from ackgate.broker.admin.exposition import Labelled
    from ackgate.broker.journal.writer import JournalStatistics
    from ackgate.broker.parts import BrokerParts
    from ackgate.broker.stats.ack_state import AckState
    from ackgate.broker.stats.values import SubscriptionStats, TopicStats
    from ackgate.broker.topic import Topic
    from ackgate.broker.waits import Waits
    from ackgate.persistence.store_stats import CursorStoreStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def get_metrics(call: Call) -> Reply:
    """Everything. Others get their turn after every topic and every metric."""
    broker = call.broker
    exposition = Exposition({"cluster": broker.parts.settings.broker.cluster_name}, KINDS)
    total = _Total()
    for topic in broker.registry:
        stats = topic_stats(topic, broker.sampler, owner="")
        total.add(stats)
        _topic(exposition, topic, stats)
        await asyncio.sleep(0)
    _broker(exposition.labelled(), call, total)
    text = bytearray()
    for piece in exposition.pieces():
        text += piece
        await asyncio.sleep(0)
    return Reply(200, bytes(text), CONTENT_TYPE)


class _Total:
    """Sums over all topics."""

    def __init__(self) -> None:
        self.topics = self.subscriptions = self.producers = self.consumers = 0
        self.storage_bytes = self.backlog = 0
        self.rate_in = self.rate_out = self.throughput_in = self.throughput_out = 0.0

    def add(self, topic: TopicStats) -> None:
        subscriptions = topic.subscriptions.values()
        self.topics += 1
        self.subscriptions += len(subscriptions)
        self.producers += len(topic.publishers)
        self.consumers += sum(len(stats.consumers) for stats in subscriptions)
        self.storage_bytes += topic.storage_size
        self.backlog += sum(stats.msg_backlog for stats in subscriptions)
        self.rate_in += topic.msg_rate_in
        self.rate_out += topic.msg_rate_out
        self.throughput_in += topic.msg_throughput_in
        self.throughput_out += topic.msg_throughput_out


def _broker(labelled: Labelled, call: Call, total: _Total) -> None:
    add = labelled.add
    add("pulsar_broker_topics_count", total.topics)
    add("pulsar_broker_subscriptions_count", total.subscriptions)
    add("pulsar_broker_producers_count", total.producers)
    add("pulsar_broker_consumers_count", total.consumers)
    add("pulsar_broker_rate_in", total.rate_in)
    add("pulsar_broker_rate_out", total.rate_out)
    add("pulsar_broker_throughput_in", total.throughput_in)
    add("pulsar_broker_throughput_out", total.throughput_out)
    add("pulsar_broker_storage_size", total.storage_bytes)
    add("pulsar_broker_msg_backlog", total.backlog)
    add("pulsar_active_connections", call.broker.connection_count)
    add("ackgate_uptime_seconds", time.time() - call.broker.started_at)
    add("ackgate_entry_cache_bytes", call.broker.parts.cache.size_bytes)
    ownership = call.broker.ownership
    add("ackgate_brokers", len(ownership.view.brokers))
    add("ackgate_bundles_owned", len(ownership.owned))
    add("ackgate_bundles_acquired_total", ownership.acquired)
    add("ackgate_sessions_lost_total", ownership.sessions_lost)
    _waits(labelled, call.broker.parts.waits)
    _bookies(labelled, call.broker.parts)


def _waits(labelled: Labelled, waits: Waits) -> None:
    add, receipts, reads = labelled.add, waits.receipt_stats, waits.read_stats
    add("ackgate_waits_deadlines", waits.deadline_count)
    add("ackgate_waits_wakes_total", waits.wakes)
    add("ackgate_waits_receipts", receipts.size)
    add("ackgate_waits_watched", receipts.watched)
    add("ackgate_waits_completed_total", receipts.completed)
    add("ackgate_waits_expired_total", receipts.expired)
    add("ackgate_waits_purged_total", receipts.purged)
    add("ackgate_waits_reads", reads.size)
    add("ackgate_waits_reads_watched", reads.watched)
    add("ackgate_waits_reads_completed_total", reads.completed)
    add("ackgate_waits_reads_expired_total", reads.expired)
    add("ackgate_waits_reads_purged_total", reads.purged)


def _bookies(labelled: Labelled, parts: BrokerParts) -> None:
    add, client, audit = labelled.add, parts.ledger_client, parts.audit
    if not isinstance(client, BookieLedgerClient):
        return
    add("ackgate_bookies", len(client.bookies))
    add("ackgate_bookies_absent", len(client.absent_bookies))
    add("ackgate_bookies_failing", sum(b.last_error is not None for b in client.bookies))
    add("ackgate_auditor_runs_total", audit.runs)
    add("ackgate_auditor_last_run_timestamp_seconds", audit.last_run_ms / 1000)
    add("ackgate_auditor_under_replicated_ledgers", audit.last.under_replicated_ledgers)
    add("ackgate_auditor_unmended_ledgers", audit.last.unmended_ledgers)
    add("ackgate_auditor_lost_entries", audit.last.lost_entries)
    add("ackgate_auditor_missing_copies_total", audit.all.missing_copies)
    add("ackgate_auditor_damaged_copies_total", audit.all.damaged_copies)
    add("ackgate_auditor_repaired_entries_total", audit.all.repaired_entries)
    add("ackgate_auditor_repaired_bytes_total", audit.all.repaired_bytes)
    add("ackgate_auditor_moved_places_total", audit.all.moved_places)


def _topic(exposition: Exposition, topic: Topic, stats: TopicStats) -> None:
    namespace = str(topic.name.namespace_name)
    labelled = exposition.labelled(namespace=namespace, topic=str(topic.name))
    add = labelled.add
    add("pulsar_subscriptions_count", len(stats.subscriptions))
    add("pulsar_producers_count", len(stats.publishers))
    add(
        "pulsar_consumers_count",
        sum(len(subscription.consumers) for subscription in stats.subscriptions.values()),
    )
    add("pulsar_rate_in", stats.msg_rate_in)
    add("pulsar_rate_out", stats.msg_rate_out)
    add("pulsar_throughput_in", stats.msg_throughput_in)
    add("pulsar_throughput_out", stats.msg_throughput_out)
    add("pulsar_in_messages_total", stats.msg_in_counter)
    add("pulsar_in_bytes_total", stats.bytes_in_counter)
    add("pulsar_out_messages_total", stats.msg_out_counter)
    add("pulsar_out_bytes_total", stats.bytes_out_counter)
    add("pulsar_storage_size", stats.storage_size)
    add("pulsar_storage_backlog_size", stats.backlog_size)
    backlog = sum(subscription.msg_backlog for subscription in stats.subscriptions.values())
    add("pulsar_msg_backlog", backlog)
    topic_metrics(labelled, stats)
    _journal(labelled, topic.journaling.statistics())
    for name, subscription in stats.subscriptions.items():
        _subscription(labelled.labelled(subscription=name), subscription)
        if subscription.ack_state.store is not None:
            cursor = exposition.labelled(
                namespace=namespace,
                ledger_name=topic.path.removeprefix("/managed-ledgers/"),
                cursor_name=name,
            )
            _cursor(cursor, subscription.ack_state, subscription.ack_state.store)


def _journal(labelled: Labelled, journal: JournalStatistics | None) -> None:
    if journal is None:
        return
    add = labelled.add
    add("ackgate_delivery_journal_events_total", journal.events_written)
    add("ackgate_delivery_journal_events_dropped_total", journal.events_dropped)
    add("ackgate_delivery_journal_events_pending", journal.events_pending)
    add("ackgate_delivery_journal_blocks_total", journal.blocks_written)
    add("ackgate_delivery_journal_bytes_total", journal.bytes_written)
    add("ackgate_delivery_journal_failures_total", journal.failures)
    add("ackgate_delivery_journal_stopped", journal.is_stopped)


def _subscription(labelled: Labelled, stats: SubscriptionStats) -> None:
    add = labelled.add
    prefix = "pulsar_subscription"
    add(f"{prefix}_back_log", stats.msg_backlog)
    add(f"{prefix}_back_log_no_delayed", stats.msg_backlog_no_delayed)
    add(f"{prefix}_unacked_messages", stats.unacked_messages)
    add(f"{prefix}_blocked_on_unacked_messages", stats.blocked_subscription_on_unacked_msgs)
    add(f"{prefix}_in_replay", stats.msg_in_replay)
    add(f"{prefix}_consumers_count", len(stats.consumers))
    add(f"{prefix}_msg_rate_out", stats.msg_rate_out)
    add(f"{prefix}_msg_throughput_out", stats.msg_throughput_out)
    add(f"{prefix}_msg_rate_redeliver", stats.msg_rate_redeliver)
    add(f"{prefix}_msg_ack_rate", stats.message_ack_rate)
    add(f"{prefix}_msg_rate_expired", stats.msg_rate_expired)
    add(f"{prefix}_total_msg_expired", stats.total_msg_expired)
    add(f"{prefix}_last_expire_timestamp", stats.last_expire_timestamp)
    add(f"{prefix}_last_acked_timestamp", stats.last_acked_timestamp)
    add(f"{prefix}_last_consumed_timestamp", stats.last_consumed_timestamp)
    add(f"{prefix}_last_consumed_flow_timestamp", stats.last_consumed_flow_timestamp)
    add(
        f"{prefix}_last_mark_delete_advanced_timestamp",
        stats.last_mark_delete_advanced_timestamp,
    )
    subscription_metrics(labelled, stats)
    _gate(labelled, stats.ack_state)


def _gate(labelled: Labelled, state: AckState) -> None:
    add, gate = labelled.add, state.gate
    add("ackgate_ack_ranges", state.ranges_live)
    add("ackgate_ack_ranges_persisted", state.ranges_persisted)
    add("ackgate_ack_holes", state.cursor.hole_count)
    add("ackgate_entries_dropped", state.entries_dropped)
    add("ackgate_batches_partly_acked", state.cursor.partly_acked_count)
    add("ackgate_batch_indexes_dropped", state.batch_indexes_dropped)
    if gate is None:
        return
    add("ackgate_ack_ranges_max", gate.ranges_max)
    add("ackgate_gate_open", gate.is_open)
    add("ackgate_gate_shut_total", gate.shut_count)
    for reason in PauseReason:
        of_reason = labelled.labelled(reason=reason.value)
        of_reason.add("ackgate_gate_reason", reason in gate.reasons)
    if gate.budget_entries is not None:
        add("ackgate_gate_budget_entries", gate.budget_entries)
    if state.forecast is not None and state.forecast.gate_shuts_in_seconds is not None:
        add("ackgate_gate_shuts_in_seconds", state.forecast.gate_shuts_in_seconds)


def _cursor(labelled: Labelled, state: AckState, store: CursorStoreStats) -> None:
    add = labelled.add
    prefix = "pulsar_ml_cursor"
    add(f"{prefix}_persistLedgerSucceed", store.ledger_writes)
    add(f"{prefix}_persistLedgerErrors", store.ledger_errors)
    add(f"{prefix}_persistZookeeperSucceed", store.metadata_writes)
    add(f"{prefix}_persistZookeeperErrors", store.metadata_errors)
    add(f"{prefix}_nonContiguousDeletedMessagesRange", state.ranges_live)
    add(f"{prefix}_writeLedgerSize", store.bytes_written)
    add("ackgate_cursor_dirty_versions", store.dirty_versions)
    add("ackgate_cursor_receipts_waiting", store.receipts_waiting)
    add("ackgate_cursor_on_fallback", store.is_on_fallback)
    add("ackgate_cursor_failing", store.failing_since_ms is not None)
    if store.outcome is not None:
        add("ackgate_persist_bytes", store.outcome.bytes_written)
        add("ackgate_persist_duration_seconds", store.outcome.duration_ms / 1000)
        add("ackgate_persist_timestamp_seconds", store.outcome.at_ms / 1000)


ROUTES: Final = (Route("GET", "/metrics", get_metrics),)
