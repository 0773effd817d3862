"""All subscriptions at a glance: how bad each is, why, and one page of many."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ackgate.broker.stats import (
    EntryState,
    Hole,
    Order,
    OverviewAnswer,
    OverviewQuery,
    OverviewRow,
    Severity,
    judged,
    page_of_rows,
    why,
)
from ackgate.broker.stats.overview import (
    SNAPSHOT_MS_MAX,
    SNAPSHOT_MS_MIN,
    SNAPSHOT_SHARE,
    WAIT_MS_MAX,
    Overview,
    counted_severities,
)
from ackgate.broker.stats.sampler import TREND_POINTS_MAX, TREND_SPACING_MS_MAX, RangesTrend
from ackgate.commands.stats.look import ASCII, Look
from ackgate.commands.stats.view import render_overview
from ackgate.cursor import Position
from ackgate.dispatcher import PauseReason

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000

CALM: dict[str, Any] = {
    "topic": "persistent://public/default/orders",
    "subscription": "billing",
    "severity": Severity.FINE,
    "type": "Shared",
    "is_gate_enabled": True,
    "gate_reasons": {},
    "shut_since_ms": None,
    "shuts_in_seconds": None,
    "ranges": 0,
    "ranges_max": 10_000,
    "backlog": 0,
    "undelivered": 0,
    "unacked_messages": 0,
    "comes_again": 0,
    "is_on_fallback": False,
    "failing_since_ms": None,
    "last_failure": None,
    "read_failure": None,
    "delayed": 0,
    "nacks": 0,
    "next_due_ms": None,
    "consumers": 1,
    "consumers_with_room": 1,
    "is_blocked_on_unacked": False,
    "last_sent_ms": NOW_MS - 1_000,
    "last_acked_ms": NOW_MS - 1_000,
}
LONG_AGO = {"last_sent_ms": NOW_MS - 14 * MINUTE_MS, "last_acked_ms": NOW_MS - 14 * MINUTE_MS}


def row(**changes: Any) -> OverviewRow:
    return judged(OverviewRow(**{**CALM, **changes}), NOW_MS)


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({}, Severity.FINE, ""),
        ({"backlog": 5, "undelivered": 5}, Severity.FINE, ""),
        (
            {
                "gate_reasons": {PauseReason.RANGES_LIVE: NOW_MS - 14 * MINUTE_MS},
                "shut_since_ms": NOW_MS - 14 * MINUTE_MS,
                "ranges": 10_001,
                "backlog": 10_001,
            },
            Severity.STUCK,
            "dispatch is paused for 14 min: 10,001 ack ranges of 10,000",
        ),
        (
            {"failing_since_ms": NOW_MS - 5 * MINUTE_MS, "last_failure": "disk full"},
            Severity.STUCK,
            "acks cannot be persisted for 5 min: disk full",
        ),
        ({"read_failure": "ledger 7 is gone"}, Severity.STUCK, "cannot be read: ledger 7 is gone"),
        (
            {"backlog": 9, "undelivered": 9, "consumers_with_room": 0, **LONG_AGO},
            Severity.STUCK,
            "no consumer has room for more; 9 entries wait",
        ),
        (
            {"backlog": 9, "undelivered": 9, "consumers_with_room": 0},
            Severity.FINE,
            "no consumer has",
        ),
        ({"comes_again": 1}, Severity.AT_RISK, "1 acked entry would come again after a crash"),
        ({"is_on_fallback": True}, Severity.AT_RISK, "goes to the metadata store"),
        ({"shuts_in_seconds": 180.0}, Severity.AT_RISK, "the gate shuts in 3 min"),
        ({"shuts_in_seconds": 80_000.0}, Severity.FINE, "the gate shuts in 22 h"),
        ({"ranges": 8_000}, Severity.AT_RISK, "8,000 ack ranges, and 10,000 are the most"),
        (
            {"backlog": 3, "undelivered": 3, "consumers": 0},
            Severity.WAITING,
            "no consumer; 3 entries wait",
        ),
        (
            {"backlog": 3, "unacked_messages": 3, **LONG_AGO},
            Severity.WAITING,
            "3 messages sent and not acked yet, no ack for 14 min",
        ),
        (
            {"backlog": 3, "delayed": 2, "next_due_ms": NOW_MS + 5 * MINUTE_MS},
            Severity.FINE,
            "2 of 3 entries delayed, the next in 5 min",
        ),
        (
            {"backlog": 3, "nacks": 1, "next_due_ms": NOW_MS - 1},
            Severity.FINE,
            "1 negatively acked entry waits, the next is due",
        ),
    ],
)
def test_how_bad_and_why(changes: dict[str, Any], severity: Severity, words: str) -> None:
    seen = row(**changes)
    assert seen.severity is severity
    text = "; ".join(why(seen, None, NOW_MS))
    assert words in text
    assert bool(words) == bool(text)


def test_every_reason_of_the_gate_has_a_sentence() -> None:
    for reason in PauseReason:
        shut = row(gate_reasons={reason: NOW_MS}, shut_since_ms=NOW_MS, ranges=7)
        [sentence, *_] = why(shut, None, NOW_MS)
        assert sentence.startswith("dispatch is paused for 0.0 s: ")


def test_the_oldest_hole_has_a_holder() -> None:
    hole = Hole(Position(1, 5), 1, EntryState.HELD, "c1", NOW_MS - 14 * MINUTE_MS)
    seen = row(ranges=3, backlog=3)
    assert "oldest hole 1:5 held by consumer c1 for 14 min" in why(seen, hole, NOW_MS)
    for state in EntryState:
        assert why(seen, replace(hole, state=state), NOW_MS)[0].startswith("oldest hole 1:5 ")


def test_what_makes_it_a_risk_comes_before_the_oldest_hole() -> None:
    hole = Hole(Position(1, 5), 1, EntryState.HELD, "c1", NOW_MS)
    seen = row(shuts_in_seconds=8.1, ranges=165, ranges_max=200, backlog=10)
    assert [sentence.partition(" ")[0] for sentence in why(seen, hole, NOW_MS)] == ["the", "oldest"]
    shut = row(gate_reasons={PauseReason.RANGES_LIVE: NOW_MS}, comes_again=3, backlog=10)
    assert [sentence.partition(" ")[0] for sentence in why(shut, hole, NOW_MS)] == [
        "dispatch",
        "oldest",
        "3",
    ]


def test_of_files_only_what_is_stored_is_judged() -> None:
    unknown = dict.fromkeys(
        ("backlog", "undelivered", "unacked_messages", "consumers", "consumers_with_room",
         "last_sent_ms", "last_acked_ms", "delayed", "nacks", "ranges_max")
    )  # fmt: skip
    assert row(**unknown).severity is Severity.FINE
    assert row(**unknown, comes_again=3).severity is Severity.AT_RISK


def test_pages_are_those_of_a_sorted_list() -> None:
    chance = random.Random(16)
    rows = [
        row(
            topic=f"persistent://public/default/t{chance.randrange(30)}",
            subscription=f"s{number}",
            ranges=chance.randrange(12_000),
            backlog=chance.randrange(5),
            unacked_messages=chance.randrange(9),
            comes_again=chance.choice([0, 0, 0, 4]),
            consumers=chance.randrange(3),
            shuts_in_seconds=chance.choice([None, 5.0, 90_000.0]),
        )
        for number in range(300)
    ]
    rows.sort(key=lambda r: (r.topic, r.subscription))
    measure = {
        Order.RANGES: lambda r: -r.ranges,
        Order.BACKLOG: lambda r: -r.backlog,
        Order.UNACKED: lambda r: -r.unacked_messages,
        Order.AGAIN: lambda r: -r.comes_again,
        Order.CONSUMERS: lambda r: -r.consumers,
        Order.TOPIC: lambda r: r.topic,
        Order.SUBSCRIPTION: lambda r: r.subscription,
        Order.WORST: lambda r: list(Severity).index(r.severity),
    }
    for order in Order:
        for is_reversed in (False, True):
            pages = []
            for offset in range(0, 350, 50):
                query = OverviewQuery(order=order, is_reversed=is_reversed, offset=offset)
                found = page_of_rows(rows, query)
                assert found.matching == 300
                pages += found.rows
            assert {r.subscription for r in pages} == {r.subscription for r in rows}
            assert len(pages) == 300
            if order in measure:
                keys = [measure[order](r) for r in pages]
                assert keys == sorted(keys, reverse=is_reversed)
    found = page_of_rows(
        rows,
        OverviewQuery(text="DEFAULT/T7", severities=frozenset({Severity.AT_RISK}), rows_max=200),
    )
    assert {r.subscription for r in found.rows} == {
        r.subscription for r in rows if "default/t7" in r.topic and r.severity is Severity.AT_RISK
    }
    counted = counted_severities(rows)
    assert list(counted) == [severity.value for severity in Severity]
    assert sum(counted.values()) == 300


class SlowTopics:
    """No topics, which take `took_ms` to look at."""

    def __init__(self, took_ms: int) -> None:
        self.took_ms = took_ms
        self.now_ms = NOW_MS

    def __iter__(self) -> Iterator[Any]:
        self.now_ms += self.took_ms
        return iter(())


def ages_ms(took_ms: int, *pauses_ms: int) -> list[int]:
    """How old each answer was when it was asked for, after these pauses.

    Negative: it was taken for it.
    """
    topics = SlowTopics(took_ms)
    sampler: Any = None
    overview = Overview(topics, sampler, lambda: topics.now_ms)

    async def asked() -> list[int]:
        ages = []
        for pause_ms in (0, *pauses_ms):
            topics.now_ms += pause_ms
            asked_ms = topics.now_ms
            answer = await overview.page(OverviewQuery(), "here")
            ages.append(asked_ms - answer.taken_ms)
            for _ in range(3):
                await asyncio.sleep(0)
        overview.forget()
        return ages[1:]

    return asyncio.run(asked())


def test_nobody_waits_for_a_snapshot_that_takes_long() -> None:
    took_ms = WAIT_MS_MAX + 1
    good_ms = took_ms * SNAPSHOT_SHARE
    old_ms = good_ms + SNAPSHOT_MS_MAX
    assert ages_ms(took_ms, good_ms - 1, 1) == [good_ms - 1, good_ms]
    assert ages_ms(took_ms, good_ms, 1) == [good_ms, 1]  # the one that was taken meanwhile
    assert ages_ms(took_ms, old_ms - 1) == [old_ms - 1]
    assert ages_ms(took_ms, old_ms) == [-took_ms]


def test_a_snapshot_that_is_cheap_is_taken_when_it_is_wanted() -> None:
    assert ages_ms(1, SNAPSHOT_MS_MIN - 1, 1) == [SNAPSHOT_MS_MIN - 1, -1]
    assert ages_ms(WAIT_MS_MAX, WAIT_MS_MAX * SNAPSHOT_SHARE) == [-WAIT_MS_MAX]


def test_a_trend_is_bounded_and_reaches_back_an_hour() -> None:
    trend = RangesTrend()
    for second in range(0, 3 * 3600, 10):
        trend.note(NOW_MS + second * 1000, second)
        assert len(trend.points) <= TREND_POINTS_MAX
    times = [at for at, _ in trend.points]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 30 * MINUTE_MS
    assert times[-1] > NOW_MS + 3 * 3600 * 1000 - 2 * TREND_SPACING_MS_MAX
    assert all(at == NOW_MS + value * 1000 for at, value in trend.points)


def test_a_trend_that_stands_still_has_two_points() -> None:
    trend = RangesTrend()
    for second in range(600):
        trend.note(NOW_MS + second * 1000, 5)
    assert trend.points == ((NOW_MS, 5), (NOW_MS + 599_000, 5))


def test_for_a_terminal_and_no_name_moves_its_cursor() -> None:
    shut = row(
        subscription="a\x1b[2Jb",
        gate_reasons={PauseReason.RANGES_LIVE: NOW_MS},
        shut_since_ms=NOW_MS - 3_000,
        ranges=12,
        ranges_max=10,
        backlog=1_234,
        unacked_messages=7,
        comes_again=2,
        delayed=1,
        nacks=1,
    )
    told = replace(shut, why=("a\x1bsentence",), ranges_history=((0, 0), (30_000, 6), (60_000, 12)))
    answer = OverviewAnswer(
        "http://broker", True, NOW_MS, 9, 5, counted_severities([told]), 2, (told,)
    )
    assert render_overview(answer, Look(glyphs=ASCII)).splitlines() == [
        "9 subscriptions: 1 stuck  loaded by http://broker",
        (
            "stuck    a\\x1b[2Jb  public/default/orders  ranges 12/10          =======#  gate shut for 3.0 s"
            "  backlog 1,234  unacked 7  again 2  delayed 1  nacks 1"
        ),
        "         a\\x1bsentence",
        "3 to 3 of 5: --offset, --rows",
    ]
