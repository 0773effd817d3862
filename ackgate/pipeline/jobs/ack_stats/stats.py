"""The figures of each subscription: one value, whose fields are the columns of a result.

Pure. `stats_of` combines history and forecast; `row_types` derives the schemas from the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.cursor import Position
from ackgate.pipeline.jobs.ack_stats.forecast import RangeForecast, forecast, sufficient_limit
from ackgate.pipeline.jobs.ack_stats.history import (
    CursorHistory,
    CursorRecordRow,
    HistoryBin,
    OpenHoles,
    cursor_history,
)
from ackgate.pipeline.jobs.ack_stats.limits import OverLimit, over_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.pipeline.jobs.ack_stats.limits import RangeLimits

TIME_BINS: Final = 120
"""Most time bins of a history."""
PLACE_BINS: Final = 48
"""Most bins of a position axis."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One time bin in which records were written, from `from_ms` to `until_ms` (exclusive)."""

    from_ms: int
    until_ms: int
    owner_epoch: int
    version: int
    mark_delete_ledger_id: int
    mark_delete_entry_id: int
    mark_delete_place: float
    """Place just after the mark-delete on the position axis, in bins."""
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
    """Unacked entries in holes, by bin of the position axis; empty if the state is unknown."""


@dataclass(frozen=True, slots=True)
class AxisPlace:
    """The position at which a bin of the position axis begins."""

    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class LimitFrom:
    """A range limit that applies from `from_ms` on."""

    from_ms: int
    limit: int


@dataclass(frozen=True, slots=True)
class HoleSince:
    """A hole of the newest state, and when an entry after it was first seen acked in a record."""

    ledger_id: int
    first_entry_id: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A forecast range count with its band."""

    time_ms: int
    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    """The figures of one subscription. Those of its ack state come from the newest record."""

    topic: str
    subscription: str
    from_ms: int
    until_ms: int
    """`from_ms` and `until_ms`: when its oldest and its newest record were written."""
    records: int
    """Known writes, from stored records or from the journal."""
    journal_records: int
    """Writes whose records are gone from storage and are known from the journal only."""
    has_history: bool
    """False: only one record is known. A closed cursor keeps no more."""
    records_unlinked: int
    node_records: int
    record_bytes: int
    records_cut: int | None
    entries_dropped_max: int | None
    """Most entries that a record left out. Like `records_cut`, null if 0 without a history."""
    range_limit: int
    """The limit that applies at the end."""
    range_limit_source: str
    """option, journal, config or default."""
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
    """Slope of the forecast. With too few records it is null, like all forecast fields."""
    horizon_ms: int | None
    at_limit_earliest_ms: int | None
    at_limit_expected_ms: int | None
    """`at_limit_*_ms` are null if the limit is not reached within the horizon."""
    at_limit_latest_ms: int | None
    sufficient_limit_low: int | None
    sufficient_limit_expected: int | None
    sufficient_limit_high: int | None
    sufficient_limit_is_bound: bool | None
    """True: the sufficient limit is only known to be at least this high."""
    back_test_counts: int | None
    back_test_counts_in_band: int | None
    back_test_error_median: float | None
    back_test_crossings: int | None
    back_test_crossings_in_band: int | None
    place_entries: int
    """Width of a bin of the position axis, in entries."""
    places: list[AxisPlace]
    history: list[HistoryPoint]
    curve: list[CurvePoint]
    limits: list[LimitFrom]
    over_limit: list[OverLimit]
    open_holes: list[HoleSince]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SubscriptionFigures:
        """Convert a row from Spark. Nested columns that the row lacks become empty lists."""
        return cls(
            **{
                **row,
                "places": [AxisPlace(**one) for one in row.get("places", ())],
                "history": [HistoryPoint(**one) for one in row.get("history", ())],
                "curve": [CurvePoint(**one) for one in row.get("curve", ())],
                "limits": [LimitFrom(**one) for one in row.get("limits", ())],
                "over_limit": [OverLimit(**one) for one in row.get("over_limit", ())],
                "open_holes": [HoleSince(**one) for one in row.get("open_holes", ())],
            }
        )

    @property
    def has_forecast(self) -> bool:
        """Whether there were enough records for a forecast."""
        return self.ranges_per_hour is not None


_OF_BIN: Final = tuple(
    each.name
    for each in fields(HistoryPoint)
    if each.name in {of_bin.name for of_bin in fields(HistoryBin)}
)
"""The fields that a `HistoryPoint` copies from its `HistoryBin`."""

_SUMS: Final = ("node_records", "record_bytes")
_OF_NEWEST: Final = (
    *("range_count", "ranges_in_memory", "holes", "hole_entries", "acked_entries"),
    *("oldest_hole_ledger_id", "oldest_hole_entry_id", "oldest_hole_since_ms"),
)
"""History fields that `SubscriptionFigures` sums (`_SUMS`) or copies from the newest point."""


def stats_of(
    topic: str,
    subscription: str,
    rows: Sequence[CursorRecordRow],
    *,
    limits: RangeLimits,
    horizon_ms: int | None = None,
) -> SubscriptionFigures:
    """Compute the figures of one subscription from all its records, at least one, in any order."""
    rows = sorted(rows, key=lambda row: row.order)
    history = cursor_history(rows, time_bins_max=TIME_BINS, place_bins_max=PLACE_BINS)
    times = np.maximum.accumulate(np.array([row.written_ms for row in rows], np.int64))
    ranges = np.array([row.ranges_in_memory for row in rows], np.int64)
    limits_then = limits.at(times)
    expected = forecast(times, ranges, limit=limits.newest, horizon_ms=horizon_ms)
    has_history = len(rows) > 1
    enough = sufficient_limit(times, ranges, limit=limits_then) if has_history else None
    cut = sum(row.is_cut for row in rows)
    dropped = max(row.entries_dropped for row in rows)
    points = [_point(one, history) for one in history.bins]
    test = None if expected is None else expected.back_test
    crossing = None if expected is None else expected.crossing
    return SubscriptionFigures(
        topic=topic,
        subscription=subscription,
        from_ms=int(times[0]),
        until_ms=int(times[-1]),
        records=history.records,
        journal_records=sum(row.is_from_journal for row in rows),
        has_history=has_history,
        records_cut=cut if has_history or cut else None,
        entries_dropped_max=dropped if has_history or dropped else None,
        ranges_in_memory_max=int(ranges.max()),
        records_unlinked=history.records_unlinked,
        **{name: sum(getattr(point, name) for point in points) for name in _SUMS},
        **{name: getattr(points[-1], name) for name in _OF_NEWEST},
        range_limit=limits.newest,
        range_limit_source=limits.source,
        ranges_per_hour=None if expected is None else expected.ranges_per_hour,
        horizon_ms=None if expected is None else expected.horizon_ms,
        at_limit_earliest_ms=None if crossing is None else crossing.earliest_ms,
        at_limit_expected_ms=None if crossing is None else crossing.expected_ms,
        at_limit_latest_ms=None if crossing is None else crossing.latest_ms,
        sufficient_limit_low=None if enough is None else enough.low,
        sufficient_limit_expected=None if enough is None else enough.expected,
        sufficient_limit_high=None if enough is None else enough.high,
        sufficient_limit_is_bound=None if enough is None else enough.is_bound,
        back_test_counts=None if test is None else test.counts_tested,
        back_test_counts_in_band=None if test is None else test.counts_in_band,
        back_test_error_median=None if test is None else test.error_median,
        back_test_crossings=None if test is None else test.crossings_tested,
        back_test_crossings_in_band=None if test is None else test.crossings_in_band,
        place_entries=history.axis.bin_entries,
        places=[AxisPlace(*history.axis.place(number)) for number in range(history.axis.bin_count)],
        history=points,
        curve=[] if expected is None else _curve(expected),
        limits=[LimitFrom(*step) for step in limits.steps],
        over_limit=over_limit(times, ranges, limits_then),
        open_holes=_open_holes(history.open_holes),
    )


def _point(one: HistoryBin, history: CursorHistory) -> HistoryPoint:
    state = one.state
    hole = None if state is None else state.oldest_hole
    behind = Position(one.mark_delete.ledger_id, one.mark_delete.entry_id + 1)
    return HistoryPoint(
        **{name: getattr(one, name) for name in _OF_BIN},
        mark_delete_ledger_id=one.mark_delete.ledger_id,
        mark_delete_entry_id=one.mark_delete.entry_id,
        mark_delete_place=history.axis.bin_of(behind),
        holes=None if state is None else state.holes,
        hole_entries=None if state is None else state.hole_entries,
        acked_entries=None if state is None else state.acked_entries,
        oldest_hole_ledger_id=None if hole is None else hole.ledger_id,
        oldest_hole_entry_id=None if hole is None else hole.entry_id,
        oldest_hole_since_ms=None if state is None else state.oldest_hole_since_ms,
        hole_entries_by_place=[] if state is None else state.hole_entries_by_place.tolist(),
    )


def _open_holes(known: OpenHoles | None) -> list[HoleSince]:
    if known is None:
        return []
    columns = (known.holes.ledger_ids, known.holes.starts, known.since_ms)
    return [HoleSince(*row) for row in np.stack(columns, axis=1).tolist()]


def _curve(expected: RangeForecast) -> list[CurvePoint]:
    curve = expected.curve
    columns = (curve.times_ms, curve.low, curve.expected, curve.high)
    return [
        CurvePoint(round(at_ms), low, expected, high)
        for at_ms, low, expected, high in np.stack(columns, axis=1).tolist()
    ]
