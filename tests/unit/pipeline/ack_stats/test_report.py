"""The report: whole, harmless and bounded, whatever it is given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from pyroaring import BitMap

from ackgate.cursor.position import Position
from ackgate.pipeline.drawing.markup import escaped
from ackgate.pipeline.jobs.ack_stats.age_plot import age_plot
from ackgate.pipeline.jobs.ack_stats.fold import CursorRecordRow
from ackgate.pipeline.jobs.ack_stats.gate import GateHistory, GateInterval
from ackgate.pipeline.jobs.ack_stats.gate_plot import gate_plot
from ackgate.pipeline.jobs.ack_stats.leavers import HoleLeavers, Leaver, OpenHole
from ackgate.pipeline.jobs.ack_stats.limits import LimitRule, LimitStep
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
    return stats_of(topic, subscription, rows(count), limits=limits_of(limit))


def limits_of(limit):
    return LimitRule(limit).limits("persistent://public/default/t")


def gate_of(one, *reasons):
    """Shut for a minute and a half, once for each reason."""
    shut = [
        GateInterval(one.topic, one.subscription, at, at + 90_000, False, reason)
        for at, reason in enumerate(reasons, START_MS)
    ]
    return GateHistory(tuple(shut), len(shut), 90_000 * len(shut), is_guessed=None in reasons)


def leavers(name, count=2):
    left = Leaver(name, True, 7, 9, 5000, 4000, 3)
    unnamed = Leaver("not due yet", False, 1, 1, None, None, None)
    holes = [
        OpenHole(7, 2 * at, 1, START_MS, 1000 * at, f"{name}{at}", name) for at in range(count)
    ]
    return HoleLeavers((left, unnamed), (left,), 2, 1234, tuple(holes))


def page(*table, drawn=20, subscriptions=None, gates=None, left=None, journal=None):
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
            gates=gates or {},
            leavers=left or {},
            journal_from_ms=journal or {},
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
    gate = gate_of(one, "ranges-live,persist-failing", "size-guard")
    drawings = (range_plot(one, gate), heat_map(one), hole_plot(one), bytes_plot(one))
    for drawn in (*drawings, gate_plot(one, gate)):
        svg = ET.fromstring(drawn)
        words = [element.text for element in svg.iter("text")]
        assert svg.get("aria-label") == words[0]
        assert any("time (UTC)" in word for word in words if word)
        assert "NaN" not in drawn.replace("nan", "NaN")
        assert "inf" not in drawn


def test_each_reason_of_a_gate_has_a_line_and_its_exact_times():
    one = stats()
    svg = ET.fromstring(gate_plot(one, gate_of(one, "ranges-live,persist-failing", "ranges-live")))

    words = [element.text for element in svg.iter("text")]
    assert [word for word in words if word and "-" in word][:2] == [
        "persist-failing",
        "ranges-live",
    ]
    bars = [element for element in svg.iter("rect") if element.get("class") == "shut-bar"]
    assert len(bars) == 3
    told = [element.text for element in svg.iter("title")]
    assert told[0] == (
        "2027-01-15 08:00:00.000 to 2027-01-15 08:01:30.000, 90.0 s: ranges-live,persist-failing"
    )


def test_a_guessed_gate_is_called_a_guess():
    one = stats()
    gates = {(one.topic, one.subscription): gate_of(one, None)}

    text = page(one, gates=gates)

    assert "is a guess" in text
    assert "over the limit" in text
    assert "gate shut" not in text


def test_all_times_of_a_gate_are_counted_drawn_or_not():
    one = stats()
    shut = GateHistory(gate_of(one, "ranges-live").intervals, count=400, total_ms=7_200_000)
    text = page(one, gates={(one.topic, one.subscription): shut}, journal={one.topic: START_MS})

    assert "shut 400 times, 2.0 h in all (ranges-live); 399 of them, older ones" in text


@pytest.mark.parametrize(
    ("journal", "words"),
    [({}, "deliveryJournalEnabled is off"), ({"persistent://public/default/t": 5}, "known since")],
)
def test_who_left_holes_is_told_and_how_that_is_known(journal, words):
    one = stats()
    text = page(one, left={(one.topic, one.subscription): leavers(EVIL)}, journal=journal)

    checked(text)
    assert text.count("<td>&lt;script&gt;") == 2, "among consumers and among keys"
    assert "<i>not due yet</i>" in text
    assert "1,234 in all" in text
    assert words in text


def test_holes_have_the_colours_of_their_consumers():
    svg = ET.fromstring(age_plot(leavers("c", count=7).holes))
    bars = [each.get("class") for each in svg.iter("rect") if each.get("height") != "10"]

    assert bars == ["box0", "box1", "box2", "box3", "box4", "box4", "box4"]
    assert [each.text for each in svg.iter("title")][1] == "7:2, 1 unacked, 1.0 s: c1, key c"
    words = [each.text for each in svg.iter("text")]
    assert "others" in words
    assert "age in seconds" in words


def test_a_limit_that_was_changed_is_drawn_as_steps():
    steps = [LimitStep(START_MS, 90), LimitStep(START_MS + 20 * 60_000, 100)]
    told = LimitRule(5).limits("persistent://public/default/t", steps)
    one = stats_of("t", "s", rows(40), limits=told)
    drawn = ET.fromstring(range_plot(one, GateHistory()))

    _, line = (each for each in drawn.iter("polyline") if each.get("class") == "limit")
    heights = [point.split(",")[1] for point in line.get("points").split(" ")]
    assert len(heights) == 4
    assert heights[0] == heights[1] != heights[2] == heights[3]
    assert "journal" in page(one)


def test_every_class_of_a_picture_has_a_colour():
    one = replace(stats(), records_cut=1)
    key = (one.topic, one.subscription)
    text = page(one, gates={key: gate_of(one, "ranges-live")}, left={key: leavers("c", count=9)})
    style, body = text.split("</style>")

    for css in set(re.findall(r'class="([\w-]+)"', body)) - {"cards", "plots", "scroll"}:
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
    assert 'class="limit"' in range_plot(stats(limit=100), GateHistory())
    assert "far above" in range_plot(stats(limit=1_000_000), GateHistory())


def test_the_most_urgent_subscription_comes_first():
    soon, later, never = stats(limit=100), stats(limit=140), stats(limit=10**6)

    assert sorted([never, later, soon], key=lambda one: one.urgency) == [soon, later, never]


def test_escaped_text_has_no_control_characters():
    assert escaped("a\x07<b\n") == "a\N{REPLACEMENT CHARACTER}&lt;b\N{REPLACEMENT CHARACTER}"
