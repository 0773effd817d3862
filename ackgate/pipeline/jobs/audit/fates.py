"""What became of each published entry at each subscription that it had to reach.

    acked         sent, and acked after it
    sent          sent, and not acked when the journal ends
    backlog       not read yet; gated: and the gate is shut; delayed: not due, or only just
    held          read, and kept back while others are in flight (Shared, Key_Shared)
    set_aside     skipped, cleared, expired or sought over, cancelled, or its subscription is gone
    lost_acked    acked, and never sent: nobody has seen it
    lost_skipped  read over: entries behind it were sent, it was not, and nothing holds it back
    unknown       as lost_*, but journal events were dropped

Pure: DataFrame to DataFrame. Windows and aggregations are by entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    mark_delete,
    position,
    whole_acks,
)
from ackgate.pipeline.jobs.audit.order import with_order

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

LOST: Final = ("lost_acked", "lost_skipped")
OUTSTANDING: Final = ("sent", "backlog", "gated", "delayed", "held")
FATES: Final = ("acked", *OUTSTANDING, "set_aside", *LOST, "unknown")

FATES_COLUMNS: Final = (
    *ENTRY,
    "key",
    "type",
    "published_at",
    "times_sent",
    "first_sent_at",
    "first_consumer",
    "acked_at",
    "fate",
    "is_out_of_order",
)
GRACE_US: Final = 10_000_000
"""A delayed entry that became due so shortly before the end may not have been sent yet."""


def expected(journal: DataFrame, of_lives: DataFrame) -> DataFrame:
    """Each published entry with each subscription that existed then, or that began behind it."""
    published = events_of(journal, "published").select(
        "topic", "ledger_id", "entry_id", f.col("at").alias("published_at"), "key", "deliver_at_ms"
    )
    is_seen = f.col("published_at") > f.col("begins_at")
    is_ahead = f.coalesce(position() > f.col("begins_behind"), f.lit(NO))
    return (
        published.join(f.broadcast(of_lives), "topic")
        .where(is_seen | is_ahead)
        .where(f.col("ended_at").isNull() | (f.col("published_at") < f.col("ended_at")))
    )


def fates(
    journal: DataFrame,
    of_deliveries: DataFrame,
    of_lives: DataFrame,
    of_topics: DataFrame,
    *,
    grace_us: int = GRACE_US,
) -> DataFrame:
    """FATES_COLUMNS: a row for each entry and subscription that it had to reach."""
    sent = of_deliveries.groupBy(*ENTRY).agg(
        f.count("*").alias("times_sent"),
        f.min("at").alias("first_sent_at"),
        f.max("at").alias("last_sent_at"),
        f.min_by("consumer", "at").alias("first_consumer"),
    )
    acks = (
        whole_acks(journal)
        .groupBy(*ENTRY)
        .agg(
            f.min("at").alias("own_first_at"),
            f.max("at").alias("own_last_at"),
            f.max(f.col("consumer").isNull()).alias("is_cancelled"),
        )
    )
    rows = (
        expected(journal, of_lives)
        .join(sent, list(ENTRY), "left")
        .join(acks, list(ENTRY), "left")
        .join(f.broadcast(of_topics), "topic")
    )
    marked = _with_marks(rows, cumulative_marks(journal), "cumulative")
    resets = events_of(journal, "reset").withColumn("mark_delete", mark_delete())
    moved = resets.select(*SUBSCRIPTION, "at", "mark_delete.*")
    told = (
        _with_marks(marked, moved, "reset")
        .withColumn("acked_at", f.least("own_first_at", "cumulative_first_at"))
        .withColumn("last_acked_at", f.greatest("own_last_at", "cumulative_last_at"))
    )
    in_flight = (
        told.where(_is_sent() & ~_is_acked())
        .groupBy(*SUBSCRIPTION)
        .agg(f.count("*").alias("in_flight"))
    )
    ended = told.join(f.broadcast(in_flight), list(SUBSCRIPTION), "left").select(
        *FATES_COLUMNS[:-2], "deliver_at_ms", _fate(grace_us).alias("fate")
    )
    return with_order(ended, of_lives).select(*FATES_COLUMNS)


def _with_marks(rows: DataFrame, marks: DataFrame, name: str) -> DataFrame:
    covered = with_cover(
        rows, marks.withColumn("mark", f.col("at")), SUBSCRIPTION, "ledger_id", "entry_id"
    )
    return covered.withColumnsRenamed(
        {"first_mark": f"{name}_first_at", "last_mark": f"{name}_last_at"}
    )


def _is_sent() -> Expression:
    return f.col("times_sent").isNotNull()


def _is_acked() -> Expression:
    """Behind the last time that it was sent."""
    return f.coalesce(f.col("last_acked_at") > f.col("last_sent_at"), f.lit(NO))


def _fate(grace_us: int) -> Expression:
    # Put aside after it was published: a mark-delete that was there before concerns others.
    set_aside = f.coalesce("is_cancelled", f.lit(NO)) | f.coalesce(
        f.col("reset_last_at") > f.greatest("published_at", "last_sent_at"),
        f.lit(NO),
    )
    is_read = f.coalesce(f.col("read_up_to") > position(), f.lit(NO))
    is_early = f.col("deliver_at_ms") * 1_000 > f.col("ends_us") - grace_us
    may_hold = f.coalesce(f.col("type").isin("Shared", "Key_Shared"), f.lit(YES))
    is_held = may_hold & f.col("in_flight").isNotNull()
    is_known = f.col("events_dropped") == 0
    return (
        f.when(_is_sent() & _is_acked(), "acked")
        .when(set_aside | f.col("ended_at").isNotNull(), "set_aside")
        .when(_is_sent(), "sent")
        .when(f.col("acked_at").isNotNull(), f.when(is_known, "lost_acked").otherwise("unknown"))
        .when(f.coalesce(is_early, f.lit(NO)), "delayed")
        .when(~is_read & f.col("is_gate_shut"), "gated")
        .when(~is_read, "backlog")
        .when(is_held, "held")
        .when(is_known, "lost_skipped")
        .otherwise("unknown")
    )
