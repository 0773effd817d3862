"""Metrics of delayed delivery and of held nacks, under Pulsar's names where it has them.

Pure. The bucket tracker's stand for each subscription, and added up for the topic. They are
counted from the loading of the topic on and never begin anew (Pulsar's did, at each scrape).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.trackers.bucket_statistics import LATENCY_BOUNDS_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.broker.admin.exposition import Labelled
    from ackgate.broker.stats.delayed import DelayedState
    from ackgate.broker.stats.values import SubscriptionStats, TopicStats
    from ackgate.dispatcher.trackers.bucket_statistics import BucketStatistics

INDEX: Final = "pulsar_delayed_message_index"
LATENCY: Final = f"{INDEX}_bucket_op_latency_ms"

KINDS: Final[Mapping[str, str]] = {
    f"{INDEX}_bucket_total": "gauge",
    f"{INDEX}_bucket_op_count": "counter",
    LATENCY: "counter",
    f"{LATENCY}_count": "counter",
    f"{LATENCY}_sum": "counter",
}
"""Metrics whose names say otherwise, or nothing."""


def topic_metrics(labelled: Labelled, stats: TopicStats) -> None:
    """Of a topic: what its subscriptions have, together."""
    labelled.add(f"{INDEX}_size_bytes", stats.delayed_message_index_size_in_bytes)
    labelled.add("ackgate_delayed_cancelled", stats.delayed_messages_cancelled)
    labelled.add(
        "pulsar_broker_topic_messages_delayed_rejected_total", stats.delayed_messages_refused
    )
    states = [subscription.delayed.buckets for subscription in stats.subscriptions.values()]
    trackers = [buckets for buckets in states if buckets is not None]
    _buckets(labelled, trackers[:1] if stats.delayed_index_is_shared else trackers)


def subscription_metrics(labelled: Labelled, stats: SubscriptionStats) -> None:
    """Of one subscription."""
    state = stats.delayed
    labelled.add("pulsar_subscription_delayed", stats.msg_delayed)
    labelled.add(
        "pulsar_subscription_delayed_message_index_size_bytes",
        stats.delayed_message_index_size_in_bytes,
    )
    labelled.add("ackgate_delayed_degraded", bool(state.degraded))
    if state.next_due_ms is not None:
        labelled.add("ackgate_delayed_next_due_timestamp_seconds", state.next_due_ms / 1000)
    _nacks(labelled, state)
    if state.buckets is not None:
        _buckets(labelled, [state.buckets])
        labelled.add("ackgate_delayed_buckets_failing", state.buckets.buckets_failing)
        labelled.add("ackgate_delayed_buckets_lost_total", state.buckets.buckets_lost)


def _nacks(labelled: Labelled, state: DelayedState) -> None:
    nacks = state.nacks
    labelled.add("ackgate_nacks_held", nacks.pending)
    if nacks.pending or nacks.dropped:
        labelled.add("ackgate_nacks_held_bytes", nacks.bytes)
        labelled.add("ackgate_nacks_persisted", nacks.persisted)
        labelled.add("ackgate_nacks_dropped", nacks.dropped)


def _buckets(labelled: Labelled, trackers: Iterable[BucketStatistics]) -> None:
    """Nothing where there is no bucket tracker, as Pulsar."""
    trackers = list(trackers)
    if not trackers:
        return
    add = labelled.add
    add(f"{INDEX}_bucket_total", sum(tracker.buckets for tracker in trackers))
    add(f"{INDEX}_loaded", sum(tracker.loaded_entries for tracker in trackers))
    snapshot_bytes = sum(tracker.snapshot_bytes for tracker in trackers)
    add(f"{INDEX}_bucket_snapshot_size_bytes", snapshot_bytes)
    succeeded: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    latencies: Counter[tuple[str, str]] = Counter()
    for tracker in trackers:
        for kind, counted in tracker.operations.items():
            succeeded[kind.value] += counted.succeeded
            failed[kind.value] += counted.failed
            sums[kind.value] += counted.latency_sum_ms
            for bound, number in zip(_BOUNDS, counted.latency_counts, strict=True):
                latencies[kind.value, bound] += number
    for kind_name in sums:
        of_kind = labelled.labelled(type=kind_name)
        total = succeeded[kind_name] + failed[kind_name]
        if not total:
            continue
        for state, number in (
            ("succeed", succeeded[kind_name]),
            ("failed", failed[kind_name]),
            ("all", total),
        ):
            labelled.labelled(state=state, type=kind_name).add(f"{INDEX}_bucket_op_count", number)
        for bound in _BOUNDS:
            of_kind.labelled(quantile=bound).add(LATENCY, latencies[kind_name, bound])
        of_kind.add(f"{LATENCY}_count", total)
        of_kind.add(f"{LATENCY}_sum", sums[kind_name])


_BOUNDS: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")
