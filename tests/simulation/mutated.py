"""``python -m tests.simulation.mutated [--seeds N] [NAME ...]``: run the simulation on mutated code.

One line of JSON for each mutation: the seed that found it and how, or None. Each runs in a process
of its own, forked off before anything of ackgate was imported: there the module in question is
compiled from the changed source. A mutation whose old text is not there exactly once is an error.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from tests.simulation.mutations import MUTATIONS, Mutation

HEAVY = (
    "pydantic",
    "fastavro",
    "pyroaring",
    "numpy",
    "google.protobuf.message",
    "logging",
    "asyncio",
)
"""Imported once, before forking."""


class Found(NamedTuple):
    """What became of one mutation."""

    name: str
    seed: int | None
    """The seed that found it; None: no seed did."""
    kind: str
    """Name of the exception's class."""
    message: str
    seconds: float


class MutatingLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module from changed source."""

    def __init__(self, mutation: Mutation, path: str) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        """Never from the cache."""
        path = self.get_filename(fullname)
        return compile(mutated_source(self._mutation, Path(path).read_text()), path, "exec")


class MutatingFinder(importlib.abc.MetaPathFinder):
    """Finds one module before anybody else does."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only the mutated one."""
        if fullname != self._mutation.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = MutatingLoader(self._mutation, spec.origin)
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def mutated_source(mutation: Mutation, source: str) -> str:
    """The changed source. Raises `LookupError` when the old text is not there exactly once."""
    count = source.count(mutation.old)
    if count != 1:
        raise LookupError(f"{mutation.module}: found {count} times, not once: {mutation.old!r}")
    return source.replace(mutation.old, mutation.new)


def search(mutation: Mutation, seeds: int) -> Found:
    """Run seeds until one finds the mutation. In a process that has not imported ackgate yet."""
    began = time.perf_counter()
    sys.meta_path.insert(0, MutatingFinder(mutation))
    from tests.support.simulation.world import simulate

    assert mutation.module in sys.modules
    for seed in range(seeds):
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
    for name in HEAVY:
        importlib.import_module(name)
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
