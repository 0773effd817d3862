"""``/metrics``: the broker in Prometheus' text form, under Pulsar's names where Pulsar has them.

Edge. One table for each kind of thing (broker, topic, subscription, cursor ...): a row has a metric's name,
its HELP line, and where the value comes from. Rows of statistics are made of the descriptions at their
fields (`ackgate.described`). The reference page `docs/metrics.md` shows the same tables.

Each request walks all topics; figures that cost more than a look are not here. Beside Pulsar's names stand
ours, ``ackgate_*``.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import resource
import time
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ackgate
from ackgate.broker.admin.http.call import Reply
from ackgate.broker.admin.http.exposition import Distribution, Exposition, Metric
from ackgate.broker.admin.http.router import Route
from ackgate.broker.journal import JournalStatistics
from ackgate.broker.stats import (
    AckState,
    GateForecast,
    NackStatistics,
    SubscriptionStats,
    TopicStats,
    topic_stats,
)
from ackgate.broker.topic import BOUNDS_SECONDS
from ackgate.cursor import CursorStatistics
from ackgate.described import descriptions
from ackgate.dispatcher import GateStatistics, PauseReason
from ackgate.dispatcher.buckets import LATENCY_BOUNDS_MS, BucketStatistics
from ackgate.network import HANDSHAKE_FAILURES
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.persistence.records.outcome import CursorStoreStats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ackgate.broker.admin.http.call import AdminBroker, Call, ClusterStoragePort
    from ackgate.broker.admin.http.exposition import Labelled, Sample
    from ackgate.broker.cluster import BrokerAudit
    from ackgate.broker.topic import Latencies, Latency, SharedServices, Topic
    from ackgate.network import ReloadedTls
    from ackgate.persistence.bookkeeper import BookieTraffic, BookKeeperStatistics, LatencyCounts

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
            if isinstance(value, Distribution):
                labelled.add_distribution(metric, value)
            elif isinstance(value, list):
                for labels, number in value:
                    labelled.labelled(**labels).add(metric.name, number)
            else:
                labelled.add(metric.name, value)


def _described(
    kind: type, lead: Callable[[Any], object | None] | None = None, *, but: Collection[str] = ()
) -> Iterator[Metric]:
    """A row for each field whose description names a metric, but for some.

    `lead`: from what a table is about to the described value, or None where there is none.
    """
    for name, about in descriptions(kind).items():
        if about.metric and name not in but:
            yield Metric(about.metric, about.meaning, _reader(name, lead), unit=about.unit)


def _reader(name: str, lead: Callable[[Any], object | None] | None) -> Callable[[Any], Any]:
    read = attrgetter(name)
    if lead is None:
        return read

    def value(source: object) -> Any:  # noqa: ANN401 - an attribute
        described = lead(source)
        return None if described is None else read(described)

    return value


def _from(path: str, *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> Iterator[Metric]:
    """Rows of one object: `path` leads there; each row has the attribute, name, meaning and unit."""
    prefix = f"{path}." if path else ""
    for attribute, name, meaning, *unit in rows:
        yield Metric(
            name, meaning, attrgetter(f"{prefix}{attribute}"), unit=unit[0] if unit else ""
        )


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


def _build_info(_: _Figures) -> list[Sample]:
    return [({"version": ackgate.__version__, "python": platform.python_version()}, 1)]


class _Process(NamedTuple):
    """This process, as Prometheus' own clients describe one."""

    cpu_seconds_total: float
    resident_memory_bytes: float | None
    open_fds: float | None
    max_fds: float
    start_time_seconds: float


def _process(figures: _Figures) -> _Process:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident: float | None = None
    open_fds: float | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * resource.getpagesize()
        open_fds = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return _Process(
        usage.ru_utime + usage.ru_stime,
        resident,
        open_fds,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        figures.broker.started_at,
    )


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
            ("rate_in", "pulsar_broker_rate_in", "Messages published", "per second"),
            ("rate_out", "pulsar_broker_rate_out", "Messages delivered", "per second"),
            ("throughput_in", "pulsar_broker_throughput_in", "Bytes published", "per second"),
            ("throughput_out", "pulsar_broker_throughput_out", "Bytes delivered", "per second"),
            ("storage_bytes", "pulsar_broker_storage_size", "Stored messages", "bytes"),
            ("backlog", "pulsar_broker_msg_backlog", "Entries not acked, over all subscriptions"),
            (
                "broker.connection_count",
                "pulsar_active_connections",
                "Connections of the binary protocol",
            ),
        ),
        Metric("ackgate_uptime_seconds", "Time since the start", _uptime_seconds, unit="seconds"),
        Metric("ackgate_build_info", "1; its labels say what runs", _build_info),
        *(
            Metric(f"process_{name}", meaning, _reader(name, _process), unit=unit)
            for name, meaning, unit in (
                ("cpu_seconds_total", "Processor time of the process", "seconds"),
                ("resident_memory_bytes", "Memory of the process", "bytes"),
                ("open_fds", "Files and connections that are open", ""),
                ("max_fds", "Files and connections that may be open", ""),
                ("start_time_seconds", "When the process began", "seconds since 1970"),
            )
        ),
        *_from(
            "broker.services",
            (
                "cache.size_bytes",
                "ackgate_entry_cache_bytes",
                "Entries that are kept in memory",
                "bytes",
            ),
            (
                "publish_buffer.held_bytes",
                "ackgate_publish_buffer_bytes",
                "Messages on their way into ledgers",
                "bytes",
            ),
            (
                "publish_buffer.half_received_bytes",
                "ackgate_publish_buffer_half_received_bytes",
                "Frames of which a part has arrived",
                "bytes",
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
            "broker.services.waits",
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
        ),
        *_from(
            "broker.services.waits",
            ("receipts_sent", "ackgate_waits_completed_total", "Acks that were reported durable"),
            (
                "receipts_overdue",
                "ackgate_waits_expired_total",
                "Acks that did not become durable in time",
            ),
        ),
        *_from(
            "broker.services.waits.read_stats",
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


# ---- how long things take


def _distribution(
    bounds_seconds: Sequence[float], counts: Sequence[int], sum_seconds: float
) -> Distribution:
    """`counts`: of each bound those above the bound before, then those above all of them."""
    within = list(accumulate(counts))
    bounds = (f"{bound:g}" for bound in bounds_seconds)
    return Distribution(within[-1], sum_seconds, list(zip(bounds, within, strict=False)))


def _histogram(name: str) -> Callable[[Latencies], Distribution]:
    read: Callable[[Latencies], Latency] = attrgetter(name)

    def value(latencies: Latencies) -> Distribution:
        latency = read(latencies)
        return _distribution(BOUNDS_SECONDS, latency.counts, latency.sum_seconds)

    return value


def _publish_ms(latencies: Latencies) -> Distribution:
    publish = latencies.publish
    return Distribution(sum(publish.counts), publish.sum_seconds * 1000)


LATENCIES: Final = MetricTable(
    "Latencies",
    "`cluster`, and `le` of histograms; all topics of the broker together",
    (
        *(
            Metric(
                f"ackgate_{name}_latency_seconds", meaning, _histogram(name), "histogram", "seconds"
            )
            for name, meaning in (
                ("publish", "Entries: from the arrival of the frame to its receipt"),
                (
                    "dispatch",
                    "Entries: from when they could be read to their connection's output",
                ),
                (
                    "persist",
                    "Durable writes of subscriptions' ack states, from their start",
                ),
                (
                    "receipt",
                    "Acks that got the receipt they asked for, from the frame's arrival",
                ),
            )
        ),
        Metric(
            "pulsar_broker_publish_latency",
            "The publish latency as Pulsar has it, but without quantiles",
            _publish_ms,
            "summary",
            "ms",
        ),
    ),
)


# ---- TLS, and who clients are


def _handshake_failures(tls: ReloadedTls) -> list[Sample]:
    return [({"reason": reason}, number) for reason, number in tls.handshakes.failed.items()]


TLS: Final = MetricTable(
    "TLS of the ports",
    "`cluster`, `port` (`pulsar+ssl` or `https`); only of ports with TLS",
    (
        *_from(
            "",
            (
                "handshakes.succeeded",
                "ackgate_tls_handshakes_total",
                "Handshakes that came through",
            ),
        ),
        Metric(
            "ackgate_tls_handshake_failures_total",
            f"Handshakes that failed, by `reason`: {', '.join(HANDSHAKE_FAILURES)}",
            _handshake_failures,
        ),
        *_from(
            "",
            (
                "reloads",
                "ackgate_tls_reloads_total",
                "Times that changed certificates, keys or authorities came into use",
            ),
            (
                "failures",
                "ackgate_tls_reload_failures_total",
                "Times that changed files could not be used, and the old ones stayed in use",
            ),
            (
                "certificate_expires_at",
                "ackgate_tls_certificate_expiry_timestamp_seconds",
                "When the certificate in use expires",
                "seconds since 1970",
            ),
        ),
    ),
)

AUTHENTICATION: Final = MetricTable(
    "Authentication",
    "`cluster`, `auth_method` (`none`: no credentials; `other`: one that is not offered);"
    " only with `authenticationEnabled`",
    tuple(
        _from(
            "",
            (
                "succeeded",
                "pulsar_authentication_success_total",
                "Connections, refreshed credentials and requests over HTTP whose credentials were taken",
            ),
            (
                "failed",
                "pulsar_authentication_failures_total",
                "Those whose credentials were not taken",
            ),
        )
    ),
)


# ---- its bookies


class _Cluster(NamedTuple):
    storage: ClusterStoragePort
    client: BookKeeperStatistics


CLUSTER: Final = MetricTable(
    "A BookKeeper cluster",
    "`cluster`; only with `bookkeeperMetadataServiceUri`",
    (
        *_from(
            "storage",
            (
                "bookies_writable",
                "ackgate_bookkeeper_bookies_writable",
                "Bookies that take entries, as ZooKeeper has it",
            ),
            (
                "bookies_known",
                "ackgate_bookkeeper_bookies_known",
                "Bookies of the cluster, those that are away or read-only included",
            ),
        ),
        *_from(
            "client",
            ("ledgers_created", "ackgate_bookkeeper_ledgers_created_total", "Ledgers made"),
            (
                "ledgers_recovered",
                "ackgate_bookkeeper_ledgers_recovered_total",
                "Ledgers of a writer that was gone, fenced and closed",
            ),
            (
                "ledgers_fenced",
                "ackgate_bookkeeper_ledgers_fenced_total",
                "Ledgers lost to another owner, or recovered by AutoRecovery while they were written",
            ),
            (
                "ensemble_changes",
                "ackgate_bookkeeper_ensemble_changes_total",
                "Bookies replaced in a ledger that is written",
            ),
        ),
    ),
)


def _answers(attribute: str) -> Callable[[BookieTraffic], Distribution]:
    read: Callable[[BookieTraffic], LatencyCounts] = attrgetter(attribute)

    def value(traffic: BookieTraffic) -> Distribution:
        counts = read(traffic)
        return _distribution(counts.bounds_seconds, counts.counts, counts.sum_ms / 1000)

    return value


BOOKIE: Final = MetricTable(
    "Each bookie of a BookKeeper cluster",
    "`cluster`, `bookie`; only with `bookkeeperMetadataServiceUri`",
    (
        *_from(
            "",
            ("adds", "ackgate_bookkeeper_adds_total", "Entries that it has synced"),
            (
                "adds_refused",
                "ackgate_bookkeeper_adds_refused_total",
                "Entries that it did not take",
            ),
            (
                "outstanding_adds",
                "ackgate_bookkeeper_adds_outstanding",
                "Entries queued for it, or not answered",
            ),
            (
                "outstanding_bytes",
                "ackgate_bookkeeper_adds_outstanding_bytes",
                "Their frames",
                "bytes",
            ),
            ("reads", "ackgate_bookkeeper_reads_total", "Reads that it answered"),
            (
                "reads_failed",
                "ackgate_bookkeeper_reads_failed_total",
                "Reads that the end of a connection left without an answer",
            ),
            (
                "connections_opened",
                "ackgate_bookkeeper_connections_opened_total",
                "Connections made",
            ),
            (
                "connections_failed",
                "ackgate_bookkeeper_connections_failed_total",
                "Attempts to connect that failed",
            ),
        ),
        *(
            Metric(
                f"ackgate_bookkeeper_{name}_latency_seconds",
                meaning,
                _answers(f"{name}_latency"),
                "histogram",
                "seconds",
            )
            for name, meaning in (
                ("add", "Entries: from sending them to the answer, refusals included"),
                ("read", "Reads: from sending them to the answer"),
            )
        ),
    ),
)


class _Storage(NamedTuple):
    client: BookieLedgerClient
    audit: BrokerAudit
    services: SharedServices


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
            lambda s: s.services.disk_space.refusal is not None,
        ),
        Metric(
            "ackgate_disk_free_bytes",
            "Free space on the fullest disk",
            lambda s: s.services.disk_space.free_bytes,
            unit="bytes",
        ),
        Metric(
            "ackgate_bookies_failing",
            "Bookies whose last write failed",
            lambda s: sum(bookie.last_error is not None for bookie in s.client.bookies),
        ),
        *_from("audit", ("runs", "ackgate_auditor_runs_total", "Audits that this broker finished")),
        Metric(
            "ackgate_auditor_last_run_timestamp_seconds",
            "When it finished the last one",
            lambda s: s.audit.last_run_ms / 1000,
            unit="seconds since 1970",
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
            ("repaired_bytes", "ackgate_auditor_repaired_bytes_total", "Copied again", "bytes"),
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
_SUMMED: Final = frozenset(
    name
    for name, about in descriptions(BucketStatistics).items()
    if about.metric.startswith(_INDEX)
)
"""Of all trackers of a topic together, as in Pulsar."""


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
        *(
            Metric(about.metric, about.meaning, _sum_of(name), "gauge", about.unit)
            for name, about in descriptions(BucketStatistics).items()
            if name in _SUMMED
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
            "Time of these operations",
            lambda t: [({"type": kind}, took_ms) for kind, _, _, took_ms in _operations(t)],
            "counter",
            "ms",
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
    tuple(_described(JournalStatistics)),
)


# ---- a subscription


def _number(value: Any) -> float:  # noqa: ANN401 - an attribute
    """A number as it is."""
    assert isinstance(value, int | float)
    return value


def _next_due_seconds(stats: SubscriptionStats) -> float | None:
    due_ms = stats.delayed.next_due_ms
    return None if due_ms is None else due_ms / 1000


def _nacks(stats: SubscriptionStats) -> NackStatistics | None:
    """Only if there are or were some."""
    nacks = stats.delayed.nacks
    return nacks if nacks.pending or nacks.dropped else None


_HELD_NACKS: Final = descriptions(NackStatistics)["pending"]


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
            "When the next delayed entry is due",
            _next_due_seconds,
            unit="seconds since 1970",
        ),
        Metric(_HELD_NACKS.metric, _HELD_NACKS.text, lambda s: s.delayed.nacks.pending),
        *_described(NackStatistics, _nacks, but={"pending"}),
        *_described(BucketStatistics, lambda s: s.delayed.buckets, but=_SUMMED),
    ),
)


def _gate_reasons(state: AckState) -> list[Sample] | None:
    gate = state.gate
    if gate is None:
        return None
    return [({"reason": reason.value}, reason in gate.reasons) for reason in PauseReason]


ACK_STATE: Final = MetricTable(
    "Ack state and gate",
    "`cluster`, `namespace`, `topic`, `subscription`",
    (
        *_described(AckState),
        *_described(CursorStatistics, lambda state: state.cursor),
        *_described(GateStatistics, lambda state: state.gate),
        Metric("ackgate_gate_reason", "1 for each standing `reason` to be shut", _gate_reasons),
        *_described(GateForecast, lambda state: state.forecast),
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
        *_described(CursorStoreStats, lambda c: c.store),
        *_from(
            "",
            (
                "state.ranges_live",
                f"{_ML}_nonContiguousDeletedMessagesRange",
                "Ack ranges in memory",
            ),
        ),
        Metric(
            "ackgate_cursor_failing",
            "1 while neither can be written",
            lambda c: c.store.failing_since_ms is not None,
        ),
        Metric(
            "ackgate_persist_bytes",
            "Size of the last durable write",
            _of_write(lambda outcome: _number(outcome.bytes_written)),
            unit="bytes",
        ),
        Metric(
            "ackgate_persist_duration_seconds",
            "Time of the last durable write",
            _of_write(lambda outcome: _number(outcome.duration_ms / 1000)),
            unit="seconds",
        ),
        Metric(
            "ackgate_persist_timestamp_seconds",
            "When it was made",
            _of_write(lambda outcome: _number(outcome.at_ms / 1000)),
            unit="seconds since 1970",
        ),
    ),
)

TABLES: Final = (
    BROKER,
    LATENCIES,
    TLS,
    AUTHENTICATION,
    STORAGE,
    CLUSTER,
    BOOKIE,
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
    exposition = Exposition({"cluster": broker.services.settings.broker.cluster_name}, METRICS)
    figures = _Figures(broker)
    for topic in broker.registry:
        stats = topic_stats(topic, broker.sampler, owner="")
        figures.count(stats)
        _topic(exposition, topic, stats)
        await asyncio.sleep(0)
    labelled = exposition.labelled()
    BROKER.add(labelled, figures)
    LATENCIES.add(labelled, broker.services.latencies)
    for scheme, tls in broker.tls_ports.items():
        TLS.add(exposition.labelled(port=scheme), tls)
    if broker.authentication is not None:
        for method, outcomes in broker.authentication.outcomes.items():
            AUTHENTICATION.add(exposition.labelled(auth_method=method), outcomes)
    client = broker.services.ledger_client
    if isinstance(client, BookieLedgerClient):
        STORAGE.add(labelled, _Storage(client, broker.services.audit, broker.services))
    cluster = broker.cluster_storage
    if cluster is not None:
        statistics = cluster.client.statistics()
        CLUSTER.add(labelled, _Cluster(cluster, statistics))
        for bookie in statistics.bookies:
            BOOKIE.add(exposition.labelled(bookie=bookie.bookie_id), bookie)
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
