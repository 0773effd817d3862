"""The page on the pipeline: its commands are run, one after the other, and tell what it says.

``--rewrite`` puts the actual output into the page. Times and rates are not compared.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.pipeline.running.arguments import FORMATS, offered_jobs, parse_command

pytest.importorskip("pyspark")

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
OPTION = re.compile(r"--[a-z][a-z-]+")
VARYING = ((r"(seconds +)[\d.,]+", r"\1N"), (r"(messages_per_second +)[\d,]+", r"\1N"))


def run(block: str, directory: Path) -> str:
    """The block as it should read."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            name, *words = shlex.split(line[2:])
            assert name == "ackgate"
            told = subprocess.run(
                [sys.executable, "-m", "ackgate", *words],
                cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(PAGE.parents[1])},
            )  # fmt: skip
            lines += [line, *told.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines)


SNIPPET = re.compile(r"```python\n(from pyspark.sql import SparkSession\n.*?)```", re.DOTALL)
OWN_JAVA = (
    "--conf spark.ui.enabled=false --conf spark.driver.bindAddress=127.0.0.1 "
    "--conf spark.driver.host=127.0.0.1 pyspark-shell"
)


@pytest.mark.slow
def test_the_snippet_runs_in_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    """By the interpreter's path, from a directory that is not ours; the PATH has another Python first."""
    [snippet] = SNIPPET.findall(PAGE.read_text())
    data = "ackgate pipeline generate --data-dir data --messages 20 --seed 7 --keys 2"
    run(f"$ {data}\n", tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "python3"):
        (programs / name).write_text("#!/bin/sh\necho not this Python >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    (tmp_path / "notebook.py").write_text(snippet.replace('"orders"', '"generated-0"'))
    ours = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "PYTHONPATH", "SPARK_HOME")
    told = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
        env={name: value for name, value in os.environ.items() if name not in ours}
        | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_SUBMIT_ARGS": OWN_JAVA,
        },
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    assert "sum(entry_bytes)" in told.stdout
    assert "key-0" in told.stdout


def compared(text: str) -> str:
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return text


@pytest.mark.slow
def test_commands_tell_what_the_page_says(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()

    actual = BLOCK.sub(lambda found: f"```console\n{run(found[1], tmp_path)}```", page)

    if request.config.getoption("--rewrite"):
        PAGE.write_text(actual)
    else:
        assert compared(actual) == compared(page)


def test_options_on_the_page_are_there(
    capsys: pytest.CaptureFixture,
) -> None:
    page = PAGE.read_text()
    with pytest.raises(SystemExit):
        parse_command(["generate", "--help"])
    of_generate = set(OPTION.findall(capsys.readouterr().out))
    section = page.partition("`generate`")[2].partition("\n## ")[0]
    assert set(OPTION.findall(section)) <= of_generate
    for job in set(offered_jobs()) - {"generate"}:
        with pytest.raises(SystemExit):
            parse_command([job, "--help"])
        common = set(OPTION.findall(capsys.readouterr().out))
        every = page.partition("## Every job")[2].partition("\n## ")[0]
        assert set(OPTION.findall(every)) <= common
    assert all(f"`{name}`" in page for name in FORMATS)
