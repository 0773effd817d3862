"""Key_Shared: whether a key went to a consumer while another one still had entries of it.

    key a   1:0 to c#1, 1:1 to c#1, acked 1:0, 1:4 to c#2       a split: c#1 still had 1:1

Pure: DataFrame to DataFrame. A window is one key of a subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.journal import NO, SUBSCRIPTION

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame


def with_key_split(rows: DataFrame) -> DataFrame:
    """Deliveries, with `is_key_split`. Told where a key changes its consumer, within one owner.

    Not where consumers allow that.
    """
    is_promised = (f.col("type") == "Key_Shared") & ~f.col("is_unordered")
    is_keyed = is_promised & f.col("published.key").isNotNull()
    keyed, others = rows.where(is_keyed), rows.where(~f.coalesce(is_keyed, f.lit(NO)))
    in_order = Window.partitionBy(*SUBSCRIPTION, "published.key", "at.owner_epoch").orderBy("at")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    # What never ended is held to the end of the epoch.
    never = f.struct(
        f.col("at.owner_epoch").alias("owner_epoch"),
        f.lit(2**63 - 1).alias("sequence"),
        f.lit(2**63 - 1).alias("time_us"),
    )
    held_until = f.least("ended_at", never)
    has_moved = f.col("consumer") != f.lag("consumer").over(in_order)
    is_split = has_moved & (f.max(held_until).over(before) > f.col("at"))
    return keyed.withColumn("is_key_split", f.coalesce(is_split, f.lit(NO))).unionByName(
        others.withColumn("is_key_split", f.lit(NO))
    )
