"""The metadata store that another process of this machine serves on a Unix socket (`socket_server`).

Edge: the connection. A session is one connection: when that ends, so does the session, and what it owned is
free at once. There is no `SUSPENDED` here. The lease is kept by pings, since the server ends the session
of a process that hangs::

    lease_until = when the latest answered request was sent + the time-out
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final, NamedTuple, Self, cast

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    CorruptRecordError,
    MetadataStoreError,
    OutcomeUnknownError,
    SessionLostError,
)
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.socket_frames import (
    PROTOCOL,
    FrameBuffer,
    SocketAnswer,
    SocketRequest,
)
from ackgate.persistence.metadata.watches import SessionListeners, Watches
from ackgate.persistence.ports import NodeValue, SessionState
from ackgate.persistence.ports.node_rules import NODE_BYTES_MAX, check_path, check_value
from ackgate.persistence.system.platform_files import reachable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ackgate.persistence.ports import WatchEvent

log = logging.getLogger(__name__)

REQUESTS_WAITING_MAX: Final = 200_000
"""Beyond this the store refuses: something is far slower than what it is asked to do."""

PINGS: Final = 4
"""Pings sent within the session's time-out."""

_WRITES: Final = frozenset({"PUT", "CREATE", "DELETE"})


class _Waiting(NamedTuple):
    request: SocketRequest
    done: asyncio.Future[SocketAnswer]
    sent_at: float


class SocketMetadataStore:
    """One session at a time to a `MetadataServer`. Implements `MetadataStore`. Make it with `open`."""

    def __init__(
        self, path: Path, *, read_only: bool, node_bytes_max: int, options: SessionOptions
    ) -> None:
        self._path = path
        self._is_read_only = read_only
        self._node_bytes_max = node_bytes_max
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._state = SessionState.LOST
        self._is_closed = False
        self._wire: _Wire | None = None
        self._lease_until = -math.inf
        self._timeout_seconds = 0.0
        self._pinging: asyncio.TimerHandle | None = None
        self._renewing = asyncio.Lock()
        self._watches = Watches()
        self._watched: dict[str, int] = {}
        """Number of watchers of each path that the server reports changes of."""
        self._listeners = SessionListeners(self._loop)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        read_only: bool = False,
        node_bytes_max: int = NODE_BYTES_MAX,
        options: SessionOptions | None = None,
    ) -> Self:
        """Begin a session. Raises `MetadataStoreError` when nobody serves there."""
        store = cls(
            path,
            read_only=read_only,
            node_bytes_max=node_bytes_max,
            options=options or SessionOptions(),
        )
        await store._begin()
        return store

    @property
    def node_bytes_max(self) -> int:
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        return self._state

    @property
    def lease_until(self) -> float:
        return self._lease_until

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        check_path(path)
        return (await self._ask("GET", path)).node

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        self._check_write(path, value)
        answer = await self._ask("PUT", path, value=bytes(value), version=expected_version)
        return answer.version

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        self._check_write(path, value)
        await self._ask("CREATE", path, value=bytes(value), is_ephemeral=ephemeral)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        self._check_write(path, b"")
        await self._ask("DELETE", path, version=expected_version)

    async def children(self, path: str) -> list[str]:
        if path != "/":
            check_path(path)
        return list((await self._ask("CHILDREN", path)).names)

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        cancel = self._watches.add(path, on_event)
        wire = self._wire
        if wire is None:
            return cancel
        self._watched[path] = self._watched.get(path, 0) + 1
        if self._watched[path] == 1:
            wire.send("WATCH", path)
        is_cancelled = False

        def unwatch() -> None:
            nonlocal is_cancelled
            cancel()
            if is_cancelled or wire is not self._wire:
                return
            is_cancelled = True
            self._watched[path] -= 1
            if not self._watched[path]:
                del self._watched[path]
                wire.send("UNWATCH", path)

        return unwatch

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(on_change)

    async def renew(self) -> None:
        async with self._renewing:
            self._check_open()
            if self._state is SessionState.LOST:
                await self._begin()
                log.info("new metadata session: store=unix:%s", self._path)

    async def close(self) -> None:
        """See `MetadataStore.close`. Twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._listeners.clear()
        self._watches.clear()
        wire = self._wire
        if wire is not None:
            # Everything asked so far is answered before; a server that is gone has ended the session, too.
            with contextlib.suppress(AckGateError, TimeoutError):
                async with asyncio.timeout(self._options.operation_timeout_seconds):
                    await wire.send("BYE")
            self._over(wire, "it was closed")
            wire.cut()

    # ------------------------------------------------------------------ the session

    async def _begin(self) -> None:
        seconds = self._options.operation_timeout_seconds
        wire: _Wire | None = None
        try:
            async with asyncio.timeout(seconds):
                with reachable(self._path) as short:
                    _, wire = await self._loop.create_unix_connection(lambda: _Wire(self), short)
                asked_at = self._loop.time()
                granted = await wire.send(
                    "HELLO", PROTOCOL, version=self._options.session_timeout_ms
                )
        except (AckGateError, OSError) as error:
            if wire is not None:
                wire.cut()
            why = f"no answer in {seconds:g} s" if isinstance(error, TimeoutError) else error
            raise MetadataStoreError(f"no metadata store at unix:{self._path}: {why}") from error
        if wire.is_over:
            raise MetadataStoreError(f"the metadata store at unix:{self._path} went away")
        self._wire = wire
        self._timeout_seconds = granted.version / 1000
        self._lease_until = asked_at + self._timeout_seconds
        self._state = SessionState.CONNECTED
        self._listeners.notify(SessionState.CONNECTED)
        self._pinging = self._loop.call_later(self._timeout_seconds / PINGS, self._ping)

    def _ping(self) -> None:
        if self._wire is not None:
            self._wire.send("PING")
            self._pinging = self._loop.call_later(self._timeout_seconds / PINGS, self._ping)

    def answered(self, wire: _Wire, waiting: _Waiting) -> None:
        """A request of the session came back: the session lived when it went out."""
        if wire is self._wire:
            self._lease_until = max(self._lease_until, waiting.sent_at + self._timeout_seconds)

    def changed(self, wire: _Wire, events: tuple[WatchEvent, ...]) -> None:
        """Notify the watchers of these changes."""
        if wire is self._wire:
            self._watches.fire(events)

    def lost(self, wire: _Wire, why: str) -> None:
        """End the session: its connection has ended."""
        if wire is self._wire:
            log.warning("the metadata session of unix:%s is over: %s", self._path, why)
            self._over(wire, why)
            self._listeners.notify(SessionState.LOST)

    def _over(self, wire: _Wire, why: str) -> None:
        self._wire = None
        self._state = SessionState.LOST
        self._lease_until = min(self._lease_until, self._loop.time())
        self._watches.clear()
        self._watched.clear()
        if self._pinging is not None:
            self._pinging.cancel()
        wire.fail(why)

    # ------------------------------------------------------------------ calls

    async def _ask(
        self,
        call: str,
        path: str,
        *,
        value: bytes = b"",
        version: int | None = None,
        is_ephemeral: bool = False,
    ) -> SocketAnswer:
        self._check_open()
        if self._wire is None:
            raise SessionLostError(f"the session to the metadata store unix:{self._path} is over")
        if self._wire.waiting_count >= REQUESTS_WAITING_MAX:
            raise MetadataStoreError(
                f"unix:{self._path}: {self._wire.waiting_count} operations are waiting"
            )
        answer = await self._wire.send(
            call, path, value=value, version=version, is_ephemeral=is_ephemeral
        )
        error = answer.raised()
        if error is not None:
            raise error
        return answer

    def _check_write(self, path: str, value: bytes) -> None:
        check_path(path)
        check_value(path, value, self._node_bytes_max)
        if self._is_read_only:
            raise CallerError(f"unix:{self._path} was opened for reading only")

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError(f"the metadata store unix:{self._path} is closed")


class _Wire(asyncio.Protocol):
    """One connection, and the requests on it that have no answer, by number."""

    def __init__(self, store: SocketMetadataStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0
        self._unsent: list[bytes] = []
        self.is_over = False

    @property
    def waiting_count(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    def send(
        self,
        call: str,
        path: str = "",
        *,
        value: bytes = b"",
        version: int | None = None,
        is_ephemeral: bool = False,
    ) -> asyncio.Future[SocketAnswer]:
        """Queue a request; all requests of one turn of the loop go out together at its end."""
        self._number += 1
        request = SocketRequest(self._number, call, path, value, version, is_ephemeral)
        done: asyncio.Future[SocketAnswer] = self._loop.create_future()
        if self.is_over:
            done.set_exception(SessionLostError("the session to the metadata store is over"))
            done.exception()  # nobody may await it: a PING, a WATCH
            return done
        self._waiting[request.number] = _Waiting(request, done, self._loop.time())
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(request.encode())
        return done

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._take(SocketAnswer.decode(body))
        except CorruptRecordError as error:
            self._end(str(error))
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the other side closed it"))

    def _take(self, answer: SocketAnswer) -> None:
        """Take an answer: settle its request, or report events. Raises `CorruptRecordError`."""
        if answer.number == 0:
            if answer.error:
                self._end(answer.text)
            self._store.changed(self, answer.events)
            return
        waiting = self._waiting.pop(answer.number, None)
        if waiting is None:
            raise CorruptRecordError(f"an answer to request {answer.number}, which does not wait")
        self._store.answered(self, waiting)
        if not waiting.done.done():  # its caller may have been cancelled
            waiting.done.set_result(answer)

    def _end(self, why: str) -> None:
        self._store.lost(self, why)
        self.fail(why)

    def fail(self, why: str) -> None:
        """Fail all requests that have no answer. Twice is fine."""
        self.is_over = True
        waiting, self._waiting = self._waiting, {}
        for request, done, _ in waiting.values():
            if not done.done():
                where = f"{request.call} {request.path}".rstrip()
                done.set_exception(
                    OutcomeUnknownError(f"{where}: the connection broke: {why}")
                    if request.call in _WRITES
                    else SessionLostError(f"{where}: the session is over: {why}")
                )
                done.exception()  # nobody may await it

    def cut(self) -> None:
        """Abort the connection; `connection_lost` follows."""
        if self._transport is not None:
            self._transport.abort()
