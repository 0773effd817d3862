"""Small frames about topics, subscriptions and their epochs.

A killed broker loses the end of its journal. Nothing in the journal marks the loss, but the state
that the next owner recovers may be newer than the last recorded event:

    epoch 1   acked v1, persisted v1, acked v2     |  not recorded: acked v3, persisted v3, seek v4 ...
    epoch 2   recovered v1   no durable write is missing in the journal
              recovered v2   a write is missing: what it left out, or undid, is unknown
              recovered v3   acks are missing too

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from ackgate.pipeline.jobs.journal import (
    NO,
    SUBSCRIPTION,
    YES,
    Expression,
    at,
    detail_numbers,
    events_of,
    mark_delete,
    position,
)

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame

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
    "moves",
    "ack_untold_epochs",
    "write_untold_epochs",
    "holding_epochs",
    "read_up_to",
    "rewound_at",
    "sent_until_us",
)
TOPICS_COLUMNS: Final = (
    "topic",
    "last_epoch",
    "last_epoch_us",
    "ends_us",
    "headless_epoch",
    "events_dropped",
    "is_delayed_on",
    "tick_ms",
    "is_receipt_durable",
)
PERSISTS_COLUMNS: Final = (
    *SUBSCRIPTION,
    "owner_epoch",
    "persisted_version",
    "cut_epochs",
)

TICK_MS: Final = 1_000
"""Tick of the delayed tracker in ms, if the journal does not state it."""


def topics(journal: DataFrame) -> DataFrame:
    """Return TOPICS_COLUMNS, one row per topic: the extent of its journal, and its settings.

    `events_dropped` counts events that the broker left out. `headless_epoch` is the epoch whose
    beginning is no longer in the journal, or null: its settings and the durable state before it are
    unknown. `is_delayed_on`: delayed delivery was always on. `tick_ms`: how early a tracker may
    deliver. `is_receipt_durable`: receipts always promised durability.
    """
    dropped = f.when(f.col("event") == "dropped", f.coalesce("version", f.lit(1))).otherwise(0)

    def setting(name: str) -> Expression:
        value = f.get_json_object("detail", f"$.settings.{name}")
        return f.when(f.col("event").isin("opened", "configured"), value)

    tick_ms = f.when(setting("isDelayedDeliveryDeliverAtTimeStrict") == "true", 0).otherwise(
        setting("delayedDeliveryTickTimeMillis").cast("bigint")
    )
    first = f.min(f.struct("owner_epoch", "sequence"))
    last = f.max(f.struct("owner_epoch", (-f.col("time_us")).alias("before_us")))
    return journal.groupBy("topic").agg(
        f.max("owner_epoch").alias("last_epoch"),
        (-last["before_us"]).alias("last_epoch_us"),
        f.max("time_us").alias("ends_us"),
        f.when(first["sequence"] > 0, first["owner_epoch"]).alias("headless_epoch"),
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
    """Return LIVES_COLUMNS, one row per subscription: its last life, and how far it was read.

    `rewinds`: time and position of each seek and each creation.
    `rewound_at`: the last of these times.
    `moves`: times of all resets and creations.
    `recovered`: time, version and mark-delete of the last recovery.
    `is_unordered`: a key may go to several consumers at once.
    `noted_epochs`: epochs with cumulative acks or a recovered state.
    `read_up_to`: highest entry that normal reads sent in the last epoch, since `rewound_at`.
    `sent_until_us`: last dispatch in the topic's last epoch.
    For the other `*_epochs` see `_recoveries`.
    """
    begun = _begun(journal)
    is_read = (
        (f.col("event") == "dispatched")
        & (f.col("reason") == "normal")
        & (f.col("owner_epoch") == f.col("last_epoch"))
        & (f.col("rewound_at").isNull() | (f.col("at") > f.col("rewound_at")))
    )
    is_of_last = f.col("owner_epoch") == f.col("last_epoch")
    sent = (
        events_of(journal, "dispatched")
        .join(f.broadcast(begun.select(*SUBSCRIPTION, "rewound_at")), list(SUBSCRIPTION))
        .join(f.broadcast(of_topics.select("topic", "last_epoch")), "topic")
        .groupBy(*SUBSCRIPTION)
        .agg(
            f.max(f.when(is_read, position())).alias("read_up_to"),
            f.max(f.when(is_of_last, f.col("time_us"))).alias("sent_until_us"),
        )
    )
    none = f.array().cast("array<bigint>")
    epochs = ("ack_untold_epochs", "write_untold_epochs", "holding_epochs")
    return (
        begun.join(sent, list(SUBSCRIPTION), "left")
        .join(_recoveries(journal), list(SUBSCRIPTION), "left")
        .withColumns({name: f.coalesce(name, none) for name in epochs})
        .select(*LIVES_COLUMNS)
    )


def _recoveries(journal: DataFrame) -> DataFrame:
    """Return one row per subscription: the epochs that recovered a newer state than was recorded.

    `write_untold_epochs`: the epoch before did not record the write of the recovered state.
    `ack_untold_epochs`: the recovered state has acks or moves that the epoch before did not record.
    `holding_epochs`: entries were waiting after a negative ack, which no event names.
    """
    event = f.col("event")
    is_recovered, is_made = event == "recovered", event == "subscribed"
    is_durable = event.isin("subscribed", "unsubscribed", "recovered", "persisted")
    # A new cursor begins with version 0; a deleted cursor has no version.
    version = f.when(is_made, f.lit(0).cast("bigint")).otherwise(f.col("version"))
    cursor_ledger_id, nacks = (
        f.get_json_object("detail", f"$.{name}").cast("bigint")
        for name in ("cursor_ledger_id", "nacks")
    )
    record = f.struct(
        version.alias("version"),
        cursor_ledger_id.alias("ledger_id"),
        mark_delete().alias("mark_delete"),
    )
    kinds = ("subscribed", "unsubscribed", "recovered", "persisted", "acked", "reset")
    epochs = (
        events_of(journal, *kinds)
        .groupBy(*SUBSCRIPTION, "owner_epoch")
        .agg(
            f.max_by(version, f.when(event != "persisted", f.col("at"))).alias("recorded_version"),
            f.max_by(record, f.when(is_durable, f.col("at"))).alias("durable"),
            f.max_by(record, f.when(is_recovered, f.col("at"))).alias("recovered"),
            f.max(f.when(is_recovered, nacks)).alias("nacks"),
        )
    )
    in_order = Window.partitionBy(*SUBSCRIPTION).orderBy("owner_epoch")
    recorded, durable = f.col("before.recorded_version"), f.col("before.durable")
    found = f.col("recovered")
    is_next = f.col("before.owner_epoch") == f.col("owner_epoch") - 1
    # A subscription that was created again counts versions from 0. It has a newer cursor ledger, or
    # none yet: then it has existed for moments only, and its mark-delete differs.
    is_known_ledger = found["ledger_id"].eqNullSafe(durable["ledger_id"]) | f.coalesce(
        found["ledger_id"] < durable["ledger_id"], f.lit(NO)
    )
    is_elsewhere = (
        found["ledger_id"].isNull()
        & (found["version"] == durable["version"])
        & (found["mark_delete"] != durable["mark_delete"])
    )
    is_known = is_known_ledger & ~f.coalesce(is_elsewhere, f.lit(NO))
    is_ack_recorded = is_next & is_known & (found["version"] <= recorded)
    is_write_recorded = is_ack_recorded & (found["version"] <= durable["version"])

    def of(is_it: Expression, name: str) -> Expression:
        is_so = found.isNotNull() & f.coalesce(is_it, f.lit(YES))
        return f.collect_set(f.when(is_so, f.col("owner_epoch"))).alias(name)

    return (
        epochs.withColumn(
            "before", f.lag(f.struct("owner_epoch", "recorded_version", "durable")).over(in_order)
        )
        .groupBy(*SUBSCRIPTION)
        .agg(
            of(~is_ack_recorded, "ack_untold_epochs"),
            of(~is_write_recorded, "write_untold_epochs"),
            of(f.coalesce(f.col("nacks") > 0, f.lit(NO)), "holding_epochs"),
        )
    )


def _begun(journal: DataFrame) -> DataFrame:
    """Return one row per subscription, with the columns that follow from its own events."""
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
    is_move = is_made | (f.col("event") == "reset")
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
            f.collect_list(f.when(is_move, f.col("at"))).alias("moves"),
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
            "moves",
            "noted_epochs",
            f.when(f.col("recovered.at") > begins_at, f.col("recovered")).alias("recovered"),
            f.array_max("rewinds.at").alias("rewound_at"),
        )
    )


def with_moves(rows: DataFrame, of_lives: DataFrame, is_asked: Expression) -> DataFrame:
    """Add `moves` to the rows where `is_asked`, null elsewhere: the lists may be long."""
    of = {name: f"of_{name}" for name in SUBSCRIPTION}
    moves = of_lives.select(*(f.col(name).alias(of[name]) for name in of), "moves")
    is_its = reduce(and_, (f.col(name) == f.col(of[name]) for name in of), is_asked)
    return rows.join(f.broadcast(moves), is_its, "left").drop(*of.values())


def persists(journal: DataFrame) -> DataFrame:
    """Return PERSISTS_COLUMNS: for each epoch, the version that was durable at its end.

    `cut_epochs`: epochs, from this one on, whose last record a limit had cut. If the subscription
    was created again in the epoch, only writes after that count.
    """
    dropped, in_memory, persisted = detail_numbers(
        "entries_dropped", "batch_indexes_in_memory", "batch_indexes_persisted"
    )
    is_whole = (dropped == 0) & (in_memory <= persisted)
    record = f.when(
        f.col("event") == "persisted",
        f.struct(f.col("version").alias("version"), is_whole.alias("is_whole")),
    )
    from_here = (
        Window.partitionBy(*SUBSCRIPTION)
        .orderBy("owner_epoch")
        .rowsBetween(Window.currentRow, Window.unboundedFollowing)
    )
    return (
        events_of(journal, "persisted", "subscribed")
        .groupBy(*SUBSCRIPTION, "owner_epoch")
        .agg(f.max_by(record, "at").alias("last"))
        .withColumn("persisted_version", f.col("last.version"))
        .withColumn(
            "cut_epochs",
            f.collect_list(f.when(~f.col("last.is_whole"), f.col("owner_epoch"))).over(from_here),
        )
        .select(*PERSISTS_COLUMNS)
    )
