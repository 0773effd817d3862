"""One more witness: what the brokers of a run wrote down, audited, against what its clients know.

Edge. A run keeps its journals as one file while its storage is still there; any number of runs are
audited together, by one Spark session::

    run ends -> keep_journals(file) ...   witness(spark, runs).contradictions(runs): what is wrong

The audit knows nothing of the facts, and the facts nothing of the journals. They must agree on which
messages there are, that each reached each subscription and that all were acked at the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import functions as f

from ackgate.persistence.deliveries.details import Opened, decode_detail
from ackgate.pipeline.jobs.audit.frames import audit
from ackgate.pipeline.jobs.journal import JOURNAL_COLUMNS
from tests.chaos.facts import MessageKey, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.chaos.facts import TopicFacts

FILE: Final = "journals.parquet"

BROKEN_COUNTS: Final = (
    *("lost_acked", "lost_skipped", "ack_lost", "unexplained", "out_of_order"),
    *("sent_though_acked", "too_early", "key_split", "receipts_early"),
)
_OF_ENDED_RUN: Final = ("acked", "unknown")
"""All was acked; of some, its acks are at the end of a killed broker's life, which none tells of."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run that has ended well."""

    name: str
    file: Path
    topics: Sequence[TopicFacts]


FINISHED: Final = pytest.StashKey[list[KeptRun]]()
"""In pytest's configuration: runs of this session that have ended well."""


def keep_journals(file: Path, **options: str) -> None:
    """Write all journals of a storage, which the options of the data source name, into this file."""
    import pyarrow.parquet as pq

    from ackgate.pipeline.schema.tables import DELIVERY_JOURNAL, arrow_schema
    from ackgate.pipeline.source.data_source import AckgateDataSource

    source = AckgateDataSource(
        {**options, "table": "delivery_journal", "columns": ",".join(JOURNAL_COLUMNS)}
    )
    reader = source.reader(source.schema())
    with pq.ParquetWriter(file, arrow_schema(DELIVERY_JOURNAL.select(JOURNAL_COLUMNS))) as writer:
        for partition in reader.partitions():
            for batch in reader.read(partition):
                writer.write_batch(batch)


@dataclass(frozen=True, slots=True)
class Witness:
    """What the journals say, by topic (with the run's number before it) and subscription."""

    sums: Mapping[tuple[str, str], Any]
    fates: Mapping[tuple[str, str], Mapping[tuple[int, int], str]]
    before: Mapping[tuple[str, str], Mapping[int, int]]
    """How many entries of which ledgers were there when the subscription was first told of. The end of
    a killed broker's journal is missing; where the life was short, that may be nearly all of it."""

    def contradictions(self, runs: Sequence[KeptRun]) -> list[str]:
        """What must not be, and where it does not fit the facts of these runs; in words."""
        return [
            f"{run.name}: {topic.name}, {facts.name}: {what}"
            for number, run in enumerate(runs)
            for topic in run.topics
            for facts in topic.subscriptions
            for what in self._wrong(topic, (f"{number}/{topic.name}", facts.name))
        ]

    def _wrong(self, topic: TopicFacts, subscription: tuple[str, str]) -> Iterator[str]:
        if subscription not in self.sums:
            yield "not in the journal"
            return
        sums, fates = self.sums[subscription], self.fates[subscription]
        if sums.verdict == "broken":
            yield f"broken: { {name: sums[name] for name in BROKEN_COUNTS if sums[name]} }"
        confirmed = {(key.ledger_id, key.entry_id) for key in topic.contents}
        before = self.before.get(subscription, {})
        strangers = {
            (ledger_id, entry_id)
            for ledger_id, entry_id in confirmed - fates.keys()
            if entry_id >= before.get(ledger_id, 0)
        }
        if strangers and not sums.events_dropped:
            yield f"{len(strangers)} messages are not in the journal: {_shown(strangers)}"
        left = {place for place in confirmed & fates.keys() if fates[place] not in _OF_ENDED_RUN}
        if left:
            found = sorted({fates[place] for place in left})
            yield f"{len(left)} messages are not acked but {', '.join(found)}: {_shown(left)}"


def witness(spark: Any, runs: Sequence[KeptRun]) -> Witness:
    """The journals of these runs, audited."""
    frames = [
        spark.read.parquet(str(run.file)).withColumn(
            "topic", f.concat(f.lit(f"{number}/"), f.col("topic"))
        )
        for number, run in enumerate(runs)
    ]
    journal = reduce(lambda one, other: one.unionByName(other), frames)
    fates: dict[tuple[str, str], dict[tuple[int, int], str]] = defaultdict(dict)
    with audit(journal) as result:
        sums = {(row.topic, row.subscription): row for row in result.by_subscription().collect()}
        entries = result.fates.select("topic", "subscription", "ledger_id", "entry_id", "fate")
        for row in entries.collect():
            fates[row.topic, row.subscription][row.ledger_id, row.entry_id] = row.fate
        first = _openings(result.journal).collect()
    before = {(row.topic, row.subscription): _ledgers(row.detail) for row in first}
    return Witness(sums, fates, before)


def _openings(journal: Any) -> Any:
    """Of each subscription the opening in whose life it is first told of."""
    by = ["topic", "owner_epoch"]
    told = journal.where("subscription is not null").groupBy("topic", "subscription")
    opened = journal.where("event = 'opened'").select(*by, "detail")
    return told.agg(f.min("owner_epoch").alias("owner_epoch")).join(opened, by)


def _ledgers(opened: str) -> dict[int, int]:
    return {ledger.ledger_id: ledger.entries for ledger in decode_detail(Opened, opened).ledgers}


def _shown(places: set[tuple[int, int]]) -> str:
    return shown(MessageKey(*place, 0) for place in places)
