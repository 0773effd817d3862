"""The report: whole, harmless and bounded, whatever it is given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

from pyroaring import BitMap

from ackgate.cursor.position import Position
from ackgate.pipeline.drawing.markup import escaped
from ackgate.pipeline.jobs.ack_stats.fold import CursorRecordRow
from ackgate.pipeline.jobs.ack_stats.gate import GateInterval
from ackgate.pipeline.jobs.ack_stats.plots import bytes_plot, heat_map, hole_plot, range_plot
from ackgate.pipeline.jobs.ack_stats.report import ReportData, report_page
from ackgate.pipeline.jobs.ack_stats.stats import stats_of

START_MS = 1_800_000_000_000
EVIL = "<script>alert('&\"')</script>\x00"


def rows(count, rise=2):
    acked = BitMap()
    made = []
    for version in range(1, count + 1):
        acked |= BitMap(range(2 * rise * version, 2 * rise * (version + 1), 2))
        made.append(
            CursorRecordRow(
                owner_epoch=1,
                version=version,
                base_version=None,
                written_ms=START_MS + 60_000 * version,
                mark_delete=Position(7, -1),
                range_count=len(acked),
                ranges_in_memory=len(acked),
                entries_dropped=0,
                record_bytes=100,
                cursor_ledger_id=20,
                entry_id=version,
                acked={7: acked.copy()},
            )
        )
    return made


def stats(count=40, limit=100, topic="persistent://public/default/t", subscription="s"):
    return stats_of(topic, subscription, rows(count), limit=limit)


def page(*table, drawn=20, subscriptions=None, shut=None):
    return report_page(
        ReportData(
            source="/data",
            table=table,
            drawn=drawn,
            subscriptions=len(table) if subscriptions is None else subscriptions,
            records=1,
            record_bytes=1,
            at_limit_expected=1,
            with_cut_records=1,
            shut=shut or {},
            has_journal=bool(shut),
        )
    )


class Tags(HTMLParser):
    """Checks that every element that is opened is closed, and notes what is fetched or run."""

    VOID = frozenset({"meta", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.links += [value for name, value in attrs if name in {"href", "src", "xlink:href"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(text):
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "image"}
    assert all(link.startswith("#s") for link in tags.links)
    assert "url(" not in text
    assert "@import" not in text
    return tags


def test_a_page_needs_nothing_beside_itself():
    tags = checked(page(stats()))

    assert {"svg", "table", "style"} <= tags.seen


def test_names_are_never_markup():
    text = page(stats(topic=EVIL, subscription=EVIL))

    checked(text)
    assert "&lt;script&gt;" in text
    assert "\x00" not in text


def test_pictures_are_well_formed_and_say_what_they_show():
    one = stats()
    shut = [GateInterval(one.topic, one.subscription, START_MS, START_MS + 90_000, False, "ranges")]
    for drawn in (range_plot(one, shut), heat_map(one), hole_plot(one), bytes_plot(one)):
        svg = ET.fromstring(drawn)
        words = [element.text for element in svg.iter("text")]
        assert svg.get("aria-label") == words[0]
        assert any("time (UTC)" in word for word in words if word)
        assert "NaN" not in drawn.replace("nan", "NaN")
        assert "inf" not in drawn


def test_every_class_of_a_picture_has_a_colour():
    one = replace(stats(), records_cut=1)
    shut = {(one.topic, one.subscription): [GateInterval("", "", START_MS, START_MS, True, None)]}
    text = page(one, shut=shut)
    style, body = text.split("</style>")

    for css in set(re.findall(r'class="([\w]+)"', body)) - {"cards", "plots", "scroll"}:
        assert re.search(rf"\.{css}\b", style), css


def test_an_empty_page_says_so():
    text = page()

    checked(text)
    assert "no subscription" in text


def test_one_record_is_enough_for_a_page():
    text = page(stats(count=1))

    checked(text)
    assert "too few records" in text


def test_what_is_left_out_is_said():
    text = page(stats(), stats(), stats(), drawn=1, subscriptions=1234)

    assert text.count('<section id="s') == 1
    assert "1,231 more are in the results" in text
    assert "Pictures of 1,233 more" in text


def test_a_picture_does_not_grow_with_the_records():
    assert len(page(stats(count=3000))) < 120_000


def test_the_limit_is_drawn_where_it_can_be_seen():
    assert 'class="limit"' in range_plot(stats(limit=100), ())
    assert "far above" in range_plot(stats(limit=1_000_000), ())


def test_the_most_urgent_subscription_comes_first():
    soon, later, never = stats(limit=100), stats(limit=140), stats(limit=10**6)

    assert sorted([never, later, soon], key=lambda one: one.urgency) == [soon, later, never]


def test_escaped_text_has_no_control_characters():
    assert escaped("a\x07<b\n") == "a\N{REPLACEMENT CHARACTER}&lt;b\N{REPLACEMENT CHARACTER}"
