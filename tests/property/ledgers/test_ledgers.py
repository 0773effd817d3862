"""Random ledgers, failures, crashes and recoveries: short runs that shrink, long ones that meet all."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.property.ledgers.machine import BOOKIES, OPERATIONS, PARTS, LedgersMachine

PICKS = st.integers(0, 20)
SEEDS = st.integers(0, 2**32)


class ShortRuns(RuleBasedStateMachine):
    """Small and shrinkable."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = LedgersMachine()

    @initialize(shape=PICKS)
    def create_first(self, shape: int) -> None:
        self.machine.create(shape)

    @rule(shape=PICKS)
    def create(self, shape: int) -> None:
        self.machine.create(shape)

    @rule(pick=PICKS, sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12))
    def append(self, pick: int, sizes: list[int]) -> None:
        self.machine.append(pick, sizes)

    @rule()
    def settle(self) -> None:
        self.machine.settle()

    @rule(bookie=PICKS)
    def checkpoint(self, bookie: int) -> None:
        self.machine.checkpoint(bookie)

    @rule(
        broken=st.sets(st.integers(0, BOOKIES - 1), min_size=1, max_size=2),
        operation=st.sampled_from(OPERATIONS),
        part=st.sampled_from(PARTS),
    )
    def break_disks(self, broken: set[int], operation: str, part: str) -> None:
        self.machine.break_disks(broken, operation, part)

    @rule()
    def mend_disks(self) -> None:
        self.machine.mend_disks()

    @rule(calls=st.integers(1, 60), seed=SEEDS, is_power_loss=st.booleans())
    def doom(self, calls: int, seed: int, is_power_loss: bool) -> None:
        self.machine.doom(calls, seed, is_power_loss=is_power_loss)

    @rule(seed=SEEDS, is_power_loss=st.booleans(), lost=st.none() | PICKS)
    def crash(self, seed: int, is_power_loss: bool, lost: int | None) -> None:
        self.machine.crash(seed, is_power_loss=is_power_loss, lost_bookie=lost)

    @rule(pick=PICKS, is_other=st.booleans())
    def recover(self, pick: int, is_other: bool) -> None:
        self.machine.recover(pick, is_other=is_other)

    @rule(pick=PICKS, first=st.integers(0, 1000))
    def read_some(self, pick: int, first: int) -> None:
        self.machine.read_some(pick, first)

    @rule(pick=PICKS)
    def close_writer(self, pick: int) -> None:
        self.machine.close_writer(pick)

    @rule(is_other=st.booleans())
    def audit(self, is_other: bool) -> None:
        self.machine.audit(is_other=is_other)

    @rule(pick=PICKS)
    def delete(self, pick: int) -> None:
        self.machine.delete(pick)

    @invariant()
    def nothing_confirmed_goes_back(self) -> None:
        self.machine.check()

    def teardown(self) -> None:
        self.machine.finish()


ShortRuns.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 3,
    stateful_step_count=settings.default.stateful_step_count * 2 // 3,
)
TestShortRuns = ShortRuns.TestCase

WEIGHTS = {
    "create": 8,
    "append": 40,
    "settle": 20,
    "checkpoint": 8,
    "break_disks": 3,
    "mend_disks": 4,
    "doom": 3,
    "crash": 3,
    "recover": 5,
    "read_some": 8,
    "close_writer": 3,
    "delete": 1,
    "audit": 3,
}


def long_run(seed: int, steps: int) -> Counter[str]:
    """Raises with the seed in hand; the same seed does the same again."""
    rng = random.Random(seed)
    machine = LedgersMachine()
    try:
        for name in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps):
            pick = rng.randrange(1000)
            is_heads = rng.random() < 0.5
            match name:
                case "append":
                    machine.append(pick, [rng.randrange(400) for _ in range(rng.randint(1, 12))])
                case "break_disks":
                    broken = set(rng.sample(range(BOOKIES), rng.randint(1, 2)))
                    machine.break_disks(broken, rng.choice(OPERATIONS), rng.choice(PARTS))
                case "doom":
                    machine.doom(rng.randint(1, 60), pick, is_power_loss=is_heads)
                case "crash":
                    lost = pick if rng.random() < 0.1 else None
                    machine.crash(pick, is_power_loss=is_heads, lost_bookie=lost)
                case "recover":
                    machine.recover(pick, is_other=is_heads)
                case "read_some":
                    machine.read_some(pick, rng.randrange(1000))
                case "audit":
                    machine.audit(is_other=is_heads)
                case "settle" | "mend_disks":
                    getattr(machine, name)()
                case _:
                    getattr(machine, name)(pick)
            machine.check()
    finally:
        machine.finish()
    return machine.seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_long_run(seed: int) -> None:
    long_run(seed, steps=250)


@pytest.mark.slow
def test_long_runs_meet_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 104):
        seen += long_run(seed, steps=150)
    for event in ("confirmed", "failed", "checkpoint", "recovered", "fenced", "crash", "audited"):
        assert seen[event], (event, seen)
