"""The ledgers as Spark tables, and the jobs on them.

Edge. One call makes ``spark.read.format("ackgate")`` known to a session::

    ackgate.pipeline.register(spark)
    spark.read.format("ackgate").option("path", "data").option("table", "messages").load()
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:  # noqa: ANN401 - Spark has no types here
    """Make the data source known to this session. Imports Spark's parts only now."""
    from ackgate.pipeline.source import AckgateDataSource  # noqa: PLC0415

    spark.dataSource.register(AckgateDataSource)
