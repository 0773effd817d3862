"""Which limit held, and what a gate that is only guessed at did."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from ackgate.errors import ConfigurationError
from ackgate.pipeline.jobs.ack_stats.limits import (
    GUESSES_MAX,
    LimitRule,
    LimitStep,
    limit_rule,
    over_limit,
)

TOPIC = "persistent://shop/eu/orders"
TOLD = (LimitStep(10, 500), LimitStep(20, 500), LimitStep(30, 700))


def test_what_is_asked_for_goes_before_all_else():
    rule = limit_rule(["40", "shop/eu=50", f"{TOPIC}=60"], 10_000, is_default=True)

    assert [
        (rule.limits(topic, TOLD).newest, rule.limits(topic).source)
        for topic in (TOPIC, "persistent://shop/eu/bills", "persistent://shop/us/orders")
    ] == [(60, "option"), (50, "option"), (40, "option")]


def test_the_journal_goes_before_a_file_for_the_topics_that_it_speaks_of():
    rule = limit_rule(["shop/us=50"], 10_000, is_default=False)

    told = rule.limits(TOPIC, TOLD)
    assert (told.newest, told.source) == (700, "journal")
    assert told.steps == (LimitStep(10, 500), LimitStep(30, 700))
    assert (rule.limits(TOPIC).newest, rule.limits(TOPIC).source) == (10_000, "config")
    assert limit_rule([], 3, is_default=True).limits(TOPIC).source == "default"


def test_the_oldest_limit_known_holds_before_its_time():
    limits = LimitRule(1).limits(TOPIC, TOLD)

    assert limits.at(np.array([0, 10, 29, 30, 99])).tolist() == [500, 500, 500, 700, 700]


def test_a_clock_that_goes_back_does_not_mix_up_the_steps():
    limits = LimitRule(1).limits(TOPIC, [LimitStep(50, 1), LimitStep(40, 2), LimitStep(60, 3)])

    assert limits.at(np.array([49, 50, 60])).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "word", ["-1", "x", "", "a/b=", "a/b=-3", "orders=5", "=7", "1_0", "\u0663"]
)
def test_a_limit_that_makes_no_sense_is_refused(word):
    with pytest.raises(ConfigurationError, match="--limit"):
        limit_rule([word], 1, is_default=True)


def test_a_gate_is_guessed_to_be_shut_above_the_limit_not_at_it():
    times = np.array([10, 20, 30, 40, 50, 60])
    ranges = np.array([5, 10, 11, 12, 10, 13])

    assert [
        (one.from_ms, one.until_ms, one.is_open_ended)
        for one in over_limit(times, ranges, np.full(6, 10))
    ] == [(30, 50, False), (60, 60, True)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_guesses_are_what_a_walk_finds(points):
    times = np.arange(len(points)) * 10
    ranges, limits = (np.array(column) for column in zip(*points, strict=True))
    walked, since = [], None
    for at, (count, limit) in zip(times.tolist(), points, strict=True):
        if count > limit and since is None:
            since = at
        elif count <= limit and since is not None:
            walked.append((since, at, False))
            since = None
    if since is not None:
        walked.append((since, times[-1], True))

    found = over_limit(times, ranges, limits)
    assert [(one.from_ms, one.until_ms, one.is_open_ended) for one in found] == walked


def test_guesses_are_bounded_and_the_newest():
    times = np.arange(4 * GUESSES_MAX)
    found = over_limit(times, times % 2, np.zeros_like(times))

    assert len(found) == GUESSES_MAX
    assert found[-1].from_ms == times[-1]
