"""A TCP proxy whose wire can be cut, slowed and swallowed, for tests of what happens then.

Edge: owns one thread with an event loop of its own, one listening socket, and two pumps for every
connection. Switched at run time, from any thread; a switch holds when the call returns::

    with TcpProxy(("127.0.0.1", 2181)) as proxy:
        client.connect("127.0.0.1", proxy.port)
        proxy.switch(ProxyMode.HOLD)          # the network is gone ...
        proxy.switch(ProxyMode.PASS)          # ... and was only slow

What becomes of bytes, in either direction, and of connections:

    PASS    bytes go on at once
    DELAY   bytes go on `delay_ms` later, in order, as many at a time as come
    HOLD    nothing goes on; what waits goes on after the next switch: a short loss, made good by
            TCP's retransmission
    DROP    bytes vanish and the connection stays: a long loss. A stream with a hole is never
            continued: what has lost bytes is reset at the next switch
    CUT     connections are reset, and new ones too, as soon as they are there

`drops_answers_only` lets bytes through to the target and drops what it answers.

Bounds: `_CHUNKS_MAX` chunks of `_CHUNK_BYTES` per direction wait here; then nothing more is read, and
the sender notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_MAX: Final = 64
_CONNECTIONS_MAX: Final = 1_000
_START_SECONDS: Final = 10.0


class ProxyMode(enum.Enum):
    """What becomes of bytes; see the module."""

    PASS = "pass"
    DELAY = "delay"
    HOLD = "hold"
    DROP = "drop"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class ProxyCounts:
    """Connections and bytes so far, by what became of them."""

    accepted: int = 0
    refused: int = 0
    """Connections that came while the wire was cut, were too many, or were refused by the
    target."""
    reset: int = 0
    """Connections that a switch ended."""
    bytes_to_target: int = 0
    bytes_to_client: int = 0
    bytes_dropped: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    mode: ProxyMode = ProxyMode.PASS
    delay_seconds: float = 0.0
    drops_answers_only: bool = False

    def drops(self, *, is_answer: bool) -> bool:
        return self.mode is ProxyMode.DROP and (is_answer or not self.drops_answers_only)


class TcpProxy:
    """One proxy: a port that forwards to another, until its mode is changed."""

    def __init__(self, target: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        self.host = host
        self.port = port
        """Where it listens; with 0, a free port from the start on."""
        self._state = _State()
        self._counts = ProxyCounts()
        self._connections: set[_Connection] = set()
        self._switched = asyncio.Event()
        """Of the present state; replaced with every switch."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event

    # ---------------------------------------------------------------- from any thread

    def start(self) -> Self:
        """Listen. Raises `OSError` when the port cannot be had."""
        listening: _Outcome = _Outcome()
        self._thread = threading.Thread(
            target=self._run, args=(listening,), name=f"proxy to {self.target[1]}", daemon=True
        )
        self._thread.start()
        listening.wait()
        return self

    def stop(self) -> None:
        """Close everything. Twice is fine."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._thread = None

    def switch(
        self, mode: ProxyMode, *, delay_ms: float = 0.0, drops_answers_only: bool = False
    ) -> None:
        """Treat bytes in this way from now on."""
        state = _State(mode, delay_ms / 1000, drops_answers_only)
        self._in_loop(lambda: self._switch(state))

    @property
    def mode(self) -> ProxyMode:
        return self._state.mode

    @property
    def counts(self) -> ProxyCounts:
        """What has happened so far."""
        return self._counts

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def __enter__(self) -> Self:
        return self.start() if self._thread is None else self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _in_loop(self, act: Callable[[], None]) -> None:
        """Run a call in the loop, between two steps of the pumps, and return when it is done."""
        done: _Outcome = _Outcome()
        self._loop.call_soon_threadsafe(done.of, act)
        done.wait()

    # ---------------------------------------------------------------- in the loop

    def _run(self, listening: _Outcome) -> None:
        asyncio.run(self._serve(listening))

    async def _serve(self, listening: _Outcome) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._switched = asyncio.Event(), asyncio.Event()
        try:
            server = await asyncio.start_server(
                self._accept, self.host, self.port, limit=_CHUNK_BYTES
            )
        except OSError as error:
            listening.fail(error)
            return
        self.port = server.sockets[0].getsockname()[1]
        listening.of(lambda: None)
        await self._stopping.wait()
        server.close()
        for connection in list(self._connections):
            connection.reset()
        while self._connections:
            await asyncio.gather(*(connection.ended.wait() for connection in self._connections))
            await asyncio.sleep(0)
        await server.wait_closed()

    def _switch(self, state: _State) -> None:
        for connection in list(self._connections):
            if state.mode is ProxyMode.CUT or connection.is_torn:
                self._count(reset=1)
                connection.reset()
        self._state = state
        self._switched.set()
        self._switched = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._state.mode is ProxyMode.CUT or len(self._connections) >= _CONNECTIONS_MAX:
            self._count(refused=1)
            _reset(writer)
            return
        self._count(accepted=1)
        connection = _Connection(self, reader, writer)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            connection.ended.set()

    def _count(self, **more: int) -> None:
        counts = self._counts
        self._counts = replace(
            counts, **{name: getattr(counts, name) + number for name, number in more.items()}
        )


class _Connection:
    """A connection: the client, the target, and a pump for each direction."""

    def __init__(
        self, proxy: TcpProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.is_torn = False
        """Bytes of it have vanished."""
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._client = (reader, writer)
        self._writers = [writer]
        self._task: asyncio.Task[bool] | None = None

    async def run(self) -> None:
        """Pump until both ends are closed, or one is reset."""
        self._task = asyncio.create_task(self._pump_both())
        await asyncio.wait([self._task])
        is_whole = not self._task.cancelled() and self._task.result()
        for writer in self._writers:
            if is_whole:
                writer.close()  # what was written last is still on its way
            else:
                _reset(writer)

    def reset(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _pump_both(self) -> bool:
        """Pump both directions. Returns whether both came to their end."""
        await self._wire(is_answer=False)
        try:
            reader, writer = await asyncio.open_connection(*self._proxy.target, limit=_CHUNK_BYTES)
        except OSError:
            self._proxy._count(refused=1)
            return False
        self._writers.append(writer)
        try:
            await _all_or_none(
                self._pump(self._client[0], writer, is_answer=False),
                self._pump(reader, self._client[1], is_answer=True),
            )
        except OSError:
            return False
        return True

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        """Pump one direction through a bounded queue, its end (b"") included."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_MAX)
        await _all_or_none(
            self._read(reader, waiting), self._write(waiting, writer, is_answer=is_answer)
        )

    async def _read(
        self, reader: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        loop = self._proxy._loop
        chunk = b"?"
        while chunk:
            chunk = await reader.read(_CHUNK_BYTES)
            await waiting.put((loop.time() + self._proxy._state.delay_seconds, chunk))

    async def _write(
        self,
        waiting: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        loop = self._proxy._loop
        while True:
            due, chunk = await waiting.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if not await self._wire(is_answer=is_answer):
                self.is_torn = True
                self._proxy._count(bytes_dropped=len(chunk))
                continue
            if not chunk:
                writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()
            direction = "bytes_to_client" if is_answer else "bytes_to_target"
            self._proxy._count(**{direction: len(chunk)})

    async def _wire(self, *, is_answer: bool) -> bool:
        """Whether the next bytes go on. Waits while they are held."""
        while self._proxy._state.mode is ProxyMode.HOLD:
            await self._proxy._switched.wait()
        return not self._proxy._state.drops(is_answer=is_answer)


class _Outcome:
    """One thing done in the loop, awaited by another thread."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: OSError | None = None

    def of(self, act: Callable[[], None]) -> None:
        act()
        self._done.set()

    def fail(self, error: OSError) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> None:
        if not self._done.wait(_START_SECONDS):
            raise TimeoutError("the proxy's thread does not answer")
        if self._error is not None:
            raise self._error


async def _all_or_none(*jobs: Coroutine[None, None, None]) -> None:
    """Run all together; when one fails or all are cancelled, none goes on."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close without ceremony: the other end sees a reset, whatever was on its way."""
    endpoint = writer.get_extra_info("socket")
    if endpoint is not None:
        with contextlib.suppress(OSError):
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
