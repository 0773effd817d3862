"""Which bookies a ledger goes to."""

from __future__ import annotations

from collections import Counter

from ackgate.persistence.ledgers.bookie_pool import choose_ensemble, choose_spare

BOOKIES = ["a", "b", "c", "d"]


def test_ledgers_are_spread() -> None:
    used = Counter(b for turn in range(40) for b in choose_ensemble(BOOKIES, 2, turn) or ())
    assert used == dict.fromkeys(BOOKIES, 20)


def test_too_few_is_none() -> None:
    assert choose_ensemble(BOOKIES, 5, 0) is None
    assert choose_ensemble([], 1, 0) is None


def test_a_spare_is_not_in_the_ensemble() -> None:
    assert choose_spare(BOOKIES, ["a", "c"], 0) == "b"
    assert choose_spare(BOOKIES, ["a", "c"], 2) == "d"
    assert choose_spare(BOOKIES, BOOKIES, 0) is None
