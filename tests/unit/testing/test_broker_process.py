"""A broker in trouble: paused, out of disk, and left behind by the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ackgate.testing import BrokerFailedError, BrokerProcess
from tests.support.wire_client import RefusedError, WireClient

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/trouble"

ORPHANAGE = """
import sys
from pathlib import Path
from ackgate.testing.broker_process import BrokerProcess

BrokerProcess.is_forked = len(sys.argv) > 2
broker = BrokerProcess(Path(sys.argv[1])).start()
broker.pause()
print(broker.pid, flush=True)
sys.stdin.read()
"""


async def test_a_paused_broker_is_silent_and_goes_on(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        client = await WireClient.connect("127.0.0.1", broker.port)
        broker.pause()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.lookup(TOPIC)
        assert broker.is_running
        broker.resume()
        assert await client.lookup(TOPIC) == broker.service_url
        await client.close()


async def test_a_broker_without_disk_refuses_and_recovers(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        client = await WireClient.connect("127.0.0.1", broker.port)
        producer = await client.producer(TOPIC)
        await producer.send(b"fits")
        broker.limit_files(0)
        with pytest.raises(RefusedError):
            await producer.send(b"does not fit")
        broker.limit_files(None)
        client.abort()
        client = await WireClient.connect("127.0.0.1", broker.port)
        producer = await client.producer(TOPIC)
        await producer.send(b"fits again")
        await client.close()
        assert broker.stop() == 0


@pytest.mark.parametrize("how", [(), ("forked",)], ids=["an interpreter", "a fork"])
def test_a_paused_broker_does_not_outlive_a_killed_test(tmp_path, how):
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANAGE, str(tmp_path / "data"), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=BrokerProcess.environment(),
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert is_alive(pid)
        holder.kill()
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("is_forked", [False, True], ids=["an interpreter", "a fork"])
def test_a_broker_starts_and_ends_in_every_way(tmp_path, monkeypatch, is_forked):
    monkeypatch.setattr(BrokerProcess, "is_forked", is_forked)
    with BrokerProcess(tmp_path / "data") as broker:
        is_fork = b"fork_server" in Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        assert is_fork == (is_forked and sys.platform == "linux")
        assert broker.restart().starts == 2
        assert broker.stop() == 0
        assert not broker.is_running
        broker.start()
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.wait() == -signal.SIGKILL
        broker.settings["brokerServicePort"] = "many"
        with pytest.raises(BrokerFailedError, match=r"(?s)exit code 2.*brokerServicePort"):
            broker.start()


def test_a_fork_has_the_environment_of_its_start(tmp_path, monkeypatch):
    with BrokerProcess(tmp_path / "data"):
        pass
    monkeypatch.setenv("ACKGATE_maxMessageSize", "many")
    with pytest.raises(BrokerFailedError, match="ACKGATE_maxMessageSize"):
        BrokerProcess(tmp_path / "data").start()


def test_a_fork_has_run_what_its_interpreter_runs_first(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import ackgate; ackgate.__version__ = '0.changed'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with BrokerProcess(tmp_path / "data") as broker:
        answer = urllib.request.urlopen(f"{broker.admin_url}/metrics")
        with answer:
            assert b'version="0.changed"' in answer.read()


def test_trouble_needs_a_broker(tmp_path):
    broker = BrokerProcess(tmp_path / "data")
    for trouble in (broker.pause, broker.resume, lambda: broker.limit_files(0)):
        with pytest.raises(BrokerFailedError, match="not running"):
            trouble()


def is_alive(pid: int) -> bool:
    """Whether it exists, and not as a zombie that nobody has waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
