"""The bucket tracker through random steps with faults, `check()` and the model after each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.dispatcher.buckets.bucket_runs import run, steps_of
from tests.property.dispatcher.buckets.bucket_world import STEPS, Step, World, random_settings

NUMBERS = st.integers(0, (1 << 16) - 1)


class BucketRules(RuleBasedStateMachine):
    world: World

    @initialize(seed=NUMBERS)
    def begin(self, seed: int) -> None:
        self.world = World(*random_settings(random.Random(seed)), seed)

    def teardown(self) -> None:
        """In the end nothing fails any more: every message comes, and storage is empty."""
        if hasattr(self, "world"):
            self.world.drain()


def rule_of(name: str) -> Callable[..., None]:
    @rule(a=NUMBERS, b=NUMBERS)
    def step(self: BucketRules, a: int, b: int) -> None:
        self.world.apply(Step(name, a, b))

    return step


# What is frequent has several rules, since hypothesis chooses among rules.
BucketMachine: Any = type(
    "BucketMachine",
    (BucketRules,),
    {
        f"{name}_{number}": rule_of(name)
        for name, weight in STEPS.items()
        for number in range(1 + weight // 8)
    },
)
BucketMachine.TestCase.settings = settings(
    stateful_step_count=settings.default.stateful_step_count * 3 // 2
)
TestBuckets = BucketMachine.TestCase


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1, 121, 60))
def test_seeded_runs(first_seed: int) -> None:
    """Some of the 10,000 runs; `python -m tests.property.dispatcher.buckets.bucket_runs`."""
    for seed in range(first_seed, first_seed + 60):
        failure, _ = run(seed, steps_of(seed, 150))
        assert failure is None, f"seed {seed}: {failure!r}"
