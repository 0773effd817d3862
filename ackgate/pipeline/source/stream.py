"""``spark.readStream.format("ackgate")``: follows the ledgers of topics as they grow.

Edge: the catalogue, and the bookies of ledgers that nobody closed. What a stream may read ends at the
last add confirmed, whether or not the broker lives: what is behind it may vanish yet, or come to be
confirmed, and a batch that is read again after a crash must be the same.

The first batch of a stream, and the first after a restart, is not held to ``maxEntriesPerTrigger``: Spark
asks for its end before it says where the stream is. With the trigger ``availableNow`` leave the option out:
Spark asks for the end once, and takes what the limit leaves for all that there is.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader

from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError, CorruptRecordError
from ackgate.pipeline.catalogue.borders import last_confirmed
from ackgate.pipeline.catalogue.catalogue import open_catalogue, storage_address
from ackgate.pipeline.schema.options import OF_READS
from ackgate.pipeline.source.partition import AckgatePartition
from ackgate.pipeline.source.planning import ReadTask, merged, together
from ackgate.pipeline.source.stream_gaps import Gap, write_gap
from ackgate.pipeline.source.stream_offsets import (
    LedgerEnd,
    behind,
    decode_offset,
    earliest,
    encode_offset,
    end_of,
    end_within,
    entry_count,
    is_trimmed,
    shares,
    spans,
)
from ackgate.pipeline.source.tasks import read_tasks
from ackgate.pipeline.storage.bookie_files import OpenBookies
from ackgate.pipeline.storage.places import find_bookies
from ackgate.pipeline.storage.ranges import plan_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.catalogue.catalogue import Catalogue, CatalogueTopic, StorageAddress
    from ackgate.pipeline.schema.options import SourceOptions

log = logging.getLogger(__name__)

STREAMED: Final = ("messages", "delivery_journal")

ENTRIES_PER_PARTITION: Final = 100_000
"""Of a batch: so many are read by one task of Spark, at most."""


class AckgateStreamReader(DataSourceStreamReader):
    """One stream of one table."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises `CallerError` for a table that does not grow by entries."""
        if options.table.name not in STREAMED:
            raise CallerError(
                f"table {options.table.name} cannot be streamed; {' and '.join(STREAMED)} can"
            )
        options.refuse(OF_READS, "a stream")
        self._options = options
        self._at: dict[str, Position] | None = None
        """Up to where batches were planned; None while nobody has said."""

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins."""
        options = self._options
        found = {}
        for topic, ledgers in self._ends().items():
            if options.starting_position is not None:
                found[topic] = behind(options.starting_position)
            else:
                found[topic] = end_of(ledgers) if options.starts_at_end else earliest(ledgers)
        self._at = found
        return encode_offset(found)

    def latestOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """How far the next batch goes."""
        ends, at = self._ends(), self._at
        most = self._options.max_entries_per_trigger
        if most is None or at is None:
            found = {t: max(end_of(ends[t]), (at or {}).get(t, EARLIEST)) for t in ends}
        else:
            starts = {topic: at.get(topic, earliest(ends[topic])) for topic in ends}
            share = shares({t: entry_count(starts[t], ends[t]) for t in ends}, most)
            found = {t: end_within(starts[t], ends[t], share[t]) for t in ends}
        # A topic that is gone stays where it was.
        return encode_offset({**(at or {}), **found})

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[AckgatePartition]:
        """What lies between two offsets. Raises `CorruptRecordError` naming a trimmed range."""
        starts, stops = decode_offset(start), decode_offset(end)
        address = storage_address(self._options)
        bookies = find_bookies(address.bookies, password=address.password)
        with open_catalogue(self._options) as catalogue, OpenBookies(bookies) as opened:
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
        if is_trimmed(start, ledgers) and start < stop:
            gap = Gap(topic, start, Position(ledgers[0].ledger_id, 0))
            if self._options.gaps_path is None:
                raise CorruptRecordError(f"{gap} (option onTrimmed=report goes on)")
            write_gap(self._options.gaps_path, gap)
            log.warning("gap in the stream: %s", gap)
        wanted_entries = merged(self._options.entry_ids)
        for ledger_id, first, last in spans(start, stop, ledgers):
            if not self._options.wants_ledger(ledger_id):
                continue
            metadata, password_check, _ = catalogue.entry(ledger_id)
            for wanted in wanted_entries:
                behind = min(last, wanted.last) + 1
                for at in range(max(first, wanted.first), behind, ENTRIES_PER_PARTITION):
                    upto = min(behind, at + ENTRIES_PER_PARTITION) - 1
                    parts = plan_ranges(
                        metadata, upto, first_entry_id=at, password_check=password_check
                    )
                    yield ReadTask(topic, None, tuple(parts))


def _ledger_ends(
    catalogue: Catalogue, address: StorageAddress, options: SourceOptions
) -> dict[str, list[LedgerEnd]]:
    """The ledgers of each topic, in order, and up to where each is confirmed."""
    owned = {
        topic.name: [catalogue.ledger(i) for i in _ledger_ids(catalogue, topic, options)]
        for topic in catalogue.topics(options.topics)
    }
    everything = [about for ledgers in owned.values() for about in ledgers]
    confirmed = last_confirmed(address, everything)
    return {
        topic: [LedgerEnd(about.ledger_id, confirmed[about.ledger_id]) for about in ledgers]
        for topic, ledgers in owned.items()
    }


def _ledger_ids(catalogue: Catalogue, topic: CatalogueTopic, options: SourceOptions) -> list[int]:
    ids: Iterator[int]
    if options.table.name == "messages":
        ids = (ledger.ledger_id for ledger in catalogue.message_ledgers(topic).ledgers)
    else:
        ids = (ledger.ledger_id for ledger in catalogue.journal(topic).ledgers)
    # One that is named but gone is being trimmed right now.
    return sorted(ledger_id for ledger_id in ids if ledger_id in catalogue.ledger_nodes)
