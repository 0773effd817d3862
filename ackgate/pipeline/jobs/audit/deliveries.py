"""Each delivery of an entry to a subscription: the how manieth, and if not the first, why again.

    dispatched  nacked  dispatched  acked  persisted | dispatched        (| another owner)
    1           asked   2, nack_or_timeout           | 3, a breach: the ack was durable

A cause is what happened between a delivery and the one before it, the first of:

    reset             the subscription was put back behind the entry, or made anew
    restart           another owner, and nobody had acked it
    ack_not_persisted another owner; acked, but no durable record covered the ack
    outcome_dropped   another owner; covered by a record that a limit had left something out of
    ack_lost          another owner; covered by a durable record that was whole: must not be
    consumer_closed   its consumer went away
    nack_or_timeout   asked for again; negative acks and ack time-outs are one command on the wire
    unexplained       none of these: must not be, unless journal events were dropped

Pure: DataFrame to DataFrame. Windows are by entry, so that no topic is too large for one task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.journal import (
    ENTRY,
    NO,
    SUBSCRIPTION,
    YES,
    Expression,
    cumulative_marks,
    events_of,
    position,
)

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

CAUSES: Final = (
    "reset",
    "restart",
    "ack_not_persisted",
    "outcome_dropped",
    "ack_lost",
    "consumer_closed",
    "nack_or_timeout",
    "unexplained",
)
BREACHES: Final = ("ack_lost", "unexplained")
"""Causes that must not be."""

DELIVERIES_COLUMNS: Final = (*ENTRY, "at", "consumer", "nth", "cause")


def deliveries(journal: DataFrame, of_lives: DataFrame, of_persists: DataFrame) -> DataFrame:
    """DELIVERIES_COLUMNS: a row for each dispatched event; `cause` is null for the first one."""
    told = _with_before(journal)
    firsts = told.where("nth = 1").select(
        *DELIVERIES_COLUMNS[:-1], f.lit(None).cast("string").alias("cause")
    )
    again = told.where("nth > 1")
    return firsts.unionByName(_with_causes(again, journal, of_lives, of_persists))


def _with_before(journal: DataFrame) -> DataFrame:
    """Deliveries, each with what happened to its entry before."""
    is_delivery, is_nack = f.col("event") == "dispatched", f.col("event") == "nacked"
    is_ack = (f.col("event") == "acked") & f.col("unacked_indexes").isNull()
    before = Window.partitionBy(*ENTRY).orderBy("at")
    earlier = before.rowsBetween(Window.unboundedPreceding, -1)
    so_far = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def last(condition: Expression, *columns: str) -> Expression:
        return f.last(f.when(condition, f.struct("at", *columns)), ignorenulls=True).over(earlier)

    return (
        events_of(journal, "dispatched", "nacked", "acked")
        .select(
            *ENTRY,
            "at",
            "event",
            "consumer",
            f.count(f.when(is_delivery, 1)).over(so_far).alias("nth"),
            last(is_delivery).alias("last_delivery"),
            last(is_nack, "reason").alias("last_nack"),
            last(is_ack, "version").alias("last_ack"),
        )
        .where(is_delivery)
    )


def _with_causes(
    again: DataFrame, journal: DataFrame, of_lives: DataFrame, of_persists: DataFrame
) -> DataFrame:
    marks = cumulative_marks(journal).withColumn("mark", f.struct("at", "version"))
    of_epoch = again.withColumn("owner_epoch", f.col("last_delivery.at.owner_epoch"))
    keys = (*SUBSCRIPTION, "owner_epoch")
    covered = with_cover(of_epoch, marks, keys, "ledger_id", "entry_id")
    # By itself, or by a cumulative ack in the epoch of the last delivery.
    acked = f.when(
        f.col("last_ack.at") > f.col("last_delivery.at"),
        f.struct(f.col("last_ack.at.owner_epoch").alias("epoch"), "last_ack.version"),
    ).when(
        f.col("first_mark").isNotNull(),
        f.struct(f.col("first_mark.at.owner_epoch").alias("epoch"), "first_mark.version"),
    )
    acked_rows = covered.withColumn("acked", acked).withColumn("owner_epoch", f.col("acked.epoch"))
    rewound = f.exists(
        "rewinds",
        lambda each: (
            (each["at"] > f.col("last_delivery.at"))
            & (each["at"] < f.col("at"))
            & f.coalesce(each["behind"] < position(), f.lit(YES))
        ),
    )
    is_other_owner = f.col("last_delivery.at.owner_epoch") < f.col("at.owner_epoch")
    is_durable = f.coalesce(f.col("acked.version") <= f.col("persisted_version"), f.lit(NO))
    nack = f.when(f.col("last_nack.at") > f.col("last_delivery.at"), f.col("last_nack.reason"))
    cause = (
        f.when(rewound, "reset")
        .when(is_other_owner & f.col("acked").isNull(), "restart")
        .when(is_other_owner & ~is_durable, "ack_not_persisted")
        .when(is_other_owner & ~f.col("persisted_whole"), "outcome_dropped")
        .when(is_other_owner, "ack_lost")
        .when(nack == "consumer_closed", "consumer_closed")
        .when(nack.isNotNull(), "nack_or_timeout")
        .otherwise("unexplained")
    )
    return (
        acked_rows.join(f.broadcast(of_persists), list(keys), "left")
        .join(f.broadcast(of_lives.select(*SUBSCRIPTION, "rewinds")), list(SUBSCRIPTION))
        .select(*DELIVERIES_COLUMNS[:-1], cause.alias("cause"))
    )
