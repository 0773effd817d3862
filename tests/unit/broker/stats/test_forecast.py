from __future__ import annotations

import pytest

from ackgate.broker.stats.ack_state import FORECAST_SECONDS_MAX, seconds_until_used_up


def test_a_headroom_that_shrinks_steadily_is_used_up_in_time() -> None:
    samples = [(second * 1000, 1000.0 - 10 * second) for second in range(11)]
    assert seconds_until_used_up(samples) == pytest.approx(90.0)


def test_what_is_used_up_already_is_so_now() -> None:
    assert seconds_until_used_up([(0, 0.0)]) == 0.0
    assert seconds_until_used_up([(0, 50.0), (5000, -3.0)]) == 0.0


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [(0, 100.0)],
        [(0, 100.0), (1000, 50.0)],  # not watched for long enough
        [(0, 100.0), (10_000, 100.0)],
        [(0, 100.0), (10_000, 150.0)],
        [(5000, 100.0), (5000, 90.0)],
        [(0, 1_000_000.0), (60_000, 999_999.9)],  # more than a day
    ],
)
def test_no_answer_where_the_rate_allows_none(samples: list[tuple[int, float]]) -> None:
    assert seconds_until_used_up(samples) is None


def test_one_burst_does_not_turn_the_answer_round() -> None:
    samples = [(second * 1000, 1000.0 - 10 * second) for second in range(20)]
    samples[10] = (10_000, 1000.0)
    answer = seconds_until_used_up(samples)
    assert answer is not None
    assert 60 < answer < 120


def test_the_answer_is_finite_and_bounded() -> None:
    answer = seconds_until_used_up([(0, 100.0), (10_000, 99.9)])
    assert answer is not None
    assert 0 < answer <= FORECAST_SECONDS_MAX
