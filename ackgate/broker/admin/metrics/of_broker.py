"""The metrics of the broker: the process, its ports, authentication, latencies, and storage.

Edge: looks at the process. It has the tables and what fills them; `scrape.py` does that.
"""

from __future__ import annotations

import contextlib
import platform
import resource
import time
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import ackgate
from ackgate.broker.admin.metrics.tables import Distribution, Metric, MetricTable, reader, rows_of
from ackgate.broker.topic import BOUNDS_SECONDS
from ackgate.network import HANDSHAKE_FAILURES
from ackgate.persistence.ledgers.client import BookieLedgerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.broker.admin.http.call import AdminBroker, ClusterStoragePort
    from ackgate.broker.admin.metrics.tables import Exposition, Sample
    from ackgate.broker.cluster import BrokerAudit
    from ackgate.broker.stats import TopicStats
    from ackgate.broker.topic import Latencies, Latency, SharedServices
    from ackgate.network import ReloadedTls
    from ackgate.persistence.bookkeeper import BookieTraffic, BookKeeperStatistics, LatencyCounts


class Figures:
    """Sums over all topics of a broker, and the broker."""

    def __init__(self, broker: AdminBroker) -> None:
        self.broker = broker
        self.topics = self.subscriptions = self.producers = self.consumers = 0
        self.storage_bytes = self.backlog = self.receipts_waiting = 0
        self.rate_in = self.rate_out = self.throughput_in = self.throughput_out = 0.0
        self.workers_scraped = 1

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


def _workers_scraped(figures: Figures) -> float | None:
    return None if figures.broker.worker is None else figures.workers_scraped


def _build_info(_: Figures) -> list[Sample]:
    return [({"version": ackgate.__version__, "python": platform.python_version()}, 1)]


_NO_LIMIT: Final = float(2**64 - 1)
"""For a limit that is infinite, as in client_golang: Python's own -1 would be less than any use."""


class _Process(NamedTuple):
    """Figures of this process, as Prometheus' own clients export them."""

    cpu_seconds_total: float
    resident_memory_bytes: float | None
    open_fds: float | None
    max_fds: float
    start_time_seconds: float


def _process(figures: Figures) -> _Process:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resident: float | None = None
    open_fds: float | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):  # only Linux has these files
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * resource.getpagesize()
        open_fds = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return _Process(
        usage.ru_utime + usage.ru_stime,
        resident,
        open_fds,
        _NO_LIMIT if files_max == resource.RLIM_INFINITY else files_max,
        figures.broker.started_at,
    )


BROKER: Final = MetricTable(
    "Broker",
    "`cluster`",
    (
        *rows_of(
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
        ),
        Metric(
            "pulsar_active_connections",
            "Connections of the binary protocol",
            lambda figures: len(figures.broker.connections),
        ),
        Metric(
            "ackgate_uptime_seconds",
            "Time since the start",
            lambda figures: time.time() - figures.broker.started_at,
            unit="seconds",
        ),
        Metric(
            "ackgate_workers_scraped",
            "Workers whose metrics are in this answer, of a broker with several",
            _workers_scraped,
        ),
        Metric("ackgate_build_info", "1; its labels say what runs", _build_info),
        *(
            Metric(f"process_{name}", meaning, reader(name, _process), unit=unit)
            for name, meaning, unit in (
                ("cpu_seconds_total", "Processor time of the process", "seconds"),
                ("resident_memory_bytes", "Memory of the process", "bytes"),
                ("open_fds", "Files and connections that are open", ""),
                ("max_fds", "Files and connections that may be open", ""),
                ("start_time_seconds", "When the process began", "seconds since 1970"),
            )
        ),
        *rows_of(
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
        Metric(
            "ackgate_brokers",
            "Live brokers of the cluster",
            lambda figures: len(figures.broker.ownership.view.brokers),
        ),
        Metric(
            "ackgate_bundles_owned",
            "Bundles that this broker owns",
            lambda figures: len(figures.broker.ownership.owned),
        ),
        *rows_of(
            "broker.ownership",
            ("acquired", "ackgate_bundles_acquired_total", "Bundles that this broker has acquired"),
            (
                "sessions_lost",
                "ackgate_sessions_lost_total",
                "Sessions with the metadata store that were lost",
            ),
        ),
        *rows_of(
            "broker.services.waits",
            ("deadline_count", "ackgate_waits_deadlines", "Deadlines in the broker's timing wheel"),
            ("wakes", "ackgate_waits_wakes_total", "How often the wheel's timer was due"),
        ),
        *rows_of(
            "",
            (
                "receipts_waiting",
                "ackgate_waits_receipts",
                "Acks whose receipt waits until they are durable",
            ),
        ),
        *rows_of(
            "broker.services.waits",
            ("receipts_sent", "ackgate_waits_completed_total", "Acks that were reported durable"),
            (
                "receipts_overdue",
                "ackgate_waits_expired_total",
                "Acks that did not become durable in time",
            ),
        ),
        *rows_of(
            "broker.services.waits.read_stats",
            ("size", "ackgate_waits_reads", "Reads that wait for entries or for a gate"),
            ("watched", "ackgate_waits_reads_watched", "Places of these reads in watch lists"),
            (
                "completed",
                "ackgate_waits_reads_completed_total",
                "Reads whose entries came, or whose gate opened",
            ),
            ("expired", "ackgate_waits_reads_expired_total", "Reads whose deadline came first"),
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
    """A histogram. `counts`: for each bound, how many were between the one before and it.

    The last count is of those above all bounds.
    """
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
                ("dispatch", "Entries: from when they could be read to their connection's output"),
                ("persist", "Durable writes of subscriptions' ack states, from their start"),
                ("receipt", "Acks that got the receipt they asked for, from the frame's arrival"),
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
        *rows_of(
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
        *rows_of(
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

CLIENT_TLS: Final = MetricTable(
    "Certificates that the broker shows as a client",
    "`cluster`, `to` (`brokers`, `zookeeper` or `bookies`); only of those that are given",
    tuple(
        rows_of(
            "",
            (
                "certificate_expires_at",
                "ackgate_tls_client_certificate_expiry_timestamp_seconds",
                "When the certificate that is shown to them expires",
                "seconds since 1970",
            ),
        )
    ),
)

AUTHENTICATION: Final = MetricTable(
    "Authentication",
    "`cluster`, `auth_method` (`none`: no credentials; `other`: one that is not offered);"
    " only with `authenticationEnabled`",
    tuple(
        rows_of(
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
        *rows_of(
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
        *rows_of(
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
        *rows_of(
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
        *rows_of(
            "audit", ("runs", "ackgate_auditor_runs_total", "Audits that this broker finished")
        ),
        Metric(
            "ackgate_auditor_last_run_timestamp_seconds",
            "When it finished the last one",
            lambda s: s.audit.last_run_ms / 1000,
            unit="seconds since 1970",
        ),
        *rows_of(
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
        *rows_of(
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


def add_broker(exposition: Exposition, figures: Figures) -> None:
    """Add the samples of the broker, its ports and its storage."""
    broker = figures.broker
    labelled = exposition.labelled()
    BROKER.add(labelled, figures)
    LATENCIES.add(labelled, broker.services.latencies)
    for scheme, tls in broker.tls_ports.items():
        TLS.add(exposition.labelled(port=scheme), tls)
    for to, certificate in broker.client_certificates.items():
        CLIENT_TLS.add(exposition.labelled(to=to), certificate)
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
