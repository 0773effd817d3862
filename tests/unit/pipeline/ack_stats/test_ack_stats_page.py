"""The page of ack-stats: what its charts and tables hold, whatever it is given."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.pipeline.jobs.ack_stats.charts import (
    EXPECTED,
    IN_MEMORY,
    LIMIT,
    OTHERS,
    PERSISTED,
    age_chart,
    gate_chart,
    history_charts,
    range_chart,
)
from ackgate.pipeline.jobs.ack_stats.history import CursorRecordRow
from ackgate.pipeline.jobs.ack_stats.leavers import HoleLeavers, Leaver, OpenHole
from ackgate.pipeline.jobs.ack_stats.limits import GateHistory, GateInterval, LimitRule, LimitStep
from ackgate.pipeline.jobs.ack_stats.page import AckStatsReport, ack_stats_page
from ackgate.pipeline.jobs.ack_stats.stats import stats_of
from tests.unit.pipeline.report_pages import compiled, read_page

pytest.importorskip("vl_convert")

START_MS = 1_800_000_000_000
EVIL = "<script>alert('&\"')</script>"
RANGES, GATE, MAP, BYTES, HOLES = (
    "Ranges against the limit",
    "Gate shut, by reason",
    "Holes by position and time",
    "Bytes written, and outcomes",
    "Holes",
)
AGES = "Holes of today: age, and given to"


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
    return read_page(
        ack_stats_page(
            AckStatsReport(
                source="/data",
                table=table,
                drawn=drawn,
                subscriptions=len(table) if subscriptions is None else subscriptions,
                records=1,
                record_bytes=1,
                at_limit_expected=1,
                with_cut_records=1,
                without_history=0,
                gates=gates or {},
                leavers=left or {},
                journal_from_ms=journal or {},
            )
        )
    )


def by_series(chart, data="counts"):
    found = {}
    for row in chart["datasets"][data]:
        found.setdefault(row["series"], []).append((row["at_ms"], row["ranges"]))
    return found


def test_a_page_has_a_table_and_the_charts_of_each_subscription():
    one = stats()
    read = page(one, gates={(one.topic, one.subscription): gate_of(one, "ranges-live")})

    assert read.charts.keys() == {RANGES, MAP, HOLES, BYTES, GATE}
    assert read.anchors == ["s0"]
    assert read.links == ["#s0"]
    assert read.rows[1][0] == "s (persistent://public/default/t)"


def test_names_are_data():
    one = stats(topic=EVIL, subscription=EVIL)
    read = page(one, left={(EVIL, EVIL): leavers(EVIL)})

    assert read.rows[1][0] == f"{EVIL} ({EVIL})"
    assert read.data(AGES, "holes")[1]["key"] == EVIL


def test_the_library_understands_every_chart():
    one = stats()
    gate = gate_of(one, "ranges-live,persist-failing", "size-guard")
    for spec in (*history_charts(one, gate), age_chart(leavers("c").holes)):
        assert compiled(spec)["marks"]


def test_ranges_are_those_of_the_history():
    one = stats()
    found = by_series(range_chart(one, GateHistory()))

    assert found[IN_MEMORY] == [(point.until_ms, point.ranges_in_memory) for point in one.history]
    assert found[PERSISTED] == [(point.until_ms, point.range_count) for point in one.history]
    assert found[EXPECTED] == [(point.time_ms, point.expected) for point in one.curve]
    assert [ranges for _, ranges in found[LIMIT]] == [100, 100]


def test_holes_and_bytes_are_those_of_the_history():
    one = stats()
    specs = {spec["title"]["text"]: spec["datasets"] for spec in history_charts(one, GateHistory())}

    assert [row["holes"] for row in specs[HOLES]["holes"]] == [point.holes for point in one.history]
    assert sum(row["bytes"] for row in specs[BYTES]["writes"]) == one.record_bytes
    assert {row["series"] for row in specs[BYTES]["writes"]} == {"complete"}
    last_ms = one.until_ms
    drawn = {row["place"] for row in specs[MAP]["cells"] if row["until_ms"] == last_ms}
    holes = one.history[-1].hole_entries_by_place
    assert drawn == {place for place, entries in enumerate(holes) if entries}


def test_each_reason_of_a_gate_has_a_line_and_its_exact_times():
    one = stats()
    spec = gate_chart(one, gate_of(one, "ranges-live,persist-failing", "ranges-live"))
    rows = spec["datasets"]["shut"]

    assert [row["reason"] for row in rows] == ["ranges-live", "persist-failing", "ranges-live"]
    assert (rows[0]["from_ms"], rows[0]["until_ms"]) == (START_MS, START_MS + 90_000)
    assert rows[0]["from_text"] == "2027-01-15 08:00:00.000"
    assert rows[0]["until_text"] == "2027-01-15 08:01:30.000"
    assert (rows[0]["span"], rows[0]["reasons"]) == ("90.0 s", "ranges-live,persist-failing")


def test_a_guessed_gate_is_called_a_guess():
    one = stats()
    read = page(one, gates={(one.topic, one.subscription): gate_of(one, None)})

    assert "is a guess" in read.words
    assert "red: over the limit" in read.charts[RANGES]["title"]["subtitle"]
    assert "More ranges than the limit (guessed)" in read.charts
    assert "gate shut" not in read.text.split("<script>")[0]


def test_a_pause_of_a_journal_without_a_reason_is_no_guess():
    one = stats()
    gate = replace(gate_of(one, None), is_guessed=False)
    assert [row["reasons"] for row in gate_chart(one, gate)["datasets"]["shut"]] == ["not known"]
    assert [row["reasons"] for row in gate_chart(one, gate_of(one, None))["datasets"]["shut"]] == [
        "guessed"
    ]
    read = page(one, gates={(one.topic, one.subscription): gate})
    assert "guessed" not in json.dumps(read.charts[RANGES]["datasets"])


def test_all_times_of_a_gate_are_counted_drawn_or_not():
    one = stats()
    shut = GateHistory(gate_of(one, "ranges-live").intervals, count=400, total_ms=7_200_000)
    read = page(one, gates={(one.topic, one.subscription): shut}, journal={one.topic: START_MS})

    assert "shut 400 times, 2.0 h in all (ranges-live); 399 of them, older ones" in read.words


@pytest.mark.parametrize(
    ("journal", "words"),
    [({}, "deliveryJournalEnabled is off"), ({"persistent://public/default/t": 5}, "since 1970")],
)
def test_who_left_holes_is_said_and_how_that_is_known(journal, words):
    one = stats()
    read = page(one, left={(one.topic, one.subscription): leavers("c")}, journal=journal)

    firsts = [row[0] for row in read.rows]
    assert firsts.count("c ") == 2, "among consumers and among keys"
    assert "<i>not due yet</i>" in read.text
    assert "key (1,234 in all)" in firsts
    assert words in read.words


def test_holes_have_the_colours_of_their_consumers():
    spec = age_chart(leavers("c", count=7).holes)
    rows = spec["datasets"]["holes"]

    assert [row["series"] for row in rows] == ["c0", "c1", "c2", "c3", OTHERS, OTHERS, OTHERS]
    assert [row["age"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert (rows[1]["position"], rows[1]["consumer"], rows[1]["key"]) == ("7:2", "c1", "c")
    assert spec["layer"][0]["encoding"]["y"]["title"] == "age in seconds"


def test_a_limit_that_was_changed_is_drawn_as_steps():
    steps = [LimitStep(START_MS, 90), LimitStep(START_MS + 20 * 60_000, 100)]
    limits = LimitRule(5).limits("persistent://public/default/t", steps)
    one = stats_of("t", "s", rows(40), limits=limits)

    drawn = by_series(range_chart(one, GateHistory()))[LIMIT]

    assert [ranges for _, ranges in drawn] == [90, 90, 100, 100]
    assert drawn[1][0] == drawn[2][0] == START_MS + 20 * 60_000
    assert "100 (journal)" in page(one).rows[1]


def test_an_empty_page_says_so():
    assert "no subscription" in page().words


def test_one_record_is_enough_for_a_page():
    read = page(stats(count=1))

    assert "no history" in read.words
    assert "deliveryJournalEnabled" in read.words
    assert not read.charts, "no empty charts"
    assert "too few records" in page(stats(count=3)).words


def test_what_is_left_out_is_said():
    read = page(stats(), stats(), stats(), drawn=1, subscriptions=1234)

    assert read.anchors == ["s0"]
    assert "1,231 more are in the results" in read.words
    assert "charts of 1,233 more" in read.words


def test_a_page_does_not_grow_with_the_records():
    long, short = (len(page(stats(count=count)).text) for count in (3000, 1))

    assert long - short < 1_000_000, "with the library"
    assert len(str(history_charts(stats(count=3000), GateHistory()))) < 200_000


def test_the_limit_is_drawn_where_it_can_be_seen():
    near, far = (range_chart(stats(limit=limit), GateHistory()) for limit in (100, 1_000_000))

    assert LIMIT in by_series(near)
    assert LIMIT not in by_series(far)
    assert "limit 1,000,000: far above" in far["title"]["subtitle"]
