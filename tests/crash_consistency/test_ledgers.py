"""Ledgers on simulated disks: every state that a crash may leave is one that can be gone on from."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash_consistency.explorer import Explorer
from tests.crash_consistency.ledger_run import LedgerRun


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_every_state_of_a_short_run(seed: int) -> None:
    explorer = Explorer(LedgerRun(seed, 1), seed, states_per_moment=128, crash_again=0.05)
    explorer.explore(steps=14)
    assert explorer.seen["verified"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("bookie_count", [1, 3, 4])
def test_many_states_of_longer_runs(bookie_count: int) -> None:
    seen: Counter[str] = Counter()
    for seed in (5, 6, 7):
        run = LedgerRun(seed, bookie_count)
        share = 0.1 / bookie_count**2
        explorer = Explorer(run, seed, states_per_moment=12, share=share, crash_again=0.25)
        explorer.explore(steps=40)
        seen += explorer.seen + run.seen
    # A run that meets nothing proves nothing.
    for event in (
        "kill",
        "power loss",
        "crashed again",
        "confirmed",
        "checkpoint",
        "close_ledger",
        "taken over from a living writer",
        "delete",
        "remove_orphans",
        "fail_once",
        "restart",
    ):
        assert seen[event], event
    if bookie_count == 4:
        for event in ("bad sector", "lost file", "mended"):
            assert seen[event], event
