"""The series that the report draws, with a bounded number of rows however large the journal is.

    deliveries   counts in DELIVERIES_BINS time bins, by sort
    latencies    counts in steps of a factor of sqrt(2), from 1 us on, by kind

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.deliveries import BREACHES

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame
    from ackgate.pipeline.jobs.journal import Expression

DELIVERIES_BINS: Final = 60
DELIVERY_COLUMNS: Final = ("from_ms", "until_ms", "sort", "deliveries")
"""Columns of the curve of deliveries. The sorts:

    first    the first one of an entry
    asked    repeated, because a consumer asked for it or went away
    moved    repeated, because of another owner or a seek
    breach   a delivery with a broken guarantee
"""

LATENCY_COLUMNS: Final = ("kind", "step", "waits")
STEPS_PER_DOUBLING: Final = 2


def delivery_counts(of_deliveries: DataFrame) -> DataFrame:
    """Return DELIVERY_COLUMNS: one row per time bin and sort that has deliveries."""
    sort = (
        f.when(f.col("cause").isin(*BREACHES) | f.col("finding").isNotNull(), "breach")
        .when(f.col("cause").isNull(), "first")
        .when(f.col("cause").isin("nack_or_timeout", "consumer_closed"), "asked")
        .otherwise("moved")
    )
    timed = of_deliveries.select(f.col("at.time_us").alias("time_us"), sort.alias("sort"))
    bounds = timed.agg(f.min("time_us").alias("from_us"), f.max("time_us").alias("until_us"))
    width = f.floor((f.col("until_us") - f.col("from_us")) / DELIVERIES_BINS) + 1
    number = f.floor((f.col("time_us") - f.col("from_us")) / f.col("width"))

    def edge(at: Expression) -> Expression:
        return ((f.col("from_us") + at * f.col("width")) / 1_000).cast("double")

    return (
        timed.crossJoin(f.broadcast(bounds))
        .withColumn("width", width)
        .withColumn("number", number)
        .groupBy("number", "from_us", "width", "sort")
        .agg(f.count("*").alias("deliveries"))
        .select(
            edge(f.col("number")).alias("from_ms"),
            edge(f.col("number") + 1).alias("until_ms"),
            "sort",
            "deliveries",
        )
    )


def latency_counts(of_fates: DataFrame, of_acks: DataFrame) -> DataFrame:
    """Return LATENCY_COLUMNS: one row per kind and step that has waits.

    Step n counts the waits from 2 ** (n / 2) to 2 ** ((n + 1) / 2) microseconds; step 0 also
    shorter ones.
    """
    of_entries = of_fates.select(
        f.explode(
            f.array(
                _wait("to_dispatch", to_dispatch_us()),
                _wait("to_ack", to_ack_us()),
            )
        ).alias("wait")
    )
    waits = of_entries.unionByName(
        of_acks.select(_wait("to_durable", to_durable_us()).alias("wait"))
    )
    step = f.floor(f.log2(f.greatest(f.col("wait.us"), f.lit(1))) * STEPS_PER_DOUBLING)
    return (
        waits.where("wait.us is not null")
        .groupBy("wait.kind", step.cast("int").alias("step"))
        .agg(f.count("*").alias("waits"))
        .select(*LATENCY_COLUMNS)
    )


def _wait(kind: str, us: Expression) -> Expression:
    return f.struct(f.lit(kind).alias("kind"), us.alias("us"))


def to_dispatch_us() -> Expression:
    """Microseconds from publish to first dispatch; null if either is not in the journal."""
    return f.when(
        ~f.col("is_untold"), f.col("first_sent_at.time_us") - f.col("published_at.time_us")
    )


def to_ack_us() -> Expression:
    """Microseconds from an entry's first dispatch to its first ack; null unless in this order.

    Later acks do not count: they may belong to a later delivery.
    """
    return f.when(
        f.col("acked_at") > f.col("first_sent_at"),
        f.col("acked_at.time_us") - f.col("first_sent_at.time_us"),
    )


def to_durable_us() -> Expression:
    """Microseconds from an ack to its durable write; null if there is none."""
    return f.col("durable_at.time_us") - f.col("at.time_us")
