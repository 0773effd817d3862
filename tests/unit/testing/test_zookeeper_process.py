"""The launcher of real ZooKeeper servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ackgate.testing import BrokerProcess, ZooKeeperFailedError, ZooKeeperProcess


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("not a directory")
    server = ZooKeeperProcess(tmp_path)
    with pytest.raises(ZooKeeperFailedError, match=r"(?s)exit code.*version-2"):
        server.start()
    assert not server.is_running
    with pytest.raises(ZooKeeperFailedError, match="not running"):
        _ = server.pid


def test_a_paused_server_is_silent_and_goes_on(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path, force_sync=False) as server:
        assert server.ask("ruok") == "imok"
        server.pause()
        assert server.mode(0.2) is None
        server.resume()
        assert server.mode() == "standalone"
        server.pause()
        server.kill()
        assert not server.is_running


def test_missing_jars_and_java_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ZooKeeperFailedError, match="PySpark"):
        ZooKeeperProcess(tmp_path).start()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ZooKeeperFailedError, match="Java"):
        ZooKeeperProcess(tmp_path).start()


def test_a_server_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from ackgate.testing.zookeeper import ZooKeeperProcess\n"
        "server = ZooKeeperProcess(pathlib.Path(sys.argv[1]))\n"
        "server.launch()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=BrokerProcess.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    """Whether a process runs; one that is dead and that nobody waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
