"""``/metrics``: the broker in Prometheus' text form, under Pulsar's names where Pulsar has them.

Edge. One table for each kind of thing (broker, topic, subscription, cursor ...): a row has a metric's name,
its HELP line, and where the value comes from. Rows of statistics are made of the descriptions at the fields
of `stats.values`. The reference page `docs/metrics.md` shows the same tables.

Each request walks all topics; figures that cost more than a look are not here. Beside Pulsar's names stand
ours, ``ackgate_*``.
"""

from __future__ import annotations

import asyncio
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.admin.http.call import Reply
from ackgate.broker.admin.http.exposition import Exposition, Metric
from ackgate.broker.admin.http.router import Route
from ackgate.broker.stats import SubscriptionStats, TopicStats, descriptions, topic_stats
from ackgate.dispatcher import PauseReason
from ackgate.dispatcher.buckets import LATENCY_BOUNDS_MS
from ackgate.persistence.ledgers.client import BookieLedgerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ackgate.broker.admin.http.call import AdminBroker, Call
    from ackgate.broker.admin.http.exposition import Labelled, Sample
    from ackgate.broker.cluster import BrokerAudit
    from ackgate.broker.stats import AckState
    from ackgate.broker.topic import BrokerParts, Topic
    from ackgate.dispatcher.buckets import BucketStatistics
    from ackgate.persistence.records.outcome import CursorStoreStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricTable(NamedTuple):
    """The metrics of one kind of thing."""

    title: str
    labels: str
    """The labels of its samples, for the reference page."""
    metrics: Sequence[Metric]

    def add(self, labelled: Labelled, source: object) -> None:
        """The samples of one thing."""
        for metric in self.metrics:
            value = metric.read(source)
            if value is None:
                continue
            if isinstance(value, list):
                for labels, number in value:
                    labelled.labelled(**labels).add(metric.name, number)
            else:
                labelled.add(metric.name, value)


def _described(kind: type) -> Iterator[Metric]:
    """A row for each field whose description names a metric."""
    for name, about in descriptions(kind).items():
        if about.metric:
            yield Metric(about.metric, about.text, attrgetter(name))


def _from(path: str, *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> Iterator[Metric]:
    """Rows of one object: `path` leads there; each row has the attribute, name, meaning and kind."""
    prefix = f"{path}." if path else ""
    for attribute, name, meaning, *kind in rows:
        yield Metric(name, meaning, attrgetter(f"{prefix}{attribute}"), *kind)


# ---- the broker


class _Figures:
    """Sums over all topics, and the broker that they belong to."""

    def __init__(self, broker: AdminBroker) -> None:
        self.broker = broker
        self.topics = self.subscriptions = self.producers = self.consumers = 0
        self.storage_bytes = self.backlog = self.receipts_waiting = 0
        self.rate_in = self.rate_out = self.throughput_in = self.throughput_out = 0.0

    def count(self, topic: TopicStats) -> None:
        subscriptions = topic.subscriptions.values()
        self.topics += 1
        self.subscriptions += len(subscriptions)
        self.producers += len(topic.publishers)
        self.consumers += sum(len(stats.consumers) for stats in subscriptions)
        self.storage_bytes += topic.storage_size
        self.backlog += sum(stats.msg_backlog for stats in subscriptions)
        self.receipts_waiting += sum(
            stats.ack_state.store.receipts_waiting
            for stats in subscriptions
            if stats.ack_state.store is not None
        )
        self.rate_in += topic.msg_rate_in
        self.rate_out += topic.msg_rate_out
        self.throughput_in += topic.msg_throughput_in
        self.throughput_out += topic.msg_throughput_out


def _uptime_seconds(figures: _Figures) -> float:
    return time.time() - figures.broker.started_at


def _brokers(figures: _Figures) -> float:
    return len(figures.broker.ownership.view.brokers)


def _bundles_owned(figures: _Figures) -> float:
    return len(figures.broker.ownership.owned)


BROKER: Final = MetricTable(
    "Broker",
    "`cluster`",
    (
        *_from(
            "",
            ("topics", "pulsar_broker_topics_count", "Loaded topics and partitions"),
            ("subscriptions", "pulsar_broker_subscriptions_count", "Subscriptions of these topics"),
            ("producers", "pulsar_broker_producers_count", "Connected producers"),
            ("consumers", "pulsar_broker_consumers_count", "Connected consumers"),
            ("rate_in", "pulsar_broker_rate_in", "Messages published, per second"),
            ("rate_out", "pulsar_broker_rate_out", "Messages delivered, per second"),
            ("throughput_in", "pulsar_broker_throughput_in", "Bytes published, per second"),
            ("throughput_out", "pulsar_broker_throughput_out", "Bytes delivered, per second"),
            ("storage_bytes", "pulsar_broker_storage_size", "Stored messages, bytes"),
            ("backlog", "pulsar_broker_msg_backlog", "Entries not acked, over all subscriptions"),
            (
                "broker.connection_count",
                "pulsar_active_connections",
                "Connections of the binary protocol",
            ),
        ),
        Metric("ackgate_uptime_seconds", "Time since the start, seconds", _uptime_seconds),
        *_from(
            "broker.parts",
            (
                "cache.size_bytes",
                "ackgate_entry_cache_bytes",
                "Entries that are kept in memory, bytes",
            ),
            (
                "publish_buffer.held_bytes",
                "ackgate_publish_buffer_bytes",
                "Messages on their way into ledgers, bytes",
            ),
            (
                "publish_buffer.half_received_bytes",
                "ackgate_publish_buffer_half_received_bytes",
                "Frames of which a part has arrived, bytes",
            ),
            (
                "publish_buffer.waiting_count",
                "ackgate_publish_buffer_waiting_connections",
                "Connections that are not read until there is memory",
            ),
        ),
        Metric("ackgate_brokers", "Live brokers of the cluster", _brokers),
        Metric("ackgate_bundles_owned", "Bundles that this broker owns", _bundles_owned),
        *_from(
            "broker.ownership",
            (
                "acquired",
                "ackgate_bundles_acquired_total",
                "Bundles that this broker has acquired",
            ),
            (
                "sessions_lost",
                "ackgate_sessions_lost_total",
                "Sessions with the metadata store that were lost",
            ),
        ),
        *_from(
            "broker.parts.waits",
            ("deadline_count", "ackgate_waits_deadlines", "Deadlines in the broker's timing wheel"),
            ("wakes", "ackgate_waits_wakes_total", "How often the wheel's timer was due"),
        ),
        *_from(
            "",
            (
                "receipts_waiting",
                "ackgate_waits_receipts",
                "Acks whose receipt waits until they are durable",
            ),
            ("receipts_waiting", "ackgate_waits_watched", "The same as ackgate_waits_receipts"),
        ),
        *_from(
            "broker.parts.waits",
            ("receipts_sent", "ackgate_waits_completed_total", "Acks that were reported durable"),
            (
                "receipts_overdue",
                "ackgate_waits_expired_total",
                "Acks that did not become durable in time",
            ),
        ),
        Metric("ackgate_waits_purged_total", "Always 0", lambda _: 0),
        *_from(
            "broker.parts.waits.read_stats",
            ("size", "ackgate_waits_reads", "Reads that wait for entries or for a gate"),
            ("watched", "ackgate_waits_reads_watched", "Places of these reads in watch lists"),
            (
                "completed",
                "ackgate_waits_reads_completed_total",
                "Reads whose entries came, or whose gate opened",
            ),
            (
                "expired",
                "ackgate_waits_reads_expired_total",
                "Reads whose deadline came first",
            ),
            (
                "purged",
                "ackgate_waits_reads_purged_total",
                "Places in watch lists that were cleared of completed reads",
            ),
        ),
    ),
)


# ---- its bookies


class _Storage(NamedTuple):
    client: BookieLedgerClient
    audit: BrokerAudit
    parts: BrokerParts


STORAGE: Final = MetricTable(
    "Bookies and their auditor",
    "`cluster`; only with bookies of this process",
    (
        Metric("ackgate_bookies", "Bookies in use", lambda s: len(s.client.bookies)),
        Metric(
            "ackgate_bookies_absent",
            "Bookies that could not be opened",
            lambda s: len(s.client.absent_bookies),
        ),
        Metric(
            "ackgate_disk_refuses_messages",
            "1 while publishes are refused because a disk is full",
            lambda s: s.parts.disk_space.refusal is not None,
        ),
        Metric(
            "ackgate_disk_free_bytes",
            "Free space on the fullest disk, bytes",
            lambda s: s.parts.disk_space.free_bytes,
        ),
        Metric(
            "ackgate_bookies_failing",
            "Bookies whose last write failed",
            lambda s: sum(bookie.last_error is not None for bookie in s.client.bookies),
        ),
        *_from("audit", ("runs", "ackgate_auditor_runs_total", "Audits that this broker finished")),
        Metric(
            "ackgate_auditor_last_run_timestamp_seconds",
            "When it finished the last one, seconds since 1970",
            lambda s: s.audit.last_run_ms / 1000,
        ),
        *_from(
            "audit.last",
            (
                "under_replicated_ledgers",
                "ackgate_auditor_under_replicated_ledgers",
                "Ledgers with missing or damaged copies, at the last audit",
            ),
            (
                "unmended_ledgers",
                "ackgate_auditor_unmended_ledgers",
                "Ledgers that it could not repair",
            ),
            (
                "lost_entries",
                "ackgate_auditor_lost_entries",
                "Entries without a good copy, at the last audit",
            ),
        ),
        *_from(
            "audit.all",
            ("missing_copies", "ackgate_auditor_missing_copies_total", "Missing copies found"),
            ("damaged_copies", "ackgate_auditor_damaged_copies_total", "Damaged copies found"),
            ("repaired_entries", "ackgate_auditor_repaired_entries_total", "Entries copied again"),
            ("repaired_bytes", "ackgate_auditor_repaired_bytes_total", "Copied again, bytes"),
            (
                "moved_places",
                "ackgate_auditor_moved_places_total",
                "Places in ensembles given to another bookie",
            ),
        ),
    ),
)


# ---- bucket trackers, of a subscription or of all of a topic

_INDEX: Final = "pulsar_delayed_message_index"
_LATENCY: Final = f"{_INDEX}_bucket_op_latency_ms"
_BOUNDS: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")


def _sum_of(attribute: str) -> Callable[[Sequence[BucketStatistics]], float | None]:
    """The sum over trackers; nothing where there is no bucket tracker, as Pulsar."""
    read = attrgetter(attribute)
    return lambda trackers: sum(map(read, trackers)) if trackers else None


def _operations(trackers: Sequence[BucketStatistics]) -> Iterator[tuple[str, int, int, float]]:
    """Of each type of operation that there was: its name, successes, failures, time in ms."""
    for kind in dict.fromkeys(kind for tracker in trackers for kind in tracker.operations):
        counted = [t.operations[kind] for t in trackers if kind in t.operations]
        succeeded, failed = sum(c.succeeded for c in counted), sum(c.failed for c in counted)
        if succeeded + failed:
            yield kind.value, succeeded, failed, sum(c.latency_sum_ms for c in counted)


def _operation_counts(trackers: Sequence[BucketStatistics]) -> list[Sample]:
    return [
        ({"state": state, "type": kind}, number)
        for kind, succeeded, failed, _ in _operations(trackers)
        for state, number in (
            ("succeed", succeeded),
            ("failed", failed),
            ("all", succeeded + failed),
        )
    ]


def _operation_latencies(trackers: Sequence[BucketStatistics]) -> list[Sample]:
    return [
        (
            {"type": kind, "quantile": bound},
            sum(
                counted.latency_counts[place]
                for tracker in trackers
                for each, counted in tracker.operations.items()
                if each.value == kind
            ),
        )
        for kind, *_ in _operations(trackers)
        for place, bound in enumerate(_BOUNDS)
    ]


BUCKETS: Final = MetricTable(
    "Bucket trackers",
    "as its topic, and as its subscription; only with bucket trackers",
    (
        Metric(f"{_INDEX}_bucket_total", "Sealed buckets", _sum_of("buckets"), "gauge"),
        Metric(f"{_INDEX}_loaded", "Delayed entries in memory", _sum_of("loaded_entries")),
        Metric(
            f"{_INDEX}_bucket_snapshot_size_bytes",
            "Stored snapshots, bytes",
            _sum_of("snapshot_bytes"),
        ),
        Metric(
            f"{_INDEX}_bucket_op_count",
            "Operations by `type` (create, load, merge, delete) and `state`",
            _operation_counts,
            "counter",
        ),
        Metric(
            _LATENCY,
            "Operations by `type` that took at most so many ms (`quantile`) and more than the bound before",
            _operation_latencies,
            "counter",
        ),
        Metric(
            f"{_LATENCY}_count",
            "Operations by `type`",
            lambda t: [({"type": kind}, done + failed) for kind, done, failed, _ in _operations(t)],
            "counter",
        ),
        Metric(
            f"{_LATENCY}_sum",
            "Time of these operations, ms",
            lambda t: [({"type": kind}, took_ms) for kind, _, _, took_ms in _operations(t)],
            "counter",
        ),
    ),
)


# ---- a topic

TOPIC: Final = MetricTable(
    "Topics",
    "`cluster`, `namespace`, `topic`",
    (
        Metric("pulsar_subscriptions_count", "Its subscriptions", lambda s: len(s.subscriptions)),
        Metric("pulsar_producers_count", "Its producers", lambda s: len(s.publishers)),
        Metric(
            "pulsar_consumers_count",
            "Its consumers",
            lambda s: sum(len(each.consumers) for each in s.subscriptions.values()),
        ),
        *_described(TopicStats),
        Metric(
            "pulsar_msg_backlog",
            "Entries not acked, over all subscriptions",
            lambda s: sum(each.msg_backlog for each in s.subscriptions.values()),
        ),
    ),
)

JOURNAL: Final = MetricTable(
    "Delivery journals",
    "`cluster`, `namespace`, `topic`; only with `deliveryJournalEnabled`",
    tuple(
        _from(
            "",
            ("events_written", "ackgate_delivery_journal_events_total", "Events written"),
            (
                "events_dropped",
                "ackgate_delivery_journal_events_dropped_total",
                "Events that are missing in the journal",
            ),
            (
                "events_pending",
                "ackgate_delivery_journal_events_pending",
                "Events that wait to be written",
            ),
            ("blocks_written", "ackgate_delivery_journal_blocks_total", "Blocks written"),
            ("bytes_written", "ackgate_delivery_journal_bytes_total", "Written, bytes"),
            (
                "failures",
                "ackgate_delivery_journal_failures_total",
                "Failed attempts to open the journal or to write a block",
            ),
            (
                "is_stopped",
                "ackgate_delivery_journal_stopped",
                "1 once the journal ended: another broker has the topic, or its node is unreadable",
            ),
        )
    ),
)


# ---- a subscription


def _number(value: Any) -> float:  # noqa: ANN401 - an attribute
    """A number as it is."""
    assert isinstance(value, int | float)
    return value


def _next_due_seconds(stats: SubscriptionStats) -> float | None:
    due_ms = stats.delayed.next_due_ms
    return None if due_ms is None else due_ms / 1000


def _of_nacks(attribute: str) -> Callable[[SubscriptionStats], float | None]:
    """Only if there are or were some."""
    read = attrgetter(attribute)

    def value(stats: SubscriptionStats) -> float | None:
        nacks = stats.delayed.nacks
        return _number(read(nacks)) if nacks.pending or nacks.dropped else None

    return value


def _of_buckets(attribute: str) -> Callable[[SubscriptionStats], float | None]:
    read = attrgetter(attribute)

    def value(stats: SubscriptionStats) -> float | None:
        buckets = stats.delayed.buckets
        return None if buckets is None else _number(read(buckets))

    return value


SUBSCRIPTION: Final = MetricTable(
    "Subscriptions",
    "`cluster`, `namespace`, `topic`, `subscription`",
    (
        *_described(SubscriptionStats),
        Metric("pulsar_subscription_consumers_count", "Its consumers", lambda s: len(s.consumers)),
        Metric(
            "ackgate_delayed_degraded",
            "1 if delayed entries are not tracked as the settings ask; `ackgate stats` says why",
            lambda s: bool(s.delayed.degraded),
        ),
        Metric(
            "ackgate_delayed_next_due_timestamp_seconds",
            "When the next delayed entry is due, seconds since 1970",
            _next_due_seconds,
        ),
        Metric(
            "ackgate_nacks_held",
            "Entries that wait after a negative ack",
            lambda s: s.delayed.nacks.pending,
        ),
        Metric("ackgate_nacks_held_bytes", "Memory of these, bytes", _of_nacks("bytes")),
        Metric(
            "ackgate_nacks_persisted",
            "Of these, the ones in the newest durable image",
            _of_nacks("persisted"),
        ),
        Metric(
            "ackgate_nacks_dropped",
            "Of these, the ones left out of it for their size: after a crash they come at once",
            _of_nacks("dropped"),
        ),
        Metric(
            "ackgate_delayed_buckets_failing",
            "Buckets whose storage fails",
            _of_buckets("buckets_failing"),
        ),
        Metric(
            "ackgate_delayed_buckets_lost_total",
            "Buckets whose snapshot could not be read; their entries are read again",
            _of_buckets("buckets_lost"),
        ),
    ),
)


def _of_gate(attribute: str) -> Callable[[AckState], float | None]:
    read = attrgetter(attribute)

    def value(state: AckState) -> float | None:
        known = None if state.gate is None else read(state.gate)
        return None if known is None else _number(known)

    return value


def _gate_reasons(state: AckState) -> list[Sample] | None:
    gate = state.gate
    if gate is None:
        return None
    return [({"reason": reason.value}, reason in gate.reasons) for reason in PauseReason]


def _gate_shuts_in_seconds(state: AckState) -> float | None:
    if state.gate is None or state.forecast is None:
        return None
    return state.forecast.gate_shuts_in_seconds


ACK_STATE: Final = MetricTable(
    "Ack state and gate",
    "`cluster`, `namespace`, `topic`, `subscription`",
    (
        *_from(
            "",
            ("ranges_live", "ackgate_ack_ranges", "Ack ranges in memory"),
            (
                "ranges_persisted",
                "ackgate_ack_ranges_persisted",
                "Ack ranges in the last durable write",
            ),
            ("cursor.hole_count", "ackgate_ack_holes", "Holes between acked entries"),
            (
                "entries_dropped",
                "ackgate_entries_dropped",
                "Acked entries that the last write left out: they would be delivered again after a crash",
            ),
            (
                "cursor.partly_acked_count",
                "ackgate_batches_partly_acked",
                "Entries of which some batch indexes are acked",
            ),
            (
                "batch_indexes_dropped",
                "ackgate_batch_indexes_dropped",
                "Partly acked entries that the last write left out",
            ),
        ),
        Metric(
            "ackgate_ack_ranges_max",
            "The most ranges that are persisted (`managedLedgerMaxUnackedRangesToPersist`)",
            _of_gate("ranges_max"),
        ),
        Metric("ackgate_gate_open", "1 while the gate lets deliveries pass", _of_gate("is_open")),
        Metric("ackgate_gate_shut_total", "How often the gate has shut", _of_gate("shut_count")),
        Metric("ackgate_gate_reason", "1 for each standing `reason` to be shut", _gate_reasons),
        Metric(
            "ackgate_gate_budget_entries",
            "Strict mode: entries that may still be delivered",
            _of_gate("budget_entries"),
        ),
        Metric(
            "ackgate_gate_shuts_in_seconds",
            "Forecast: time until the gate shuts if ranges go on growing as in the last minute",
            _gate_shuts_in_seconds,
        ),
    ),
)


# ---- a cursor


class _Cursor(NamedTuple):
    state: AckState
    store: CursorStoreStats


_ML: Final = "pulsar_ml_cursor"


def _of_write(read: Callable[[Any], float]) -> Callable[[_Cursor], float | None]:
    """Of the last durable write, if there was one."""
    return lambda c: None if c.store.outcome is None else read(c.store.outcome)


CURSOR: Final = MetricTable(
    "Cursors",
    "`cluster`, `namespace`, `ledger_name`, `cursor_name`; only durable ones",
    (
        *_from(
            "",
            ("store.ledger_writes", f"{_ML}_persistLedgerSucceed", "Writes to the cursor ledger"),
            ("store.ledger_errors", f"{_ML}_persistLedgerErrors", "Failed writes to it"),
            (
                "store.metadata_writes",
                f"{_ML}_persistZookeeperSucceed",
                "Writes to the cursor's node in the metadata store",
            ),
            ("store.metadata_errors", f"{_ML}_persistZookeeperErrors", "Failed writes to it"),
            (
                "state.ranges_live",
                f"{_ML}_nonContiguousDeletedMessagesRange",
                "Ack ranges in memory",
            ),
            ("store.bytes_written", f"{_ML}_writeLedgerSize", "Written, bytes"),
            (
                "store.dirty_versions",
                "ackgate_cursor_dirty_versions",
                "Changes of the ack state that are not durable yet",
            ),
            (
                "store.receipts_waiting",
                "ackgate_cursor_receipts_waiting",
                "Acks whose receipt waits until they are durable",
            ),
            (
                "store.is_on_fallback",
                "ackgate_cursor_on_fallback",
                "1 while the state goes to the metadata store because the ledger fails",
            ),
        ),
        Metric(
            "ackgate_cursor_failing",
            "1 while neither can be written",
            lambda c: c.store.failing_since_ms is not None,
        ),
        Metric(
            "ackgate_persist_bytes",
            "Size of the last durable write, bytes",
            _of_write(lambda outcome: _number(outcome.bytes_written)),
        ),
        Metric(
            "ackgate_persist_duration_seconds",
            "Time of the last durable write, seconds",
            _of_write(lambda outcome: _number(outcome.duration_ms / 1000)),
        ),
        Metric(
            "ackgate_persist_timestamp_seconds",
            "When it was made, seconds since 1970",
            _of_write(lambda outcome: _number(outcome.at_ms / 1000)),
        ),
    ),
)

TABLES: Final = (
    BROKER,
    STORAGE,
    TOPIC,
    SUBSCRIPTION,
    ACK_STATE,
    CURSOR,
    BUCKETS,
    JOURNAL,
)

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric for table in reversed(TABLES) for metric in table.metrics
}
"""By name. Of two with one name (at topics and at subscriptions) the first table's describes it."""


async def get_metrics(call: Call) -> Reply:
    """Every metric, in Prometheus' text format: [metrics.md](metrics.md).

    Other requests get their turn after every topic and every metric.
    """
    broker = call.broker
    exposition = Exposition({"cluster": broker.parts.settings.broker.cluster_name}, METRICS)
    figures = _Figures(broker)
    for topic in broker.registry:
        stats = topic_stats(topic, broker.sampler, owner="")
        figures.count(stats)
        _topic(exposition, topic, stats)
        await asyncio.sleep(0)
    labelled = exposition.labelled()
    BROKER.add(labelled, figures)
    client = broker.parts.ledger_client
    if isinstance(client, BookieLedgerClient):
        STORAGE.add(labelled, _Storage(client, broker.parts.audit, broker.parts))
    text = bytearray()
    for piece in exposition.pieces():
        text += piece
        await asyncio.sleep(0)
    return Reply(200, bytes(text), CONTENT_TYPE)


def _topic(exposition: Exposition, topic: Topic, stats: TopicStats) -> None:
    namespace = str(topic.name.namespace_name)
    labelled = exposition.labelled(namespace=namespace, topic=str(topic.name))
    TOPIC.add(labelled, stats)
    trackers = [
        each.delayed.buckets
        for each in stats.subscriptions.values()
        if each.delayed.buckets is not None
    ]
    BUCKETS.add(labelled, trackers[:1] if stats.delayed_index_is_shared else trackers)
    journal = topic.journaling.statistics()
    if journal is not None:
        JOURNAL.add(labelled, journal)
    for name, subscription in stats.subscriptions.items():
        of_subscription = labelled.labelled(subscription=name)
        SUBSCRIPTION.add(of_subscription, subscription)
        ACK_STATE.add(of_subscription, subscription.ack_state)
        buckets = subscription.delayed.buckets
        BUCKETS.add(of_subscription, [] if buckets is None else [buckets])
        store = subscription.ack_state.store
        if store is not None:
            of_cursor = exposition.labelled(
                namespace=namespace,
                ledger_name=topic.path.removeprefix("/managed-ledgers/"),
                cursor_name=name,
            )
            CURSOR.add(of_cursor, _Cursor(subscription.ack_state, store))


ROUTES: Final = (Route("GET", "/metrics", get_metrics),)
