"""The page of what-if: what is on it, that it is bounded, and that names cannot break it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from ackgate.pipeline.jobs.what_if.report import (
    BARS_MAX,
    LINES_MAX,
    ReportData,
    what_if_page,
)

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
    return ReportData(**(told | more))


class Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []

    def handle_data(self, data):
        self.words.append(data)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def parsed(page):
    parser = Text()
    parser.feed(page)
    return parser


def test_each_variant_is_in_the_table_with_its_number():
    text = " ".join(parsed(what_if_page(data(["recorded", "LIMIT=10"]))).words)
    assert "0 recorded" in " ".join(text.split())
    assert "1 LIMIT=10" in " ".join(text.split())
    assert "1,234" in text
    assert "2.0 KiB" in text
    assert "events skipped" not in text


def test_what_is_missing_in_the_recording_is_told():
    figures = FIGURES | {"events_missing": 3}
    assert "events missing" in what_if_page(data(["recorded"], figures=figures))


def test_pictures_are_bounded_and_what_is_left_out_is_said():
    names = ["recorded", *(f"v{i}" for i in range(2 * BARS_MAX))]
    page = what_if_page(data(names, variants_left_out=9, subscriptions_left_out=1234))
    assert page.count('class="box0"') == BARS_MAX
    assert page.count("<polyline") <= 2 * 2 * LINES_MAX
    assert "and 9 variants more" in page
    assert "and 1,234 rows more" in page


def test_one_setting_has_no_bars_to_compare():
    page = what_if_page(data(["recorded"]))
    assert "by settings" not in page


def test_without_pauses_there_is_no_picture_of_them():
    quiet = [{**each, "paused_seconds": 0.0} for each in times("recorded")]
    page = what_if_page(data(["recorded"], times=quiet))
    assert "Paused, by time" not in page
    assert "Would come again at a crash, by time" in page


def test_nothing_recorded_makes_a_page_too():
    nothing = data([], times=[], subscriptions=[])
    assert "<svg" not in what_if_page(nothing)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a\x00b"])
def test_names_cannot_break_it(name):
    parser = parsed(what_if_page(data(["recorded", name])))
    assert "script" not in parser.tags
    assert "img" not in parser.tags
