"""What users read imports faces, and nothing else: the rest may move tomorrow."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

FACES = {
    "ackgate",
    "ackgate.bookkeeper",
    "ackgate.client",
    "ackgate.config",
    "ackgate.cursor",
    "ackgate.dispatcher",
    "ackgate.dispatcher.buckets",
    "ackgate.dispatcher.delayed",
    "ackgate.dispatcher.nacks",
    "ackgate.dispatcher.timing",
    "ackgate.errors",
    "ackgate.persistence",
    "ackgate.pipeline",
    "ackgate.pulsar",
    "ackgate.subscription",
    "ackgate.testing",
}


def imported(code: str) -> set[str]:
    """The modules of ours that a piece of Python imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.partition(".")[0] == "ackgate"}


def python_blocks(page: Path) -> list[str]:
    return [
        textwrap.dedent(block)
        for block in re.findall(
            r"^( *```python\n.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE
        )
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_faces(example: Path) -> None:
    assert imported(example.read_text()) <= FACES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_import_faces(page: Path) -> None:
    for block in python_blocks(page):
        assert imported(block.removeprefix("```python\n")) <= FACES
