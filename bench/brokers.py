"""The brokers that are measured: ours and the real Pulsar, started and ended alike."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.usage import resident_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from ackgate.broker.server import BrokerServer

PEER = Path(__file__).parent / "peers" / "pulsar"
PULSAR_START_SECONDS_MAX = 600
"""The first start fetches 235 MB."""


class Broker(Protocol):
    """A broker process on loopback."""

    name: str
    service_url: str
    admin_url: str

    def start(self) -> float:
        """Start (again, on the same data); returns when `Popen` was called, `time.perf_counter`."""

    def kill(self) -> None:
        """``kill -9``."""

    def resident_bytes(self) -> int:
        """Resident memory now."""


class _Process:
    name = ""

    def __init__(self, work: Path, settings: Mapping[str, str]) -> None:
        self.work = work
        self.settings = dict(settings)
        self.protocol_port = free_port()
        self.http_port = free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.protocol_port}"
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self._process: subprocess.Popen[str] | None = None

    def _spawn(self, command: list[str], environment: Mapping[str, str]) -> float:
        self.work.mkdir(parents=True, exist_ok=True)
        errors = (self.work / "stderr.log").open("a")
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        errors.close()
        return began

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running process."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process

    def kill(self) -> None:
        """``kill -9``."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def end(self) -> None:
        """Kill it and remove what it stored."""
        self.kill()
        for name in ("data", "logs"):
            shutil.rmtree(self.work / name, ignore_errors=True)

    def resident_bytes(self) -> int:
        """Resident memory now."""
        return resident_bytes(self.process.pid)


class Ackgate(_Process):
    """Our broker, started as a user starts it."""

    name = "ackgate"

    def command(self) -> list[str]:
        """What runs our command line."""
        return [sys.executable, "-m", "ackgate"]

    def start(self) -> float:
        """Start and wait for the ready line."""
        overrides = [f"--set={key}={value}" for key, value in self.settings.items()]
        began = self._spawn(
            [
                *(*self.command(), "broker"),
                *("--data-dir", str(self.work / "data")),
                *("--port", str(self.protocol_port), "--http-port", str(self.http_port)),
                *overrides,
            ],
            {},
        )
        stdout = self.process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line.startswith("ackgate ready"):
            raise RuntimeError(f"ackgate did not start: {(self.work / 'stderr.log').read_text()}")
        return began


class Pulsar(_Process):
    """The real Pulsar (`bench/peers/pulsar`)."""

    name = "pulsar"

    def start(self) -> float:
        """Start and wait until it answers its health check."""
        (self.work / "conf").mkdir(parents=True, exist_ok=True)
        lib = os.environ.get("ACKGATE_BENCH_PULSAR_LIB")
        if lib and not (self.work / "lib").exists():
            (self.work / "lib").symlink_to(lib)
        settings = {
            "brokerServicePort": str(self.protocol_port),
            "webServicePort": str(self.http_port),
            **self.settings,
        }
        began = self._spawn(
            [
                str(PEER / "start.sh"),
                str(self.work),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            {"BOOKIE_PORT": str(free_port())},
        )
        threading.Thread(target=self._drain, daemon=True).start()
        deadline = time.monotonic() + PULSAR_START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError("pulsar ended while starting")
            with contextlib.suppress(OSError):
                url = f"{self.admin_url}/admin/v2/brokers/health"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return began
            time.sleep(0.05)
        raise RuntimeError("pulsar did not start in time")

    def _drain(self) -> None:
        stdout = self.process.stdout
        if stdout is not None:
            with contextlib.suppress(ValueError):
                for _ in stdout:
                    pass


def pulsar_is_missing() -> str | None:
    """Why the real Pulsar cannot run here, or None."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


@contextlib.contextmanager
def running(broker: Ackgate | Pulsar) -> Iterator[Ackgate | Pulsar]:
    """The broker, started; killed and its files removed at the end."""
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


@contextlib.asynccontextmanager
async def in_this_process() -> AsyncIterator[BrokerServer]:
    """Our broker on free ports and an empty directory, without a process of its own."""
    from ackgate.broker.server import BrokerServer
    from ackgate.config.load import load_settings

    overrides = ["brokerServicePort=0", "webServicePort=0"]
    settings = load_settings(overrides=overrides, environ={}).settings
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory:
        broker = await BrokerServer.start(settings, Path(directory))
        try:
            yield broker
        finally:
            await broker.stop()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
