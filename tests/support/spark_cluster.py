"""A Spark standalone cluster on loopback: a master and workers, from PySpark's own files.

Edge: owns child processes and their logs. For test suites and benchmarks::

    with SparkCluster(directory, workers=2) as cluster:        # returns when all workers are alive
        subprocess.run(["ackgate", "pipeline", "ack-stats", "--master", cluster.master_url, ...])

Each worker has one core and a gigabyte for executors unless it is told otherwise. Environment variables
of workers are those of this process and `environment`: with another ``PATH`` a worker finds another
Python, as machines of a cluster do. Processes never outlive the one that started them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ackgate.testing import free_ports
from ackgate.testing.child_guard import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_SECONDS_MAX: Final = 90.0
_STOP_SECONDS_MAX: Final = 10.0
_POLL_SECONDS: Final = 0.1
_LOG_BYTES_TOLD: Final = 2_000
_LOGGING: Final = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1} - %m%n%ex
"""


class SparkClusterFailedError(Exception):
    """A process of the cluster did not start, or ended. Holds the end of its log."""


class SparkCluster:
    """One master and its workers, started once."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._workers = workers
        self._cores = cores
        self._memory = memory
        self._environment = dict(environment or {})
        self._port, self._page_port = free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master_url(self) -> str:
        """For ``--master``."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def pids(self) -> dict[str, int]:
        """Of ``master``, ``worker-0`` and on."""
        return {name: process.pid for name, process in self._processes.items()}

    def state(self) -> Any:
        """What the master says of itself: ``aliveworkers``, ``workers``, ``completedapps``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page_port}/json/") as answer:
            return json.load(answer)

    def start(self) -> Self:
        """Start, and return when every worker is alive. Raises `SparkClusterFailedError`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        try:
            self._launch(
                "master", "master.Master",
                *("--port", str(self._port), "--webui-port", str(self._page_port)),
            )  # fmt: skip
            self._until_alive(0)
            for number in range(self._workers):
                self._launch(
                    f"worker-{number}", "worker.Worker",
                    *("--cores", str(self._cores), "--memory", self._memory),
                    *("--port", "0", "--webui-port", "0"),
                    *("--work-dir", str(self.directory / f"work-{number}"), self.master_url),
                    environment=self._environment,
                )  # fmt: skip
            self._until_alive(self._workers)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all of it, executors too. Fine if it is gone already."""
        processes = list(reversed(self._processes.values()))  # workers first: they end executors
        for process in processes:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            CHILDREN.remove(process.pid)
        self._processes = {}

    def __enter__(self) -> Self:
        return self.start() if not self._processes else self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---------------------------------------------------------------- parts

    def _launch(
        self, name: str, main: str, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        home = _spark_home()
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"),
                    *("--host", "127.0.0.1", *words),
                ],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_CONF_DIR": str(self.directory),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                    **(environment or {}),
                },
            )
        CHILDREN.add(process.pid)
        self._processes[name] = process

    def _until_alive(self, workers: int) -> None:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise SparkClusterFailedError(self._story(name, "ended"))
            try:
                if self.state()["aliveworkers"] >= workers:
                    return
            except (OSError, json.JSONDecodeError):
                pass  # not yet: the pages for people come first
            if time.monotonic() > deadline:
                raise SparkClusterFailedError(
                    self._story("master", f"no {workers} workers in {_START_SECONDS_MAX} seconds")
                )
            time.sleep(_POLL_SECONDS)

    def _story(self, name: str, what: str) -> str:
        log = (self.directory / f"{name}.log").read_bytes()[-_LOG_BYTES_TOLD:]
        return f"Spark's {name}: {what}; the end of its log:\n{log.decode(errors='replace')}"


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkClusterFailedError("the cluster comes with PySpark, which is not installed")
    return Path(found.origin).parent
