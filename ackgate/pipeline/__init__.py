"""The stored data of a broker as Spark tables, and the jobs on them.

Edge. `register` makes ``spark.read.format("ackgate")`` known to a session; `run_pipeline` runs a job::

    ackgate.pipeline.register(spark)
    spark.read.format("ackgate").option("path", "data").option("table", "messages").load()

Its rooms, each of which imports only those below it::

    command                     the command line
    running                     arguments, session, output, progress, errors for people
    jobs                        a folder for each job
    source | report             the data source of Spark | the page with charts
    readers | catalogue         rows of each table | topics, cursors, ledgers, and where each one ends
    storage                     the bookies' files, and entries out of them
    schema                      tables, columns, options, addresses
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackgate.extras import named_extras

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["register", "run_pipeline"]


def register(spark: Any) -> None:  # noqa: ANN401 - Spark has no types here
    """Make the data source known to this session.

    Its tasks run in the Python that calls this, unless PYSPARK_PYTHON or ``spark.pyspark.python`` names
    another. Raises `MissingExtraError` without the extra `spark`.
    """
    with named_extras():
        from ackgate.pipeline.running.session import register_source  # noqa: PLC0415

        register_source(spark)


def run_pipeline(words: Sequence[str], *, spark: Any = None) -> int:  # noqa: ANN401 - as above
    """Run ``ackgate pipeline`` with these arguments, optionally in this session. Returns the exit code."""
    from ackgate.pipeline import command  # noqa: PLC0415

    return command.run_pipeline(words, spark=spark)
