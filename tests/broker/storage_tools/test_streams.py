"""Standard streams that are full, closed, or of another encoding; and an interruption."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.__main__ import main as ackgate_main
from ackgate.commands.cli import exit_code
from ackgate.errors import (
    AckGateError,
    ConfigurationError,
    DataDirectoryBusyError,
    LedgerFencedError,
    SessionLostError,
    StorageError,
)
from tests.broker.storage_tools.conftest import TOPIC

COMMAND = f"{shlex.quote(sys.executable)} -m ackgate"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """What bash makes of the line; `ackgate` in it is ours."""
    line = f'ackgate() {{ {COMMAND} "$@"; }}; set -o pipefail; {line}'
    return subprocess.run(
        ["/bin/bash", "-c", line],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        f"stats {TOPIC}",
        "overview --json",
        "overview --watch 0.1",
        "ledgers list",
        "ledgers verify",
        "ledgers adopt",
        "bookies check",
    ],
)
def test_a_full_disk_is_one_line_and_a_failure(data: Path, command: str) -> None:
    done = shell(f"ackgate {command} --data-dir {shlex.quote(str(data))} > /dev/full")
    assert done.stderr == b"ackgate: standard output: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize("command", [f"stats {TOPIC}", "ledgers list --json", "bookies check"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_as_if_thrown_away(data: Path, command: str, closed: str) -> None:
    done = shell(f"ackgate {command} --data-dir {shlex.quote(str(data))} {closed}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_errors_stay_away_from_standard_output(tmp_path: Path) -> None:
    done = shell(f"ackgate stats t --data-dir {shlex.quote(str(tmp_path))} 2>&-")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [("ledgers verify", 1), ("ledgers adopt", 1), ("bookies list", 1), ("overview", 0)],
)
def test_a_verdict_that_nobody_sees_is_no_success(data: Path, command: str, code: int) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    words = [sys.executable, "-m", "ackgate", *command.split(), "--data-dir", str(data)]
    ended = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (code, b"")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
@pytest.mark.parametrize("encoding", ["", "ascii", "utf-8:strict"])
def test_a_directory_of_any_name(data: Path, tmp_path: Path, locale: str, encoding: str) -> None:
    odd = os.fsdecode(b"odd \xff \xc3\xa9")
    shutil.move(data, tmp_path / odd)
    words = {"LC_ALL": locale, "PYTHONIOENCODING": encoding}
    for command in (f"stats {TOPIC}", f"stats {TOPIC} --json", "bookies list", "ledgers list"):
        line = f"cd {shlex.quote(str(tmp_path))} && ackgate {command} --data-dir odd*"
        done = shell(line, **words)
        assert (done.returncode, done.stderr) == (0, b""), done


def test_an_interruption_is_no_traceback(data: Path) -> None:
    words = [sys.executable, "-m", "ackgate", "overview", "--watch", "0.1", "--data-dir", str(data)]
    words = ["env", "--default-signal=INT", *words]  # a job in the background ignores it
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert b"1 subscription" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=30)
    assert (watching.returncode, said) == (130, b"")


def test_an_interruption_amid_imports_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python before 3.12 makes another error of one that meets it as a class is made."""

    class Interrupting:
        def __set_name__(self, *_: object) -> None:
            raise KeyboardInterrupt

    def imported(_: object) -> int:
        type("Made", (), {"field": Interrupting()})
        return 0

    monkeypatch.setattr("ackgate.commands.config_command.run_config", imported)
    assert ackgate_main(["config", "check"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("a wrong setting"), 2),
        (DataDirectoryBusyError("a broker runs there"), 2),
        # Trying again may help: a service must not take these for a wrong configuration.
        (SessionLostError("the session expired"), 1),
        (LedgerFencedError("another broker was faster"), 1),
        (StorageError("no answer"), 1),
    ],
)
def test_only_what_its_user_can_mend_is_a_wrong_command_line(
    error: AckGateError, code: int
) -> None:
    assert exit_code(error) == code


HELPS = ["--help", "--version", "ledgers adopt --help", "pulsar stats --help", "pipeline --help"]


@pytest.mark.parametrize("command", [*HELPS, "pipeline what-if --help"])
def test_help_that_nobody_reads_is_no_complaint(command: str) -> None:
    buffered = {"PYTHONUNBUFFERED": ""}
    done = shell(f"ackgate {command} | true", **buffered)
    assert (done.returncode, done.stderr) == (0, b"")
    done = shell(f"ackgate {command} > /dev/full", **buffered)
    assert done.stderr == b"ackgate: standard output: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("| true", 0, b""),
        ("> /dev/full", 1, b"ackgate: standard output: No space left on device\n"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_summary_that_cannot_be_written(
    tmp_path: Path, end: str, code: int, said: bytes, unbuffered: str
) -> None:
    directory = shlex.quote(str(tmp_path / "made"))
    line = f"ackgate pipeline generate --messages 100 --seed 1 --data-dir {directory} {end}"
    done = shell(line, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == code
    assert done.stderr.splitlines(keepends=True)[1:] == (
        [said] if said else []
    )  # after the progress
