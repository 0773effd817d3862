"""The audit's page, of what the job would give it."""

import pytest

from ackgate.pipeline.jobs.audit.page import AuditReport, audit_page
from tests.unit.pipeline.report_pages import compiled, read_page

pytest.importorskip("vl_convert")

COUNTS = (
    *("expected", "acked", "outstanding", "unknown", "lost", "deliveries", "duplicates"),
    *("findings", "out_of_order", "acks_late", "acks_pending", "acks_never_persisted"),
    *("nack_or_timeout", "consumer_closed", "restart", "ack_not_persisted", "outcome_dropped"),
    *("reset", "unrecorded", "ack_lost", "unexplained", "receipts_early"),
)
WAITS = ("to_dispatch", "to_ack", "to_durable")


def subscription(name="s", topic="t", **columns):
    known = dict.fromkeys(COUNTS, 0) | {"verdict": "fine", "topic": topic, "subscription": name}
    known |= {f"{wait}_us_{share}": None for wait in WAITS for share in ("p50", "p99")}
    return known | columns


def page(table, *, subscriptions=None, deliveries=(), waits=()):
    totals = dict.fromkeys(COUNTS, 0) | {"subscriptions": subscriptions or len(table)}
    return read_page(audit_page(AuditReport("some/data", totals, table, deliveries, waits)))


def test_a_row_says_what_was_wrong_and_why_it_came_again():
    read = page(
        [
            subscription(
                verdict="broken",
                lost=2,
                restart=3,
                ack_lost=1,
                to_dispatch_us_p50=250,
                to_dispatch_us_p99=12_345,
                to_ack_us_p99=2_500_000,
            )
        ]
    )
    assert "broken" in read.alarms
    [_, row] = read.rows
    assert "(3 restart, 1 ack lost)" in row
    assert "250 µs (12.3 ms)" in row
    assert "- (2.5 s)" in row


def test_nothing_wrong_alarms_nobody():
    assert not page([subscription()]).alarms


def test_names_cannot_change_the_page():
    read = page([subscription("<script>alert(1)</script>", '"><img src=x>')])
    assert read.rows[1][0] == '<script>alert(1)</script> ("><img src=x>)'


def test_what_is_left_out_is_said():
    assert "41 more are in the results, not here." in page([subscription()], subscriptions=42).words
    assert "more are in" not in page([subscription()]).words


def test_bars_are_laid_upon_each_other():
    read = page(
        [subscription()],
        deliveries=[
            (0.0, 1000.0, "asked", 4),
            (0.0, 1000.0, "first", 6),
            (2000.0, 3000.0, "breach", 1),
        ],
    )
    bars = read.data("Deliveries", "deliveries")
    assert [(bar["series"], bar["low"], bar["high"]) for bar in bars] == [
        ("first", 0, 6),
        ("asked for, or consumer gone", 6, 10),
        ("must not be", 0, 1),
    ]
    assert compiled(read.charts["Deliveries"])["marks"]


def test_lines_reach_the_whole():
    waits = [("to_ack", 20, 3), ("to_ack", 24, 1), ("to_durable", 0, 5)]
    read = page([subscription()], waits=waits)
    chart = "Shares that waited no longer"
    lines = {}
    for row in read.data(chart, "waits"):
        lines.setdefault(row["series"], []).append((row["us"], row["share"]))

    assert lines.keys() == {"dispatch to ack", "ack to durable"}
    assert [share for _, share in lines["dispatch to ack"]] == [0, 0.75, 1]
    assert lines["dispatch to ack"][0][0] == 1024
    assert {line[-1] for line in lines.values()} == {(2**12.5, 1)}
    assert compiled(read.charts[chart])["marks"]


def test_no_charts_of_nothing():
    assert not page([subscription()]).charts
