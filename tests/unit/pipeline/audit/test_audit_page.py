"""The audit's page, of what the job would give it."""

import re

from ackgate.pipeline.jobs.audit.page import PageData, audit_page

COUNTS = (
    *("expected", "acked", "outstanding", "unknown", "lost", "deliveries", "duplicates"),
    *("findings", "out_of_order", "acks_late", "acks_pending", "acks_never_persisted"),
    *("nack_or_timeout", "consumer_closed", "restart", "ack_not_persisted", "outcome_dropped"),
    *("reset", "ack_lost", "unexplained", "receipts_early"),
)
WAITS = ("to_dispatch", "to_ack", "to_durable")


def subscription(name="s", topic="t", **columns):
    known = dict.fromkeys(COUNTS, 0) | {"verdict": "fine", "topic": topic, "subscription": name}
    known |= {f"{wait}_us_{share}": None for wait in WAITS for share in ("p50", "p99")}
    return known | columns


def page(table, *, subscriptions=None, deliveries=(), waits=()):
    totals = dict.fromkeys(COUNTS, 0) | {"subscriptions": subscriptions or len(table)}
    return audit_page(PageData("some/data", totals, table, deliveries, waits))


def test_a_row_says_what_was_wrong_and_why_it_came_again():
    text = page(
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
    assert '<span class="alarm">broken</span>' in text
    assert "3 restart, 1 ack lost" in text
    assert "250 µs" in text
    assert "12.3 ms" in text
    assert "2.5 s" in text


def test_nothing_wrong_alarms_nobody():
    assert 'class="alarm"' not in page([subscription()])


def test_names_cannot_change_the_page_and_nothing_is_fetched():
    text = page([subscription("<script>alert(1)</script>", '"><img src=x>')])
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?(http|//)", text)


def test_what_is_left_out_is_said():
    assert "41 more are in the results, not here." in page([subscription()], subscriptions=42)
    assert "more are in" not in page([subscription()])


def test_bars_are_laid_upon_each_other():
    text = page(
        [subscription()],
        deliveries=[
            (0.0, 1000.0, "first", 6),
            (0.0, 1000.0, "asked", 4),
            (2000.0, 3000.0, "breach", 1),
        ],
    )
    bars = re.findall(
        r'<rect class="(box\d)" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', text
    )
    drawn = {css: (float(y), float(height)) for css, _, y, height in bars if float(height) != 10}
    first, asked = drawn["box0"], drawn["box1"]
    assert asked[0] + asked[1] == first[0]  # one stands where the other ends
    assert round(first[1] / asked[1], 1) == 1.5


def test_lines_reach_the_whole():
    waits = [("to_ack", 20, 3), ("to_ack", 24, 1), ("to_durable", 0, 5)]
    text = page([subscription()], waits=waits)
    lines = re.findall(r'<polyline class="(line\d)" points="([^"]+)"/>', text)
    ends = {
        css: points.split()[-1].split(",")[1] for css, points in lines if len(points.split()) > 2
    }
    assert set(ends) == {"line1", "line2"}
    assert len(set(ends.values())) == 1
    assert "publish to dispatch" not in text
    assert "1 ms" in text


def test_no_pictures_of_nothing():
    assert "<svg" not in page([subscription()])
