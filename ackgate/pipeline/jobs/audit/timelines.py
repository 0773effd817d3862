"""The events of each entry at each subscription, grouped by delivery.

    nth        0                    1                           2
    events     published  (acked)   dispatched  nacked  acked   dispatched  acked
    row        before the first     the delivery, with its nack and ack ...

The rest of the audit builds on these rows, so that the events of an entry are read once. Pure:
DataFrame to DataFrame. Windows are by entry, so that no topic is too large for one task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from ackgate.pipeline.jobs.journal import BY_ENTRY, ENTRY, NO, events_of

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame

TIMELINE_COLUMNS: Final = (
    *ENTRY,
    "nth",
    "published",
    "at",
    "consumer",
    "sent_indexes",
    "first_ack",
    "last_ack_at",
    "ended_at",
    "is_cancelled",
    "last_at",
    "last_nack",
    "last_ack",
    "acked_before_at",
    "partly_before",
)


def timelines(journal: DataFrame, of_expected: DataFrame) -> DataFrame:
    """Return TIMELINE_COLUMNS: a row per delivery, and one (`nth` 0) for the time before the first.

    `published` (at, key, deliver_at_ms, is_untold): the same in all rows of an entry; null if the
    subscription does not have to receive it.
    `first_ack` (at, version): the first whole ack after this delivery, before the next one.
    `last_ack` (at, version): the same of the previous delivery.
    `partly_before` (at, version, unacked_indexes): the newest partial ack before this delivery.
    `ended_at`: when this delivery was first wholly acked or nacked.
    `acked_before_at`: the last whole ack before this delivery.
    """
    of_entries = of_expected.select(
        *ENTRY,
        f.col("published_at").alias("at"),
        f.struct(f.col("published_at").alias("at"), "key", "deliver_at_ms", "is_untold").alias(
            "published"
        ),
    )
    events = (
        events_of(journal, "dispatched", "nacked", "acked")
        .select(*ENTRY, "at", "event", "consumer", "reason", "version", "unacked_indexes")
        .unionByName(of_entries, allowMissingColumns=True)
    )
    so_far = (
        Window.partitionBy(*BY_ENTRY)
        .orderBy("at")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    is_delivery = f.col("event") == "dispatched"
    numbered = events.withColumn("nth", f.count(f.when(is_delivery, 1)).over(so_far))
    return _with_before(_by_delivery(numbered)).select(*TIMELINE_COLUMNS)


def _by_delivery(numbered: DataFrame) -> DataFrame:
    is_delivery, is_nack = f.col("event") == "dispatched", f.col("event") == "nacked"
    is_whole = (f.col("event") == "acked") & f.col("unacked_indexes").isNull()
    is_partial = (f.col("event") == "acked") & f.col("unacked_indexes").isNotNull()
    return numbered.groupBy(*BY_ENTRY, "nth").agg(
        f.max("published").alias("published"),
        f.max(f.when(is_delivery, f.struct("at", "consumer", "unacked_indexes"))).alias("sent"),
        f.max(f.when(is_nack, f.struct("at", "reason"))).alias("nack"),
        f.min(f.when(is_whole, f.struct("at", "version"))).alias("first_ack"),
        f.max(f.when(is_whole, f.col("at"))).alias("last_ack_at"),
        f.max(f.when(is_partial, f.struct("at", "version", "unacked_indexes"))).alias("partly"),
        f.min(f.when(is_nack | is_whole, f.col("at"))).alias("ended_at"),
        f.coalesce(f.max(is_whole & f.col("consumer").isNull()), f.lit(NO)).alias("is_cancelled"),
    )


def _with_before(by_delivery: DataFrame) -> DataFrame:
    of_entry = Window.partitionBy(*BY_ENTRY)
    in_order = of_entry.orderBy("nth")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    return by_delivery.select(
        *ENTRY,
        "nth",
        f.max("published").over(of_entry).alias("published"),
        "sent.at",
        "sent.consumer",
        f.col("sent.unacked_indexes").alias("sent_indexes"),
        "first_ack",
        "last_ack_at",
        "ended_at",
        "is_cancelled",
        f.lag("sent.at").over(in_order).alias("last_at"),
        f.lag("nack.reason").over(in_order).alias("last_nack"),
        f.lag("first_ack").over(in_order).alias("last_ack"),
        f.max("last_ack_at").over(before).alias("acked_before_at"),
        f.last("partly", ignorenulls=True).over(before).alias("partly_before"),
    )
