"""Receipts of acks: none may be given before the ack is durable (ackReceiptDurability=persisted).

    versions    acked 7   receipt 7   persisted 7       early
                acked 8   persisted 8   receipt 8       as it should be

Pure: DataFrame to DataFrame. Windows are by thousands of versions, see `cover`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.journal import NO, SUBSCRIPTION, events_of, version_block

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

RECEIPTS_COLUMNS: Final = (*SUBSCRIPTION, "consumer", "at", "version", "is_early")


def receipts(journal: DataFrame, of_topics: DataFrame) -> DataFrame:
    """RECEIPTS_COLUMNS: a row for each receipt. Where they promise nothing, none is early."""
    keys = (*SUBSCRIPTION, "owner_epoch")
    # What a cursor begins with is durable: a state that was recovered, and version 0 of a new one.
    durable = events_of(journal, "persisted", "recovered", "subscribed").select(
        *keys, f.coalesce("version", f.lit(0)).alias("version"), f.col("at").alias("durable")
    )
    rows = events_of(journal, "receipt").select(
        *keys, "consumer", "at", "version", version_block().alias("block")
    )
    marks = durable.withColumn("block", version_block())
    covered = with_cover(
        rows, marks, rows, keys=keys, bucket="block", place="version", names=["durable"]
    )
    is_before = f.col("first_durable").isNull() | (f.col("first_durable") > f.col("at"))
    promised = of_topics.select("topic", "is_receipt_durable")
    return (
        covered.join(f.broadcast(promised), "topic")
        .withColumn("is_early", f.coalesce(is_before & f.col("is_receipt_durable"), f.lit(NO)))
        .select(*RECEIPTS_COLUMNS)
    )
