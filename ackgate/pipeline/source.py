"""``spark.read.format("ackgate")``: the ledgers as tables, by Spark 4's Python data source API.

Edge: the driver plans (`planning`), the executors read entries and make Arrow of them (`readers`).
A partition is a group of tasks; both are plain and small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ackgate.errors import CallerError
from ackgate.pipeline.options import OF_STREAMS, parse_options
from ackgate.pipeline.planning import plan_read
from ackgate.pipeline.readers.tasks import read_tasks
from ackgate.pipeline.tables import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.options import SourceOptions
    from ackgate.pipeline.planning import ReadTask
    from ackgate.pipeline.storage.places import BookiePlaces
    from ackgate.pipeline.stream import AckgateStreamReader
    from ackgate.pipeline.tables import Column


class AckgateDataSource(DataSource):
    """All tables; the option ``table`` says which."""

    @classmethod
    def name(cls) -> str:
        """As in ``format``."""
        return "ackgate"

    def schema(self) -> Any:  # noqa: ANN401 - as above
        """The columns that the options ask for, or those that are not heavy."""
        options = parse_options(self.options)
        return spark_schema(chosen_columns(options))

    def reader(self, schema: Any) -> AckgateReader:  # noqa: ANN401 - as above
        """A user's own schema is a choice of columns."""
        options = self._options_for(schema)
        options.refuse(OF_STREAMS, "a read that ends, only for a stream")
        return AckgateReader(options)

    def streamReader(self, schema: Any) -> AckgateStreamReader:  # noqa: ANN401, N802 - Spark's name
        """As `reader`, of ledgers as they grow."""
        from ackgate.pipeline.stream import AckgateStreamReader  # noqa: PLC0415 - it imports us

        return AckgateStreamReader(self._options_for(schema))

    def _options_for(self, schema: Any) -> SourceOptions:  # noqa: ANN401 - as above
        options = parse_options(self.options)
        columns = options.table.select(schema.fieldNames())
        for given, ours in zip(schema.fields, spark_schema(columns).fields, strict=True):
            if given.dataType.simpleString() != ours.dataType.simpleString():
                raise CallerError(
                    f"table {options.table.name}: column {ours.name} is "
                    f"{ours.dataType.simpleString()}, not {given.dataType.simpleString()}"
                )
        return replace(options, columns=columns)


class AckgatePartition(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, bookies: BookiePlaces, tasks: tuple[ReadTask, ...]) -> None:
        self.bookies = bookies
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"{len(self.tasks)} parts"


class AckgateReader(DataSourceReader):
    """One read of one table."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[AckgatePartition]:
        """Called on the driver. Raises `AckGateError`."""
        plan = plan_read(self._options)
        # Spark takes no partition at all for one that it must make up itself.
        groups = plan.groups or [()]
        return [AckgatePartition(plan.bookies, group) for group in groups]

    def read(self, partition: AckgatePartition) -> Iterator[Any]:
        """Called on the executors. Arrow batches. Raises `AckGateError`."""
        return read_tasks(partition.bookies, partition.tasks, self._options)


def chosen_columns(options: SourceOptions) -> tuple[Column, ...]:
    """Those that the options name, or all that are not heavy."""
    return options.table.default_columns if options.columns is None else options.columns
