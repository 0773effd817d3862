"""``python -m tests.support.simulation --seeds N --first S --jobs J``: run seeds, tell of failures.

Exit code 0: every invariant held in every run. 1: not; the seed, its plan, its last events and the
command that repeats it are printed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from tests.support.simulation.world import World, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator


class Result(NamedTuple):
    """How a seed went."""

    seed: int
    seconds: float
    counts: Counter[str]
    failure: str | None


def run_seed(seed: int) -> Result:
    """Run one."""
    began = time.perf_counter()
    world = simulate(seed)
    failure = None if world.violation is None else told(world)
    return Result(seed, time.perf_counter() - began, world.counts, failure)


def told(world: World) -> str:
    """Everything that there is to say of a failure."""
    error = world.violation
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    events = "\n".join(world.events)
    return (
        f"seed {world.seed} failed: {type(error).__name__}: {error}\n"
        f"plan:\n{world.plan}\nlast events:\n{events}\n{trace}\n"
        f"digest {world.digest} after {world.loop.steps} steps; repeat it with:\n"
        f"    make simulate SEEDS=1 SEED={world.seed}\n"
    )


def results(first: int, seeds: int, jobs: int) -> Iterator[Result]:
    """Run seeds, in any number of processes, in order."""
    if jobs == 1:
        yield from map(run_seed, range(first, first + seeds))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seed, range(first, first + seeds), chunksize=4)


def main() -> int:
    """Run, print, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--events", action="store_true", help="one seed, all its events")
    arguments = parser.parse_args()
    if arguments.events:
        world = simulate(arguments.first, keeps_all=True)
        print(told(world) if world.violation else "\n".join((*world.events, world.digest)))
        return int(world.violation is not None)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    slowest, failed, done = 0.0, [], 0
    for result in results(arguments.first, arguments.seeds, arguments.jobs):
        done += 1
        counts += result.counts
        slowest = max(slowest, result.seconds)
        if result.failure is not None:
            failed.append(result.seed)
            print(result.failure, file=sys.stderr, flush=True)
            if not arguments.keep_going:
                break
        if done % 500 == 0:
            print(f"{done} seeds, {time.monotonic() - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{done} seeds from {arguments.first} in {seconds:.1f} s, the slowest {slowest:.2f} s;"
        f" {counts['crashes']} crashes, {counts['crashes'] / seconds * 60:.0f} a minute;"
        f" {counts['loads']} recoveries; {len(failed)} failed"
        + (f": {', '.join(map(str, failed[:20]))}" if failed else "")
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
