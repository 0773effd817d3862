"""Computes the results of ack-stats: functions from DataFrames to DataFrames.

Edge to Spark. A task holds all records of one cursor in memory. Their number is bounded, because
`managedLedgerCursorMaxEntriesPerLedger` limits the entries of a cursor ledger.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import functions as f

from ackgate.cursor import Position
from ackgate.pipeline.jobs.ack_stats.history import CursorRecordRow
from ackgate.pipeline.jobs.ack_stats.limits import LimitStep
from ackgate.pipeline.jobs.ack_stats.stats import HistoryPoint, SubscriptionFigures, stats_of
from ackgate.pipeline.schema.row_types import arrow_columns, spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.jobs.ack_stats.limits import LimitRule
    from ackgate.pipeline.jobs.job import DataFrame

RECORD_COLUMNS: Final = (
    *("topic", "subscription", "place", "cursor_ledger_id", "entry_id", "owner_epoch", "version"),
    *("base_version", "base_snapshot_version", "written_ms"),
    *("mark_delete_ledger_id", "mark_delete_entry_id"),
    *("range_count", "ranges_in_memory", "entries_dropped", "partly_acked_count"),
    *("record_bytes", "acked"),
)
"""The columns that the job reads of table `cursor_records`."""

_NESTED: Final = ("places", "history", "curve", "limits", "over_limit", "open_holes")
_PLACE_COLUMN: Final = "hole_entries_by_place"


def subscription_stats(
    cursor_records: DataFrame,
    limit_steps: DataFrame,
    journal_writes: DataFrame,
    *,
    rule: LimitRule,
    horizon_ms: int | None = None,
) -> DataFrame:
    """Return one row per subscription, with the fields of `SubscriptionFigures` as columns.

    History, forecast curve and the like are nested. `limit_steps` and `journal_writes` come from
    `journal_frames`. A write that is in both the journal and the records counts once, as the
    record.
    """

    def of_cursor(key: Any, records: Any) -> Any:  # noqa: ANN401 - Arrow has no types here
        topic, subscription = (scalar.as_py() for scalar in key)
        steps = records.column("limit_steps")[0].as_py() or ()
        limits = rule.limits(topic, [LimitStep(**step) for step in steps])
        rows = _each_write_once(list(_rows(records.drop_columns(["limit_steps"]))))
        if not rows:
            return arrow_columns(SubscriptionFigures).empty_table()
        stats = stats_of(topic, subscription, rows, limits=limits, horizon_ms=horizon_ms)
        return pa.Table.from_pylist([asdict(stats)], schema=arrow_columns(SubscriptionFigures))

    of_records = cursor_records.select(*RECORD_COLUMNS).selectExpr("*", "false AS is_from_journal")
    both = of_records.unionByName(journal_writes, allowMissingColumns=True)
    cursors = both.join(limit_steps, "topic", "left").groupBy("topic", "subscription")
    return cursors.applyInArrow(of_cursor, spark_columns(SubscriptionFigures))


def _each_write_once(rows: list[CursorRecordRow]) -> list[CursorRecordRow]:
    """Drop the journal's writes that have a record, or all rows if the cursor has no record."""
    recorded = {(row.owner_epoch, row.version) for row in rows if not row.is_from_journal}
    return [
        row
        for row in rows
        if not row.is_from_journal or (recorded and (row.owner_epoch, row.version) not in recorded)
    ]


def subscriptions(stats: DataFrame) -> DataFrame:
    """Return the figures of each subscription, without the nested columns."""
    return stats.select(*flat_columns())


def history(stats: DataFrame) -> DataFrame:
    """Return one row per subscription and time bin, with the flat fields of `HistoryPoint`."""
    points = stats.selectExpr("topic", "subscription", "explode(history) AS point")
    names = [field.name for field in fields(HistoryPoint) if field.name != _PLACE_COLUMN]
    return points.selectExpr("topic", "subscription", *(f"point.{name}" for name in names))


def hole_map(stats: DataFrame) -> DataFrame:
    """Return one row per cell of time and position that has unacked entries in holes."""
    points = stats.selectExpr(
        "topic", "subscription", "places", "place_entries", "explode(history) AS point"
    )
    cells = points.selectExpr(
        "topic",
        "subscription",
        "places",
        "place_entries",
        "point.from_ms",
        "point.until_ms",
        f"posexplode(point.{_PLACE_COLUMN}) AS (place, hole_entries)",
    )
    return cells.where("hole_entries > 0").selectExpr(
        "topic",
        "subscription",
        "from_ms",
        "until_ms",
        "places[place].ledger_id AS ledger_id",
        "places[place].entry_id AS first_entry_id",
        "place_entries AS cell_entries",
        "hole_entries",
    )


def forecasts(stats: DataFrame) -> DataFrame:
    """Return one row per subscription and future time: the expected range count and its band."""
    points = stats.selectExpr("topic", "subscription", "explode(curve) AS point")
    return points.select("topic", "subscription", "point.*")


def totals(stats: DataFrame) -> DataFrame:
    """Return one row with the totals of all subscriptions."""
    return stats.selectExpr(
        "count(*) AS subscriptions",
        "coalesce(sum(records), 0) AS records",
        "coalesce(sum(record_bytes), 0) AS record_bytes",
        # Null if the number is unknown for every subscription, which is not 0.
        "if(count(*) = 0, 0L, sum(records_cut)) AS records_cut",
        "count_if(NOT has_history) AS subscriptions_without_history",
        "coalesce(sum(records_unlinked), 0) AS records_unlinked",
        "count_if(records_cut > 0) AS subscriptions_cut",
        "count_if(at_limit_expected_ms IS NOT NULL) AS subscriptions_at_limit_expected",
        "coalesce(sum(back_test_counts), 0) AS back_test_counts",
        "coalesce(sum(back_test_counts_in_band), 0) AS back_test_counts_in_band",
    )


def most_urgent(stats: DataFrame, count: int) -> DataFrame:
    """Return the `count` subscriptions that reach their limit soonest, or are closest to it."""
    at_ms = f.coalesce("at_limit_expected_ms", "at_limit_earliest_ms")
    share = f.col("ranges_in_memory_max") / f.greatest("range_limit", f.lit(1))
    order = (at_ms.asc_nulls_last(), share.desc(), "topic", "subscription")
    return stats.orderBy(*order).limit(count)


def named(stats: DataFrame, chosen: Sequence[SubscriptionFigures]) -> DataFrame:
    """Return topic and subscription of the chosen ones, as a frame to join with."""
    names = [(one.topic, one.subscription) for one in chosen]
    chosen_names = stats.sparkSession.createDataFrame(names, "topic string, subscription string")
    return f.broadcast(chosen_names)


def flat_columns() -> list[str]:
    """Return the names of the fields of `SubscriptionFigures` that are not nested."""
    return [field.name for field in fields(SubscriptionFigures) if field.name not in _NESTED]


def _rows(records: Any) -> Iterator[CursorRecordRow]:  # noqa: ANN401
    """Yield the rows of an Arrow table, converted batch by batch."""
    for batch in records.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            is_in_node = row["place"] == "node"
            yield CursorRecordRow(
                owner_epoch=row["owner_epoch"],
                version=row["version"],
                base_version=row["base_version"],
                base_snapshot_version=row["base_snapshot_version"],
                written_ms=row["written_ms"],
                mark_delete=Position(row["mark_delete_ledger_id"], row["mark_delete_entry_id"]),
                range_count=row["range_count"],
                ranges_in_memory=row["ranges_in_memory"],
                entries_dropped=row["entries_dropped"],
                record_bytes=row["record_bytes"],
                cursor_ledger_id=None if is_in_node else row["cursor_ledger_id"],
                entry_id=row["entry_id"],
                partly_acked_count=row["partly_acked_count"],
                acked={
                    one["ledger_id"]: BitMap.deserialize(one["entry_ids"])
                    for one in row["acked"] or ()
                },
                is_from_journal=row["is_from_journal"],
            )
