"""``spark.read.format("ackgate")``: the ledgers as tables, by Spark 4's Python data source API.

Edge: the driver plans (`planning`), the executors read entries and make Arrow of them (`readers`).
A partition is a group of tasks; both are plain and small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader

from ackgate.errors import CallerError
from ackgate.pipeline.schema.options import OF_STREAMS, parse_options
from ackgate.pipeline.schema.tables import spark_schema
from ackgate.pipeline.source.partition import AckgatePartition
from ackgate.pipeline.source.planning import plan_read
from ackgate.pipeline.source.stream import AckgateStreamReader
from ackgate.pipeline.source.tasks import read_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.schema.tables import Column


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
        # Spark 4.3 wants batches to be nullable where the schema is.
        asked = zip(columns, schema.fields, strict=True)
        return replace(
            options,
            columns=tuple(replace(one, is_nullable=given.nullable) for one, given in asked),
        )


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
