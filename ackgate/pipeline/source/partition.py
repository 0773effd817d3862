"""What one task of Spark reads, in a batch and in a stream. Edge to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from ackgate.pipeline.source.planning import ReadTask
    from ackgate.pipeline.storage.places import BookiePlaces


class AckgatePartition(InputPartition):
    """Tasks, and where the bookies are. Spark sends it to an executor."""

    def __init__(self, bookies: BookiePlaces, tasks: tuple[ReadTask, ...]) -> None:
        self.bookies = bookies
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"{len(self.tasks)} parts"
