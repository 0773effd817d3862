"""A real Pulsar cluster as a source of Spark: reads that end, and streams of open topics.

Edge: Spark's classes; `pulsar_tables` plans and reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ackgate.cursor import EARLIEST
from ackgate.pipeline.source.pulsar_tables import (
    PulsarTask,
    confirmed_ends,
    entry_tasks,
    plan_pulsar,
    read_pulsar,
    together_tasks,
)
from ackgate.pipeline.source.stream_offsets import decode_offset, spans
from ackgate.pipeline.source.streams import TopicStream
from ackgate.pipeline.source.tasks import put_together
from ackgate.pulsar import PulsarTopic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.source.stream_offsets import LedgerEnd


class PulsarPartition(InputPartition):
    """Tasks. Spark sends it to an executor."""

    def __init__(self, tasks: tuple[PulsarTask, ...]) -> None:
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"{len(self.tasks)} tasks"


class PulsarReader(DataSourceReader):
    """One read of one table of a Pulsar cluster."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[PulsarPartition]:
        """Called on the driver. Raises `AckGateError`."""
        groups = plan_pulsar(self._options) or [()]
        return [PulsarPartition(group) for group in groups]

    def read(self, partition: PulsarPartition) -> Iterator[Any]:
        """Called on the executors. Arrow batches. Raises `AckGateError`."""
        return put_together(read_pulsar(partition.tasks, self._options))


class PulsarStreamReader(TopicStream):
    """One stream of the messages of topics of a Pulsar cluster.

    It goes as far as the bookies know entries to be confirmed: the last one of a producer that is idle
    comes with the next.
    """

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[PulsarPartition]:
        """What lies between two offsets. Raises `CorruptRecordError` naming a trimmed range."""
        starts, stops = decode_offset(start), decode_offset(end)
        tasks: list[PulsarTask] = []
        for topic, ledgers in self._ends().items():
            if topic not in stops:
                continue
            begin, stop = starts.get(topic, EARLIEST), stops[topic]
            self._note_gap(topic, ledgers, begin, stop)
            for ledger_id, first, last in spans(begin, stop, ledgers):
                parsed = PulsarTopic.parse(topic)
                tasks += entry_tasks(parsed, ledger_id, first, last, self._options)
        self._at = stops
        return [PulsarPartition(group) for group in together_tasks(tasks)]

    def read(self, partition: PulsarPartition) -> Iterator[Any]:
        """Called on the executors. Arrow batches. Raises `AckGateError`."""
        return put_together(read_pulsar(partition.tasks, self._options))

    def _ends(self) -> dict[str, list[LedgerEnd]]:
        return confirmed_ends(self._options)
