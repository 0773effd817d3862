"""What holds of a whole subscription, or of one epoch of it: a row for each. Small.

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.journal import (
    NO,
    SUBSCRIPTION,
    YES,
    Expression,
    at,
    events_of,
    mark_delete,
    position,
    told_numbers,
)

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

LIVES_COLUMNS: Final = (
    *SUBSCRIPTION,
    "begins_at",
    "begins_behind",
    "ended_at",
    "is_durable",
    "type",
    "is_unordered",
    "is_gate_shut",
    "rewinds",
    "noted_epochs",
    "recovered",
    "is_ack_untold",
    "read_up_to",
)
TOPICS_COLUMNS: Final = (
    "topic",
    "last_epoch",
    "ends_us",
    "events_dropped",
    "is_delayed_on",
    "tick_ms",
    "is_receipt_durable",
)
PERSISTS_COLUMNS: Final = (*SUBSCRIPTION, "owner_epoch", "persisted_version", "persisted_whole")

TICK_MS: Final = 1_000
"""Of the delayed tracker, where the journal does not say."""


def topics(journal: DataFrame) -> DataFrame:
    """TOPICS_COLUMNS: where each topic's journal ends, and how many events are missing in it.

    And what its openings say of its settings: whether delayed delivery was on all the time, how early
    a tracker may be, and whether receipts promise durability.
    """
    dropped = f.when(f.col("event") == "dropped", f.coalesce("version", f.lit(1))).otherwise(0)

    def setting(name: str) -> Expression:
        value = f.get_json_object("detail", f"$.settings.{name}")
        return f.when(f.col("event").isin("opened", "configured"), value)

    tick_ms = f.when(setting("isDelayedDeliveryDeliverAtTimeStrict") == "true", 0).otherwise(
        setting("delayedDeliveryTickTimeMillis").cast("bigint")
    )
    return journal.groupBy("topic").agg(
        f.max("owner_epoch").alias("last_epoch"),
        f.max("time_us").alias("ends_us"),
        f.sum(dropped).alias("events_dropped"),
        f.coalesce(f.bool_and(setting("delayedDeliveryEnabled") == "true"), f.lit(YES)).alias(
            "is_delayed_on"
        ),
        f.coalesce(f.max(tick_ms), f.lit(TICK_MS)).alias("tick_ms"),
        f.coalesce(f.bool_and(setting("ackReceiptDurability") == "persisted"), f.lit(YES)).alias(
            "is_receipt_durable"
        ),
    )


def lives(journal: DataFrame, of_topics: DataFrame) -> DataFrame:
    """LIVES_COLUMNS: of each subscription its last life, and how far it has been read.

    `rewinds` are the places that it was put back to (sought, or made anew), `recovered` is when its
    state was read back last, `is_ack_untold` whether that knew of acks that no event tells of,
    `is_unordered` that a key may go to several consumers at once,
    `noted_epochs` are those with cumulative acks or a recovered state, `read_up_to` is the highest
    entry that normal reads have sent in the topic's last epoch, since the last rewind in it.
    """
    begun = _begun(journal)
    is_before = f.col("at") < f.col("recovered.at")
    is_read = (
        (f.col("event") == "dispatched")
        & (f.col("reason") == "normal")
        & (f.col("owner_epoch") == f.col("last_epoch"))
        & (f.col("rewound_at").isNull() | (f.col("at") > f.col("rewound_at")))
    )
    is_version = is_before & f.col("event").isin("acked", "reset")
    told = (
        events_of(journal, "dispatched", "acked", "reset")
        .join(
            f.broadcast(begun.select(*SUBSCRIPTION, "rewound_at", "recovered")), list(SUBSCRIPTION)
        )
        .join(f.broadcast(of_topics.select("topic", "last_epoch")), "topic")
        .groupBy(*SUBSCRIPTION)
        .agg(
            f.max(f.when(is_read, position())).alias("read_up_to"),
            f.max_by("version", f.when(is_version, f.col("at"))).alias("told_version"),
        )
    )
    is_ack_untold = f.col("recovered.version") > f.coalesce("told_version", f.lit(0))
    return (
        begun.join(told, list(SUBSCRIPTION), "left")
        .withColumn("is_ack_untold", f.coalesce(is_ack_untold, f.lit(NO)))
        .select(*LIVES_COLUMNS)
    )


def _begun(journal: DataFrame) -> DataFrame:
    """A row for each subscription, of what its own events say."""
    is_made, is_gone = f.col("event") == "subscribed", f.col("event") == "unsubscribed"
    is_rewind = is_made | ((f.col("event") == "reset") & (f.col("reason") == "seek"))
    is_gate = f.col("event").isin("gate_shut", "gate_opened")
    is_typed = f.col("event").isin("subscribed", "consumer_added") & (f.col("reason") != "")
    is_recovered = f.col("event") == "recovered"
    is_unordered = f.get_json_object("detail", "$.is_out_of_order") == "true"
    is_noted = is_recovered | f.coalesce("is_cumulative", f.lit(NO))
    made = f.struct(
        "at",
        mark_delete().alias("behind"),
        f.coalesce(f.get_json_object("detail", "$.is_durable") == "true", f.lit(YES)).alias(
            "is_durable"
        ),
    )
    rewind = f.struct("at", mark_delete().alias("behind"))
    recovered = f.struct("at", "version", mark_delete().alias("mark_delete"))
    begins_at = f.coalesce("made.at", "first_at")
    return (
        journal.where(f.col("subscription").isNotNull())
        .withColumn("at", at())
        .groupBy(*SUBSCRIPTION)
        .agg(
            f.min("at").alias("first_at"),
            f.max(f.when(is_made, made)).alias("made"),
            f.max(f.when(is_gone, f.col("at"))).alias("gone_at"),
            f.max_by("reason", f.when(is_typed, f.col("at"))).alias("type"),
            f.max_by(f.coalesce(is_unordered, f.lit(NO)), f.when(is_typed, f.col("at"))).alias(
                "is_unordered"
            ),
            f.max_by("event", f.when(is_gate, f.col("at"))).alias("gate"),
            f.collect_list(f.when(is_rewind, rewind)).alias("rewinds"),
            f.collect_set(f.when(is_noted, f.col("owner_epoch"))).alias("noted_epochs"),
            f.max(f.when(is_recovered, recovered)).alias("recovered"),
        )
        .select(
            *SUBSCRIPTION,
            begins_at.alias("begins_at"),
            f.col("made.behind").alias("begins_behind"),
            f.when(f.col("gone_at") > begins_at, f.col("gone_at")).alias("ended_at"),
            f.coalesce("made.is_durable", f.lit(YES)).alias("is_durable"),
            "type",
            f.coalesce("is_unordered", f.lit(NO)).alias("is_unordered"),
            f.coalesce(f.col("gate") == "gate_shut", f.lit(NO)).alias("is_gate_shut"),
            "rewinds",
            "noted_epochs",
            f.when(f.col("recovered.at") > begins_at, f.col("recovered")).alias("recovered"),
            f.array_max("rewinds.at").alias("rewound_at"),
        )
    )


def persists(journal: DataFrame) -> DataFrame:
    """PERSISTS_COLUMNS: for each epoch the version that was durable at its end.

    And whether its record held all of it: a limit may have left something out.
    """
    dropped, in_memory, persisted = told_numbers(
        "entries_dropped", "batch_indexes_in_memory", "batch_indexes_persisted"
    )
    return (
        events_of(journal, "persisted")
        .groupBy(*SUBSCRIPTION, "owner_epoch")
        .agg(
            f.max("version").alias("persisted_version"),
            f.max_by((dropped == 0) & (in_memory <= persisted), "at").alias("persisted_whole"),
        )
        .select(*PERSISTS_COLUMNS)
    )
