"""What holds of a whole subscription, or of one epoch of it: a row for each. Small.

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.journal import (
    NO,
    SUBSCRIPTION,
    Expression,
    at,
    events_of,
    mark_delete,
    position,
)

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

LIVES_COLUMNS: Final = (
    *SUBSCRIPTION,
    "begins_at",
    "begins_behind",
    "ended_at",
    "type",
    "is_gate_shut",
    "rewinds",
    "read_up_to",
)
TOPICS_COLUMNS: Final = ("topic", "last_epoch", "ends_us", "events_dropped")
PERSISTS_COLUMNS: Final = (*SUBSCRIPTION, "owner_epoch", "persisted_version", "persisted_whole")


def topics(journal: DataFrame) -> DataFrame:
    """TOPICS_COLUMNS: where each topic's journal ends, and how many events are missing in it."""
    dropped = f.when(f.col("event") == "dropped", f.coalesce("version", f.lit(1))).otherwise(0)
    return journal.groupBy("topic").agg(
        f.max("owner_epoch").alias("last_epoch"),
        f.max("time_us").alias("ends_us"),
        f.sum(dropped).alias("events_dropped"),
    )


def lives(journal: DataFrame, of_topics: DataFrame) -> DataFrame:
    """LIVES_COLUMNS: of each subscription its last life, and how far it has been read.

    `rewinds` are the places that it was put back to (sought, or made anew), `read_up_to` the highest
    entry that normal reads have sent in the topic's last epoch, since the last rewind in it.
    """
    is_made, is_gone = f.col("event") == "subscribed", f.col("event") == "unsubscribed"
    is_rewind = is_made | ((f.col("event") == "reset") & (f.col("reason") == "seek"))
    is_gate = f.col("event").isin("gate_shut", "gate_opened")
    is_typed = f.col("event").isin("subscribed", "consumer_added")
    whole = (
        journal.where(f.col("subscription").isNotNull())
        .withColumn("at", at())
        .groupBy(*SUBSCRIPTION)
        .agg(
            f.min("at").alias("first_at"),
            f.max(f.when(is_made, f.struct("at", mark_delete().alias("behind")))).alias("made"),
            f.max(f.when(is_gone, f.col("at"))).alias("gone_at"),
            f.max_by("reason", f.when(is_typed, f.col("at"))).alias("type"),
            f.max_by("event", f.when(is_gate, f.col("at"))).alias("gate"),
            f.collect_list(f.when(is_rewind, f.struct("at", mark_delete().alias("behind")))).alias(
                "rewinds"
            ),
        )
    )
    begun = whole.select(
        *SUBSCRIPTION,
        f.coalesce("made.at", "first_at").alias("begins_at"),
        f.col("made.behind").alias("begins_behind"),
        f.when(f.col("gone_at") > f.coalesce("made.at", "first_at"), f.col("gone_at")).alias(
            "ended_at"
        ),
        "type",
        f.coalesce(f.col("gate") == "gate_shut", f.lit(NO)).alias("is_gate_shut"),
        "rewinds",
        f.array_max("rewinds.at").alias("rewound_at"),
    )
    reads = (
        events_of(journal, "dispatched")
        .where(f.col("reason") == "normal")
        .join(f.broadcast(begun.select(*SUBSCRIPTION, "rewound_at")), list(SUBSCRIPTION))
        .join(f.broadcast(of_topics.select("topic", "last_epoch")), "topic")
        .where(f.col("owner_epoch") == f.col("last_epoch"))
        .where(f.col("rewound_at").isNull() | (f.col("at") > f.col("rewound_at")))
        .groupBy(*SUBSCRIPTION)
        .agg(f.max(position()).alias("read_up_to"))
    )
    return begun.join(reads, list(SUBSCRIPTION), "left").select(*LIVES_COLUMNS)


def persists(journal: DataFrame) -> DataFrame:
    """PERSISTS_COLUMNS: for each epoch the version that was durable at its end.

    And whether its record held all of it: a limit may have left something out.
    """

    def told(name: str) -> Expression:
        paths = (f"$.{name}", f"$.outcome.{name}")
        values = [f.get_json_object("detail", path).cast("bigint") for path in paths]
        return f.coalesce(*values, f.lit(0))

    is_whole = (told("entries_dropped") == 0) & (
        told("batch_indexes_in_memory") <= told("batch_indexes_persisted")
    )
    return (
        events_of(journal, "persisted")
        .groupBy(*SUBSCRIPTION, "owner_epoch")
        .agg(
            f.max("version").alias("persisted_version"),
            f.max_by(is_whole, "at").alias("persisted_whole"),
        )
        .select(*PERSISTS_COLUMNS)
    )
