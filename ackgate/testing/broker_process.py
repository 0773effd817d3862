"""A real broker in a process of its own, which a test starts, kills and restarts.

Edge: owns one child process, its two pipes and two threads that drain them. For test suites, demos
and benchmarks; see ``pytest_plugin.py`` for the fixture::

    with BrokerProcess(data_directory) as broker:     # returns when the broker listens
        client = pulsar.Client(broker.service_url)
        broker.kill()                                 # kill -9
        broker.start()                                # same directory, same ports
        broker.pause()                                # SIGSTOP: alive, and silent
        broker.resume()
        broker.limit_files(0)                         # as if the disk were full, for it alone
        broker.limit_files(None)

Nothing waits by sleeping: the broker's one line on standard output is the signal. Standard error is
kept in a bounded buffer (`log`), and the end of it is part of every error raised here. The ports of
the first start are kept for the later ones, so that clients find the broker again. The broker never
outlives this process, even if that is killed.

Under the pytest plugin a broker is a fork of a process that has done the imports (`fork_server.py`): it
starts at a twentieth of the processor time. `BrokerProcess.is_forked = False` starts interpreters again.
"""

from __future__ import annotations

import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

import ackgate
from ackgate.testing.child_guard import CHILDREN
from ackgate.testing.fork_server import ForkedProcess, start_forked
from ackgate.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

LOG_LINES_MAX: Final = 2_000
"""Lines of standard error that are kept; older ones go."""

LOG_LINE_BYTES_MAX: Final = 4_096
"""A longer line is cut here, so that the buffer has a bound in bytes, too."""

_READY: Final = re.compile(rb"ackgate ready( (pulsar|http|pulsar\+ssl|https)://\S+:\d+)+\n")
_ERROR_LINES: Final = 20


class BrokerFailedError(Exception):
    """The broker did not start, or ended when it should not. Holds the end of its log."""


class BrokerProcess:
    """`python -m ackgate broker` on one data directory, any number of times, one at a time.

    A port that `settings` name (`brokerServicePortTls`, or an empty `webServicePort` for none) is theirs.
    """

    is_forked: ClassVar[bool] = False
    """Of all brokers: whether they are forks, where that is possible. The pytest plugin sets it."""

    def __init__(
        self,
        data_directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        port: int = 0,
        http_port: int = 0,
        python: str = sys.executable,
    ) -> None:
        self.data_directory = data_directory
        self.settings = dict(settings or {})
        """Keys of broker.conf. A change holds from the next `start` on."""
        self.port = port
        self.http_port = http_port
        self.service_url = ""
        """In clear, if that is possible; `service_url_tls` if not."""
        self.admin_url = ""
        self.service_url_tls = ""
        """Empty without `brokerServicePortTls`."""
        self.admin_url_tls = ""
        self.starts = 0
        self._python = python
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._log: deque[bytes] = deque(maxlen=LOG_LINES_MAX)
        self.log_lines = 0
        """How many lines it wrote to standard error, over all starts."""
        self._first_line: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    # ---------------------------------------------------------------- life

    def start(self, timeout_seconds: float = 30.0) -> Self:
        """Start and return when it listens. Raises `BrokerFailedError` if it does not."""
        self.launch()
        return self.wait_until_ready(timeout_seconds)

    def launch(self) -> None:
        """Start without waiting, to kill it before it is ready."""
        if self._process is not None:
            raise BrokerFailedError(f"broker {self._process.pid} is running already")
        self.port, self.http_port = (
            self.port or free_ports(1)[0],
            self.http_port or free_ports(1)[0],
        )
        self._first_line = queue.SimpleQueue()
        self._process = self._forked() or subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
        )
        CHILDREN.add(self._process.pid)
        self.starts += 1
        self._threads = [
            threading.Thread(target=drain, args=(pipe,), daemon=True)
            for drain, pipe in (
                (self._drain_output, self._process.stdout),
                (self._drain_log, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    def wait_until_ready(self, timeout_seconds: float = 30.0) -> Self:
        """Return when the launched broker listens. Raises `BrokerFailedError`."""
        try:
            line = self._first_line.get(timeout=timeout_seconds)
        except queue.Empty:
            self.kill()
            raise BrokerFailedError(
                self._story(f"not ready after {timeout_seconds} seconds")
            ) from None
        ready = _READY.fullmatch(line)
        if ready is None:
            code = self.wait()
            what = f"printed {line!r}" if line else f"ended with exit code {code}"
            raise BrokerFailedError(self._story(f"{what} instead of its ready line"))
        urls = {url.partition(":")[0]: url for url in line.decode().split()[2:]}
        self.service_url_tls, self.admin_url_tls = urls.get("pulsar+ssl", ""), urls.get("https", "")
        self.service_url = urls.get("pulsar", self.service_url_tls)
        self.admin_url = urls.get("http", self.admin_url_tls)
        for key, url in (
            ("brokerServicePortTls", self.service_url_tls),
            ("webServicePortTls", self.admin_url_tls),
        ):
            if url:
                self.settings[key] = _port(url)  # kept for the next start, as the others are
        self.port, self.http_port = _port(self.service_url), _port(self.admin_url)
        return self

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone. Fine if it is gone already."""
        self._end(signal.SIGKILL, None)

    def stop(self, timeout_seconds: float = 30.0) -> int:
        """SIGTERM, and wait. Returns the exit code. Raises `BrokerFailedError` if it goes on."""
        try:
            return self._end(signal.SIGTERM, timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(
                self._story(f"still running {timeout_seconds} seconds after SIGTERM")
            ) from None

    def terminate(self) -> None:
        """SIGTERM, without waiting. `wait` or `kill` afterwards."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, timeout_seconds: float | None = 30.0) -> int:
        """Wait until it ends by itself. Returns the exit code."""
        return self._end(None, timeout_seconds)

    def restart(self, timeout_seconds: float = 30.0) -> Self:
        """Stop with SIGTERM, and start again on the same ports."""
        self.stop(timeout_seconds)
        return self.start(timeout_seconds)

    # ---------------------------------------------------------------- trouble

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and files, and does nothing. Raises when none runs."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on, and knows nothing of the time between."""
        os.kill(self.pid, signal.SIGCONT)

    def limit_files(self, bytes_max: int | None) -> None:
        """Let no write of it go past that many bytes of any file: `EFBIG`. None: lift the limit.

        For this broker only that is a full disk. Linux only.
        """
        prlimit = getattr(resource, "prlimit", None)
        if prlimit is None:
            raise BrokerFailedError("limits of another process can be set on Linux only")
        _, hard = prlimit(self.pid, resource.RLIMIT_FSIZE)
        prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if bytes_max is None else bytes_max, hard))

    # ---------------------------------------------------------------- what it is

    @property
    def pid(self) -> int:
        """Process id. Raises `BrokerFailedError` when none runs."""
        if self._process is None:
            raise BrokerFailedError(self._story("not running"))
        return self._process.pid

    @property
    def name(self) -> str:
        """For people: the directory's name, and the port."""
        return f"broker {self.data_directory.name} on port {self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The end of what it wrote to standard error, over all starts."""
        return b"".join(self._log).decode(errors="replace")

    def log_after(self, lines: int) -> str:
        """What it wrote after that many lines of its log (`log_lines` of that time), as far as kept."""
        kept = list(self._log)
        count = min(max(0, self.log_lines - lines), len(kept))
        return b"".join(kept[len(kept) - count :]).decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    # ---------------------------------------------------------------- command and log

    def command(self) -> list[str]:
        """The command line, as one would type it."""
        command = [
            *(self._python, "-m", "ackgate", "broker"),
            *("--data-dir", str(self.data_directory)),
        ]
        if "brokerServicePort" not in self.settings:
            command += ["--port", str(self.port)]
        if "webServicePort" not in self.settings:
            command += ["--http-port", str(self.http_port)]
        for key, value in self.settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{key}={text}"]
        return command

    @staticmethod
    def environment() -> dict[str, str]:
        """This process's environment, in which the child finds the same `ackgate`."""
        package = Path(ackgate.__path__[0])
        known = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(package.parent), *([known] if known else [])]),
            "PYTHONUNBUFFERED": "1",
        }

    def _forked(self) -> ForkedProcess | None:
        """None when an interpreter is to be started: another one, or in another place."""
        ours = [sys.executable, "-m", "ackgate"]
        command = self.command()
        if not self.is_forked or command[: len(ours)] != ours:
            return None
        return start_forked(command[len(ours) :], self.environment())

    def _end(self, number: signal.Signals | None, timeout_seconds: float | None) -> int:
        process = self._process
        if process is None:
            return 0
        if number is not None:
            process.send_signal(number)
        code = process.wait(timeout_seconds)
        CHILDREN.remove(process.pid)
        for thread in self._threads:
            thread.join()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        self._process = None
        return code

    def _drain_output(self, pipe: IO[bytes]) -> None:
        self._first_line.put(pipe.readline(LOG_LINE_BYTES_MAX))  # b"" when it ended without one
        while pipe.read(LOG_LINE_BYTES_MAX):
            pass

    def _drain_log(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(LOG_LINE_BYTES_MAX):
            self._log.append(line)
            self.log_lines += 1

    def _story(self, what: str) -> str:
        tail = b"".join(list(self._log)[-_ERROR_LINES:]).decode(errors="replace")
        return f"broker on {self.data_directory}: {what}; the end of its log:\n{tail}"


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
