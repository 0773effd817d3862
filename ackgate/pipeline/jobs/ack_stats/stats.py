"""What is worked out of each subscription: one flat value, whose fields are the columns of a result.

Pure. `stats_of` puts history and forecast together; `row_types` makes schemas of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.cursor.position import Position
from ackgate.pipeline.jobs.ack_stats.forecast import Forecast, forecast, sufficient_limit
from ackgate.pipeline.jobs.ack_stats.history import CursorHistory, HistoryBin, cursor_history

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.pipeline.jobs.ack_stats.fold import CursorRecordRow

TIME_BINS: Final = 120
PLACE_BINS: Final = 48


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A stretch of time in which something was written."""

    from_ms: int
    until_ms: int
    owner_epoch: int
    version: int
    mark_delete_ledger_id: int
    mark_delete_entry_id: int
    mark_delete_place: float
    """In bins of the position axis."""
    records: int
    snapshots: int
    node_records: int
    record_bytes: int
    records_cut: int
    range_count: int
    ranges_in_memory: int
    ranges_in_memory_max: int
    entries_dropped_max: int
    partly_acked: int
    holes: int | None
    hole_entries: int | None
    acked_entries: int | None
    oldest_hole_ledger_id: int | None
    oldest_hole_entry_id: int | None
    oldest_hole_since_ms: int | None
    hole_entries_by_place: list[int]
    """Empty where the state is unknown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bin of the position axis begins."""

    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A range count to come."""

    time_ms: int
    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """One subscription. Figures of the state are those of its newest record."""

    topic: str
    subscription: str
    from_ms: int
    until_ms: int
    """When its oldest and its newest record were written."""
    records: int
    records_unlinked: int
    node_records: int
    record_bytes: int
    records_cut: int
    entries_dropped_max: int
    range_limit: int
    range_count: int
    ranges_in_memory: int
    ranges_in_memory_max: int
    holes: int | None
    hole_entries: int | None
    acked_entries: int | None
    oldest_hole_ledger_id: int | None
    oldest_hole_entry_id: int | None
    oldest_hole_since_ms: int | None
    ranges_per_hour: float | None
    """Null, as all of the forecast: too few records."""
    horizon_ms: int | None
    at_limit_earliest_ms: int | None
    at_limit_expected_ms: int | None
    """Null: not within the horizon."""
    at_limit_latest_ms: int | None
    sufficient_limit_low: int
    sufficient_limit_expected: int
    sufficient_limit_high: int
    sufficient_limit_is_bound: bool
    """Only that it is at least as high."""
    back_test_counts: int | None
    back_test_counts_in_band: int | None
    back_test_error_median: float | None
    back_test_crossings: int | None
    back_test_crossings_in_band: int | None
    place_entries: int
    """Entries of each bin of the position axis."""
    places: list[Place]
    history: list[HistoryPoint]
    curve: list[CurvePoint]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SubscriptionStats:
        """From columns as Spark gives them back; those that are left out are empty lists."""
        return cls(
            **{
                **row,
                "places": [Place(**one) for one in row.get("places", ())],
                "history": [HistoryPoint(**one) for one in row.get("history", ())],
                "curve": [CurvePoint(**one) for one in row.get("curve", ())],
            }
        )

    @property
    def has_forecast(self) -> bool:
        """Whether there were enough records."""
        return self.ranges_per_hour is not None

    @property
    def urgency(self) -> tuple[float, float]:
        """Sorts the subscriptions that want looking at first to the front."""
        at_ms = self.at_limit_expected_ms or self.at_limit_earliest_ms
        share = self.ranges_in_memory_max / max(self.range_limit, 1)
        return (float("inf") if at_ms is None else float(at_ms), -share)


def stats_of(
    topic: str,
    subscription: str,
    rows: Sequence[CursorRecordRow],
    *,
    limit: int,
    horizon_ms: int | None = None,
) -> SubscriptionStats:
    """All records of one subscription, at least one."""
    rows = sorted(rows, key=lambda row: row.order)
    history = cursor_history(rows, time_bins_max=TIME_BINS, place_bins_max=PLACE_BINS)
    times = np.maximum.accumulate(np.array([row.written_ms for row in rows], np.int64))
    ranges = np.array([row.ranges_in_memory for row in rows], np.int64)
    told = forecast(times, ranges, limit=limit, horizon_ms=horizon_ms)
    enough = sufficient_limit(times, ranges, limit=limit)
    points = [_point(one, history) for one in history.bins]
    last, test = points[-1], None if told is None else told.back_test
    crossing = None if told is None else told.crossing
    return SubscriptionStats(
        topic=topic,
        subscription=subscription,
        from_ms=int(times[0]),
        until_ms=int(times[-1]),
        records=history.records,
        records_unlinked=history.records_unlinked,
        node_records=sum(point.node_records for point in points),
        record_bytes=sum(point.record_bytes for point in points),
        records_cut=sum(point.records_cut for point in points),
        entries_dropped_max=max(point.entries_dropped_max for point in points),
        range_limit=limit,
        range_count=last.range_count,
        ranges_in_memory=last.ranges_in_memory,
        ranges_in_memory_max=int(ranges.max()),
        holes=last.holes,
        hole_entries=last.hole_entries,
        acked_entries=last.acked_entries,
        oldest_hole_ledger_id=last.oldest_hole_ledger_id,
        oldest_hole_entry_id=last.oldest_hole_entry_id,
        oldest_hole_since_ms=last.oldest_hole_since_ms,
        ranges_per_hour=None if told is None else told.ranges_per_hour,
        horizon_ms=None if told is None else told.horizon_ms,
        at_limit_earliest_ms=None if crossing is None else crossing.earliest_ms,
        at_limit_expected_ms=None if crossing is None else crossing.expected_ms,
        at_limit_latest_ms=None if crossing is None else crossing.latest_ms,
        sufficient_limit_low=enough.low,
        sufficient_limit_expected=enough.expected,
        sufficient_limit_high=enough.high,
        sufficient_limit_is_bound=enough.is_bound,
        back_test_counts=None if test is None else test.counts_told,
        back_test_counts_in_band=None if test is None else test.counts_in_band,
        back_test_error_median=None if test is None else test.error_median,
        back_test_crossings=None if test is None else test.crossings_told,
        back_test_crossings_in_band=None if test is None else test.crossings_in_band,
        place_entries=history.axis.bin_entries,
        places=[Place(*history.axis.place(number)) for number in range(history.axis.bin_count)],
        history=points,
        curve=[] if told is None else _curve(told),
    )


def _point(one: HistoryBin, history: CursorHistory) -> HistoryPoint:
    state = one.state
    hole = None if state is None else state.oldest_hole
    behind = Position(one.mark_delete.ledger_id, one.mark_delete.entry_id + 1)
    return HistoryPoint(
        from_ms=one.from_ms,
        until_ms=one.until_ms,
        owner_epoch=one.owner_epoch,
        version=one.version,
        mark_delete_ledger_id=one.mark_delete.ledger_id,
        mark_delete_entry_id=one.mark_delete.entry_id,
        mark_delete_place=history.axis.bin_of(behind),
        records=one.records,
        snapshots=one.snapshots,
        node_records=one.node_records,
        record_bytes=one.record_bytes,
        records_cut=one.records_cut,
        range_count=one.range_count,
        ranges_in_memory=one.ranges_in_memory,
        ranges_in_memory_max=one.ranges_in_memory_max,
        entries_dropped_max=one.entries_dropped_max,
        partly_acked=one.partly_acked,
        holes=None if state is None else state.holes,
        hole_entries=None if state is None else state.hole_entries,
        acked_entries=None if state is None else state.acked_entries,
        oldest_hole_ledger_id=None if hole is None else hole.ledger_id,
        oldest_hole_entry_id=None if hole is None else hole.entry_id,
        oldest_hole_since_ms=None if state is None else state.oldest_hole_since_ms,
        hole_entries_by_place=[] if state is None else state.hole_entries_by_place.tolist(),
    )


def _curve(told: Forecast) -> list[CurvePoint]:
    curve = told.curve
    columns = (curve.times_ms, curve.low, curve.expected, curve.high)
    return [
        CurvePoint(round(at_ms), low, expected, high)
        for at_ms, low, expected, high in np.stack(columns, axis=1).tolist()
    ]
