"""How the package is built: no circles of modules or rooms, no class name twice, no clock in a pure room.

A reader follows an import under TYPE_CHECKING as well, which import-linter sees, but only between
the rooms that its contracts name.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ackgate"
SUPPORT = ROOT / "tests" / "support"

PURE = (
    "cursor",
    "dispatcher",
    "subscription",
    "persistence.records",
    "persistence.cursors.write_path",
)


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """By name, without the package's own."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            names = path.relative_to(package).with_suffix("").parts
            found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a module, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def body(path: Path) -> list[ast.stmt]:
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    return module.body


def imports(module: str, known: Mapping[str, Path], package: str = "ackgate.") -> set[str]:
    found = set()
    for node in nodes(known[module]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
            base = (node.module or "").removeprefix(package)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in known else base)
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix(package) for alias in node.names}
    return {name for name in found if name in known} - {module}


def circles(edges: Mapping[str, set[str]]) -> Iterator[frozenset[str]]:
    """Sets of more than one in which each reaches each."""
    reached = {start: _reached(start, edges) for start in edges}
    seen: set[str] = set()
    for start in edges:
        if start not in seen:
            ring = {other for other in reached[start] if start in reached[other]}
            seen |= ring
            if len(ring) > 1:
                yield frozenset(ring)


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in edges[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def room_of(module: str, known: Mapping[str, Path]) -> str:
    if known[module].name == "__init__.py" or "." not in module:
        return module
    return module.rpartition(".")[0]


def test_no_two_modules_need_each_other() -> None:
    known = modules()
    edges = {module: imports(module, known) for module in known}
    assert set(circles(edges)) == set()


def test_no_two_modules_of_the_tests_support_need_each_other() -> None:
    known = modules(SUPPORT)
    assert "simulation.world" in known
    edges = {module: imports(module, known, "tests.support.") for module in known}
    assert edges["simulation.world"] > {"simulation.clients", "simulation.faults"}
    assert set(circles(edges)) == set()


def test_no_two_rooms_need_each_other() -> None:
    known = modules()
    edges: dict[str, set[str]] = {}
    for module in known:
        room = room_of(module, known)
        mine = edges.setdefault(room, set())
        mine |= {room_of(other, known) for other in imports(module, known)} - {room}
    for targets in list(edges.values()):
        for target in targets:
            edges.setdefault(target, set())
    assert set(circles(edges)) == set()


def test_no_two_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in modules().values()
        for node in body(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    twice = {name for name, count in names.items() if count > 1}
    assert twice == set()


def test_pure_rooms_have_no_clock() -> None:
    clocks = {"now", "utcnow", "today", "monotonic", "monotonic_ns", "perf_counter", "time_ns"}
    for module, path in modules().items():
        if not module.startswith(PURE):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Import):
                assert "time" not in {name.name for name in node.names}, module
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "time", module
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in clocks, f"{module}:{node.lineno}"
