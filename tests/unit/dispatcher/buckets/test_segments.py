"""Columns, segments, groups, and the rows of a set of positions."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from pyroaring import BitMap

from ackgate.cursor import PositionSet, SnapshotSegment
from ackgate.dispatcher.buckets import BucketSettings, Draft, in_order, metadata_of
from ackgate.dispatcher.buckets.segments import (
    add_rows,
    cut,
    groups_of,
    is_in_order,
    joined,
    members_of,
    picked,
    row_of,
    rows_in,
    span_of,
    take_rows,
    without_repeats,
)
from ackgate.dispatcher.held import TIME_MS_MAX

ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 40), st.integers(TIME_MS_MAX - 5, TIME_MS_MAX)),
        st.one_of(st.integers(0, 3), st.integers(0, TIME_MS_MAX)),
        st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    ),
    max_size=80,
)
"""Some of them too wide to be sorted as one number."""


def columns_of(rows: list[tuple[int, int, int]]) -> SnapshotSegment:
    return SnapshotSegment(*np.array(rows, np.int64).reshape(-1, 3).T)


def rows_of(columns: SnapshotSegment) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def spread(keys: range, step: int = 1) -> SnapshotSegment:
    return columns_of([(key, 1, key) for key in range(keys.start, keys.stop, step)])


@given(ROWS)
def test_sorting_is_by_key_then_by_position(rows: list[tuple[int, int, int]]) -> None:
    columns = in_order(*columns_of(rows))
    assert rows_of(columns) == sorted(rows)
    assert is_in_order(columns)
    assert is_in_order(columns_of(rows)) == (rows == sorted(rows))
    assert rows_of(without_repeats(columns)) == sorted(set(rows))
    for row in rows:
        assert row_of(columns, row) == sorted(rows).index(row)


@given(ROWS, ROWS)
def test_joining_is_sorting_all_of_them(
    one: list[tuple[int, int, int]], two: list[tuple[int, int, int]]
) -> None:
    parts = [in_order(*columns_of(one)), in_order(*columns_of(two))]
    assert rows_of(joined(parts)) == sorted(one + two)


def test_a_segment_spans_no_more_than_its_time_step() -> None:
    """100..109 | 110..119 | 120"""
    columns = spread(range(100, 121))
    assert cut(columns, span_ms=10, entries_max=-1) == [0, 10, 20, 21]
    # The step begins with the segment's first entry, wherever that is.
    assert cut(columns_of([(105, 1, 0), (114, 1, 1), (115, 1, 2)]), span_ms=10, entries_max=-1) == [
        *[0, 2, 3]
    ]


def test_a_segment_has_no_more_entries_than_allowed() -> None:
    columns = spread(range(100, 121))
    assert cut(columns, span_ms=10, entries_max=4) == [0, 4, 8, 12, 16, 20, 21]
    assert cut(columns, span_ms=1_000, entries_max=-1) == [0, 21]


def test_the_last_times_there_are_make_a_segment_like_others() -> None:
    columns = columns_of([(TIME_MS_MAX - 1, 1, 0), (TIME_MS_MAX, 1, 1), (TIME_MS_MAX, 1, 2)])
    assert cut(columns, span_ms=10, entries_max=-1) == [0, 3]


@given(ROWS, st.integers(1, 20), st.sampled_from([-1, 1, 3]))
def test_metadata_describes_its_segment(
    rows: list[tuple[int, int, int]], span_ms: int, entries_max: int
) -> None:
    columns = without_repeats(in_order(*columns_of(rows)))
    bounds = cut(columns, span_ms=span_ms, entries_max=entries_max)
    metadata = metadata_of(columns, bounds)
    segments = [picked(columns, slice(start, stop)) for start, stop in pairwise(bounds)]
    assert [row for segment in segments for row in rows_of(segment)] == rows_of(columns)
    for segment, about in zip(segments, metadata, strict=True):
        own = rows_of(segment)
        assert (about.first_key_ms, about.last_key_ms) == (own[0][0], own[-1][0])
        assert about.entry_count == len(own)
        assert about.last_key_ms - about.first_key_ms < span_ms
        named = [(ledger, entry) for ledger, ids in about.positions.items() for entry in ids]
        assert sorted(named) == sorted({row[1:] for row in own})


@pytest.mark.parametrize("draft_entries", [1, 7, 30, 1_000])
def test_a_snapshot_described_in_pieces_is_the_same(draft_entries: int) -> None:
    rng = np.random.default_rng(5)
    columns = in_order(*rng.integers(0, 100, (3, 200)))
    settings = BucketSettings(
        segment_span_ms=9, segment_entries_max=25, load_entries_min=30, draft_entries=draft_entries
    )
    draft = Draft(columns, settings)
    calls = 1
    while not draft.go_on():
        calls += 1
    plan = draft.plan(7)
    assert calls <= max(len(plan.segments), 1)
    assert (calls == 1) == (draft_entries > 200)
    bounds = cut(columns, span_ms=9, entries_max=25)
    assert plan.metadata == metadata_of(columns, bounds)
    assert [row for segment in plan.segments for row in rows_of(segment)] == rows_of(columns)
    assert draft.groups.bounds[-1] == len(plan.segments)
    assert (plan.plan, plan.first, plan.last) == (7, *span_of(columns))


def test_bitmaps_of_metadata_are_run_optimised() -> None:
    """apache/pulsar#20136: they are not by themselves."""
    columns = columns_of([(5, 1, entry_id) for entry_id in range(5_000)])
    (about,) = metadata_of(columns, [0, 5_000])
    assert about.positions[1].get_statistics()["n_run_containers"] == 1
    for ids in ([1, 3, 5, 10, 16, 18, 999, 0], range(100)):
        bitmap = BitMap(ids)
        assert BitMap.deserialize(bitmap.serialize()) == bitmap
        bitmap.run_optimize()
        assert BitMap.deserialize(bitmap.serialize()) == bitmap


@given(st.lists(st.integers(1, 9)), st.integers(1, 12))
def test_groups_are_neighbours_with_enough_entries(counts: list[int], entries_min: int) -> None:
    keys = [10 * number for number in range(len(counts))]
    groups = groups_of(keys, counts, entries_min=entries_min)
    bounds = groups.bounds.tolist()
    assert (bounds[0], bounds[-1]) == (0, len(counts))
    assert groups.first_keys_ms.tolist() == [keys[start] for start in bounds[:-1]]
    sums = [sum(counts[a:b]) for a, b in pairwise(bounds)]
    assert groups.entry_counts.tolist() == sums
    assert all(total >= entries_min for total in sums[:-1])
    for start, stop in pairwise(bounds):
        assert sum(counts[start : stop - 1]) < entries_min, "one fewer would have done"


@pytest.mark.parametrize("size", [1, 40, 200])
def test_rows_against_a_set_of_positions(size: int) -> None:
    rng = np.random.default_rng(size)
    rows = [(0, int(rng.integers(3)), int(rng.integers(300))) for _ in range(size)]
    columns = columns_of(rows)
    held = {row[1:] for row in rows[::2]}
    positions = PositionSet()
    add_rows(positions, columns_of(rows[::2]))
    assert positions.entry_count == len(held)
    assert rows_in(positions, columns).tolist() == [row[1:] in held for row in rows]
    taken = take_rows(positions, columns)
    assert positions.entry_count == 0
    # A position that comes twice is taken once.
    taken_rows = [row[1:] for row, is_taken in zip(rows, taken.tolist(), strict=True) if is_taken]
    assert sorted(taken_rows) == sorted(held)


def test_members_are_told_by_place() -> None:
    ids = np.arange(100)[::-1].copy()
    assert np.flatnonzero(members_of(BitMap([3, 98]), ids)).tolist() == [1, 96]
