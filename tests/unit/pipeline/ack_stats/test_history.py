"""The history of one cursor: what is known of it after each stretch of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.persistence.records.recovery import RecordFold
from ackgate.pipeline.jobs.ack_stats.history import (
    CursorRecordRow,
    PositionAxis,
    cursor_history,
    holes_of,
    time_edges,
)


def record(version: int, base: int | None = None, **changes: Any) -> CursorRecordRow:
    row = CursorRecordRow(
        owner_epoch=1,
        version=version,
        base_version=base,
        written_ms=version * 100,
        mark_delete=Position(7, -1),
        range_count=1,
        ranges_in_memory=1,
        entries_dropped=0,
        record_bytes=50,
        cursor_ledger_id=20,
        entry_id=version,
    )
    return replace(row, **changes)


def test_holes_lie_between_the_mark_delete_and_the_last_ack_of_each_ledger():
    holes = holes_of(Position(7, 2), {7: BitMap([5, 6, 8]), 8: BitMap([2, 3]), 9: BitMap([0, 1])})

    assert holes.ledger_ids.tolist() == [7, 7, 8]
    assert holes.starts.tolist() == [3, 7, 0]
    assert holes.stops.tolist() == [5, 8, 2]
    assert (holes.count, holes.entries) == (3, 5)


def test_positions_of_several_ledgers_are_one_axis():
    axis = PositionAxis.over({7: (40, 100), 9: (0, 50), 10: (3, 3), 12: (0, 90)}, 4)

    assert (axis.entry_count, axis.bin_entries, axis.bin_count) == (200, 50, 4)
    assert [axis.place(number) for number in range(4)] == [(7, 40), (7, 90), (9, 40), (12, 40)]
    holes = holes_of(Position(7, 79), {7: BitMap([95]), 12: BitMap([45])})
    assert axis.unacked_by_bin(holes).tolist() == [10, 5, 40, 5]


def test_a_row_stands_for_its_record():
    fold = RecordFold()
    first = record(1, acked={7: BitMap([2, 5])})
    fold.apply(first.record)
    fold.apply(
        record(2, 1, acked={7: BitMap([0]), 8: BitMap([1])}, mark_delete=Position(7, 2)).record
    )
    assert fold.acked == {7: BitMap([5]), 8: BitMap([1])}
    assert first.acked == {7: BitMap([2, 5])}

    fold.apply(record(3, 2, mark_delete=Position(8, -1)).record)
    assert fold.acked == {8: BitMap([1])}
    fold.apply(record(4, acked={7: BitMap([9])}).record)
    assert fold.acked == {7: BitMap([9])}


def test_behind_a_lost_record_the_state_is_unknown_until_the_next_snapshot():
    rows = [
        record(4, base_snapshot_version=1, base=3),
        record(6, base=5, base_snapshot_version=1),
        record(7, base=6, base_snapshot_version=1),
        record(8, base_snapshot_version=1),
    ]

    history = cursor_history(rows)

    assert [one.state is None for one in history.bins] == [True, True, True, False]
    assert history.records_unlinked == 2


def test_a_delta_without_its_base_makes_the_state_unknown_until_the_next_snapshot():
    rows = [record(5, 4, range_count=3), record(6, 5), record(7), record(8, 7)]

    history = cursor_history(rows)

    assert [one.state is None for one in history.bins] == [True, True, False, False]
    assert [one.range_count for one in history.bins] == [3, 1, 1, 1]
    assert history.records_unlinked == 2


def test_another_owner_of_the_same_version_is_another_state():
    history = cursor_history([record(5), record(6, 5, owner_epoch=2)])

    assert history.records_unlinked == 1


def test_a_node_that_holds_less_than_the_ledger_does_not_hide_its_state():
    whole = record(5, acked={7: BitMap([1, 3, 5])})
    node = replace(whole, cursor_ledger_id=None, entry_id=None, acked={7: BitMap([1])})

    [only] = cursor_history([node, whole]).bins

    assert only.state is not None
    assert (only.state.holes, only.state.acked_entries) == (3, 3)
    assert (only.records, only.node_records) == (2, 1)


def test_bytes_drops_and_peaks_are_those_of_all_records_of_a_bin():
    rows = [
        record(1, ranges_in_memory=4),
        record(2, range_count=3, ranges_in_memory=9, entries_dropped=7, record_bytes=10),
        record(3, 2, ranges_in_memory=2),
    ]
    [only] = cursor_history(rows, time_bins_max=1).bins

    assert (only.records, only.snapshots, only.records_cut) == (3, 2, 3)
    assert (only.record_bytes, only.entries_dropped_max) == (110, 7)
    assert (only.ranges_in_memory, only.ranges_in_memory_max) == (2, 9)


def test_a_hole_is_as_old_as_the_first_ack_behind_it():
    rows = [
        record(1, acked={7: BitMap([4])}, mark_delete=Position(7, 1)),
        record(2, 1, acked={7: BitMap([9])}, mark_delete=Position(7, 4)),
        record(3, 2, acked={7: BitMap([7])}, mark_delete=Position(7, 4)),
    ]
    states = [one.state for one in cursor_history(rows).bins]

    assert [(s.oldest_hole, s.oldest_hole_since_ms) for s in states if s is not None] == [
        (Position(7, 2), 100),
        (Position(7, 5), 200),
        (Position(7, 5), 200),
    ]


def test_what_a_reset_has_forgotten_makes_no_hole_old():
    rows = [
        record(1, acked={7: BitMap([90])}),
        record(2),
        record(3, 2, acked={7: BitMap([4])}),
    ]
    last = cursor_history(rows).bins[-1].state

    assert last is not None
    assert last.oldest_hole_since_ms == 300


def test_a_clock_that_goes_back_does_not_turn_the_history_round():
    rows = [record(1, written_ms=500), record(2, 1, written_ms=100, range_count=8)]

    [only] = cursor_history(rows).bins

    assert (only.from_ms, only.until_ms, only.range_count) == (500, 501, 8)


def test_no_records_no_bins():
    history = cursor_history([])

    assert (history.bins, history.axis.bin_count) == ((), 0)


def test_bins_are_bounded_whatever_the_number_of_records():
    rows = [record(1)] + [record(v, v - 1, acked={7: BitMap([2 * v])}) for v in range(2, 3000)]

    history = cursor_history(rows, time_bins_max=50, place_bins_max=20)

    assert len(history.bins) == 50
    assert sum(one.records for one in history.bins) == 2999
    assert {len(one.state.hole_entries_by_place) for one in history.bins if one.state} == {20}
    assert history.bins[-1].state is not None
    assert history.bins[-1].state.holes == 2998


def test_time_edges_begin_and_end_where_they_are_told_to():
    assert time_edges(10, 11, 5).tolist() == [10, 11]
    edges = time_edges(10, 1_000_010, 7)
    assert (edges[0], edges[-1], len(edges)) == (10, 1_000_010, 8)
    assert np.all(np.diff(edges) > 0)
