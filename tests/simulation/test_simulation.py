"""The simulation on the code as it is: every seed is clean, and goes the same way every time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.simulation.__main__ import told
from tests.support.simulation.facts import ViolationError
from tests.support.simulation.plan import make_plan
from tests.support.simulation.world import World, simulate

SEEDS_PER_TEST = 50


@pytest.mark.parametrize("first", range(0, 250, SEEDS_PER_TEST))
def test_every_invariant_holds_in_every_run(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        world = simulate(seed)
        assert world.violation is None, told(world)


def digest_in_another_process(seed: int, hash_seed: int) -> str:
    code = f"from tests.support.simulation.world import simulate; print(simulate({seed}).digest)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("seed", [3, 21])
def test_a_seed_goes_the_same_way_in_any_process(seed: int) -> None:
    here = simulate(seed).digest
    assert digest_in_another_process(seed, hash_seed=1) == here
    assert digest_in_another_process(seed, hash_seed=2) == here
    assert simulate(seed + 1).digest != here


def test_a_failure_says_how_to_repeat_it() -> None:
    world = World(7, make_plan(7))
    world.log("something", "happened")
    world.fail(ViolationError("a promise was broken"))
    story = told(world)
    world.loop.close()
    for part in ("seed 7", "a promise was broken", "something happened", "bookies=", "SEED=7"):
        assert part in story
