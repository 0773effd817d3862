"""Turns the delivery journal into results: functions from DataFrames to DataFrames.

Edge to Spark. Each pair of subscription and group of settings is one sorted stream of events,
replayed in one task, which keeps only the state of its cursors. Pairs run in parallel.

    journal --> events of each subscription x groups of settings --> sorted --> replays --> results
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from ackgate.persistence.deliveries.columns import EventKind
from ackgate.pipeline.jobs.what_if.events import EVENTS_COLUMNS
from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay
from ackgate.pipeline.jobs.what_if.rows import (
    GROUP,
    CoverageRow,
    EvenFeed,
    ReplayRow,
    SumColumns,
    replay_row,
)
from ackgate.pipeline.schema.row_types import arrow_columns, spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.jobs.job import DataFrame
    from ackgate.pipeline.jobs.what_if.rows import Key
    from ackgate.pipeline.jobs.what_if.variants import Variant

KEY: Final = ("topic", "subscription", GROUP)

_BEGINNINGS: Final = (EventKind.SUBSCRIBED.value, EventKind.RECOVERED.value)
_NOT_NEEDED: Final = (EventKind.RECEIPT.value, EventKind.CONSUMER_REMOVED.value)
_SUMS: Final = tuple(field.name for field in fields(SumColumns))


def replays(
    journal: DataFrame, variants: Sequence[Variant], *, interval_us: int, groups: int = 1
) -> DataFrame:
    """Replay the journal; return a `ReplayRow` for each subscription and group of settings.

    The variants of each subscription are divided among `groups` streams of its events. Spark reads
    the journal twice: pass a kept frame.
    """
    groups = max(1, min(groups, len(variants)))
    shares = [tuple(variants[number::groups]) for number in range(groups)]

    def replayed(batches: Iterator[Any]) -> Iterator[Any]:
        from ackgate.pipeline.jobs.what_if.rows import keyed_events  # noqa: PLC0415

        present: tuple[Key, EvenFeed] | None = None
        for batch in batches:
            for key, events in keyed_events(batch):
                if present is None or present[0] != key:
                    if present is not None:
                        yield _row_of(*present)
                    replay = SubscriptionReplay(shares[key.group], interval_us=interval_us)
                    present = key, EvenFeed(replay)
                present[1].feed(events)
        if present is not None:
            yield _row_of(*present)

    return (
        events_by_subscription(journal)
        .withColumn(GROUP, f.explode(f.sequence(f.lit(0), f.lit(groups - 1))))
        .repartition(*KEY)
        .sortWithinPartitions(*KEY, "owner_epoch", "sequence")
        .mapInArrow(replayed, spark_columns(ReplayRow))
    )


def recorded_us(journal: DataFrame) -> int:
    """Microseconds from the first to the last event of all topics; 0 without events."""
    only = journal.agg(f.max("time_us") - f.min("time_us")).collect()[0]
    return int(only[0] or 0)


def events_by_subscription(journal: DataFrame) -> DataFrame:
    """Return the events of each durable subscription, with a copy of its topic's own events."""
    events = journal.select(*EVENTS_COLUMNS).where(~f.col("event").isin(*_NOT_NEEDED))
    subscriptions = (
        events.where(f.col("event").isin(*_BEGINNINGS))
        .where(f.coalesce(~f.col("detail").contains('"is_durable":false'), f.lit(True)))  # noqa: FBT003
        .groupBy("topic")
        .agg(f.collect_set("subscription").alias("subscriptions"))
    )
    of = f.when(f.col("subscription").isNull(), f.col("subscriptions")).otherwise(
        f.array_intersect("subscriptions", f.array("subscription"))
    )
    return (
        events.join(subscriptions, "topic")
        .withColumn("subscription", f.explode(of))
        .select(*EVENTS_COLUMNS)
    )


def _row_of(key: Key, feed: EvenFeed) -> Any:  # noqa: ANN401 - Arrow has no types here
    import pyarrow as pa  # noqa: PLC0415

    row = replay_row(feed.finished(), *key)
    return pa.RecordBatch.from_pylist([asdict(row)], schema=arrow_columns(ReplayRow))


# ------------------------------------------------------------------------ results


def results(rows: DataFrame) -> DataFrame:
    """One row for each subscription and variant."""
    each = rows.selectExpr("topic", "subscription", "explode(results) AS each")
    return each.selectExpr(
        "topic",
        "subscription",
        "each.variant",
        "each.changes",
        "each.moments",
        *(f"each.sums.{name}" for name in _SUMS),
        "each.paused_for",
    )


def timeline(rows: DataFrame) -> DataFrame:
    """One row for each subscription, variant and stretch of time."""
    each = rows.selectExpr("topic", "subscription", "explode(intervals) AS each")
    sums = (f"each.sums.{name}" for name in _SUMS)
    return each.selectExpr(
        "topic", "subscription", "each.variant", "each.from_ms", "each.until_ms", *sums
    )


def differences(rows: DataFrame) -> DataFrame:
    """One row for each recorded value that the recorded settings did not reproduce."""
    once = rows.where(f.col(GROUP) == 0)  # every group walks the recording and finds the same
    each = once.selectExpr("topic", "subscription", "explode(differences) AS each")
    return each.select("topic", "subscription", "each.*")


def coverage(rows: DataFrame) -> DataFrame:
    """One row for each subscription: how much of its recording was replayed."""
    names = [field.name for field in fields(CoverageRow)]
    return rows.where(f.col(GROUP) == 0).selectExpr(
        "topic", "subscription", *(f"coverage.{name}" for name in names)
    )


_COVERED: Final = (
    *("events", "events_skipped", "events_missing"),
    *("writes_compared", "gate_changes_compared", "differences"),
)


def totals(rows: DataFrame) -> DataFrame:
    """One row for all subscriptions: sums of coverage, first and last time in ms."""
    is_whole = f"{GROUP} = 0"
    return rows.selectExpr(
        f"count_if({is_whole}) AS subscriptions",
        *(f"coalesce(sum(if({is_whole}, coverage.{name}, 0)), 0) AS {name}" for name in _COVERED),
        "coalesce(max(coverage.cursor_bytes_max), 0) AS cursor_bytes_max",
        "min(array_min(transform(intervals, each -> each.from_ms))) AS first_ms",
        "max(array_max(transform(intervals, each -> each.until_ms))) AS last_ms",
    )


_ADDED: Final = (
    *("pauses", "postponed", "writes", "snapshots", "ledgers_begun"),
    *("node_writes", "failed_attempts", "bytes_written"),
    *("delayed_entries", "buckets_written", "segments_written", "segments_loaded"),
    "delayed_bytes_written",
    # One broker may own all subscriptions: the sum of their maxima is an upper bound.
    *("redeliveries_max", "buckets_max", "delayed_memory_max"),
)
_ADDED_EXACTLY: Final = ("paused_seconds", "redeliveries_mean", "not_durable_mean")
_HIGHEST: Final = ("entries_dropped_max", "ranges_max")


def _exact_sum(value: Any) -> Any:  # noqa: ANN401 - Spark has no types here
    """Sum decimals: the last digits of a sum of doubles depend on the order in which tasks end."""
    return f.sum(value.cast("decimal(28,9)")).cast("double")


def by_variant(of_results: DataFrame) -> DataFrame:
    """One row for each variant: sums and maxima over all subscriptions."""
    return of_results.groupBy("variant", "moments").agg(
        f.count("*").alias("subscriptions"),
        *(f.sum(name).alias(name) for name in _ADDED),
        *(_exact_sum(f.col(name)).alias(name) for name in _ADDED_EXACTLY),
        *(f.max(name).alias(name) for name in _HIGHEST),
    )


def by_time(of_timeline: DataFrame, variants: Sequence[str], *, width_ms: int) -> DataFrame:
    """One row for each of these variants and stretch of `width_ms`: sums over all subscriptions.

    As in `by_variant`, each subscription's mean is over its recorded time in the stretch.
    """
    start = f.col("from_ms") - f.col("from_ms") % width_ms
    stretches = of_timeline.where(f.col("variant").isin(*variants)).withColumn("from_ms", start)
    area = _exact_sum(f.col("redeliveries_mean") * f.col("recorded_seconds"))
    seconds = _exact_sum(f.col("recorded_seconds"))
    by_subscription = stretches.groupBy("variant", "from_ms", "topic", "subscription").agg(
        _exact_sum(f.col("paused_seconds")).alias("paused_seconds"),
        f.when(seconds > 0, area / seconds).otherwise(0.0).alias("redeliveries_mean"),
    )
    names = ("paused_seconds", "redeliveries_mean")
    return (
        by_subscription.groupBy("variant", "from_ms")
        .agg(*(_exact_sum(f.col(name)).alias(name) for name in names))
        .withColumn("until_ms", f.col("from_ms") + width_ms)
    )
