"""``ackgate broker --workers N``: several brokers on one machine, with one address and one exit.

Edge: child processes, the listening sockets that they share, the metadata store that they share. One Python
process is one core; so each worker is a broker of its own, in a cluster whose metadata store this process
serves. This process has no topics, and answers no client::

    supervisor    the lock of the data directory, the SQLite file, its socket, the shared ports (bound only)
       |  stdin: one line of JSON, what is shared; its end: this process is gone, so the worker ends, too
       |  stdout: one line, when the worker serves, or why it does not
       |  SIGTERM: stop
    worker n      DATA/workers/n, ports of its own; it accepts on the shared ports, too
                  the metadata store at unix:DATA/metadata.socket
                  the same bookies as the others

A client that connects to a shared port gets any worker. A lookup leads it to the owner's own port. When a
worker dies, the kernel closes its socket to the metadata store: its bundles are free at that moment, and
connections to the shared ports are accepted by the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ackgate.broker.topic import DISK_LOOK_SECONDS, DiskSpace
from ackgate.errors import (
    AckGateError,
    ConfigurationError,
    DataDirectoryBusyError,
    OwnershipError,
    StorageError,
)
from ackgate.network import advertised_host, listening_sockets, url_of, words_of
from ackgate.persistence.metadata.socket_server import MetadataServer
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.metadata_url import parse_metadata_url
from ackgate.persistence.system import platform_files
from ackgate.persistence.system.data_directory import DataDirectory
from ackgate.persistence.system.disk_reserve import RESERVE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ackgate.config.settings import Settings

log = logging.getLogger(__name__)

SOCKET_FILE: Final = "metadata.socket"
WORKERS_DIRECTORY: Final = "workers"

LINE_BYTES_MAX: Final = 64 * 1024
"""Longest line that supervisor and worker send each other at the start."""

STEADY_SECONDS: Final = 10.0
"""A worker that lived for this long is started again at once when it dies."""

PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
"""Longest pause before a worker is started again that keeps dying before `STEADY_SECONDS`.

The first restart has no pause; from the second on it doubles, from `PAUSE_SECONDS_MIN`.
"""

STOP_GRACE_SECONDS: Final = 1.0
"""How long a worker may take beyond its own `brokerShutdownTimeoutMs`. `docker stop` kills after 10
s in all."""

STOP_CUT_SHORT: Final = 1

OTHERS_SECONDS_MAX: Final = 10.0
"""How long a start waits for the workers of a supervisor that was killed."""

_OTHERS_LOOK_SECONDS: Final = 0.05

_SCHEMES: Final = {
    "brokerServicePort": "pulsar",
    "webServicePort": "http",
    "brokerServicePortTls": "pulsar+ssl",
    "webServicePortTls": "https",
}
"""Schemes by their keys, in the order of the ready line."""


# ---- in a worker


class WorkerPart(NamedTuple):
    """What a worker gets from its supervisor."""

    number: int
    """Number of this worker, from 1 on."""
    ports: Mapping[str, Sequence[socket.socket]]
    """Sockets that all workers accept on, by scheme or by an address of `bindAddresses`."""

    @classmethod
    def read(cls, number: int) -> Self:
        """Read it from standard input.

        Raises `ConfigurationError` if no supervisor started this process.
        """
        try:
            given = json.loads(_first_line())["sockets"]
            ports = {
                str(name): tuple(socket.socket(fileno=int(each)) for each in descriptors)
                for name, descriptors in given.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                "--worker is for the processes that `ackgate broker --workers` starts"
            ) from error
        for sockets in ports.values():
            for each in sockets:
                each.setblocking(False)  # noqa: FBT003
        return cls(number, ports)

    def end_with_supervisor(self) -> None:
        """End this process when the supervisor's ends, at once, as `kill -9` would.

        Its metadata store is gone then, and another supervisor may come: nothing that was confirmed
        is lost, and nothing else can be saved.
        """
        threading.Thread(target=_wait_for_end, name="supervisor", daemon=True).start()

    @staticmethod
    def failed(error: AckGateError) -> None:
        """Report on standard output why this worker does not serve."""
        is_usage = isinstance(error, OwnershipError | ValueError)
        _say(json.dumps({"error": str(error), "is_usage": is_usage}))


def _first_line() -> bytes:
    """Read one line, byte by byte: what comes after it is for `_wait_for_end`."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in {b"", b"\n"} and len(line) < LINE_BYTES_MAX:
        line += byte
    return bytes(line)


def _wait_for_end() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, LINE_BYTES_MAX):
            pass
    log.error("the process of --workers is gone: this worker ends")
    os._exit(STOP_CUT_SHORT)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, line.encode() + b"\n")


# ---- the supervisor


async def supervise(settings: Settings, root: Path, command: Sequence[str]) -> int:
    """Run workers until SIGTERM or SIGINT. Returns the exit code.

    `command`: the command line that all workers share; each gets its own options appended. Raises
    `ConfigurationError`, `DataDirectoryBusyError`, `StorageError` if they cannot be started.
    """
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    async with AsyncExitStack() as stack:
        directory = DataDirectory.acquire(root)
        stack.callback(directory.release)
        await _wait_for_others(directory.root)
        await _serve_metadata(settings, directory, stack)
        ports = await _SharedPorts.open(settings)
        stack.callback(ports.close)
        crew = _Crew(settings, directory.root, command, ports)
        stack.callback(clear_directories, directory.root)
        try:
            crew.begin()
            if await crew.all_serve(stop_requested):
                directory.describe({each.partition(":")[0]: each for each in ports.addresses})
                print("ackgate ready", *ports.addresses, flush=True)  # noqa: T201
                await stop_requested.wait()
            else:
                log.info("stopped before it served")
        finally:
            is_whole = await crew.stop()
    log.info("stopped")
    return 0 if is_whole else STOP_CUT_SHORT


async def _serve_metadata(
    settings: Settings, directory: DataDirectory, stack: AsyncExitStack
) -> None:
    persistence = settings.persistence
    url = persistence.metadata_store_url or f"sqlite:{directory.metadata_path}"
    # The workers look after the bookies' disks; this process writes the metadata.
    space = DiskSpace(directory.root, reserve_bytes=persistence.disk_reserve_bytes)
    stack.push_async_callback(space.close)
    await space.make_room(is_starting=True)
    store = await SqliteMetadataStore.open(
        parse_metadata_url(url).address, node_bytes_max=persistence.metadata_store_max_node_bytes
    )
    stack.push_async_callback(store.close)
    space.mend = lambda: [store.checkpoint()]
    looking = asyncio.create_task(_look_at(space))
    stack.callback(looking.cancel)
    server = await MetadataServer.serve(store, directory.root / SOCKET_FILE)
    stack.push_async_callback(server.close)


async def _look_at(space: DiskSpace) -> None:
    while True:
        await asyncio.sleep(DISK_LOOK_SECONDS)
        await space.look()


async def _wait_for_others(root: Path) -> None:
    """Wait until the workers of a supervisor that was killed have ended, which they do soon.

    Raises `DataDirectoryBusyError` if they are still there after `OTHERS_SECONDS_MAX`.
    """
    for path in (root / WORKERS_DIRECTORY).glob("*/lock"):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(OTHERS_SECONDS_MAX):
                while not platform_files.lock(descriptor, wait=False):  # noqa: ASYNC110 - a file's
                    await asyncio.sleep(_OTHERS_LOOK_SECONDS)
        except TimeoutError:
            holder = os.read(descriptor, 4096).decode(errors="replace").strip()
            raise DataDirectoryBusyError(
                f"{path.parent} is held by a worker of another broker: {holder or 'unknown'}"
            ) from None
        finally:
            os.close(descriptor)


class _SharedPorts:
    """The ports that all workers accept on, bound here once, so no other process can take them."""

    def __init__(self) -> None:
        self.sockets: dict[str, list[socket.socket]] = {}
        self.addresses: list[str] = []

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Bind all shared ports and listen. Raises `ConfigurationError`."""
        broker, shared = settings.broker, cls()
        wanted = broker.ports_of_worker(0)
        host = advertised_host(broker.advertised_address, broker.bind_address)
        try:
            for key, scheme in _SCHEMES.items():
                if key in wanted:
                    port = await shared._listen(scheme, broker.bind_address, wanted[key])
                    shared.addresses.append(url_of(scheme, host, port))
            for bound in broker.bound_listeners:
                await shared._listen(bound.text, bound.host, bound.port)
        except ConfigurationError:
            shared.close()
            raise
        return shared

    async def _listen(self, name: str, host: str, port: int) -> int:
        try:
            self.sockets[name] = await listening_sockets(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {words_of(error)}"
            ) from error
        return int(self.sockets[name][0].getsockname()[1])

    def close(self) -> None:
        """Close the sockets of this process.

        Clients can connect until the workers have closed theirs.
        """
        for sockets in self.sockets.values():
            for each in sockets:
                each.close()

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """File descriptors for a child process, by the names of `WorkerPart.ports`."""
        return {name: [s.fileno() for s in sockets] for name, sockets in self.sockets.items()}


class _Crew:
    """All the workers of this supervisor."""

    def __init__(
        self, settings: Settings, root: Path, command: Sequence[str], ports: _SharedPorts
    ) -> None:
        self._seconds = settings.broker.broker_shutdown_timeout_ms / 1000 + STOP_GRACE_SECONDS
        self._workers = [
            _Worker(number, [*command, *_arguments(settings, root, number)], ports)
            for number in range(1, settings.broker.broker_workers + 1)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks = [asyncio.create_task(worker.run()) for worker in self._workers]

    async def all_serve(self, stop_requested: asyncio.Event) -> bool:
        """Wait until every worker serves. Returns False if `stop_requested` was set first.

        Raises the error of a worker that cannot start.
        """
        stopping = asyncio.ensure_future(stop_requested.wait())
        waiting = asyncio.ensure_future(
            asyncio.gather(*(worker.served for worker in self._workers))
        )
        try:
            await asyncio.wait((stopping, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return False
            waiting.result()
            return True
        finally:
            stopping.cancel()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def stop(self) -> bool:
        """Send SIGTERM to all workers and wait; kill those that are late.

        Returns whether every worker ended in time and left nothing undone.
        """
        log.info("stopping")
        for worker in self._workers:
            worker.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._seconds)
            if late:
                log.error("%d workers did not stop in time: they are killed", len(late))
                for worker in self._workers:
                    worker.kill()
                await asyncio.wait(late)
        for task in self._tasks:
            task.result()  # a bug is no clean stop
        return all(worker.ended_well for worker in self._workers)


class _Worker:
    """One worker: its process, and the next one when that dies."""

    def __init__(self, number: int, command: Sequence[str], ports: _SharedPorts) -> None:
        self._number = number
        self._command = command
        self._ports = ports
        self._process: asyncio.subprocess.Process | None = None
        self._stop_requested = asyncio.Event()
        self.served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it has served for the first time; fails if its first process does not."""
        self.ended_well = True

    async def run(self) -> None:
        """Start the worker again whenever it dies, until `stop` is called."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            why = await self._live()
            if self._stop_requested.is_set():
                return
            if not self.served.done():
                self.served.set_exception(why)
                return
            deaths = 1 if loop.time() - began >= STEADY_SECONDS else deaths + 1
            pause = _pause_seconds(deaths)
            log.error("%s; it is started again%s", why, f" in {pause:g} s" if pause else "")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop_requested.wait()
                return

    async def _live(self) -> AckGateError:
        """Run one process to its end. Returns how it ended."""
        sockets = self._ports.descriptors
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                pass_fds=[each for descriptors in sockets.values() for each in descriptors],
                start_new_session=True,  # signals from a terminal are for the supervisor
            )
        except OSError as error:
            return StorageError(f"worker {self._number} cannot be started: {error}")
        if self._stop_requested.is_set():
            self.kill()  # `stop` came before there was a process to signal
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"sockets": sockets}).encode() + b"\n")
        line = b""
        with contextlib.suppress(ValueError):  # an endless line does not come from a worker
            line = await process.stdout.readline()
        why: AckGateError | None = None
        if line.startswith(b"ackgate ready "):
            addresses = line.decode().split()[2:]
            log.info(
                "worker %d serves: process %d, %s", self._number, process.pid, " ".join(addresses)
            )
            if not self.served.done():
                self.served.set_result(None)
        elif line:
            why = _reported_error(line)
        code = await process.wait()
        process.stdin.close()
        # SIGTERM itself ends one that has not begun anything.
        self.ended_well = code in {0, -signal.SIGTERM}
        self._process = None
        if why is not None:
            return type(why)(f"worker {self._number}: {why}") if self.served.done() else why
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return StorageError(f"worker {self._number}, process {process.pid}, {how}")

    def stop(self) -> None:
        """Send SIGTERM, and do not start the worker again."""
        self._stop_requested.set()
        if not self.served.done():
            self.served.cancel()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _pause_seconds(deaths: int) -> float:
    """Pause before a worker is started again that died so often in quick succession."""
    return min((2 ** (deaths - 2)) * PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX) if deaths > 1 else 0.0


def _reported_error(line: bytes) -> AckGateError:
    """The error that a worker reported instead of serving."""
    try:
        reported = json.loads(line)
        text, is_usage = str(reported["error"]), bool(reported["is_usage"])
    except (ValueError, KeyError, TypeError):
        return StorageError(f"a worker said {line[:200]!r} instead of serving")
    return ConfigurationError(text) if is_usage else StorageError(text)


def worker_command(config: Path | None, overrides: Sequence[str]) -> list[str]:
    """The command line that all workers share: this program, started again."""
    has_cwd = bool({"", os.getcwd()} & set(sys.path))  # noqa: PTH109 - as Python has it
    command = [sys.executable, *(() if has_cwd else ("-P",)), "-m", "ackgate", "broker"]
    if config is not None:
        command += ["--config", str(config)]
    for override in overrides:
        command += ["--set", override]
    return command


def _arguments(settings: Settings, root: Path, number: int) -> Iterator[str]:
    """The options of worker `number`. Raises `ConfigurationError`."""
    own = {
        "brokerWorkers": "1",
        "dataDirectory": str(root / WORKERS_DIRECTORY / str(number)),
        "metadataStoreUrl": f"unix:{root / SOCKET_FILE}",
        **settings.broker.ports_of_worker(number),
    }
    listeners = settings.broker.listeners_of_worker(number)
    if listeners:
        own["advertisedListeners"] = ",".join(listeners)
    bookies = [str(path) for path in settings.persistence.bookie_paths(root)]
    if bookies:
        if not settings.persistence.bookie_directories and "," in str(root):
            raise ConfigurationError(
                f"data directory {root}: with more than one worker its name may have no comma, or"
                " bookieDirectories must say where messages lie"
            )
        own["bookieDirectories"] = ",".join(bookies)
    yield from ("--worker", str(number))
    for key, value in own.items():
        yield from ("--set", f"{key}={value}")


def clear_directories(root: Path) -> None:
    """Remove the workers' directories, and so the disk space that they reserve.

    They keep nothing else.

    `root` is the data directory; the caller holds its lock.
    """
    for directory in (root / WORKERS_DIRECTORY).glob("*"):
        with contextlib.suppress(OSError):
            for name in ("lock", RESERVE_FILE):
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()
    with contextlib.suppress(OSError):
        (root / WORKERS_DIRECTORY).rmdir()
