"""Places that cannot be looked at: a line that names them, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.broker.storage_tools.conftest import TOPIC, Tool

COMMANDS = [
    ["stats", TOPIC],
    ["overview"],
    ["ledgers", "list"],
    ["ledgers", "verify"],
    ["ledgers", "adopt"],
    ["ledgers", "adopt", "--apply"],
    ["bookies", "list"],
    ["bookies", "check"],
    ["bookies", "repair"],
]
OTHER_USER = 65534
TOO_LONG = "x" * 300


@pytest.fixture
def as_another_user(tmp_path: Path) -> Callable[[], AbstractContextManager[None]]:
    """For a process that may read everything: makes it one that may not."""

    @contextmanager
    def lowered() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(OTHER_USER)
        try:
            yield
        finally:
            os.seteuid(0)

    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    return lowered


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("shut", "named"), [("", "metadata.sqlite"), ("bookies", "bookies")])
def test_a_directory_that_may_not_be_read_is_named(
    tool: Tool,
    data: Path,
    command: list[str],
    shut: str,
    named: str,
    as_another_user: Callable[[], AbstractContextManager[None]],
) -> None:
    tool(*command, "--data-dir", data)  # imports what it needs, as long as it may
    data.chmod(0o755)
    for file in data.glob("metadata.sqlite*"):
        file.chmod(0o644)
    (data / shut).chmod(0o000)
    try:
        with as_another_user():
            told = tool(*command, "--data-dir", data)
    finally:
        (data / shut).chmod(0o755)
    assert (told.code, told.out) == (2, "")
    assert told.err == f"ackgate: {data / named} cannot be read: Permission denied\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_name_that_no_file_can_have_is_named(tool: Tool, data: Path, command: list[str]) -> None:
    told = tool(*command, "--data-dir", data / TOO_LONG)
    assert (told.code, told.out) == (2, "")
    assert told.err.endswith("/metadata.sqlite cannot be read: File name too long\n")
    told = tool(*command, "--data-dir", data, "--bookies", data / TOO_LONG)
    assert told.code in (0, 1, 2)
    if command[0] == "bookies" and command[1] != "repair":
        assert f"{TOO_LONG}" in told.out
        assert "left out: File name too long" in told.out
