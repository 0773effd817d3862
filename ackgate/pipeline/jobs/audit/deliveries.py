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

_MARKS: Final = ("first_mark", "last_mark")


def deliveries(journal: DataFrame, of_lives: DataFrame, of_persists: DataFrame) -> DataFrame:
    """DELIVERIES_COLUMNS: a row for each dispatched event; `cause` is null for the first one."""
    told = _with_before(journal)
    firsts = told.where("nth = 1").select(
        *DELIVERIES_COLUMNS[:-1], f.lit(None).cast("string").alias("cause")
    )
    again = told.where("nth > 1")
    return firsts.unionByName(_with_causes(again, journal, of_lives, of_persists))


def _with_before(journal: DataFrame) -> DataFrame:
    """Deliveries, each with the one before it, and with the first ack and last nack behind that."""
    is_delivery, is_nack = f.col("event") == "dispatched", f.col("event") == "nacked"
    is_ack = (f.col("event") == "acked") & f.col("unacked_indexes").isNull()
    in_order = Window.partitionBy(*ENTRY).orderBy("at")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    numbered = events_of(journal, "dispatched", "nacked", "acked").withColumn(
        "nth", f.count(f.when(is_delivery, 1)).over(so_far)
    )
    by_delivery = (
        numbered.where("nth > 0")
        .groupBy(*ENTRY, "nth")
        .agg(
            f.min(f.when(is_delivery, f.col("at"))).alias("at"),
            f.min_by("consumer", f.when(is_delivery, f.col("at"))).alias("consumer"),
            f.max(f.when(is_nack, f.struct("at", "reason"))).alias("nack"),
            f.min(f.when(is_ack, f.struct("at", "version"))).alias("ack"),
        )
    )
    before = Window.partitionBy(*ENTRY).orderBy("nth")
    return by_delivery.select(
        *ENTRY,
        "at",
        "consumer",
        "nth",
        f.lag("at").over(before).alias("last_at"),
        f.lag("nack.reason").over(before).alias("last_nack"),
        f.lag("ack").over(before).alias("last_ack"),
    )


def _with_causes(
    again: DataFrame, journal: DataFrame, of_lives: DataFrame, of_persists: DataFrame
) -> DataFrame:
    marks = cumulative_marks(journal).withColumn("mark", f.struct("at", "version"))
    keys = (*SUBSCRIPTION, "owner_epoch")
    of_epoch = again.withColumn("owner_epoch", f.col("last_at.owner_epoch"))
    covered = with_cover(of_epoch, marks, keys, "ledger_id", "entry_id")
    # By itself, or by a cumulative ack in the epoch of the last delivery. Of the cumulative ones the
    # first and the last are known; one between would be durable earlier than the last.
    acked = f.coalesce(
        "last_ack",
        *(f.when(f.col(mark)["at"] > f.col("last_at"), f.col(mark)) for mark in _MARKS),
    )
    acked_rows = covered.withColumn("acked", acked).withColumn(
        "owner_epoch", f.col("acked.at.owner_epoch")
    )
    rewound = f.exists(
        "rewinds",
        lambda each: (
            (each["at"] > f.col("last_at"))
            & (each["at"] < f.col("at"))
            & f.coalesce(each["behind"] < position(), f.lit(YES))
        ),
    )
    is_other_owner = f.col("last_at.owner_epoch") < f.col("at.owner_epoch")
    is_durable = f.coalesce(f.col("acked.version") <= f.col("persisted_version"), f.lit(NO))
    cause = (
        f.when(rewound, "reset")
        .when(is_other_owner & f.col("acked").isNull(), "restart")
        .when(is_other_owner & ~is_durable, "ack_not_persisted")
        .when(is_other_owner & ~f.col("persisted_whole"), "outcome_dropped")
        .when(is_other_owner, "ack_lost")
        .when(f.col("last_nack") == "consumer_closed", "consumer_closed")
        .when(f.col("last_nack").isNotNull(), "nack_or_timeout")
        .otherwise("unexplained")
    )
    return (
        acked_rows.join(f.broadcast(of_persists), list(keys), "left")
        .join(f.broadcast(of_lives.select(*SUBSCRIPTION, "rewinds")), list(SUBSCRIPTION))
        .select(*DELIVERIES_COLUMNS[:-1], cause.alias("cause"))
    )
