"""The command `ackgate` as a whole: which commands there are, and what it takes to say so."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from ackgate.__main__ import main

HEAVY = ("pyspark", "pyarrow", "pandas", "fsspec")


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_installed_command_is_there():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    module, name = project["project"]["scripts"]["ackgate"].split(":")

    assert getattr(import_module(module), name) is main


@pytest.mark.slow
def test_the_module_is_the_command():
    told = run_python("-m", "ackgate", "--help")

    assert told.returncode == 0
    assert "broker" in told.stdout
    assert "pipeline" in told.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["pipeline", "--help"]])
def test_help_loads_nothing_of_spark(words):
    program = (
        "import sys\nfrom ackgate.__main__ import main\n"
        f"try: main({words!r})\nexcept SystemExit as end: assert end.code == 0, end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )

    told = run_python("-c", program)

    assert told.stdout.splitlines()[-1] == "[]", told.stderr


def test_without_a_job_the_command_line_is_wrong(capsys):
    with pytest.raises(SystemExit) as end:
        main(["pipeline"])

    assert end.value.code == 2
    assert "JOB" in capsys.readouterr().err
