"""Pulsar standalone on loopback: a broker, a bookie and a ZooKeeper server in one JVM.

::

    with RealPulsar(directory, managedLedgerMaxEntriesPerLedger=50) as pulsar:
        client = pulsar.client()
        cluster = await PulsarCluster.connect(pulsar.metadata)
        pulsar.restart(managedCursorInfoCompressionType="ZSTD")   # in order: cursors are written

`scripts/ensure-pulsar.sh` has fetched the jars, or ``ACKGATE_BENCH_PULSAR_LIB`` names them;
`pulsar_missing()` says why there are none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pulsar

from ackgate.testing import free_ports
from ackgate.testing.child_guard import CHILDREN

ROOT = Path(__file__).parents[3]
LIB = Path(os.environ.get("ACKGATE_BENCH_PULSAR_LIB") or ROOT / "build/pulsar/lib")
READY_SECONDS = 180.0


class PulsarFailedError(Exception):
    """Pulsar did not start. Holds the end of its log."""


def pulsar_missing() -> str | None:
    """Why the real Pulsar cannot be started here, or None."""
    if not LIB.is_dir():
        return "no real Pulsar: scripts/ensure-pulsar.sh fetches it (it needs Maven)"
    return None if shutil.which("java") else "no real Pulsar: no Java"


class RealPulsar:
    """One standalone, started any number of times on the same data and ports."""

    def __init__(self, directory: Path, **settings: object) -> None:
        """`settings`: keys of broker.conf."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "lib").symlink_to(LIB.absolute())
        self._directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._broker, http, self._zookeeper, self._bookie = free_ports(4)
        self.service_url = f"pulsar://127.0.0.1:{self._broker}"
        self.admin_url = f"http://127.0.0.1:{http}"
        self.zookeeper = f"127.0.0.1:{self._zookeeper}"
        self.metadata = f"zk:{self.zookeeper}"
        self._http = http

    def start(self) -> None:
        """Returns when the broker answers."""
        settings = {
            "brokerServicePort": self._broker,
            "webServicePort": self._http,
            **self._settings,
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        with (self._directory / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(ROOT / "bench/peers/pulsar/start.sh"), str(self._directory), *words],
                env={
                    **os.environ,
                    "ZK_PORT": str(self._zookeeper),
                    "BOOKIE_PORT": str(self._bookie),
                    "XMS": "256m",
                    "XMX": "768m",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        CHILDREN.add(self._process.pid)
        deadline = time.monotonic() + READY_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with (
                suppress(OSError),
                urllib.request.urlopen(f"{self.admin_url}/admin/v2/brokers/health", timeout=5),
            ):
                return
            time.sleep(0.1)
        end = (self._directory / "out.log").read_text(errors="replace")[-3000:]
        self.stop()
        raise PulsarFailedError(end)

    def stop(self) -> None:
        """In order: cursors are written."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9: broker, bookie and ZooKeeper at once."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            CHILDREN.remove(process.pid)

    def restart(self, **settings: object) -> None:
        """Stop in order and start again, with further settings."""
        self.stop()
        self._settings |= settings
        self.start()

    def client(self) -> pulsar.Client:
        return pulsar.Client(
            self.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )

    def admin(self, path: str, *, method: str = "GET", body: object = None) -> Any:
        """What the admin interface answers below ``/admin/v2``."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
