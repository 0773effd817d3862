"""The page for hosts: its program runs, its loop is the machine's, and hosts can check their types."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ackgate
from ackgate import errors
from ackgate.dispatcher import Shared
from ackgate.subscription import Ready, Subscription

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_programs_run_and_run_again(tmp_path: Path) -> None:
    for program in BLOCKS[:2]:
        for _ in range(2):
            command = [sys.executable, "-c", program]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "data" / "metadata.sqlite").exists()


def test_loop_uses_what_the_machine_has() -> None:
    loop = BLOCKS[2]
    for name in re.findall(r"\bsub\.(\w+)", loop):
        assert hasattr(Subscription, name)
    for name in re.findall(r"\bready\.(\w+)", loop):
        assert name in Ready.__slots__


def test_errors_of_the_table_exist() -> None:
    table = PAGE[PAGE.index("## Errors") : PAGE.index("## What is stable")]
    for name in re.findall(r"`(\w+Error)`", table):
        assert issubclass(getattr(errors, name), errors.AckGateError)


def test_calls_of_the_tables_exist() -> None:
    holders = {
        "storage": ackgate.EmbeddedStorage,
        "topic": ackgate.EmbeddedTopic,
        "sub": ackgate.EmbeddedSubscription,
        "consumer": ackgate.EmbeddedConsumer,
    }
    found = re.findall(r"`(?:await )?(storage|topic|sub|consumer)\.(\w+)", PAGE)
    assert len(found) >= 15
    for holder, name in found:
        assert hasattr(holders[holder], name), (holder, name)
    assert Shared() == ackgate.Shared()


@pytest.mark.slow
def test_hosts_pass_mypy_strict(tmp_path: Path) -> None:
    for name in ("embed_minimal.py", "embed_machine.py", "embed_cursor_store_gate.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (tmp_path / "page.py").write_text(BLOCKS[0])
    (tmp_path / "runtime.py").write_text(BLOCKS[1])
    (tmp_path / "wrong.py").write_text("import ackgate\nackgate.Shraed\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        ".",
    ]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.stdout.splitlines() == [
        'wrong.py:2: error: Module has no attribute "Shraed"; maybe "Shared"?  [attr-defined]',
        "Found 1 error in 1 file (checked 6 source files)",
    ]
