"""The backoff of redeliveries: Pulsar's values, jitter, and what cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
from ackgate.errors import CallerError


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (
            MultiplierRedeliveryBackoff(1_000, 600_000),
            {-1: 1_000, 0: 1_000, 1: 2_000, 4: 16_000, 100: 600_000},
        ),
        (
            MultiplierRedeliveryBackoff(2_000, 6_000_000, 5),
            {-1: 2_000, 0: 2_000, 1: 10_000, 2: 50_000, 4: 1_250_000, 100: 6_000_000},
        ),
        (
            MultiplierRedeliveryBackoff(),
            dict(enumerate([10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000])),
        ),
        (
            MultiplierRedeliveryBackoff(100, 1_000),
            dict(enumerate([100, 200, 400, 800, 1_000, 1_000])),
        ),
        (MultiplierRedeliveryBackoff(0, 600_000), {0: 0, 1: 0, 100: 0}),
        (MultiplierRedeliveryBackoff(500, 500), {0: 500, 1: 500, 2: 500}),
        (MultiplierRedeliveryBackoff(3, 20, 1.5), {0: 3, 1: 4, 2: 6, 3: 10, 4: 15, 5: 20}),
        (MultiplierRedeliveryBackoff(1, TIME_MS_MAX), {2**40: TIME_MS_MAX, 62: 2**62}),
        (MultiplierRedeliveryBackoff(1, TIME_MS_MAX, 1e300), {1: TIME_MS_MAX, 9: TIME_MS_MAX}),
    ],
)
def test_values_of_pulsars_tests(
    backoff: MultiplierRedeliveryBackoff, delays: dict[int, int]
) -> None:
    assert {count: backoff.next(count) for count in delays} == delays
    assert backoff.next_many(list(delays)).tolist() == list(delays.values())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((-1, 5), "min_delay_ms must be 0 to .* not -1"),
        ((5, 4), "max_delay_ms must be 5 to .* not 4"),
        ((5, 2**63), "max_delay_ms must be"),
        ((1.5, 4), "min_delay_ms must be whole milliseconds, not 1.5"),
        ((1, math.nan), "max_delay_ms must be whole milliseconds, not nan"),
        ((True, 4), "min_delay_ms must be whole milliseconds, not True"),
        ((1, 4, 1), "multiplier must be above 1, not 1"),
        ((1, 4, 0.5), "multiplier must be above 1"),
        ((1, 4, math.inf), "multiplier must be a finite number, not inf"),
        ((1, 4, math.nan), "multiplier must be a finite number, not nan"),
        ((1, 4, "2"), "multiplier must be a finite number, not '2'"),
        ((1, 4, 2, 1.1), "jitter must be 0 to 1, not 1.1"),
        ((1, 4, 2, -0.1), "jitter must be 0 to 1, not -0.1"),
    ],
)
def test_what_cannot_be(arguments: tuple, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        MultiplierRedeliveryBackoff(*arguments)


def test_jitter_takes_off_a_share_by_the_chance_that_is_given() -> None:
    backoff = MultiplierRedeliveryBackoff(1_000, 8_000, jitter=0.25)
    assert [backoff.next(1, chance) for chance in (0, 0.5, 1)] == [2_000, 1_750, 1_500]
    assert backoff.next_many([1, 1, 1, 9], [0, 0.5, 1, 1]).tolist() == [2_000, 1_750, 1_500, 6_000]
    assert backoff.next_many([1]).tolist() == [2_000]
    assert MultiplierRedeliveryBackoff(1_000, 8_000).next(1, 0.9) == 2_000


@pytest.mark.parametrize("delay_ms", [1, 3, 10, 2**53 + 1, TIME_MS_MAX])
@pytest.mark.parametrize("jitter", [0.0, 0.1, 1.0])
def test_jitter_stays_between_nothing_and_the_delay(delay_ms: int, jitter: float) -> None:
    backoff = MultiplierRedeliveryBackoff(delay_ms, delay_ms, jitter=jitter)
    for chance in (0, 0.3, 1):
        assert 0 <= backoff.next(0, chance) <= delay_ms
        assert 0 <= backoff.next_many([0], [chance])[0] <= delay_ms


@pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan, math.inf])
def test_no_chance(chance: float) -> None:
    backoff = MultiplierRedeliveryBackoff(jitter=0.5)
    with pytest.raises(CallerError, match="chance must be"):
        backoff.next(0, chance)
    with pytest.raises(CallerError, match="chance must be"):
        backoff.next_many([0, 1], [0.5, chance])


def test_counts_that_are_none() -> None:
    backoff = MultiplierRedeliveryBackoff(jitter=0.5)
    with pytest.raises(CallerError, match=r"not 1\.5"):
        backoff.next(1.5)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="array of integers"):
        backoff.next_many([0.5])
    with pytest.raises(CallerError, match="2 counts do not pair with 1 chances"):
        backoff.next_many([1, 2], [0.5])
    assert backoff.next_many(np.empty(0, np.int64)).tolist() == []
