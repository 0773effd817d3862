"""Starts brokers as forks of one process that has imported them, at a twentieth of the processor time.

Edge, Linux only: owns a child process and the socket to it. Most of a broker's start is imports; a suite with
a hundred starts pays for them once. A fork runs the same `main` with the same words, and has an environment,
a working directory, standard streams and signals of its own: only the imports come from the server.

::

    this process --- command, environment, pipes ---> fork server: imports, then waits
                <-- process id ------------------            | fork
                <-- how it ended --- (a pipe each)       broker, broker, ...

What is read once, when an interpreter starts (``PYTHON...``, ``LD_...``), cannot be changed later: there is a
server for each combination of it. A server ends with the process that started it; what it forked is
`CHILDREN`'s to end.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

_REQUEST_BYTES_MAX: Final = 128 * 1024
"""A command and an environment; a larger one is not for this server."""

_STATUS: Final = struct.Struct("=i")
_FOR_INTERPRETERS: Final = (
    *("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("OPENSSL_", "SSL_", "OPENBLAS_", "OMP_", "NPY_"),
)
"""Beginnings of the names of what an interpreter, or a library at its import, reads once."""

_IMPORTS: Final = (
    *("ackgate.__main__", "ackgate.broker.run", "ackgate.broker.collector"),
    *("ackgate.broker.server", "ackgate.broker.admin"),
)
_IMPORTS_IF_INSTALLED: Final = ("uvloop", "ackgate.persistence.zookeeper.store")


class ForkedProcess:
    """A forked child, with as much of `subprocess.Popen` as `BrokerProcess` needs."""

    def __init__(self, pid: int, status: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self._status = status
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Returns the exit code. Raises `subprocess.TimeoutExpired`."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended_within(self, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._code is not None:
                    return self._code
                if _is_readable(self._status, 0):
                    status = os.read(self._status, _STATUS.size)
                    # Without a word of it the server was killed; nobody else knows how its child ended.
                    self._code = _STATUS.unpack(status)[0] if status else -signal.SIGKILL
                    os.close(self._status)
                    return self._code
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            # In steps: another thread may read what both of them wait for.
            _is_readable(self._status, 0.1 if left is None else min(left, 0.1))


def _is_readable(descriptor: int, timeout: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout * 1_000))


class ForkServer:
    """One server: one interpreter, with one set of what it reads at its start."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
            )
        self._socket = ours

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Fork an ``ackgate`` with these words. Raises `OSError` when the server cannot do it."""
        request = json.dumps([list(words), dict(environment), str(Path.cwd())]).encode()
        if len(request) > _REQUEST_BYTES_MAX:
            raise OSError(f"a request of {len(request)} bytes")
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            ends = []
            for _ in range(3):
                reads, writes = os.pipe()
                ours.callback(os.close, reads)
                theirs.callback(os.close, writes)
                ends.append((reads, writes))
            with self._lock:
                socket.send_fds(self._socket, [request], [writes for _, writes in ends])
                reply = self._socket.recv(_STATUS.size)
            if not reply:
                raise OSError("the fork server has ended")
            ours.pop_all()
            (output, _), (errors, _), (status, _) = ends
            [pid] = _STATUS.unpack(reply)
            return ForkedProcess(pid, status, open(output, "rb"), open(errors, "rb"))  # noqa: PTH123

    def stop(self) -> None:
        """End the server. The processes that it forked go on."""
        self._socket.close()
        self._process.wait()


_servers: Final[dict[tuple[tuple[str, str], ...], ForkServer]] = {}
_servers_lock: Final = threading.Lock()


def start_forked(words: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess | None:
    """Run ``ackgate`` with these words as a process of its own; None where that cannot be done."""
    if sys.platform != "linux":
        return None
    read_at_start = sorted(
        item for item in environment.items() if item[0].startswith(_FOR_INTERPRETERS)
    )
    key = tuple(read_at_start)
    with _servers_lock:
        server = _servers.get(key)
        if server is None:
            server = _servers[key] = ForkServer(environment)
            atexit.register(server.stop)
    try:
        return server.start(words, environment)
    except OSError:
        with _servers_lock:
            if _servers.pop(key, None) is server:
                atexit.unregister(server.stop)
                server.stop()
        return None


# ---------------------------------------------------------------- inside the server


class _Job(NamedTuple):
    """What a fork has to do."""

    words: list[str]
    environment: dict[str, str]
    directory: str
    streams: list[int]


def _serve(asked: socket.socket) -> _Job | None:
    """Fork for each request until there are no more. In a fork, returns its job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    waiting = select.poll()
    waiting.register(asked, select.POLLIN)
    waiting.register(woken, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(woken, 4_096):
                    pass
            _report_ended(statuses)
        if asked.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(asked, _REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        *streams, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            asked.close()
            for descriptor in (woken, wakes, status, *statuses.values()):
                os.close(descriptor)
            words, environment, directory = json.loads(message)
            return _Job(words, environment, directory, streams)
        statuses[pid] = status
        for stream in streams:
            os.close(stream)
        asked.send(_STATUS.pack(pid))


def _report_ended(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        reported = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(reported, _STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(reported)


def _do(job: _Job) -> NoReturn:
    for number, stream in enumerate(job.streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.directory)
    sys.argv = ["ackgate", *job.words]
    raise SystemExit(import_module("ackgate.__main__").main(job.words))


def main() -> None:
    """Run the server's process."""
    gc.disable()  # nothing here is garbage, and every fork shares what is here
    for name in _IMPORTS:
        import_module(name)
    for name in _IMPORTS_IF_INSTALLED:
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        job = _serve(asked)
    if job is not None:
        _do(job)


if __name__ == "__main__":
    main()
