"""The simulation on broken code: it notices every one of the bugs."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest

from tests.simulation.mutated import Found
from tests.simulation.mutations import MUTATIONS, Changed, Mutation, nothing, patch
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


class Counter:
    """Something to break."""

    count = 0

    def add(self, count: int) -> None:
        self.count += count

    @property
    def is_empty(self) -> bool:
        return not self.count


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a name of its own."""
    module = ModuleType("a_module")
    module.Counter = type("Counter", (Counter,), dict(vars(Counter)))
    module.doubled = lambda number: 2 * number
    monkeypatch.setitem(sys.modules, "a_module", module)
    return module


def test_functions_methods_and_properties_are_replaced(module: ModuleType) -> None:
    patch(Mutation("a", "a_module:doubled", lambda real, number: real(number) + 1))
    patch(Mutation("b", "a_module:Counter.add", lambda real, self, count: real(self, count + 1)))
    patch(Mutation("c", "a_module:Counter.is_empty", lambda real, self: not real(self)))
    counter = module.Counter()
    assert not counter.is_empty
    counter.add(1)
    assert counter.count == 2
    assert counter.is_empty
    assert module.doubled(2) == 5


@pytest.mark.parametrize("place", ["nowhere", "Counter.nowhere", "Nowhere.add", "Counter.count"])
def test_a_mutation_whose_place_has_moved_is_an_error(place: str, module: ModuleType) -> None:
    with pytest.raises(LookupError):
        patch(Mutation("x", f"{module.__name__}:{place}", lambda *_: None))


def test_what_is_changed_of_an_object_is_not_changed_in_it() -> None:
    counter = Counter()
    changed = Changed(counter, add=nothing)
    changed.add(1)
    assert changed.count == counter.count == 0
    counter.add(1)
    assert changed.count == 1
