"""The code on the page of timers runs, block by block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "timing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_structure_has_a_block() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("code", BLOCKS, ids=["wheel", "batch", "purgatory"])
def test_the_code_runs(code: str) -> None:
    exec(compile(code, "docs/timing.md", "exec"), {})
