"""Numbers, times and names as people read them."""

from __future__ import annotations

from ackgate.pipeline.report.text import (
    bytes_text,
    calendar_ms,
    count_text,
    largest_unit,
    moment_text,
    shortened,
    span_text,
    time_text,
    us_text,
)


def test_a_time_of_a_damaged_clock_has_a_text():
    assert time_text(-1) == "1970-01-01 00:00:00"
    assert time_text(2**62).startswith("9999-12-31")
    assert calendar_ms(-5) == 0


def test_numbers_are_written_for_people():
    assert [count_text(v) for v in (1234567, 0.5, 12.34)] == ["1,234,567", "0.5", "12.3"]
    assert [bytes_text(v) for v in (12, 2048, 3 << 20)] == ["12 B", "2.0 KiB", "3.0 MiB"]
    assert [span_text(v) for v in (1500, 180_000, 7_200_000)] == ["1.5 s", "3.0 min", "2.0 h"]
    assert [us_text(v) for v in (None, 250, 12_345, 2_500_000)] == [
        "-",
        "250 µs",
        "12.3 ms",
        "2.5 s",
    ]


def test_a_unit_is_the_largest_of_which_there_are_two():
    assert largest_unit(0) == ("seconds", 1000)
    assert largest_unit(7_200_000) == ("hours", 3_600_000)


def test_a_long_name_keeps_its_ends():
    assert shortened("billing") == "billing"
    assert shortened("0123456789", 5) == "01\N{HORIZONTAL ELLIPSIS}89"
    assert len(shortened("x" * 100)) == 24


def test_a_moment_has_milliseconds():
    assert moment_text(1_800_000_000_007) == "2027-01-15 08:00:00.007"
