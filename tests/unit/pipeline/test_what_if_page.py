"""The page of what-if: what is on it, that it is bounded, and that names cannot break it."""

from __future__ import annotations

import pytest

from ackgate.pipeline.jobs.what_if.page import BARS_MAX, LINES_MAX, WhatIfReport, what_if_page
from tests.unit.pipeline.report_pages import compiled, read_page

pytest.importorskip("vl_convert")

FIGURES = {
    "variants": 2,
    "subscriptions": 1,
    "events": 1234,
    "writes_compared": 56,
    "differences": 0,
    "events_skipped": 0,
    "events_missing": 0,
}


def row(variant, *, paused=0.0, moments="recorded", **more):
    return {
        "variant": variant,
        "moments": moments,
        "paused_seconds": paused,
        "pauses": int(paused > 0),
        "writes": 7,
        "snapshots": 1,
        "bytes_written": 2048,
        "redeliveries_mean": 3.5,
        "not_durable_mean": 1.25,
        "redeliveries_max": 40,
        "entries_dropped_max": 0,
        "buckets_written": 0,
        "buckets_max": 0,
        "delayed_bytes_written": 0,
        "delayed_memory_max": 0,
        **more,
    }


def times(variant):
    return [
        {
            "variant": variant,
            "from_ms": start,
            "until_ms": start + 1000,
            "paused_seconds": 0.5,
            "redeliveries_mean": 2.0,
        }
        for start in (2000, 1000)
    ]


def data(variants, **more):
    rows = [row(name, paused=float(at)) for at, name in enumerate(variants)]
    told = {
        "source": "The delivery journal of data, replayed.",
        "figures": FIGURES,
        "variants": rows,
        "variants_left_out": 0,
        "times": [each for name in variants for each in times(name)],
        "subscriptions": [{**each, "topic": "t", "subscription": "s"} for each in rows],
        "subscriptions_left_out": 0,
    }
    return WhatIfReport(**(told | more))


def read(variants, **more):
    return read_page(what_if_page(data(variants, **more)))


def test_each_variant_is_in_the_table_with_its_number():
    page = read(["recorded", "LIMIT=10"])
    firsts = [" ".join(row[0].split()) for row in page.rows]

    assert "0 recorded (moments as recorded)" in firsts
    assert "1 LIMIT=10 (moments as recorded)" in firsts
    assert "1,234" in page.words
    assert "2.0 KiB (7)" in page.rows[1]
    assert "events skipped" not in page.words


def test_what_is_missing_in_the_recording_is_said():
    assert "events missing" in read(["recorded"], figures=FIGURES | {"events_missing": 3}).words


def test_charts_over_time_hold_the_rows_as_steps():
    page = read(["recorded", "LIMIT=10"])
    rows = page.data("Paused, by time", "times")

    assert [(row["at_ms"], row["value"]) for row in rows if row["series"] == "recorded"] == [
        (1000, 0.5),
        (2000, 0.5),
        (2000, 0.5),
        (3000, 0.5),
    ]
    assert {row["series"] for row in rows} == {"recorded", "1"}


def test_charts_side_by_side_hold_each_variant():
    page = read(["recorded", "LIMIT=10"])

    assert page.data("Paused, by settings", "variants") == [
        {"number": "0", "value": 0.0, "settings": "recorded"},
        {"number": "1", "value": 1.0, "settings": "LIMIT=10"},
    ]
    for spec in page.charts.values():
        assert compiled(spec)["marks"]


def test_charts_are_bounded_and_what_is_left_out_is_said():
    names = ["recorded", *(f"v{i}" for i in range(2 * BARS_MAX))]
    page = read(names, variants_left_out=9, subscriptions_left_out=1234)

    assert len(page.data("Written, by settings", "variants")) == BARS_MAX
    drawn = {row["series"] for row in page.data("Paused, by time", "times")}
    assert len(drawn) == LINES_MAX
    assert "and 9 variants more" in page.words
    assert "and 1,234 rows more" in page.words


def test_one_setting_has_no_bars_to_compare():
    assert not any("by settings" in title for title in read(["recorded"]).charts)


def test_without_pauses_there_is_no_chart_of_them():
    quiet = [{**each, "paused_seconds": 0.0} for each in times("recorded")]
    assert read(["recorded"], times=quiet).charts.keys() == {"Would come again at a crash, by time"}


def test_nothing_recorded_makes_a_page_too():
    assert not read([], times=[], subscriptions=[]).charts


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a\x00b"])
def test_names_cannot_break_it(name):
    page = read(["recorded", name])

    assert page.data("Paused, by settings", "variants")[1]["settings"] == name
