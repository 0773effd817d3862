"""The published entries, and the subscriptions that must receive each of them.

    epoch 1   published 7:0, 7:1          (killed: the end of the journal was not written)
    epoch 2   opened, with 7: 4 entries   so 7:2 and 7:3 exist too; they are `is_untold`

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from ackgate.pipeline.jobs.journal import ENTRY, NO, YES, events_of, position

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame

PUBLISHED_COLUMNS: Final = (
    "topic",
    "ledger_id",
    "entry_id",
    "published_at",
    "key",
    "deliver_at_ms",
    "is_untold",
)

_LEDGERS: Final = "array<struct<ledger_id:bigint,entries:bigint>>"


def published(journal: DataFrame) -> DataFrame:
    """Return PUBLISHED_COLUMNS: one row per entry.

    An entry without a published event `is_untold`; its `published_at` is the opening that found it.
    """
    recorded = events_of(journal, "published").withColumn("is_untold", f.lit(NO))
    columns = [f.col("at").alias("published_at"), "key", "deliver_at_ms", "is_untold"]
    return recorded.select("topic", "ledger_id", "entry_id", *columns).unionByName(
        _untold(journal).select(*PUBLISHED_COLUMNS)
    )


def _untold(journal: DataFrame) -> DataFrame:
    """Return the entries that an opening found after the last one known from earlier epochs."""
    ledgers = f.from_json(f.get_json_object("detail", "$.ledgers"), _LEDGERS)
    found = (
        events_of(journal, "opened")
        .select("topic", "owner_epoch", "at", f.explode(ledgers).alias("ledger"))
        .select("topic", "owner_epoch", "at", "ledger.ledger_id", "ledger.entries")
    )
    by = ("topic", "owner_epoch")
    recorded = (
        events_of(journal, "published")
        .groupBy(*by, "ledger_id")
        .agg(f.max("entry_id").alias("last"))
    )
    # The end of the entries known from earlier epochs, those found at their openings included.
    ends = recorded.select(
        *by, f.struct("ledger_id", (f.col("last") + 1).alias("end")).alias("end")
    )
    opened = found.where("entries > 0").select(
        *by, f.struct("ledger_id", f.col("entries").alias("end")).alias("end")
    )
    before = (
        Window.partitionBy("topic")
        .orderBy("owner_epoch")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    none = f.struct(
        f.lit(-1).cast("bigint").alias("ledger_id"), f.lit(0).cast("bigint").alias("end")
    )
    known = (
        events_of(journal, "opened")
        .select(*by, none.alias("end"))
        .unionByName(ends.unionByName(opened))
        .groupBy(*by)
        .agg(f.max("end").alias("end"))
        .select(*by, f.max("end").over(before).alias("known"))
    )
    start = f.when(f.col("ledger_id") == f.col("known.ledger_id"), f.col("known.end")).otherwise(0)
    is_behind = f.col("ledger_id") >= f.col("known.ledger_id")
    return (
        found.join(f.broadcast(known), list(by))
        .where(is_behind & (f.col("entries") > start))
        .select(
            "topic",
            "ledger_id",
            f.explode(f.sequence(start, f.col("entries") - 1)).alias("entry_id"),
            f.col("at").alias("published_at"),
            f.lit(None).cast("string").alias("key"),
            f.lit(None).cast("bigint").alias("deliver_at_ms"),
            f.lit(YES).alias("is_untold"),
        )
    )


def expected(of_published: DataFrame, of_lives: DataFrame) -> DataFrame:
    """Pair each entry with each durable subscription that must receive it.

    These are the subscriptions that existed when it was published, or that began before its
    position; not those that ended before it was published.
    """
    is_seen = f.col("published_at") > f.col("begins_at")
    is_ahead = f.coalesce(position() > f.col("begins_behind"), f.lit(NO))
    durable = of_lives.where("is_durable").select(
        "topic", "subscription", "begins_at", "begins_behind", "ended_at"
    )
    return (
        of_published.join(f.broadcast(durable), "topic")
        .where(is_seen | is_ahead)
        .where(f.col("ended_at").isNull() | (f.col("published_at") < f.col("ended_at")))
        .select(*ENTRY, "published_at", "key", "deliver_at_ms", "is_untold")
    )
