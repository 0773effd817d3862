"""The launcher of real ZooKeeper servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ackgate.testing import BrokerProcess, ZooKeeperFailedError, ZooKeeperProcess, zookeeper


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("not a directory")
    server = ZooKeeperProcess(tmp_path)
    with pytest.raises(ZooKeeperFailedError, match=r"(?s)exit code.*version-2"):
        server.start()
    assert not server.is_running
    with pytest.raises(ZooKeeperFailedError, match="not running"):
        _ = server.pid


@pytest.mark.slow
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


@pytest.fixture
def jars() -> Path:
    """What the other tests of this file run on."""
    return zookeeper.jar_directory()


@pytest.fixture
def no_jars(tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither PySpark nor Maven, nor what it fetched; returns where programs are searched first."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "java").symlink_to(zookeeper.java_program())
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv(zookeeper.JARS_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return programs


def test_missing_jars_and_java_are_named(
    tmp_path: Path, no_jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZooKeeperFailedError, match=r"ZOOKEEPER_JARS.*PySpark.*Maven"):
        ZooKeeperProcess(tmp_path).start()
    monkeypatch.setenv(zookeeper.JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ZooKeeperFailedError, match=rf"no zookeeper-\*.jar in {tmp_path}"):
        ZooKeeperProcess(tmp_path).start()
    (no_jars / "java").unlink()
    with pytest.raises(ZooKeeperFailedError, match="Java"):
        ZooKeeperProcess(tmp_path).start()


@pytest.mark.slow
def test_maven_fetches_the_jars_once(tmp_path: Path, jars: Path, no_jars: Path) -> None:
    maven = no_jars / "mvn"
    maven.write_text("#!/bin/sh\necho 'no network'\nexit 1\n")
    maven.chmod(0o755)
    with pytest.raises(ZooKeeperFailedError, match=r"(?s)could not fetch.*no network"):
        ZooKeeperProcess(tmp_path).start()
    maven.write_text(f'#!/bin/sh\nfor last; do :; done\n/bin/ln -s "{jars}" "${{last#*=}}"\n')
    with ZooKeeperProcess(tmp_path, force_sync=False) as server:
        assert server.mode() == "standalone"
    maven.unlink()
    assert zookeeper.jar_directory().resolve() == jars.resolve()
    assert [each.name for each in (tmp_path / "cache" / "ackgate").iterdir()] == ["zookeeper-3.9.4"]


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
    deadline = time.monotonic() + 60
    while _lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    """Whether a process runs; one that is dead and that nobody waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
