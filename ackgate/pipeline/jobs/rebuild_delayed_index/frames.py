"""From messages and ack state to sealed buckets: DataFrames in, DataFrames out.

::

    messages --> delayed_runs ---+
                                 +--> wanted_runs --> run_sizes --> (borders, planned on the driver)
    ack_state --> acked_ranges --+         |                            |
                                           +----------------------> bucket_parts --> sealed
                                                                           `-------> listed

Between `delayed_runs` and `listed` no entry has a row of its own. The driver collects one row for
each run, bucket and subscription. A task works on one run (at most `RUN_ENTRIES_MAX` entries) or
one bucket (at most `entries_max`) at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ackgate.pipeline.jobs.rebuild_delayed_index.bucket_borders import BUCKET, TARGET
from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import (
    NUMBER,
    RUN,
    AckedRanges,
    EntryRun,
    numbers_of,
    pack_runs,
    wanted_of,
)
from ackgate.pipeline.jobs.rebuild_delayed_index.sealing import draft_of, keep, seal
from ackgate.pipeline.schema.tables import Column, Kind, arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.dispatcher.buckets import BucketSettings
    from ackgate.pipeline.jobs.job import DataFrame
    from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Targets

MESSAGE_COLUMNS: Final = ("ledger_id", "entry_id", "deliver_at_ms")
ACK_COLUMNS: Final = (
    "topic",
    "subscription",
    "kind",
    "ledger_id",
    "first_entry_id",
    "end_entry_id",
)

WANTED: Final = (
    TARGET,
    Column("ledger_id", Kind.LONG, "Of the run."),
    Column("first_entry_id", Kind.LONG, "Of the run."),
    Column("delayed", Kind.LONG, "Entries of the run."),
    Column("entries", Kind.LONG, "Of them, those that the target's tracker would keep."),
    Column("entry_ids", Kind.BINARY, "These, as `NUMBER`s."),
    Column("keys_ms", Kind.BINARY, "What the tracker sorts them by."),
)

SEALED: Final = (
    TARGET,
    BUCKET,
    Column("snapshot_id", Kind.LONG, "The ledger that it is for."),
    Column("first_ledger_id", Kind.LONG, "Of its lowest entry."),
    Column("first_entry_id", Kind.LONG, "Of its lowest entry."),
    Column("last_ledger_id", Kind.LONG, "Of its highest entry."),
    Column("last_entry_id", Kind.LONG, "Of its highest entry."),
    Column("entries", Kind.LONG, "In it."),
    Column("segments", Kind.LONG, "Of it."),
    Column("bytes", Kind.LONG, "Of its snapshot."),
    Column("first_key_ms", Kind.LONG, "The earliest."),
    Column("last_key_ms", Kind.LONG, "The latest."),
)

LISTED: Final = (
    TARGET,
    BUCKET,
    Column("segment", Kind.INT, "Number of the bucket's segment."),
    Column("ledger_id", Kind.LONG, "Of the entry."),
    Column("entry_id", Kind.LONG, "The entry."),
    Column("key_ms", Kind.LONG, "What the tracker sorts it by."),
)


class SealPlan(NamedTuple):
    """What a task needs to know to seal a bucket."""

    directory: Path
    """Where tasks write the ledger entries of sealed buckets."""
    settings: BucketSettings
    persistence: PersistenceSettings
    """Without the ledger password."""


# -- entries ---------------------------------------------------------------------------------------


def delayed_runs(messages: DataFrame, now_ms: int) -> DataFrame:
    """Pack the messages due after `now_ms` into runs: one `RUN` row for each."""
    delayed = messages.where(F.col("deliver_at_ms") > now_ms).select(*MESSAGE_COLUMNS)
    return delayed.mapInArrow(pack_runs, spark_schema(RUN))


def acked_ranges(ack_state: DataFrame) -> DataFrame:
    """Collect the acked ranges of all cursors into one row for each message ledger."""
    ranges = ack_state.where(F.col("kind") == "range")
    one = F.struct("subscription", "first_entry_id", "end_entry_id")
    return ranges.groupBy("ledger_id").agg(F.collect_list(one).alias("acked"))


def mark_deletes(ack_state: DataFrame) -> DataFrame:
    """Return the mark-delete position of each cursor, one row each."""
    return ack_state.where(F.col("kind") == "mark_delete").select(
        "topic",
        "subscription",
        "ledger_id",
        (F.col("end_entry_id") - 1).alias("entry_id"),
    )


def wanted_runs(runs: DataFrame, acked: DataFrame, targets: Targets, now_ms: int) -> DataFrame:
    """Select the entries of each run that each target's tracker would keep.

    Returns a `WANTED` row for each run and target, with counts even if no entry is kept.
    """
    joined = runs.join(acked, "ledger_id", "left")

    def wanted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _wanted(batches, targets=targets, now_ms=now_ms)

    return joined.mapInArrow(wanted, spark_schema(WANTED))


def _wanted(
    batches: Iterable[pa.RecordBatch], *, targets: Targets, now_ms: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for row, ledger_id in enumerate(columns["ledger_id"].to_pylist()):
            run = EntryRun(
                ledger_id,
                numbers_of(columns["entry_ids"], row),
                numbers_of(columns["times_ms"], row),
            )
            acked = _ranges_by_cursor(columns["acked"][row])
            rows = [
                (target.number, run, wanted_of(run, target, acked, now_ms))
                for target in targets.of_ledger(ledger_id)
            ]
            if rows:
                yield _wanted_rows(rows)


def _wanted_rows(rows: list[tuple[int, EntryRun, EntryRun]]) -> pa.RecordBatch:
    columns = zip(
        *(
            (
                number,
                run.ledger_id,
                int(run.entry_ids[0]),
                run.entry_ids.size,
                kept.entry_ids.size,
                kept.entry_ids.astype(NUMBER).tobytes(),
                kept.times_ms.astype(NUMBER).tobytes(),
            )
            for number, run, kept in rows
        ),
        strict=True,
    )
    return pa.RecordBatch.from_arrays(list(columns), schema=arrow_schema(WANTED))


def _ranges_by_cursor(acked: pa.ListScalar) -> dict[str, AckedRanges]:
    if not acked.is_valid:
        return {}
    names = acked.values.field("subscription").dictionary_encode()
    firsts = acked.values.field("first_entry_id").to_numpy(zero_copy_only=False)
    ends = acked.values.field("end_entry_id").to_numpy(zero_copy_only=False)
    codes = names.indices.to_numpy(zero_copy_only=False)
    return {
        name: AckedRanges.of(firsts[codes == code], ends[codes == code])
        for code, name in enumerate(names.dictionary.to_pylist())
    }


# -- buckets ---------------------------------------------------------------------------------------


def run_sizes(wanted: DataFrame) -> DataFrame:
    """Return the counts of each run and target, without the entries."""
    return wanted.select("target", "ledger_id", "first_entry_id", "delayed", "entries")


def bucket_parts(wanted: DataFrame, pieces: DataFrame, partitions: int) -> DataFrame:
    """Cut the wanted runs into the planned pieces, with all pieces of a bucket in one partition."""
    cut = F.broadcast(pieces).join(wanted, ["target", "ledger_id", "first_entry_id"])
    width = NUMBER.itemsize
    slices = [
        F.expr(f"substring({name}, cast(start * {width} + 1 as int), "
               f"cast((stop - start) * {width} as int))").alias(name)
        for name in ("entry_ids", "keys_ms")
    ]  # fmt: skip
    runs = cut.select("target", "bucket", "snapshot_id", "ledger_id", *slices)
    return runs.repartition(partitions, "target", "bucket")


def sealed(runs: DataFrame, plan: SealPlan) -> DataFrame:
    """Seal each bucket and write its ledger entries to a file; return a `SEALED` row for each."""

    # Spark 4.1 and newer resolve the type hints of this function, and warn if they cannot.
    def sealed_bucket(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return _seal(key, rows, plan=plan)

    buckets = runs.groupBy("target", "bucket")
    return buckets.applyInArrow(sealed_bucket, spark_schema(SEALED))


def _seal(key: tuple[Any, ...], rows: pa.Table, *, plan: SealPlan) -> pa.Table:
    snapshot_id = rows.column("snapshot_id")[0].as_py()
    bucket = seal(_runs_of(rows), snapshot_id, plan.settings, plan.persistence)
    keep(plan.directory, snapshot_id, bucket.payloads)
    values = (
        *(part.as_py() for part in key),
        snapshot_id,
        *bucket.first,
        *bucket.last,
        bucket.entries,
        bucket.segments,
        bucket.bytes,
        bucket.first_key_ms,
        bucket.last_key_ms,
    )
    return pa.Table.from_arrays([[value] for value in values], schema=arrow_schema(SEALED))


def listed(runs: DataFrame, settings: BucketSettings) -> DataFrame:
    """Return a `LISTED` row for each entry of each bucket, in the bucket's order."""

    def listed_bucket(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return _list(key, rows, settings=settings)

    buckets = runs.groupBy("target", "bucket")
    return buckets.applyInArrow(listed_bucket, spark_schema(LISTED))


def _list(key: tuple[Any, ...], rows: pa.Table, *, settings: BucketSettings) -> pa.Table:
    draft = draft_of(_runs_of(rows), settings)
    keys_ms, ledger_ids, entry_ids = draft.columns
    sizes = [segment.keys_ms.size for segment in draft.plan(0).segments]
    target, bucket = (part.as_py() for part in key)
    return pa.table(
        [
            pa.array(np.full(keys_ms.size, target, np.int32)),
            pa.array(np.full(keys_ms.size, bucket, np.int32)),
            pa.array(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)),
            pa.array(ledger_ids),
            pa.array(entry_ids),
            pa.array(keys_ms),
        ],
        schema=arrow_schema(LISTED),
    )


def _runs_of(rows: pa.Table) -> list[EntryRun]:
    batch = rows.combine_chunks().to_batches()[0]
    entry_ids, keys_ms = batch.column("entry_ids"), batch.column("keys_ms")
    return [
        EntryRun(ledger_id, numbers_of(entry_ids, row), numbers_of(keys_ms, row))
        for row, ledger_id in enumerate(batch.column("ledger_id").to_pylist())
    ]
