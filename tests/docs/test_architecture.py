"""The walks of `docs/architecture.md` lead through files and functions that exist, and files it names do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEPS = re.findall(r"^\| `([\w/]+\.py)`(?: \*)? \| `(\w+)` \|", PAGE, re.MULTILINE)


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_walks_lead_through_what_there_is() -> None:
    assert len(STEPS) > 40
    for file, function in STEPS:
        assert function in functions(ROOT / "ackgate" / file), (file, function)


def test_an_ack_passes_twenty_files_at_most() -> None:
    walk = PAGE.split("## The way of an ack")[1].split("## ")[0]
    assert len(set(re.findall(r"^\| `([\w/]+\.py)`", walk, re.MULTILINE))) <= 20


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE)
    assert len(named) > 50
    missing = {name for name in named if not (ROOT / name).exists()}
    assert {name for name in missing if not (ROOT / "ackgate" / name).exists()} == set()
