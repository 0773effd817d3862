"""Serves a SQLite metadata store to other processes of this machine, over a Unix socket.

Edge: the socket and its connections. One connection is one session::

    accepted --HELLO--> session ------ BYE, the socket's end, silence, a bad frame ------> over
                                                              its ephemeral nodes are deleted at once

The end of a process closes its socket, so what it owned is free a moment later: there is no time-out to
wait for. The time-out is for a process that hangs. Requests of one session are carried out in the order in
which they came, and those of all sessions that came together share one commit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from typing import TYPE_CHECKING, Final, Self, cast

from ackgate.errors import AckGateError, CallerError, ConfigurationError, CorruptRecordError
from ackgate.persistence.metadata.socket_frames import (
    PROTOCOL,
    FrameBuffer,
    SocketAnswer,
    SocketRequest,
)
from ackgate.persistence.metadata.watches import is_at_or_below
from ackgate.persistence.ports.node_rules import PATH_BYTES_MAX
from ackgate.persistence.system.data_directory import FILE_MODE
from ackgate.persistence.system.platform_files import reachable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
    from ackgate.persistence.ports import WatchEvent

log = logging.getLogger(__name__)

SESSIONS_MAX: Final = 1_024
"""Most sessions at a time."""

SESSION_MS_MIN: Final = 100
SESSION_MS_MAX: Final = 3_600_000
"""Longest session time-out that is granted."""

WATCHES_MAX: Final = 10_000
"""Paths that one session may watch."""

REQUESTS_MAX: Final = 10_000
"""Unanswered requests of one session. Above that nothing more is read from it."""

UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Answers and events that a client has not read. Above that its session ends."""

HELLO_SECONDS_MAX: Final = 10.0
"""How long a new connection may take to send HELLO."""

LOOKS: Final = 4
"""How often within its time-out a session is looked at."""


class MetadataServer:
    """Listens on the socket. Make it with `serve`. The caller closes the store, after this."""

    def __init__(self, store: SqliteMetadataStore, path: Path) -> None:
        self.path = path
        self._store = store
        self._server: asyncio.Server | None = None
        self._sessions: set[_Session] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._stop_watching: Callable[[], None] = lambda: None

    @classmethod
    async def serve(cls, store: SqliteMetadataStore, path: Path) -> Self:
        """Listen at `path`; a socket that was left there is replaced. Raises `ConfigurationError`."""
        server = cls(store, path)
        loop = asyncio.get_running_loop()
        try:
            server._server = await loop.create_unix_server(server._accept, sock=_listening(path))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {path}: {error.strerror or error}"
            ) from error
        server._stop_watching = store.watch("/", server._on_event)
        return server

    async def close(self) -> None:
        """End every session, and remove the socket. Twice is fine."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._stop_watching()
            self.path.unlink(missing_ok=True)
        for session in list(self._sessions):
            session.end("")
        while self._ending:
            await asyncio.wait(self._ending)

    def _accept(self) -> _Session:
        return _Session(self, next(self._numbers))

    def _on_event(self, event: WatchEvent) -> None:
        for session in self._sessions:
            session.on_event(event)

    # ------------------------------------------------------------------ for its sessions

    @property
    def store(self) -> SqliteMetadataStore:
        """The store that is served."""
        return self._store

    def opened(self, session: _Session) -> None:
        """Register a session. Raises `CallerError` when there are too many."""
        if len(self._sessions) >= SESSIONS_MAX:
            raise CallerError(f"there are {SESSIONS_MAX} sessions, and no more are taken")
        self._sessions.add(session)

    def closed(self, session: _Session) -> None:
        """Remove a session whose connection has ended, and delete its ephemeral nodes."""
        if session in self._sessions:
            self._sessions.discard(session)
            task = asyncio.get_running_loop().create_task(self._end(session.number))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, number: int) -> None:
        try:
            await self._store.end_session(number)
        except AckGateError as error:
            # Deliveries and ledgers are fenced; a node that stays keeps its topics from moving.
            log.error("what session %d owned is not free: %s", number, error)  # noqa: TRY400


class _Session(asyncio.Protocol):
    """The server's side of one connection, which is one session."""

    def __init__(self, server: MetadataServer, number: int) -> None:
        self.number = number
        self._server = server
        self._store = server.store
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._watched: set[str] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_paused = False
        self._is_over = False
        self.is_open = False
        """Whether HELLO has come."""
        self._timeout_ms = 0
        self._looks_in_vain = 0
        self._looking: asyncio.TimerHandle | None = None
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        try:
            self._server.opened(self)
        except CallerError as error:
            self.end(str(error))
            return
        self._look_later(HELLO_SECONDS_MAX)

    def data_received(self, data: bytes) -> None:
        self._looks_in_vain = 0
        try:
            for body in self._frames.feed(data):
                if self._is_over:
                    return
                self._take(SocketRequest.decode(body))
        except (CorruptRecordError, CallerError) as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_over = True
        self.is_open = False
        if self._looking is not None:
            self._looking.cancel()
        self._server.closed(self)

    def end(self, why: str) -> None:
        """Cut it off; `why`, if it says anything, is logged and sent first."""
        if self._is_over or self._transport is None:
            return
        self._is_over = True
        self.is_open = False
        if why:
            log.warning("metadata session %d ends: %s", self.number, why)
            self._unsent.append(SocketAnswer.failed(0, CallerError(why)).encode())
            self._flush()
        self._transport.close()
        self._server.closed(self)  # whether or not it takes what lies in its socket

    # ------------------------------------------------------------------ requests

    def _take(self, request: SocketRequest) -> None:
        """Carry out a request.

        Raises `CorruptRecordError`, `CallerError`, which end the session.
        """
        if request.number <= 0:
            raise CorruptRecordError(f"a request of the impossible number {request.number}")
        if not self.is_open:
            self._greet(request)
            return
        match request.call:
            case "PING":
                self._send(SocketAnswer(request.number))
            case "WATCH":
                if len(self._watched) >= WATCHES_MAX:
                    raise CallerError(f"more than {WATCHES_MAX} paths are watched")
                if len(request.path) > PATH_BYTES_MAX:
                    raise CallerError(f"a watched path of {len(request.path)} characters")
                self._watched.add(request.path)
                self._send(SocketAnswer(request.number))
            case "UNWATCH":
                self._watched.discard(request.path)
                self._send(SocketAnswer(request.number))
            case "HELLO":
                raise CallerError("a second HELLO")
            case _:
                self._begin(request)

    def _greet(self, request: SocketRequest) -> None:
        if request.call != "HELLO":
            raise CallerError(f"{request.call} before HELLO")
        if request.path != PROTOCOL:
            raise CallerError(
                f"the other side speaks {request.path[:40]!r}, this one {PROTOCOL}: both must be of"
                " one release of ackgate"
            )
        self._timeout_ms = min(max(request.version or 0, SESSION_MS_MIN), SESSION_MS_MAX)
        self.is_open = True
        self._look_later(self._timeout_ms / 1000 / LOOKS)
        self._send(SocketAnswer(request.number, version=self._timeout_ms))

    def _begin(self, request: SocketRequest) -> None:
        # Tasks begin in the order in which they are made, and reach the store in their first step.
        task = self._loop.create_task(self._run(request))
        self._under_way.add(task)
        task.add_done_callback(self._done)
        if len(self._under_way) >= REQUESTS_MAX and not self._is_paused:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._is_paused and len(self._under_way) < REQUESTS_MAX // 2:
            assert self._transport is not None
            self._is_paused = False
            self._looks_in_vain = 0
            if not self._is_over:
                self._transport.resume_reading()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a bug ended a metadata request", exc_info=error)
            self.end("a bug ended a request")

    async def _run(self, request: SocketRequest) -> None:
        try:
            answer = await self._answer(request)
        except AckGateError as error:
            answer = SocketAnswer.failed(request.number, error)
        self._send(answer)
        if request.call == "BYE":
            self._flush()
            self.end("")

    async def _answer(self, request: SocketRequest) -> SocketAnswer:
        number, path, store = request.number, request.path, self._store
        match request.call:
            case "GET":
                return SocketAnswer(number, node=await store.get(path))
            case "PUT":
                version = await store.put(path, request.value, expected_version=request.version)
                return SocketAnswer(number, version=version)
            case "CREATE":
                await store.create(
                    path, request.value, ephemeral=request.is_ephemeral, session=self.number
                )
            case "DELETE":
                await store.delete(path, expected_version=request.version)
            case "CHILDREN":
                return SocketAnswer(number, names=tuple(await store.children(path)))
            case "BYE":
                await store.end_session(self.number)
            case call:
                raise CallerError(f"there is no call {call}")
        return SocketAnswer(number)

    # ------------------------------------------------------------------ what goes back

    def on_event(self, event: WatchEvent) -> None:
        """Report a change that it watches, after the answers of the same commit."""
        if any(is_at_or_below(event.path, root) for root in self._watched):
            self._send(SocketAnswer(0, events=(event,)))

    def _send(self, answer: SocketAnswer) -> None:
        if self._is_over:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(answer.encode())

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        transport = self._transport
        if not unsent or transport is None or transport.is_closing():
            return
        transport.write(b"".join(unsent))
        unread_bytes = transport.get_write_buffer_size()
        if unread_bytes > UNREAD_BYTES_MAX and not self._is_over:
            self._is_over = True
            log.warning(
                "metadata session %d ends: it leaves %d bytes unread", self.number, unread_bytes
            )
            transport.abort()

    # ------------------------------------------------------------------ silence

    def _look_later(self, seconds: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._loop.call_later(seconds, self._look, seconds)

    def _look(self, seconds: float) -> None:
        """End a session that has been silent for too long.

        Looks are counted, not time: a stop of this process is one look, and not its client's
        silence.
        """
        if self._is_over or self._transport is None:
            return
        if not self.is_open:
            self.end("no HELLO came")
            return
        if not self._is_paused:
            self._looks_in_vain += 1
        if self._looks_in_vain > LOOKS + 1:
            self._is_over = True
            log.warning(
                "metadata session %d ends: it was silent for %d ms", self.number, self._timeout_ms
            )
            self._transport.abort()
            return
        self._look_later(seconds)


def _listening(path: Path) -> socket.socket:
    """A socket that only our own user may connect to. Raises `OSError`."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as short:
            listening.bind(short)
            os.chmod(short, FILE_MODE)  # noqa: PTH101 - before anybody can connect
        listening.listen(SESSIONS_MAX)
        listening.setblocking(False)  # noqa: FBT003
    except OSError:
        listening.close()
        raise
    return listening
