"""``python -m tests.simulation.mutated [--seeds N] [NAME ...]``: run the simulation on mutated code.

One line of JSON for each mutation: the seed that found it and how, or None. Each runs in a fork of its
own, where one function is replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from typing import NamedTuple

from tests.simulation.mutations import MUTATIONS, Mutation, patch
from tests.support.simulation.world import simulate


class Found(NamedTuple):
    """What became of one mutation."""

    name: str
    seed: int | None
    """The seed that found it; None: no seed did."""
    kind: str
    """Name of the exception's class."""
    message: str
    seconds: float


def search(mutation: Mutation, seeds: int) -> Found:
    """Run seeds until one finds the mutation, its own first. It stays in the process."""
    began = time.perf_counter()
    patch(mutation)
    for seed in dict.fromkeys([mutation.seed, *range(seeds)]):
        error = simulate(seed, changes=mutation.changes).violation
        if error is not None:
            seconds = time.perf_counter() - began
            return Found(mutation.name, seed, type(error).__name__, str(error)[:300], seconds)
    return Found(mutation.name, None, "", "", time.perf_counter() - began)


def search_in_child(mutation: Mutation, seeds: int) -> Found:
    """As `search`, in a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = search(mutation, seeds)
        except BaseException as error:
            traceback.print_exc()
            found = Found(mutation.name, None, type(error).__name__, str(error), 0.0)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = Found(*json.loads(answer.read()))
    os.waitpid(child, 0)
    return found


def main() -> int:
    """Search for each, print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutated")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("names", nargs="*", help="parts of names; default: all")
    arguments = parser.parse_args()
    missed = 0
    for mutation in MUTATIONS:
        if arguments.names and not any(part in mutation.name for part in arguments.names):
            continue
        found = search_in_child(mutation, arguments.seeds)
        missed += found.seed is None
        print(json.dumps(found._asdict()), flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
