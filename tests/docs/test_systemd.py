"""The systemd unit runs the real command, lets a stop end, and is as closed as its page says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ackgate.commands import cli
from ackgate.config.load import load_settings

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "deploy" / "systemd"
UNIT = PLACE / "ackgate.service"
EXPOSURE_MAX = 15
"""In tenths, as `systemd-analyze security --threshold` counts: 0 is closed, 100 is open."""


def stated(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def the(key: str) -> str:
    (value,) = stated(key)
    return value


def test_it_runs_the_command_with_files_that_are_there() -> None:
    program, *words = the("ExecStart").split()
    assert Path(program).name == "ackgate"
    arguments: Any = cli.command_parser().parse_args(words)
    assert arguments.command == "broker"
    assert str(arguments.data_dir) == f"/var/lib/{the('StateDirectory')}"
    assert (PLACE / arguments.config.name).is_file()
    assert (PLACE / Path(the("EnvironmentFile").removeprefix("-")).name).is_file()


@pytest.mark.parametrize("comment", ["", "#"])
def test_its_settings_have_an_effect(comment: str) -> None:
    lines = (PLACE / "ackgate.env").read_text().replace("#ACK", f"{comment}ACK").splitlines()
    environment = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    loaded = load_settings(PLACE / "broker.conf", (), environment)
    assert loaded.unused == ()
    assert bool(loaded.settings.broker.advertised_address) == (comment == "")


def test_a_stop_has_the_time_that_the_broker_takes() -> None:
    takes_ms = load_settings(None, (), {}).settings.broker.broker_shutdown_timeout_ms
    assert int(the("TimeoutStopSec")) * 1000 > takes_ms
    assert stated("KillSignal") == []  # SIGTERM


def test_wrong_settings_are_not_tried_again() -> None:
    assert the("Restart") == "on-failure"
    assert the("RestartPreventExitStatus") == "2"


def test_its_user_is_made() -> None:
    users = re.findall(r"^u (\S+) ", (PLACE / "ackgate.sysusers.conf").read_text(), re.MULTILINE)
    assert users == [the("User")] == [the("Group")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_it(tmp_path: Path) -> None:
    program = the("ExecStart").split()[0]
    unit, installed = tmp_path / UNIT.name, tmp_path / "ackgate"
    installed.symlink_to(sys.executable)
    unit.write_text(UNIT.read_text().replace(program, str(installed)))
    for words in (
        ["verify", str(unit)],
        ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit)],
    ):
        done = subprocess.run(
            ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == "", "what systemd warns of"
