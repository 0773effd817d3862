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

ACKS_COLUMNS: Final = (*SUBSCRIPTION, "consumer", "at", "version", "durable_at", "durability")
DURABILITIES: Final = ("persisted", "pending", "never_persisted")

_VERSIONS_IN_BLOCK: Final = 65_536


def acks(journal: DataFrame, of_topics: DataFrame) -> DataFrame:
    """ACKS_COLUMNS: a row for each acked event."""
    blocked = journal.withColumn("block", f.floor(f.col("version") / _VERSIONS_IN_BLOCK))
    rows = events_of(blocked, "acked").select(
        *SUBSCRIPTION, "owner_epoch", "consumer", "at", "version", "block"
    )
    marks = events_of(blocked, "persisted").withColumn("mark", f.col("at"))
    covered = with_cover(rows, marks, (*SUBSCRIPTION, "owner_epoch"), "block", "version")
    durability = (
        f.when(f.col("first_mark").isNotNull(), "persisted")
        .when(f.col("owner_epoch") == f.col("last_epoch"), "pending")
        .otherwise("never_persisted")
    )
    # An ack that changed nothing has a version that may have been durable before it.
    durable_at = f.greatest("first_mark", f.when(f.col("first_mark").isNotNull(), f.col("at")))
    return covered.join(f.broadcast(of_topics.select("topic", "last_epoch")), "topic").select(
        *SUBSCRIPTION,
        "consumer",
        "at",
        "version",
        durable_at.alias("durable_at"),
        durability.alias("durability"),
    )
