"""Which entries another one of the same key has overtaken on its way to a subscription.

Counted by first deliveries: what comes again comes late. Not promised to Shared subscriptions, for
delayed entries, and over a seek. Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.journal import NO, SUBSCRIPTION

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame


def with_order(of_fates: DataFrame, of_lives: DataFrame) -> DataFrame:
    """The rows, with ``is_out_of_order``: an entry behind it, of the same key, was sent before it.

    They have `deliver_at_ms`, besides the columns of an entry's fate.
    """
    rows = of_fates.withColumn("order_key", f.coalesce("key", f.lit("")))
    is_ordered = (
        f.col("type").isin("Exclusive", "Failover", "Key_Shared") & f.col("deliver_at_ms").isNull()
    )
    marks = rows.where(is_ordered).withColumn("mark", f.col("first_sent_at"))
    keys = (*SUBSCRIPTION, "order_key")
    covered = with_cover(rows, marks, keys, "ledger_id", "entry_id")
    is_sought = f.exists(
        "rewinds",
        lambda each: (each["at"] > f.col("first_mark")) & (each["at"] < f.col("first_sent_at")),
    )
    is_late = is_ordered & (f.col("first_mark") < f.col("first_sent_at")) & ~is_sought
    return (
        covered.join(f.broadcast(of_lives.select(*SUBSCRIPTION, "rewinds")), list(SUBSCRIPTION))
        .withColumn("is_out_of_order", f.coalesce(is_late, f.lit(NO)))
        .drop("order_key", "first_mark", "last_mark", "rewinds")
    )
