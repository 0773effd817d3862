"""What the report draws: deliveries over time, and how many waited how long. Bounded, whatever the data.

    deliveries   DELIVERIES_BINS stretches of time, by what they were
    latencies    counts by half powers of two of a microsecond, by kind

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
SORTS: Final = ("first", "asked", "moved", "breach")
"""A delivery is the first; again since it was asked for or its consumer went; again since the owner
changed or there was a seek; or must not be."""

LATENCY_COLUMNS: Final = ("kind", "step", "waits")
LATENCY_KINDS: Final = ("to_dispatch", "to_ack", "to_durable")
STEPS_PER_DOUBLING: Final = 2


def delivery_counts(of_deliveries: DataFrame) -> DataFrame:
    """DELIVERY_COLUMNS: a row for each stretch of time and sort that there is."""
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
    """LATENCY_COLUMNS: `step` n holds waits of 2 ** (n / 2) microseconds and more."""
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
    """Time of an entry from publish to its first dispatch, in microseconds."""
    return f.when(
        ~f.col("is_untold"), f.col("first_sent_at.time_us") - f.col("published_at.time_us")
    )


def to_ack_us() -> Expression:
    """Time of an entry from its first dispatch to the first ack.

    A later ack may be of a later delivery.
    """
    return f.when(
        f.col("acked_at") > f.col("first_sent_at"),
        f.col("acked_at.time_us") - f.col("first_sent_at.time_us"),
    )


def to_durable_us() -> Expression:
    """Microseconds from an ack to its durable write."""
    return f.col("durable_at.time_us") - f.col("at.time_us")
