"""Ticks and texts of plots."""

from __future__ import annotations

import pytest

from ackgate.pipeline.drawing.axes import (
    Scale,
    bytes_text,
    count_axis,
    count_text,
    count_ticks,
    named_axis,
    short_text,
    span_text,
    time_axis,
    time_text,
    time_ticks,
)

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (0, [0, 1]),
        (1, [0, 1]),
        (3, [0, 1, 2, 3]),
        (10, [0, 2, 4, 6, 8, 10]),
        (11, [0, 5, 10, 15]),
        (10_000, [0, 2000, 4000, 6000, 8000, 10_000]),
    ],
)
def test_counts_have_whole_round_ticks(top, ticks):
    assert count_ticks(top) == ticks


@pytest.mark.parametrize("span", [1, 7, 999, 60_000, 3_600_000, 40 * DAY_MS, 5000 * DAY_MS])
def test_times_have_a_few_ticks_within_the_span(span):
    from_ms = 1_800_000_123_457
    ticks = time_ticks(from_ms, from_ms + span)

    assert len(ticks) <= 7
    assert all(from_ms <= at <= from_ms + span for at, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_ticks_of_hours_are_hours():
    assert time_ticks(0, 6 * 3_600_000)[2] == (2 * 3_600_000, "02:00")


def test_a_scale_of_one_value_is_no_division_by_zero():
    assert Scale(5, 5, 10, 20)(5) == 10
    assert Scale(0, 10, 100, 0)(2.5) == 75


def test_a_time_of_a_damaged_clock_has_a_text():
    assert time_text(-1) == "1970-01-01 00:00:00"
    assert time_text(2**62).startswith("9999-12-31")


def test_numbers_are_written_for_people():
    assert [count_text(v) for v in (1234567, 0.5, 12.34)] == ["1,234,567", "0.5", "12.3"]
    assert [short_text(v) for v in (2000, 12_000, 3.5e6)] == ["2000", "12k", "3.5M"]
    assert [bytes_text(v) for v in (12, 2048, 3 << 20)] == ["12 B", "2.0 KiB", "3.0 MiB"]
    assert [span_text(v) for v in (1500, 180_000, 7_200_000)] == ["1.5 s", "3.0 min", "2.0 h"]


def test_an_axis_of_names_has_each_in_the_middle_of_its_place():
    axis = named_axis("setting", ["a", "b"])

    assert (axis.first, axis.last) == (0, 2)
    assert axis.ticks == [(0.5, "a"), (1.5, "b")]


def test_an_axis_of_counts_ends_at_a_round_number():
    assert count_axis("ms", 11).last == 15


def test_an_axis_of_one_moment_has_a_width():
    axis = time_axis(5, 5)

    assert (axis.first, axis.last) == (5, 6)
    assert axis.title == "time (UTC), 1970-01-01"
