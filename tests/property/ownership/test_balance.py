"""The plan: even, the same for everybody, and kept when it is carried out in any order."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from ackgate.broker.cluster.ownership import heir_of_one, plan

BROKERS = st.dictionaries(st.sampled_from("ABCDEF"), st.integers(0, 6), min_size=1)
BUNDLES = st.sets(st.integers(0, 40).map("bundle-{}".format), max_size=16)


def dumb(owned_by: dict[str, int], bundles: int) -> list[int]:
    """Where the numbers must end: each bundle to the one that has the fewest."""
    counts = sorted(owned_by.values())
    for _ in range(bundles):
        counts[0] += 1
        counts.sort()
    return counts


@given(BUNDLES, BROKERS)
def test_every_bundle_goes_to_one_that_has_the_fewest(
    bundles: set[str], owned_by: dict[str, int]
) -> None:
    chosen = plan(bundles, owned_by)
    assert chosen.keys() == bundles
    counts = Counter(owned_by)
    counts.update(chosen.values())
    assert sorted(counts[broker] for broker in owned_by) == dumb(owned_by, len(bundles))
    assert plan(sorted(bundles, reverse=True), dict(reversed(owned_by.items()))) == chosen


@given(BUNDLES, st.sets(st.sampled_from("ABCDEF"), min_size=1), st.randoms(use_true_random=False))
def test_asked_for_in_any_order_the_outcome_is_as_even(
    bundles: set[str], brokers: set[str], random: object
) -> None:
    owned: dict[str, str] = {}
    order = sorted(bundles)
    random.shuffle(order)  # type: ignore[attr-defined]  # a `random.Random`
    for bundle in order:
        counts = Counter(owned.values())
        loads = {broker: counts[broker] for broker in brokers}
        owned[bundle] = plan(bundles - owned.keys(), loads)[bundle]
    counts = Counter(owned.values())
    numbers = [counts[broker] for broker in brokers]
    assert max(numbers) - min(numbers) <= 1


def test_without_a_broker_there_is_no_plan() -> None:
    assert plan({"a"}, {}) == {}


@given(BROKERS)
def test_one_gives_at_a_time_until_none_has_two_fewer(owned_by: dict[str, int]) -> None:
    counts = Counter(owned_by)
    for _ in range(sum(owned_by.values()) + 1):
        gifts = {
            giver: heir for giver in counts if (heir := heir_of_one(giver, counts)) is not None
        }
        if not gifts:
            break
        ((giver, heir),) = gifts.items()
        counts[giver] -= 1
        counts[heir] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    assert counts.total() == sum(owned_by.values())


def test_one_that_is_not_settled_gives_nothing() -> None:
    assert heir_of_one("A", {"B": 0}) is None
