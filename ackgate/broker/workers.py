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
"""Of what supervisor and worker say to each other at the start."""

STEADY_SECONDS: Final = 10.0
"""A worker that lived for this long is started again at once when it dies."""

PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
"""Before one is started again that has died twice without: doubled each time."""

STOP_GRACE_SECONDS: Final = 1.0
"""What a worker gets to stop beyond `brokerShutdownTimeoutMs`, which it keeps by itself. `docker stop` kills
after 10 s in all."""

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
"""In the order of the ready line."""


# ---- in a worker


class WorkerPart(NamedTuple):
    """What makes a broker a worker."""

    number: int
    """From 1 on."""
    ports: Mapping[str, Sequence[socket.socket]]
    """Those that all workers share, by scheme or as `bindAddresses` names them."""

    @classmethod
    def read(cls, number: int) -> Self:
        """Take it from standard input. Raises `ConfigurationError` if no supervisor is there."""
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
        """From now on this process ends when the supervisor's does, as if it were killed itself.

        Its metadata store is gone then, and another supervisor may come: nothing that was confirmed is
        lost, and nothing else can be saved.
        """
        threading.Thread(target=_wait_for_end, name="supervisor", daemon=True).start()

    @staticmethod
    def failed(error: AckGateError) -> None:
        """Say on standard output why this worker does not serve."""
        is_usage = isinstance(error, OwnershipError | ValueError)
        _say(json.dumps({"error": str(error), "is_usage": is_usage}))


def _first_line() -> bytes:
    """One byte at a time: what comes after the line is for `_wait_for_end`."""
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

    `command`: the command line of a worker, but for what makes it one. Raises `ConfigurationError`,
    `DataDirectoryBusyError`, `StorageError` when they cannot be started.
    """
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
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
            if await crew.all_serve(told_to_stop):
                directory.describe({each.partition(":")[0]: each for each in ports.addresses})
                print("ackgate ready", *ports.addresses, flush=True)  # noqa: T201
                await told_to_stop.wait()
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
    """Workers of a supervisor that was killed notice that soon. Raises `DataDirectoryBusyError`."""
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
    """The ports of the one address. They are bound here, once, so no other process can take them."""

    def __init__(self) -> None:
        self.sockets: dict[str, list[socket.socket]] = {}
        self.addresses: list[str] = []

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Raises `ConfigurationError`."""
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
        """Nobody can connect any more once the workers have closed theirs, too."""
        for sockets in self.sockets.values():
            for each in sockets:
                each.close()

    @property
    def descriptors(self) -> dict[str, list[int]]:
        """What a child process inherits, named as in `WorkerPart.ports`."""
        return {name: [s.fileno() for s in sockets] for name, sockets in self.sockets.items()}


class _Crew:
    """The workers."""

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
        """Start them."""
        self._tasks = [asyncio.create_task(worker.run()) for worker in self._workers]

    async def all_serve(self, told_to_stop: asyncio.Event) -> bool:
        """Whether they do; False: it was to stop first. Raises why one of them cannot."""
        stopping = asyncio.ensure_future(told_to_stop.wait())
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
        """SIGTERM to all at once, and wait. Whether all had ended in time, and nothing was left undone."""
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
    """One worker, over all its lives."""

    def __init__(self, number: int, command: Sequence[str], ports: _SharedPorts) -> None:
        self._number = number
        self._command = command
        self._ports = ports
        self._process: asyncio.subprocess.Process | None = None
        self._told_to_stop = asyncio.Event()
        self.served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it served for the first time; fails if it never did."""
        self.ended_well = True

    async def run(self) -> None:
        """Start it again and again, until it is told to stop."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            why = await self._live()
            if self._told_to_stop.is_set():
                return
            if not self.served.done():
                self.served.set_exception(why)
                return
            deaths = 1 if loop.time() - began >= STEADY_SECONDS else deaths + 1
            pause = _pause_seconds(deaths)
            log.error("%s; it is started again%s", why, f" in {pause:g} s" if pause else "")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._told_to_stop.wait()
                return

    async def _live(self) -> AckGateError:
        """One life; how it ended."""
        sockets = self._ports.descriptors
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                pass_fds=[each for descriptors in sockets.values() for each in descriptors],
                start_new_session=True,  # what a terminal sends is for the supervisor
            )
        except OSError as error:
            return StorageError(f"worker {self._number} cannot be started: {error}")
        if self._told_to_stop.is_set():
            self.kill()  # it was not there yet to be told
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"sockets": sockets}).encode() + b"\n")
        line = b""
        with contextlib.suppress(ValueError):  # a line without an end: it is no worker's
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
            why = _told(line)
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
        """SIGTERM, and no further life."""
        self._told_to_stop.set()
        if not self.served.done():
            self.served.cancel()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _pause_seconds(deaths: int) -> float:
    """Before a worker that died as often in quick succession is started again."""
    return min((2 ** (deaths - 2)) * PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX) if deaths > 1 else 0.0


def _told(line: bytes) -> AckGateError:
    """What a worker said of itself instead of serving."""
    try:
        told = json.loads(line)
        text, is_usage = str(told["error"]), bool(told["is_usage"])
    except (ValueError, KeyError, TypeError):
        return StorageError(f"a worker said {line[:200]!r} instead of serving")
    return ConfigurationError(text) if is_usage else StorageError(text)


def worker_command(config: Path | None, overrides: Sequence[str]) -> list[str]:
    """The command line that starts this program again as a worker, but for what makes it one."""
    has_cwd = bool({"", os.getcwd()} & set(sys.path))  # noqa: PTH109 - as Python has it
    command = [sys.executable, *(() if has_cwd else ("-P",)), "-m", "ackgate", "broker"]
    if config is not None:
        command += ["--config", str(config)]
    for override in overrides:
        command += ["--set", override]
    return command


def _arguments(settings: Settings, root: Path, number: int) -> Iterator[str]:
    """What makes a command line that of worker `number`. Raises `ConfigurationError`."""
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
    """Remove workers' directories, in which nothing is kept: what they reserve on the disk is given back.

    `root` is the data directory, whose lock is held.
    """
    for directory in (root / WORKERS_DIRECTORY).glob("*"):
        with contextlib.suppress(OSError):
            for name in ("lock", RESERVE_FILE):
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()
    with contextlib.suppress(OSError):
        (root / WORKERS_DIRECTORY).rmdir()
