"""Which entries another one of the same key has overtaken on its way to a subscription.

Counted by first deliveries: what comes again comes late. Not promised to Shared subscriptions, to
Key_Shared ones that allow it, for delayed entries, and over a seek. Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.journal import ENTRY, NO, SUBSCRIPTION, Expression

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame


def with_order(of_fates: DataFrame, of_timelines: DataFrame, of_lives: DataFrame) -> DataFrame:
    """The rows, with ``is_out_of_order``: an entry behind it, of the same key, was sent before it.

    They have `is_unordered`, `deliver_at_ms` and `rewinds`, besides the columns of an entry's fate.
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
    return covered.withColumn("is_out_of_order", f.coalesce(is_late, f.lit(NO)))


def _is_ordered() -> Expression:
    """Whether its place in the order is promised. What comes late of others is no concern of it."""
    return (
        f.col("type").isin("Exclusive", "Failover", "Key_Shared")
        & ~f.col("is_unordered")
        & f.col("deliver_at_ms").isNull()
        & ~f.col("is_untold")
    )
