"""Runs one rebuild on the driver, from settings to summary.

Edge. The driver's memory grows with the number of ledgers, runs and buckets, not of entries.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import SecretStr
from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ackgate.config.load import load_settings
from ackgate.cursor import LEDGER_ID_MAX, BucketRecord, Position
from ackgate.dispatcher.buckets import bucket_settings
from ackgate.errors import ConfigurationError
from ackgate.persistence.nodes.paths import CANCELLED_CURSOR
from ackgate.persistence.offline_storage import refuse_cluster, storage_places
from ackgate.pipeline.catalogue.catalogue import open_catalogue
from ackgate.pipeline.jobs.job import JobSummary, SummaryTable
from ackgate.pipeline.jobs.rebuild_delayed_index import frames
from ackgate.pipeline.jobs.rebuild_delayed_index.bucket_borders import (
    Counts,
    PlannedBuckets,
    RunSizes,
    plan_buckets,
)
from ackgate.pipeline.jobs.rebuild_delayed_index.finding import (
    MarkDeletes,
    check_settings,
    find_topics,
    targets_of,
)
from ackgate.pipeline.jobs.rebuild_delayed_index.placing import BucketToStore, Placing
from ackgate.pipeline.jobs.rebuild_delayed_index.sealing import kept
from ackgate.pipeline.schema.options import parse_options
from ackgate.pipeline.schema.tables import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ackgate.pipeline.jobs.job import DataFrame, Figure, JobRun
    from ackgate.pipeline.jobs.rebuild_delayed_index.finding import DelayedTopic
    from ackgate.pipeline.jobs.rebuild_delayed_index.placing import Placed
    from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Targets

SEALED_DIRECTORY: Final = ".sealed"
"""Directory below the output for the ledger entries of sealed buckets while the job runs."""

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of one Arrow batch that Spark passes to Python: a row may hold a whole run."""

BATCH_BYTES_KEY: Final = "spark.sql.execution.arrow.maxBytesPerBatch"

PARTITIONS_PER_CORE: Final = 4

LISTED_COLUMNS: Final = (
    "topic",
    "subscription",
    "bucket",
    "segment",
    "ledger_id",
    "entry_id",
    "key_ms",
)
"""Columns of the result `delayed_index`."""

SUMMARY_ROWS: Final = 20


class Rebuild:
    """One run of the job."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._now_ms = run.arguments.now_ms
        if self._now_ms is None:
            self._now_ms = time.time_ns() // 1_000_000
        config = run.data.options.get("config")
        settings = load_settings(
            None if config is None else Path(config), is_serving=False
        ).settings
        self._delayed = settings.delayed
        self._persistence = settings.persistence
        self._buckets = bucket_settings(settings.delayed)
        self._is_beside = run.arguments.beside

    def run(self) -> JobSummary:
        """Run the rebuild. Raises `AckGateError`, and whatever Spark raises."""
        begun = time.perf_counter()
        check_settings(self._delayed, self._subscription)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._batches_bounded_in_bytes())
            placing = None if self._is_beside else stack.enter_context(self._placing())
            topics = self._topics()
            if placing is not None:
                placing.take_stock(targets_of(topics, MarkDeletes({}), self._delayed).all)
            figures, table = self._rebuild(topics, placing)
        figures["seconds"] = round(time.perf_counter() - begun, 3)
        return JobSummary(figures, (table,))

    # -- topics and storage -------------------------------------------------------------------------

    @property
    def _subscription(self) -> str | None:
        return self._run.data.options.get("subscription")

    def _topics(self) -> list[DelayedTopic]:
        options = parse_options(self._run.data.options)
        with open_catalogue(options) as catalogue:
            return find_topics(catalogue, options.topics, self._subscription, self._delayed)

    def _placing(self) -> contextlib.AbstractContextManager[Placing]:
        options = self._run.data.options
        remote = [text for text in options.values() if "://" in text and not text.startswith("zk:")]
        path = options.get("path")
        is_named = "config" in options or options.get("metadataUrl", "").startswith("zk:")
        if path is None and not is_named:
            raise ConfigurationError("--data-dir says which directory is to be written to")
        if any(text == path for text in remote):
            raise ConfigurationError(
                f"{path} can only be read: --beside writes the index below --output instead"
            )
        places = storage_places(
            data_directory=None if path is None else Path(path),
            config=None if options.get("config") is None else Path(options["config"]),
            metadata_url=options.get("metadataUrl"),
            bookies=options.get("bookies"),
            bookkeeper=options.get("bookkeeper"),
        )
        refuse_cluster(
            places.settings,
            "a broker rebuilds an index there (`ackgate delayed clear TOPIC`); --beside writes it below"
            " --output",
        )
        return Placing.opened(places)

    @contextlib.contextmanager
    def _batches_bounded_in_bytes(self) -> Iterator[None]:
        conf = self._run.spark.conf
        before = conf.get(BATCH_BYTES_KEY)
        conf.set(BATCH_BYTES_KEY, str(BATCH_BYTES))
        try:
            yield
        finally:
            conf.set(BATCH_BYTES_KEY, before)

    # -- the work -----------------------------------------------------------------------------------

    def _rebuild(
        self, topics: list[DelayedTopic], placing: Placing | None
    ) -> tuple[dict[str, Figure], SummaryTable]:
        run = self._run
        run.progress("ack state: what is acked, and what was cancelled")
        with _kept(self._ack_state(topics)) as ack_state:
            targets = targets_of(topics, _mark_deletes(ack_state), self._delayed)
            run.progress(f"messages: delayed ones of {len(topics):,} topics")
            read = Observation()
            runs = frames.delayed_runs(self._messages(targets, read), self._now_ms)
            acked = frames.acked_ranges(ack_state)
            with _kept(frames.wanted_runs(runs, acked, targets, self._now_ms)) as wanted:
                sizes = RunSizes.of_table(frames.run_sizes(wanted).toArrow())
                outcome = self._outcome(targets, sizes, wanted, placing)
        return summary_of(targets, sizes, outcome, read.get["entries"])

    def _outcome(
        self, targets: Targets, sizes: RunSizes, wanted: DataFrame, placing: Placing | None
    ) -> Outcome:
        planned = self._planned(targets, sizes, placing)
        self._run.progress(f"{planned.bucket_count:,} buckets of {planned.entry_count:,} entries")
        if placing is None:
            self._list(wanted, planned, targets)
            return Outcome(planned)
        sealed = self._sealed(wanted, planned)
        placed = self._placed(targets, sealed, placing)
        self._run.write("buckets", self._run.spark.createDataFrame(_named(sealed, targets)))
        return Outcome(planned, sealed, placed)

    def _ack_state(self, topics: list[DelayedTopic]) -> DataFrame:
        columns = ",".join(frames.ACK_COLUMNS)
        state = self._run.read("ack_state", columns=columns)
        cancelled = [found.topic.name for found in topics if found.has_cancelled]
        if cancelled:
            state = state.unionByName(
                self._run.read(
                    "ack_state",
                    columns=columns,
                    subscription=CANCELLED_CURSOR,
                    topic=",".join(cancelled),
                )
            )
        return state

    def _messages(self, targets: Targets, read: Observation) -> DataFrame:
        messages = self._run.read(
            "messages",
            columns=",".join(frames.MESSAGE_COLUMNS),
            ledgerIds=f"{targets.first_ledger_id}-{LEDGER_ID_MAX}",
            # Without --beside no broker writes to these topics: read open ledgers to their end.
            openLedgers="auto" if self._is_beside else "found",
            onCorrupt=self._run.arguments.on_corrupt,
        )
        return messages.observe(read, F.count(F.lit(1)).alias("entries"))

    def _planned(
        self, targets: Targets, sizes: RunSizes, placing: Placing | None
    ) -> PlannedBuckets:
        def new_ids(count: int) -> list[int]:
            return list(range(count)) if placing is None else placing.new_ledger_ids(count)

        pieces = [
            (target.number, piece)
            for target in targets.all
            for piece in plan_buckets(sizes.of(target.number), self._buckets)
        ]
        return PlannedBuckets.of(pieces, new_ids)

    def _parts(self, wanted: DataFrame, planned: PlannedBuckets) -> DataFrame:
        spark = self._run.spark
        cores = spark.sparkContext.defaultParallelism
        partitions = max(1, min(planned.bucket_count, PARTITIONS_PER_CORE * cores))
        return frames.bucket_parts(wanted, spark.createDataFrame(planned.table()), partitions)

    def _sealed(self, wanted: DataFrame, planned: PlannedBuckets) -> pa.Table:
        if not planned.bucket_count:
            return arrow_schema(frames.SEALED).empty_table()
        # Tasks use these settings only to pack records: do not send them the password.
        persistence = self._persistence.model_copy(
            update={"managed_ledger_password": SecretStr("")}
        )
        plan = frames.SealPlan(self._sealed_directory, self._buckets, persistence)
        return _in_order(frames.sealed(self._parts(wanted, planned), plan).toArrow())

    def _list(self, wanted: DataFrame, planned: PlannedBuckets, targets: Targets) -> None:
        """Write the index as rows below the output, for ``--beside``."""
        spark = self._run.spark
        if planned.bucket_count:
            listed = frames.listed(self._parts(wanted, planned), self._buckets)
        else:
            listed = spark.createDataFrame([], spark_schema(frames.LISTED))
        named = F.broadcast(spark.createDataFrame(_names(targets)))
        index = listed.join(named, "target").select(*LISTED_COLUMNS)
        self._run.write("delayed_index", index)

    # -- putting it in place ------------------------------------------------------------------------

    @property
    def _sealed_directory(self) -> Path:
        return self._run.output.absolute() / SEALED_DIRECTORY

    def _placed(self, targets: Targets, sealed: pa.Table, placing: Placing) -> dict[int, Placed]:
        buckets: dict[int, list[BucketRecord]] = defaultdict(list)
        for row in sealed.to_pylist():
            first = Position(row["first_ledger_id"], row["first_entry_id"])
            last = Position(row["last_ledger_id"], row["last_entry_id"])
            buckets[row["target"]].append(BucketRecord(first, last, row["snapshot_id"]))
        for target in targets.all:
            placing.check(target, buckets[target.number])
        self._run.progress("buckets: put in place")
        try:
            return {
                target.number: placing.place(
                    target,
                    [
                        BucketToStore(
                            bucket, partial(kept, self._sealed_directory, bucket.snapshot_id)
                        )
                        for bucket in buckets[target.number]
                    ],
                )
                for target in targets.all
            }
        finally:
            shutil.rmtree(self._sealed_directory, ignore_errors=True)


@contextlib.contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the frame on the executors' disks until the block ends."""
    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


def _mark_deletes(ack_state: DataFrame) -> MarkDeletes:
    return MarkDeletes(
        {
            (row["topic"], row["subscription"]): Position(row["ledger_id"], row["entry_id"])
            for row in frames.mark_deletes(ack_state).toArrow().to_pylist()
        }
    )


def _in_order(sealed: pa.Table) -> pa.Table:
    return sealed.cast(arrow_schema(frames.SEALED)).sort_by(
        [("target", "ascending"), ("bucket", "ascending")]
    )


def _names(targets: Targets) -> pa.Table:
    return pa.table(
        {
            "target": pa.array([target.number for target in targets.all], pa.int32()),
            "topic": pa.array([target.topic for target in targets.all], pa.string()),
            "subscription": pa.array([t.subscription for t in targets.all], pa.string()),
        }
    )


def _named(sealed: pa.Table, targets: Targets) -> pa.Table:
    """Replace the column with the target's number by its topic and subscription."""
    names = _names(targets).take(sealed.column("target").combine_chunks())
    columns = {name: names.column(name) for name in ("topic", "subscription")}
    return pa.table(
        columns | {name: sealed.column(name) for name in sealed.column_names if name != "target"}
    )


class Outcome(NamedTuple):
    """What a rebuild made: the plan and, unless ``--beside``, what was sealed and placed."""

    planned: PlannedBuckets
    sealed: pa.Table | None = None
    placed: Mapping[int, Placed] | None = None


def summary_of(
    targets: Targets, sizes: RunSizes, outcome: Outcome, entries_read: int
) -> tuple[dict[str, Figure], SummaryTable]:
    """Return the figures, and a table of the targets with the most delayed entries."""
    planned, sealed, placed = outcome
    counts = {target.number: sizes.counts.get(target.number, Counts()) for target in targets.all}
    delayed = sum(count.delayed for count in counts.values())
    wanted = sum(count.wanted for count in counts.values())
    figures: dict[str, Figure] = {
        "topics": len({target.topic for target in targets.all}),
        "indexes": len(targets.all),
        "entries_read": entries_read,
        "delayed": delayed,
        "acked_or_cancelled": delayed - wanted,
        "indexed": planned.entry_count,
        "left_to_the_broker": wanted - planned.entry_count,
        "buckets": planned.bucket_count,
    }
    if sealed is not None and placed is not None:
        figures["segments"] = pc.sum(sealed.column("segments")).as_py() or 0
        figures["bytes"] = pc.sum(sealed.column("bytes")).as_py() or 0
        figures["buckets_replaced"] = sum(one.buckets_replaced for one in placed.values())
        figures["old_ledgers_left"] = sum(one.ledgers_left for one in placed.values())
    return figures, _table(targets, counts, planned)


def _table(targets: Targets, counts: Mapping[int, Counts], planned: PlannedBuckets) -> SummaryTable:
    largest = sorted(targets.all, key=lambda target: -counts[target.number].delayed)
    rows = []
    for target in largest[:SUMMARY_ROWS]:
        buckets, indexed = planned.of_target(target.number)
        count = counts[target.number]
        rows.append(
            (
                target.topic,
                target.subscription or "(shared)",
                count.delayed,
                count.delayed - count.wanted,
                indexed,
                buckets,
            )
        )
    return SummaryTable(
        "Indexes",
        ("topic", "subscription", "delayed", "acked or cancelled", "indexed", "buckets"),
        rows,
        len(targets.all) - len(rows),
    )
