"""When each ack became durable: persisted, pending at the journal's end, or gone with its owner.

    versions    acked 7   acked 8   persisted 8   acked 9  |  another owner
                pending until it -------^          never_persisted

Pure: DataFrame to DataFrame. Windows are by thousands of versions, see `cover`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.journal import SUBSCRIPTION, events_of

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

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
DURABILITIES: Final = ("persisted", "pending", "never_persisted")
LATE_US: Final = 1_000_000
"""An ack that became durable so long after it was made is late."""

_VERSIONS_IN_BLOCK: Final = 65_536


def acks(journal: DataFrame, of_topics: DataFrame, *, late_us: int = LATE_US) -> DataFrame:
    """ACKS_COLUMNS: a row for each acked event.

    Late is one that was durable late, and one that is not yet after as long a time.
    """
    keys = (*SUBSCRIPTION, "owner_epoch")
    blocked = journal.withColumn("block", f.floor(f.col("version") / _VERSIONS_IN_BLOCK))
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
        .when(f.col("owner_epoch") == f.col("last_epoch"), "pending")
        .otherwise("never_persisted")
    )
    # An ack that changed nothing has a version that may have been durable before it.
    durable_at = f.when(is_durable, f.greatest("first_durable", "at"))
    waited_us = f.coalesce("durable_at.time_us", "ends_us") - f.col("at.time_us")
    return (
        covered.join(f.broadcast(of_topics.select("topic", "last_epoch", "ends_us")), "topic")
        .withColumn("durable_at", durable_at)
        .withColumn("durability", durability)
        .withColumn("is_late", (f.col("durability") != "never_persisted") & (waited_us > late_us))
        .select(*ACKS_COLUMNS)
    )
