"""What the README shows is what there is: its files, its commands, its code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.commands import cli
from ackgate.pipeline.running.arguments import check_arguments, parse_command
from ackgate.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    lines = "".join(blocks("sh")).splitlines()
    inline = re.findall(r"`((?:ackgate (?!ready)|make )[^`]+)`", TEXT)
    found = [shlex.split(line, comments=True) for line in [*lines, *inline]]
    return [words for words in found if words and "..." not in words]


def block_with(text: str) -> str:
    (block,) = (block for block in blocks("python") if text in block)
    return block


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_embedding_block_is_the_example(rewrite: bool) -> None:
    code = (ROOT / "examples" / "embed_minimal.py").read_text()
    before, rest = TEXT.split("<!-- embed_minimal -->\n")
    shown, after = rest.split("<!-- /embed_minimal -->\n")
    expected = f"```python\n{code}```\n"
    if rewrite:
        README.write_text(
            f"{before}<!-- embed_minimal -->\n{expected}<!-- /embed_minimal -->\n{after}"
        )
    else:
        assert shown == expected, "pytest tests/docs/test_readme.py --rewrite"


def test_embedding_block_fits_a_screen() -> None:
    statements = [
        line
        for line in (ROOT / "examples" / "embed_minimal.py").read_text().splitlines()
        if line.strip() and not line.lstrip().startswith(('"""', "#"))
    ]
    assert len(statements) <= 30


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_linked_files_exist(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("anchor", sorted(set(re.findall(r"\]\(#([^)]+)\)", TEXT))))
def test_linked_headings_exist(anchor: str) -> None:
    headings = re.findall(r"^#+ (.+)$", TEXT, flags=re.MULTILINE)
    assert anchor in {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in headings}


def test_has_commands_of_every_kind() -> None:
    names = {Path(words[0]).name for words in commands()}
    assert names == {"make", "ackgate"}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        assert set(arguments) <= targets()
    else:
        assert program in {"ackgate", ".venv/bin/ackgate"}
        if arguments[0] == "pipeline":
            check_arguments(*reversed(parse_command(arguments[1:])))
        else:
            cli.command_parser().parse_args(arguments)


def test_ready_line_is_the_brokers(ackgate_broker: BrokerProcess) -> None:
    (line,) = re.findall(r"`(ackgate ready [^`]+)`", TEXT)
    printed = f"ackgate ready {ackgate_broker.service_url} {ackgate_broker.admin_url}"
    assert re.sub(r":\d+", ":PORT", printed) == re.sub(r":\d+", ":PORT", line)


def test_client_block_runs(ackgate_broker: BrokerProcess) -> None:
    url = "pulsar://127.0.0.1:6650"
    code = block_with(url).replace(url, ackgate_broker.service_url)
    run_python("-c", code)


def test_figures_are_filled_in() -> None:
    assert "PLACEHOLDER" not in TEXT


def run_python(*arguments: str, cwd: Path | None = None) -> None:
    result = subprocess.run(
        [sys.executable, *arguments],
        env=BrokerProcess.environment(),
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
