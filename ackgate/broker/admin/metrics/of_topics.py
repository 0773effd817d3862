"""The metrics of a topic, its subscriptions, their ack state, gates, cursors and trackers.

Pure: reads statistics that were taken. Names are Pulsar's, or ours: ``ackgate_*``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.admin.metrics.tables import Metric, MetricTable, described, rows_of
from ackgate.broker.journal import JournalStatistics
from ackgate.broker.stats import (
    AckState,
    GateForecast,
    NackStatistics,
    SubscriptionStats,
    TopicStats,
)
from ackgate.cursor import CursorStatistics
from ackgate.described import descriptions
from ackgate.dispatcher import GateStatistics, PauseReason
from ackgate.dispatcher.buckets import LATENCY_BOUNDS_MS, BucketStatistics
from ackgate.persistence.records.outcome import CursorStoreStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ackgate.broker.admin.metrics.tables import Exposition, Sample
    from ackgate.broker.topic import Topic


# ---- bucket trackers, of a subscription or of all of a topic

_INDEX: Final = "pulsar_delayed_message_index"
_LATENCY: Final = f"{_INDEX}_bucket_op_latency_ms"
_BOUNDS: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")
_SUMMED: Final = frozenset(
    name
    for name, about in descriptions(BucketStatistics).items()
    if about.metric.startswith(_INDEX)
)
"""Metrics of all trackers of a topic together, as in Pulsar."""


def _sum_of(attribute: str) -> Callable[[Sequence[BucketStatistics]], float | None]:
    """Sum an attribute over trackers; no value without a bucket tracker, as in Pulsar."""
    read = attrgetter(attribute)
    return lambda trackers: sum(map(read, trackers)) if trackers else None


def _operations(trackers: Sequence[BucketStatistics]) -> Iterator[tuple[str, int, int, float]]:
    """Name, successes, failures and time in ms of each type of operation that has occurred."""
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
        *described(TopicStats),
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
    tuple(described(JournalStatistics)),
)


# ---- a subscription


def _number(value: Any) -> float:  # noqa: ANN401 - an attribute
    assert isinstance(value, int | float)
    return value


def _next_due_seconds(stats: SubscriptionStats) -> float | None:
    due_ms = stats.delayed.next_due_ms
    return None if due_ms is None else due_ms / 1000


def _nacks(stats: SubscriptionStats) -> NackStatistics | None:
    """The nack statistics, or None if there never were any nacks."""
    nacks = stats.delayed.nacks
    return nacks if nacks.pending or nacks.dropped else None


_HELD_NACKS: Final = descriptions(NackStatistics)["pending"]


SUBSCRIPTION: Final = MetricTable(
    "Subscriptions",
    "`cluster`, `namespace`, `topic`, `subscription`",
    (
        *described(SubscriptionStats),
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
        *described(NackStatistics, _nacks, but={"pending"}),
        *described(BucketStatistics, lambda s: s.delayed.buckets, but=_SUMMED),
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
        *described(AckState),
        *described(CursorStatistics, lambda state: state.cursor),
        *described(GateStatistics, lambda state: state.gate),
        Metric("ackgate_gate_reason", "1 for each standing `reason` to be shut", _gate_reasons),
        *described(GateForecast, lambda state: state.forecast),
    ),
)


# ---- a cursor


class _Cursor(NamedTuple):
    state: AckState
    store: CursorStoreStats


_ML: Final = "pulsar_ml_cursor"


def _of_write(read: Callable[[Any], float]) -> Callable[[_Cursor], float | None]:
    """Read a value from the outcome of the last durable write, if there was one."""
    return lambda c: None if c.store.outcome is None else read(c.store.outcome)


CURSOR: Final = MetricTable(
    "Cursors",
    "`cluster`, `namespace`, `ledger_name`, `cursor_name`; only durable ones",
    (
        *described(CursorStoreStats, lambda c: c.store),
        *rows_of(
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


def add_topic(exposition: Exposition, topic: Topic, stats: TopicStats) -> None:
    """Add the samples of a topic, its subscriptions and their cursors."""
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
