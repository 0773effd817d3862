"""``spark.read.format("ackgate")``, and ``readStream``: the ledgers as tables, by Spark 4's data source API.

Edge: the driver plans (`planning`), the executors read entries and make Arrow of them (`readers`).
A partition is a group of tasks; both are plain and small.

A stream follows the ledgers of topics as they grow. What it may read ends at the last add confirmed,
whether or not the broker lives: later entries may still vanish or be confirmed, and a batch that is
read again after a crash must be the same. Entries trimmed before the stream has read them fail the
stream. With the option ``gapsPath`` (a path of this machine or an address that fsspec opens) each gap
becomes a file of JSON there. A batch that is planned again writes the same file again.

``maxEntriesPerTrigger`` does not apply to the first batch of a stream, or to the first after a restart:
Spark requests its end before it says where the stream is. With the trigger ``availableNow`` leave the
option out: Spark requests the end once, and would take the limited one for the end of all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    InputPartition,
)

from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError
from ackgate.pipeline.catalogue.borders import last_confirmed
from ackgate.pipeline.catalogue.catalogue import ledger_places, open_catalogue, storage_address
from ackgate.pipeline.schema.options import OF_STREAMS, parse_options
from ackgate.pipeline.schema.tables import spark_schema
from ackgate.pipeline.source.planning import ReadTask, merged, plan_read, together
from ackgate.pipeline.source.stream_offsets import (
    LedgerEnd,
    decode_offset,
    spans,
)
from ackgate.pipeline.source.streams import TopicStream
from ackgate.pipeline.source.tasks import read_tasks
from ackgate.pipeline.storage.ranges import plan_ranges
from ackgate.pipeline.storage.reading import open_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.catalogue.catalogue import (
        Catalogue,
        CatalogueTopic,
        KnownLedger,
        StorageAddress,
    )
    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.storage.reading import LedgerPlaces

ENTRIES_PER_PARTITION: Final = 100_000
"""Most entries of a batch that one Spark task reads."""


class AckgateDataSource(DataSource):
    """All tables; the option ``table`` says which."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format``."""
        return "ackgate"

    def schema(self) -> Any:  # noqa: ANN401 - as above
        """The columns that the options ask for, or those that are not heavy."""
        options = parse_options(self.options)
        return spark_schema(options.chosen_columns)

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ANN401 - as above
        """A user's own schema is a choice of columns."""
        options = self._options_for(schema)
        options.refuse(OF_STREAMS, "a read that ends, only for a stream")
        if options.pulsar is None:
            return AckgateReader(options)
        # Needs an extra of its own.
        from ackgate.pipeline.source.pulsar_source import PulsarReader  # noqa: PLC0415

        return PulsarReader(options)

    def streamReader(self, schema: Any) -> TopicStream:  # noqa: ANN401, N802 - Spark's name
        """As `reader`, of ledgers as they grow."""
        options = self._options_for(schema)
        if options.pulsar is None:
            return AckgateStreamReader(options)
        from ackgate.pipeline.source.pulsar_source import PulsarStreamReader  # noqa: PLC0415

        return PulsarStreamReader(options)

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


class AckgatePartition(InputPartition):
    """Tasks, and where the bookies are. Spark sends it to an executor."""

    def __init__(self, bookies: LedgerPlaces, tasks: tuple[ReadTask, ...]) -> None:
        self.bookies = bookies
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"{len(self.tasks)} tasks"


class AckgateStreamReader(TopicStream):
    """One stream of one table."""

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[AckgatePartition]:
        """What lies between two offsets. Raises `CorruptRecordError` naming a trimmed range."""
        starts, stops = decode_offset(start), decode_offset(end)
        address = storage_address(self._options)
        bookies = ledger_places(address)
        with open_catalogue(self._options) as catalogue, open_places(bookies) as opened:
            tasks = [
                replace(task, ranges=tuple(map(opened.located, task.ranges)))
                for topic, ledgers in _ledger_ends(catalogue, address, self._options).items()
                if topic in stops
                for task in self._tasks(
                    catalogue, topic, ledgers, starts.get(topic, EARLIEST), stops[topic]
                )
            ]
        self._at = stops
        return [AckgatePartition(bookies, group) for group in together(tasks)]

    def read(self, partition: AckgatePartition) -> Iterator[Any]:
        """Called on the executors. Arrow batches. Raises `AckGateError`."""
        return read_tasks(partition.bookies, partition.tasks, self._options)

    def _ends(self) -> dict[str, list[LedgerEnd]]:
        with open_catalogue(self._options) as catalogue:
            return _ledger_ends(catalogue, storage_address(self._options), self._options)

    def _tasks(
        self,
        catalogue: Catalogue,
        topic: str,
        ledgers: Sequence[LedgerEnd],
        start: Position,
        stop: Position,
    ) -> Iterator[ReadTask]:
        self._note_gap(topic, ledgers, start, stop)
        wanted_entries = merged(self._options.entry_ids)
        for ledger_id, first, last in spans(start, stop, ledgers):
            if not self._options.wants_ledger(ledger_id):
                continue
            metadata, password_check = catalogue.entry(ledger_id)
            for wanted in wanted_entries:
                behind = min(last, wanted.last) + 1
                for at in range(max(first, wanted.first), behind, ENTRIES_PER_PARTITION):
                    upto = min(behind, at + ENTRIES_PER_PARTITION) - 1
                    ranges = plan_ranges(
                        metadata, upto, first_entry_id=at, password_check=password_check
                    )
                    yield ReadTask(topic, None, tuple(ranges))


def _ledger_ends(
    catalogue: Catalogue, address: StorageAddress, options: SourceOptions
) -> dict[str, list[LedgerEnd]]:
    """The ledgers of each topic, in order, and up to where each is confirmed."""
    owned = {
        topic.name: [each.metadata for each in _known_ledgers(catalogue, topic, options)]
        for topic in catalogue.topics(options.topics)
    }
    everything = [about for ledgers in owned.values() for about in ledgers]
    confirmed = last_confirmed(address, everything)
    return {
        topic: [LedgerEnd(about.ledger_id, confirmed[about.ledger_id]) for about in ledgers]
        for topic, ledgers in owned.items()
    }


def _known_ledgers(
    catalogue: Catalogue, topic: CatalogueTopic, options: SourceOptions
) -> list[KnownLedger]:
    ids: Iterator[int]
    if options.table.name != "delivery_journal":
        ids = (ledger.ledger_id for ledger in catalogue.message_ledgers(topic).ledgers)
    else:
        ids = (ledger.ledger_id for ledger in catalogue.journal(topic).ledgers)
    # One that is named but gone is being trimmed right now.
    return catalogue.entries(sorted(ids))
