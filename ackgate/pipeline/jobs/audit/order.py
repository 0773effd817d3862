"""Which entries another one of the same key has overtaken on its way to a subscription.

Counted by first deliveries: what comes again comes late. Not promised to Shared subscriptions, to
Key_Shared ones that allow it or for entries without a key, for delayed entries, and over a seek. Not
sure where a seek or a first delivery may be missing. Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.subscriptions import with_moves
from ackgate.pipeline.jobs.journal import (
    ENTRY,
    NO,
    SUBSCRIPTION,
    Expression,
    is_any_between,
)

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame


def with_order(of_fates: DataFrame, of_timelines: DataFrame, of_lives: DataFrame) -> DataFrame:
    """The rows, with ``is_out_of_order``: a later entry of the same key was sent before it.

    And with ``last_sent``: when such an entry was sent first, at the latest. They have `is_unordered`,
    `deliver_at_ms`, `rewinds` and `holding_epochs`, besides the columns of an entry's fate.
    """
    keys = (*SUBSCRIPTION, "order_key")
    rows = of_fates.withColumn("order_key", f.coalesce("key", f.lit("")))
    first = of_timelines.where((f.col("nth") == 1) & f.col("published").isNotNull())
    marks = (
        first.join(
            f.broadcast(of_lives.select(*SUBSCRIPTION, "type", "is_unordered")), list(SUBSCRIPTION)
        )
        .select(*ENTRY, "type", "is_unordered", "published.*", f.col("at").alias("sent"))
        .where(_is_ordered())
        .withColumn("order_key", f.coalesce("key", f.lit("")))
    )
    covered = with_cover(
        rows, marks, marks, keys=keys, bucket="ledger_id", place="entry_id", names=["sent"]
    )
    is_sought = f.exists(
        "rewinds",
        lambda each: (each["at"] > f.col("first_sent")) & (each["at"] < f.col("first_sent_at")),
    )
    is_late = _is_ordered() & (f.col("first_sent") < f.col("first_sent_at")) & ~is_sought
    seen = covered.withColumn("is_late", f.coalesce(is_late, f.lit(NO)))
    return (
        with_moves(seen, of_lives, f.col("is_late"))
        .withColumn("is_out_of_order", f.col("is_late") & f.coalesce(_is_sure(), f.lit(NO)))
        .drop("is_late", "moves")
    )


def _is_sure() -> Expression:
    """Whether no delivery before these, and nothing that put the entry aside, can be missing.

    All is told from when it was published up to the end of what is told of that owner. A later one has
    what was not acked when it began, and reads it in order; but for what waits after a negative ack.
    """
    published_in, overtaken_in = (
        f.col(f"{at}.owner_epoch") for at in ("published_at", "first_sent")
    )
    is_moved = f.exists(
        "moves", lambda at: (at > f.col("published_at")) & (at < f.col("first_sent"))
    )
    may_have_waited = is_any_between("holding_epochs", published_in, overtaken_in)
    return (
        f.when(overtaken_in == f.col("first_sent_at.owner_epoch"), ~may_have_waited)
        .when(overtaken_in == published_in, ~is_moved)
        .otherwise(f.lit(NO))
    )


def _is_ordered() -> Expression:
    """Whether its place in the order is promised. What comes late of others is no concern of it."""
    is_of_key = (f.col("type") == "Key_Shared") & f.col("key").isNotNull()
    return (
        (f.col("type").isin("Exclusive", "Failover") | is_of_key)
        & ~f.col("is_unordered")
        & f.col("deliver_at_ms").isNull()
        & ~f.col("is_untold")
    )
