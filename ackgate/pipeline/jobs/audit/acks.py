"""When each ack became durable, if it did, and which receipts were sent too early.

    versions    acked 7   acked 8   persisted 8   acked 9   acked 10  |  recovered 9
                pending until it -------^         persisted_untold    never_persisted

    persisted         the journal has the write that made it durable
    persisted_untold  durable, but a killed broker did not record the write; the next owner found it
    pending           not durable when the journal ends
    never_persisted   not durable, and lost with its owner

Pure: DataFrame to DataFrame. Windows are by blocks of versions, see `cover`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.journal import NO, SUBSCRIPTION, events_of, version_block

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame


RECEIPTS_COLUMNS: Final = (*SUBSCRIPTION, "consumer", "at", "version", "is_early")


def receipts(journal: DataFrame, of_topics: DataFrame) -> DataFrame:
    """Return RECEIPTS_COLUMNS: one row per receipt. `is_early`: sent before the ack was durable.

    No receipt is early if the topic's receipts do not promise durability, or if the journal no
    longer has the beginning of the epoch: what was durable before is then unknown.
    """
    keys = (*SUBSCRIPTION, "owner_epoch")
    # A cursor begins with a durable state: the recovered one, or version 0 if it is new.
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
    promised = of_topics.select("topic", "is_receipt_durable", "headless_epoch")
    is_known = ~f.coalesce(f.col("owner_epoch") == f.col("headless_epoch"), f.lit(NO))
    is_early = is_before & is_known & f.col("is_receipt_durable")
    return (
        covered.join(f.broadcast(promised), "topic")
        .withColumn("is_early", f.coalesce(is_early, f.lit(NO)))
        .select(*RECEIPTS_COLUMNS)
    )


ACKS_COLUMNS: Final = (
    *SUBSCRIPTION,
    "consumer",
    "ledger_id",
    "entry_id",
    "at",
    "version",
    "durable_at",
    "durability",
    "is_late",
)
DURABILITIES: Final = ("persisted", "persisted_untold", "pending", "never_persisted")
LATE_US: Final = 1_000_000
"""An ack is late if it takes longer than this, in microseconds, to become durable."""


def acks(journal: DataFrame, of_topics: DataFrame, *, late_us: int = LATE_US) -> DataFrame:
    """Return ACKS_COLUMNS: one row per acked event.

    An ack `is_late` if it became durable after more than `late_us`, or is pending for longer than
    that.
    """
    keys = (*SUBSCRIPTION, "owner_epoch")
    blocked = journal.withColumn("block", version_block())
    rows = events_of(blocked, "acked").select(
        *keys, "consumer", "ledger_id", "entry_id", "at", "version", "block"
    )
    marks = events_of(blocked, "persisted").withColumn("durable", f.col("at"))
    covered = with_cover(
        rows, marks, rows, keys=keys, bucket="block", place="version", names=["durable"]
    )
    is_durable = f.col("first_durable").isNotNull()
    durability = (
        f.when(is_durable, "persisted")
        .when(f.col("version") <= f.col("recovered_version"), "persisted_untold")
        .when(f.col("owner_epoch") == f.col("last_epoch"), "pending")
        .otherwise("never_persisted")
    )
    # An ack that changed nothing keeps the version, which may have been durable before the ack.
    durable_at = f.when(is_durable, f.greatest("first_durable", "at"))
    waited_us = f.coalesce("durable_at.time_us", "ends_us") - f.col("at.time_us")
    return (
        covered.join(f.broadcast(of_topics.select("topic", "last_epoch", "ends_us")), "topic")
        .join(f.broadcast(_found_durable(journal)), list(keys), "left")
        .withColumn("durable_at", durable_at)
        .withColumn("durability", durability)
        .withColumn(
            "is_late", f.col("durability").isin("persisted", "pending") & (waited_us > late_us)
        )
        .select(*ACKS_COLUMNS)
    )


def _found_durable(journal: DataFrame) -> DataFrame:
    """Return for each subscription and epoch the version that the next owner recovered."""
    keys = (*SUBSCRIPTION, "owner_epoch")
    is_recovered = f.col("event") == "recovered"
    next_one = Window.partitionBy(*SUBSCRIPTION).orderBy("owner_epoch")
    return (
        events_of(journal, "acked", "recovered")
        .groupBy(*keys)
        .agg(f.max(f.when(is_recovered, f.col("version"))).alias("version"))
        .select(*keys, f.lead("version").over(next_one).alias("recovered_version"))
    )
