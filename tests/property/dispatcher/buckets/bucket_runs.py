"""Random runs of a bucket tracker with faults: ``python -m tests.property.dispatcher.buckets.bucket_runs``.

A run that fails is named by its seed, and shortened to the steps that it needs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter

from tests.property.dispatcher.buckets.bucket_world import (
    Step,
    World,
    random_settings,
    random_step,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first run; the next has the next"
    )
    parser.add_argument("--steps", type=int, default=150, help="of each run, at most")
    parser.add_argument("--quiet", action="store_true", help="no steps of a run that fails")
    arguments = parser.parse_args()
    began = time.perf_counter()
    steps_taken = 0
    seen: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        steps = steps_of(seed, arguments.steps)
        failure, happened = run(seed, steps)
        seen += happened
        steps_taken += len(steps)
        if failure is not None:
            print(f"seed {seed} fails after {seed - arguments.seed} runs: {failure!r}")
            if not arguments.quiet:
                report(seed, steps, failure)
            return 1
    seconds = time.perf_counter() - began
    print(f"{arguments.runs} runs, {steps_taken} steps: no failure in {seconds:.0f} s")
    for what, count in sorted(seen.items()):
        print(f"  {what:<24} {count}")
    return 0


def steps_of(seed: int, steps_max: int) -> list[Step]:
    chance = random.Random(seed)
    return [random_step(chance) for _ in range(chance.randint(steps_max // 4, steps_max))]


def run(seed: int, steps: list[Step]) -> tuple[BaseException | None, Counter[str]]:
    """What went wrong, and what happened."""
    delays, settings = random_settings(random.Random(-seed))
    world = World(delays, settings, seed)
    try:
        for step in steps:
            world.apply(step)
        world.drain()
    except Exception as error:
        return error, world.seen
    return None, world.seen


def report(seed: int, steps: list[Step], failure: BaseException) -> None:
    """Leave out what can be left out, and print the rest."""
    shortest = shortened(seed, steps, type(failure))
    print(random_settings(random.Random(-seed)))
    for step in shortest:
        print(f"  {step}")
    again, _ = run(seed, shortest)
    assert again is not None
    traceback.print_exception(again, file=sys.stdout)


def shortened(seed: int, steps: list[Step], kind: type[BaseException]) -> list[Step]:
    """Fewer steps that fail with the same kind of error."""
    size = max(len(steps) // 2, 1)
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if type(run(seed, fewer)[0]) is kind:
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


if __name__ == "__main__":
    raise SystemExit(main())
