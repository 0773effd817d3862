"""The simulation on broken code: it notices every one of the bugs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.mutated import Found, mutated_source
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.support.simulation.__main__ import told
from tests.support.simulation.world import simulate

SEEDS_MAX = 200


@pytest.fixture(scope="session")
def found() -> dict[str, Found]:
    """What became of each mutation."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.mutated", "--seeds", str(SEEDS_MAX)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    results = [Found(**json.loads(line)) for line in done.stdout.splitlines()]
    assert len(results) == len(MUTATIONS), done.stderr
    return {result.name: result for result in results}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_is_found(mutation: Mutation, found: dict[str, Found]) -> None:
    result = found[mutation.name]
    assert result.seed is not None, result
    assert result.kind in {"ViolationError", "AssertionError"}, result
    unmutated = simulate(result.seed, changes=mutation.changes)
    assert unmutated.violation is None, told(unmutated)


def test_a_mutation_whose_place_has_moved_is_an_error() -> None:
    mutation = Mutation("x", "some.module", "old", "new")
    assert mutated_source(mutation, "the old text") == "the new text"
    for source in ("nothing of it", "old and old"):
        with pytest.raises(LookupError, match="not once"):
            mutated_source(mutation, source)
