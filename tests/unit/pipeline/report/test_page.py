"""Pages: nothing that comes from outside is markup or code, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib

import pytest

from ackgate.pipeline.report.charts import chart, layer, line, name, number, series, time
from ackgate.pipeline.report.page import (
    Cell,
    Head,
    cards,
    charts,
    escaped,
    heading,
    page,
    paragraph,
    section,
    table,
)
from tests.unit.pipeline.report_pages import compiled, read_page

pytest.importorskip("vl_convert")

EVIL = "</script><img src=x onerror=alert(1)>\"'&\u2028<!--<script>"


def evil_chart(title=EVIL):
    rows = [{"at_ms": 5, "value": 1.5, "series": EVIL}, {"at_ms": 6, "value": None, "series": "b"}]
    lines = layer(
        "rows", line(), x=time("at_ms"), y=number("value", EVIL), color=series([EVIL, "b"])
    )
    return chart(title, {"rows": rows}, [lines], subtitle=EVIL)


def test_no_text_is_markup():
    parts = (
        cards([(EVIL, EVIL)]),
        heading(EVIL),
        paragraph(EVIL, EVIL),
        table([Head(EVIL, EVIL)], [[Cell(EVIL, EVIL, EVIL, is_alarm=True, anchor="s" + EVIL)]]),
        charts([evil_chart()]),
    )
    read = read_page(page(EVIL, EVIL, [section(*parts, anchor=EVIL)]))

    assert read.charts.keys() == {EVIL}
    assert read.data(EVIL, "rows")[0]["series"] == EVIL
    assert read.words.count("</script><img") >= 7


def test_only_the_scripts_of_the_page_may_run():
    """Each is named by its hash, as a browser works it out; data is no script."""
    read = read_page(page("t", "s", [charts([evil_chart()])]))
    hashes = [
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in read.code
    ]

    assert len(hashes) == 3
    assert read.policy.split("; ")[1] == "script-src " + " ".join(f"'sha256-{h}'" for h in hashes)


def test_a_page_without_charts_carries_no_library_for_them():
    text = page("t", "s", [table([Head("a")], [[Cell("1")]])])

    assert len(text) < 10_000
    assert len(read_page(text).code) == 1, "that which sorts tables"


def test_a_page_with_charts_is_below_a_megabyte():
    assert len(page("t", "s", [charts([evil_chart()])])) < 1_000_000


def test_a_cell_is_sorted_by_what_it_stands_for():
    rows = [[Cell("1.2 KiB", "7", 1234)], [Cell("2 B", order=2.5)], [Cell("unknown", order="")]]
    read = read_page(page("t", "s", [table([Head("written", "records")], rows)]))

    assert read.rows == [["written (records)"], ["1.2 KiB (7)"], ["2 B "], ["unknown "]]
    assert read.orders[1:] == [["1234"], ["2.5"], [""]]
    assert 'class="sortable' in read.text


def test_numbers_that_json_lacks_are_left_out():
    rows = [{"at_ms": 1, "value": float("nan")}, {"at_ms": 2, "value": float("inf")}]
    spec = chart("c", {"rows": rows}, [layer("rows", line(), x=time("at_ms"), y=number("value"))])
    read = read_page(page("t", "s", [charts([spec])]))

    assert [row["value"] for row in read.data("c", "rows")] == [None, None]


def test_the_library_understands_each_piece():
    spec = chart(
        "c",
        {"a": [{"at_ms": 1, "n": 2, "who": EVIL}]},
        [
            layer("a", line("#123456", dash=(2, 2)), x=time("at_ms"), y=number("n", top=4)),
            layer("a", line(), x=time("at_ms"), y=number("n"), color=series([EVIL], field="who")),
        ],
        has_two_scales=True,
    )
    bars = chart("b", {"a": []}, [layer("a", line(), x=name("who"), y=number("n"))], has_zoom=False)

    assert compiled(spec)["data"]
    assert compiled(bars)["data"]


def test_escaped_text_has_no_control_characters():
    assert escaped("a\x07<b\n") == "a\N{REPLACEMENT CHARACTER}&lt;b\N{REPLACEMENT CHARACTER}"
