"""A metadata server whose sessions are slow, lose requests and answers, and expire. ZooKeeper's model.

The server keeps its word: what was done stays done, each session's requests are done in order, and
a session that was not heard of for its time-out ends with its ephemeral nodes. Everything between
it and a client can go wrong:

    client: call -----> in flight ------> server does it -----> in flight -----> answer
                     ^ connection breaks here: not done     ^ here: done
                       the client does not know which: `OutcomeUnknownError`

A client sends heartbeats. One that is paused or cut off is not heard of; when it comes back after
its time-out it finds its session expired.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackgate.errors import (
    ClosedHandleError,
    MetadataStoreError,
    OutcomeUnknownError,
    SessionLostError,
    StoreSuspendedError,
)
from ackgate.persistence.metadata.memory import MemoryMetadataStore, MemoryTree
from ackgate.persistence.metadata.watches import SessionListeners, Watches
from ackgate.persistence.ports import SessionState
from ackgate.persistence.ports.node_rules import NODE_BYTES_MAX
from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ackgate.persistence.ports import NodeValue, WatchEvent
    from tests.support.simulation.loop import Process

T = TypeVar("T")

HEARTBEATS_PER_TIMEOUT: Final = 3


class _ServerSession(MemoryMetadataStore):
    """The server's side of a session: knows when it was last heard of."""

    def __init__(
        self,
        tree: MemoryTree,
        clock_ms: Callable[[], int],
        node_bytes_max: int,
        on_event: Callable[[WatchEvent], None],
    ) -> None:
        super().__init__(tree, clock_ms=clock_ms, node_bytes_max=node_bytes_max)
        self._on_event = on_event
        self.heard_at = asyncio.get_running_loop().time()
        self.has_expired = False

    def hear(self, event: WatchEvent) -> None:
        """Hand it on to the client."""
        self._on_event(event)


class MetadataServer:
    """The tree, and how long things take on the way to it."""

    def __init__(
        self, world: Process, latency: Callable[[], float], clock_ms: Callable[[], int]
    ) -> None:
        self.world = world
        self.tree = MemoryTree()
        self.latency = latency
        self.clock_ms = clock_ms
        self.is_away = False
        """Nobody can connect."""

    def session(
        self, node_bytes_max: int, on_event: Callable[[WatchEvent], None], timeout_seconds: float
    ) -> _ServerSession:
        """A new session."""
        session = self.world.context.run(
            _ServerSession, self.tree, self.clock_ms, node_bytes_max, on_event
        )
        self._expire_later(session, timeout_seconds)
        return session

    def _expire_later(self, session: _ServerSession, timeout_seconds: float) -> None:
        now = self.world.loop.time()
        silent_until = session.heard_at + timeout_seconds
        if session.session_state is SessionState.LOST:
            return
        if now >= silent_until:
            session.has_expired = True
            session.expire()
        else:
            self.world.call_later(silent_until - now, self._expire_later, session, timeout_seconds)


class _Request:
    """One call on its way."""

    __slots__ = ("connection", "done", "is_write", "perform")

    def __init__(
        self,
        perform: Callable[[MemoryMetadataStore], Coroutine[Any, Any, object]] | None,
        done: asyncio.Future[Any],
        connection: int,
        *,
        is_write: bool,
    ) -> None:
        self.perform = perform
        self.done = done
        self.connection = connection
        self.is_write = is_write


class _ConnectionBrokenError(Exception):
    """What was under way was done, or was not."""


class SimulatedMetadataStore:
    """One process's session. Implements `MetadataStore`."""

    def __init__(
        self,
        server: MetadataServer,
        process: Process,
        *,
        timeout_seconds: float,
        operation_timeout_seconds: float,
        node_bytes_max: int = NODE_BYTES_MAX,
    ) -> None:
        self._server = server
        self._process = process
        self._loop = process.loop
        self._timeout_seconds = timeout_seconds
        self._operation_timeout_seconds = operation_timeout_seconds
        self._node_bytes_max = node_bytes_max
        self._state = SessionState.CONNECTED
        self._is_closed = False
        self._connection = 0
        """Grows when the connection breaks, as the server sees it."""
        self._arrives_at = self._answers_at = 0.0
        self._under_way: dict[_Request, None] = {}
        self._untold: list[WatchEvent] = []
        self._watches = Watches()
        self._listeners = SessionListeners(self._loop, process.context)
        self._waiting: list[asyncio.Future[None]] = []
        self._is_cut = False
        self._lease_until = self._loop.time() + timeout_seconds
        self._session = self._begin_session()
        self._beat()

    def _begin_session(self) -> _ServerSession:
        return self._server.session(self._node_bytes_max, self._hear, self._timeout_seconds)

    # -------------------------------------------------------------------------------- the port

    @property
    def node_bytes_max(self) -> int:
        """See `MetadataStore.node_bytes_max`."""
        return self._node_bytes_max

    @property
    def session_state(self) -> SessionState:
        """See `MetadataStore.session_state`."""
        return self._state

    @property
    def lease_until(self) -> float:
        """See `MetadataStore.lease_until`."""
        return self._lease_until

    async def get(self, path: str) -> NodeValue | None:
        """See `MetadataStore.get`."""
        return await self._ask(lambda s: s.get(path))

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        """See `MetadataStore.put`."""
        return await self._ask(
            lambda s: s.put(path, value, expected_version=expected_version), is_write=True
        )

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """See `MetadataStore.create`."""
        await self._ask(lambda s: s.create(path, value, ephemeral=ephemeral), is_write=True)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """See `MetadataStore.delete`."""
        await self._ask(lambda s: s.delete(path, expected_version=expected_version), is_write=True)

    async def children(self, path: str) -> list[str]:
        """See `MetadataStore.children`."""
        return await self._ask(lambda s: s.children(path))

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        return self._watches.add(path, on_event)

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        """See `MetadataStore.on_session_change`."""
        return self._listeners.add(on_change)

    async def renew(self) -> None:
        """See `MetadataStore.renew`."""
        if self._is_closed:
            raise ClosedHandleError("the metadata store is closed")
        if self._state is not SessionState.LOST:
            return
        asked_at = self._loop.time()
        await asyncio.sleep(self._server.latency() + self._server.latency())
        if self._is_cut or self._server.is_away:
            raise MetadataStoreError("no metadata server can be reached")
        if self._state is SessionState.LOST:
            self._connection += 1
            self._untold.clear()
            self._lease_until = asked_at + self._timeout_seconds
            self._session = self._begin_session()
            self._change(SessionState.CONNECTED)
            self._beat()

    async def close(self) -> None:
        """See `MetadataStore.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._watches.clear()
            self._listeners.clear()
            self._state = SessionState.LOST
            self._server.world.context.run(self._close_session)
            self._break()
            self._wake()

    def _close_session(self) -> None:
        self._session.expire()

    # -------------------------------------------------------------------------------- for the world

    def cut(self, seconds: float) -> None:
        """Break the connection; it can be made again after so long. Called in the world."""
        self._connection += 1
        self._is_cut = True
        connection = self._connection
        self._process.call_later(self._server.latency(), self._noticed, connection)
        self._server.world.call_later(seconds, self._mended, connection)

    def mend(self) -> None:
        """The connection can be made again from now on."""
        if self._is_cut:
            self._mended(self._connection)

    def _mended(self, connection: int) -> None:
        if connection == self._connection:
            self._is_cut = False
            self._process.call_later(self._server.latency(), self._reconnect, connection)

    def _noticed(self, connection: int) -> None:
        """The client sees that its connection is gone."""
        if connection != self._connection or self._state is not SessionState.CONNECTED:
            return
        self._change(SessionState.SUSPENDED)
        self._break()
        self._loop.call_later(self._timeout_seconds, self._give_up, connection)

    def _give_up(self, connection: int) -> None:
        if connection == self._connection and self._state is SessionState.SUSPENDED:
            self._lose()

    def _reconnect(self, connection: int) -> None:
        if connection != self._connection or self._state is not SessionState.SUSPENDED:
            return
        if self._session.has_expired:
            self._lose()
            return
        self._session.heard_at = self._loop.time()
        self._change(SessionState.CONNECTED)
        self._beat()
        untold, self._untold = self._untold, []
        for event in untold:
            self._notify(event)
        self._wake()

    # -------------------------------------------------------------------------------- calls

    async def _ask(
        self,
        perform: Callable[[MemoryMetadataStore], Coroutine[Any, Any, T]],
        *,
        is_write: bool = False,
    ) -> T:
        deadline = self._loop.time() + self._operation_timeout_seconds
        while True:
            await self._connected(deadline)
            try:
                return await self._send(perform, is_write=is_write)  # type: ignore[no-any-return]
            except _ConnectionBrokenError:
                if self._is_closed:
                    raise ClosedHandleError("the metadata store is closed") from None
                if is_write:
                    raise OutcomeUnknownError("the connection broke: done, or not") from None

    async def _connected(self, deadline: float) -> None:
        while True:
            if self._is_closed:
                raise ClosedHandleError("the metadata store is closed")
            if self._state is SessionState.CONNECTED:
                return
            if self._state is SessionState.LOST:
                raise SessionLostError("the session to the metadata store has expired")
            if self._loop.time() >= deadline:
                raise StoreSuspendedError("the session to the metadata store is suspended")
            woken: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(woken)
            timer = self._loop.call_at(deadline, resolve, woken)
            try:
                await woken
            finally:
                timer.cancel()

    def _send(
        self,
        perform: Callable[[MemoryMetadataStore], Coroutine[Any, Any, object]] | None,
        *,
        is_write: bool = False,
    ) -> asyncio.Future[Any]:
        """Put a request on its way; None is a heartbeat."""
        request = _Request(perform, self._loop.create_future(), self._connection, is_write=is_write)
        self._under_way[request] = None
        sent_at = self._loop.time()
        self._arrives_at = max(self._arrives_at, sent_at + self._server.latency())
        self._loop.call_at(
            self._arrives_at, self._arrive, request, sent_at, context=self._server.world.context
        )
        return request.done

    def _arrive(self, request: _Request, sent_at: float) -> None:
        """In the world: the server does it, and answers."""
        if request.connection != self._connection or self._is_cut:
            return
        session = self._session
        error: Exception | None = None
        value: object = None
        session.heard_at = self._loop.time()
        if session.has_expired:
            error = SessionLostError("the session to the metadata store has expired")
        elif request.perform is not None:
            try:
                value = _done(request.perform(session))
            except Exception as raised:
                error = raised
        self._answers_at = max(self._answers_at, self._loop.time() + self._server.latency())
        self._loop.call_at(
            self._answers_at,
            self._answered,
            request,
            sent_at,
            value,
            error,
            context=self._process.context,
        )

    def _answered(
        self, request: _Request, sent_at: float, value: object, error: Exception | None
    ) -> None:
        if self._under_way.pop(request, 0) == 0 or request.connection != self._connection:
            fail(request.done, _ConnectionBrokenError())
            return
        if isinstance(error, SessionLostError):
            self._lose()
        else:
            self._lease_until = max(self._lease_until, sent_at + self._timeout_seconds)
        if request.done.done():
            return
        if error is not None:
            request.done.set_exception(error)
        else:
            request.done.set_result(value)

    def _beat(self) -> None:
        if self._state is SessionState.CONNECTED and not self._is_closed:
            self._send(None).add_done_callback(_seen)
            self._process.call_later(
                self._timeout_seconds / HEARTBEATS_PER_TIMEOUT, self._beat_again, self._connection
            )

    def _beat_again(self, connection: int) -> None:
        if connection == self._connection:
            self._beat()

    # -------------------------------------------------------------------------------- inside

    def _lose(self) -> None:
        self._watches.clear()
        self._untold.clear()
        self._change(SessionState.LOST)
        self._break()
        self._wake()

    def _break(self) -> None:
        """Everything under way ends without an answer."""
        under_way, self._under_way = self._under_way, {}
        for request in under_way:
            fail(request.done, _ConnectionBrokenError())

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for woken in waiting:
            resolve(woken)

    def _change(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._listeners.notify(state)

    def _hear(self, event: WatchEvent) -> None:
        """In the world, or in the process that changed something."""
        if self._is_cut or self._state is not SessionState.CONNECTED:
            self._untold.append(event)
        else:
            self._answers_at = max(self._answers_at, self._loop.time() + self._server.latency())
            self._loop.call_at(
                self._answers_at,
                self._heard,
                event,
                self._connection,
                context=self._process.context,
            )

    def _heard(self, event: WatchEvent, connection: int) -> None:
        if connection == self._connection:
            self._notify(event)
        else:
            self._untold.append(event)

    def _notify(self, event: WatchEvent) -> None:
        if keys := self._watches.concerned(event):
            self._loop.call_soon(
                partial(self._watches.notify, keys, event), context=self._process.context
            )


def _done(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing."""
    try:
        call.send(None)
    except StopIteration as stopped:
        return stopped.value  # type: ignore[no-any-return]
    raise RuntimeError("a memory store does not wait")


def _seen(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
