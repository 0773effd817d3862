"""Cursors on simulated disks: whatever a crash leaves, no promised ack is lost and none is invented."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash_consistency.cursor_run import CursorRun
from tests.crash_consistency.explorer import Explorer


@pytest.mark.slow
def test_every_state_of_a_short_run() -> None:
    explorer = Explorer(CursorRun(1, 1), 1, states_per_moment=128, crash_again=0.05)
    explorer.explore(steps=14)
    assert explorer.seen["verified"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("bookie_count", [1, 3])
def test_many_states_of_longer_runs(bookie_count: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        run = CursorRun(seed, bookie_count)
        share = 0.08 / bookie_count**2
        explorer = Explorer(run, seed, states_per_moment=12, share=share, crash_again=0.25)
        explorer.explore(steps=40)
        seen += explorer.seen + run.seen
    for event in (
        "kill",
        "power loss",
        "crashed again",
        "receipts",
        "fallback",
        "take_over",
        "reset",
        "restart",
        "checkpoint",
    ):
        assert seen[event], event
