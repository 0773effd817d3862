"""Backoff: pure, so time is just a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackgate.persistence.system.backoff import backoff_seconds


@given(st.integers(1, 10**6), st.integers(0, 2**32))
def test_backoff_doubles_within_bounds_and_repeats(attempt: int, seed: int) -> None:
    delay = backoff_seconds(attempt, first=0.1, longest=30, seed=seed)
    full = min(30.0, 0.1 * 2 ** min(attempt - 1, 20))
    assert full / 2 <= delay <= full
    assert delay == backoff_seconds(attempt, first=0.1, longest=30, seed=seed)


def test_cursors_that_failed_together_come_back_apart() -> None:
    delays = {backoff_seconds(9, first=0.1, longest=30, seed=seed) for seed in range(100)}
    assert len(delays) > 90
