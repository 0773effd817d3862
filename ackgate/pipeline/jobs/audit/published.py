"""The entries that there are, and which subscription each of them has to reach.

    epoch 1   published 7:0, 7:1          (killed: the end of the journal never left the broker)
    epoch 2   opened, with 7: 4 entries   so 7:2 and 7:3 are there too, `is_untold`

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
    """PUBLISHED_COLUMNS: a row for each entry; `published_at` of an untold one: when it was found."""
    recorded = events_of(journal, "published").withColumn("is_untold", f.lit(NO))
    columns = [f.col("at").alias("published_at"), "key", "deliver_at_ms", "is_untold"]
    return recorded.select("topic", "ledger_id", "entry_id", *columns).unionByName(
        _untold(journal).select(*PUBLISHED_COLUMNS)
    )


def _untold(journal: DataFrame) -> DataFrame:
    """Entries after the last published one of the epochs before, up to what an opening found."""
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
    # Entries that earlier epochs recorded, those at their openings included.
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
    """Each entry with each durable subscription that existed then, or that began at an earlier position."""
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
