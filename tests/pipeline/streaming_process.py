"""A stream in a process of its own, to be killed: ``python -m tests.pipeline.streaming_process``.

Edge: a Spark session. Small batches, one after the other, until somebody ends it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ackgate.pipeline import register
from ackgate.pipeline.running.session import local_session
from tests.pipeline.small_plans import quick_spark

ENTRIES_PER_BATCH = 15
"""From the second batch on."""


def start_stream(spark: Any, data: str, scratch: Path, trigger: Any, **options: str) -> Any:
    """Write the topic's messages to ``scratch/out``, with the checkpoint beside it."""
    register(spark)
    rows = (
        spark.readStream.format("ackgate")
        .options(path=data, topic="orders", columns="ledger_id,entry_id,payload", **options)
        .load()
    )
    return (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(**trigger)
        .start(str(scratch / "out"))
    )


if __name__ == "__main__":
    data_directory, scratch_directory = sys.argv[1], Path(sys.argv[2])
    (scratch_directory / "spark").mkdir()
    session = local_session(
        "local[1]",
        app_name="ackgate-stream",
        scratch=scratch_directory / "spark",
        driver_memory="512m",
        settings=quick_spark(),
    )
    stream = start_stream(
        session,
        data_directory,
        scratch_directory,
        {"processingTime": "0 seconds"},
        maxEntriesPerTrigger=str(ENTRIES_PER_BATCH),
    )
    stream.awaitTermination()
