r"""The one bridge between kazoo's thread and the event loop.

Edge: one kazoo client, which is one session. kazoo's thread never touches anything of ours: what it
has to say is put into a queue, and the loop is woken once for all that has come together until it
looks. Everything here that is called on the loop returns at once.

The queue is bounded by what the loop has asked for: each request has one answer, each watch that
was set fires once, and a session has few states. A bridge serves one session: when that is lost the
bridge has given up for good, and another one begins the next.

The thread, and the sockets it uses, are what kazoo calls a handler: one daemon thread and one
connection. kazoo's own handler has three threads, and its client makes about ten system calls for each
request; every one of them gives the interpreter away, and with a busy event loop each takes 5 ms to get
it back. Here answers and watch events are handed over in the thread that read them, reading is done
ahead in large pieces, and requests go out when there is nothing more to add::

    loop    request request request          |   answers of one wake-up
                 \_______|______/            |   /
    kazoo     [one send .... poll .... one receive]

`give_up` ends it from any thread, for good: no connection is made after it, so kazoo cannot begin a
new session by itself, which it would do as soon as it learns that the old one has expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry

from ackgate.errors import ConfigurationError
from ackgate.persistence.ports import SessionState
from ackgate.persistence.system.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from kazoo.protocol.states import WatchedEvent

    from ackgate.network import ClientTls

logger = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 64 * 1024
SEND_BYTES: Final = 64 * 1024
"""What may wait to be sent; more is sent at once."""

SILENCE: Final = 2 / 3
"""Share of the session time-out after which a silent server is dead; leaves time for another one."""

_NEGOTIATED: Final = struct.Struct("!4x4xi")
"""The first answer of a connection: its length, the protocol's version, the session time-out."""

kazoo_logger: Final = logging.getLogger(f"{__name__}.kazoo")
"""kazoo's own messages. It reports each failed attempt to connect, which our session says better."""

CLOSE_SECONDS_MAX: Final = 5.0
"""How long the server may take to end a session. If it does not, the session's time-out ends it."""

ATTEMPTS_MIN: Final = 3
"""One attempt to connect may take this part of the session time-out, or less with more servers."""

_RECONNECT_SECONDS_MIN: Final = 0.02
_RECONNECT_SECONDS_MAX: Final = 1.0
_STATES: Final = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


class GivenUpError(AuthFailedError):  # type: ignore[misc]  # kazoo has no type information
    """Ends kazoo's thread. It is the one kind of error after which kazoo tries nothing more."""


class Answer:
    """One request's answer, as kazoo gives it. The first one counts."""

    __slots__ = ("_callbacks", "_is_set", "_lock", "exception", "value")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._callbacks: list[Callable[[Answer], None]] = []
        self._is_set: bool = False
        self.value: Any = None
        self.exception: BaseException | None = None

    def set(self, value: Any = None) -> None:  # noqa: ANN401
        self._settle(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._settle(None, exception)

    def rawlink(self, callback: Callable[[Answer], None]) -> None:
        """Call when it is there, which may be now."""
        with self._lock:
            if not self._is_set:
                self._callbacks.append(callback)
                return
        callback(self)

    def ready(self) -> bool:
        return self._is_set

    def get(self) -> Any:  # noqa: ANN401
        """The value of one that is there. Raises its exception."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def _settle(self, value: Any, exception: BaseException | None) -> None:  # noqa: ANN401
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
            self.value, self.exception = value, exception
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class KazooConnection:
    """A connected socket that reads ahead and gathers what is to be sent."""

    def __init__(self, connected: socket.socket, *, first_answer_seconds_max: float) -> None:
        connected.settimeout(0)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._received = b""
        self._taken = 0
        self._is_ended = False
        self._head = b""
        self._to_send = bytearray()
        self._received_at = time.monotonic()
        self._is_owed = False
        self._first_answer_seconds_max = first_answer_seconds_max

    @property
    def negotiated_ms(self) -> int | None:
        """The session time-out that the server granted; None before it has answered."""
        return _NEGOTIATED.unpack(self._head)[0] if len(self._head) == _NEGOTIATED.size else None

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, _: object) -> None: ...

    def pending(self) -> int:
        """Bytes that can be received without waiting; 1 for the end."""
        return len(self._received) - self._taken or int(self._is_ended)

    def recv(self, size: int) -> bytes:
        """Some of what was read ahead; empty at the end."""
        chunk = self._received[self._taken : self._taken + size]
        self._taken += len(chunk)
        return chunk

    def fill(self) -> None:
        try:
            received = self._socket.recv(RECEIVE_BYTES)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                received += self._socket.recv(RECEIVE_BYTES)  # no poll would report it
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        self._received_at, self._is_owed = time.monotonic(), False
        self._is_ended = not received
        self._received, self._taken = received, 0
        if len(self._head) < _NEGOTIATED.size:
            self._head += received[: _NEGOTIATED.size - len(self._head)]

    def send(self, data: bytes) -> int:
        """Take it all, to be sent by `flush`."""
        self._to_send += data
        return len(data)

    @property
    def is_full(self) -> bool:
        """Whether what waits to be sent should go before more is added."""
        return len(self._to_send) >= SEND_BYTES

    def flush(self, timeout_seconds: float) -> None:
        """Send all that waits. Raises `TimeoutError` if that does not go in time."""
        deadline = time.monotonic() + timeout_seconds
        while self._to_send:
            self._is_owed = True
            try:
                del self._to_send[: self._socket.send(self._to_send)]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                poller = select.poll()
                poller.register(self._socket, select.POLLOUT)
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError("the server takes no more requests") from None

    def silent_in(self, now: float) -> float:
        """Seconds until a server that owes an answer has to be taken for dead; as kazoo's own limit.

        kazoo looks for that only when it has nothing to send for a while.
        """
        if not self._is_owed:
            return math.inf
        granted_ms = self.negotiated_ms
        if granted_ms is None:
            return self._received_at + self._first_answer_seconds_max - now
        return self._received_at + granted_ms / 1000 * SILENCE - now

    def break_off(self) -> None:
        """End it and wake its waiters. From any thread."""
        with contextlib.suppress(OSError):
            # The socket's own: TLS's would have another thread take bytes of the wire for data.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


class Wake:
    """kazoo's socket pair, on which it writes and reads a byte for each request.

    A real one blocks the writer, here the event loop, after some three hundred unread bytes. This
    one counts, and has one byte in the real socket while the count is not zero.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        return self._reader.fileno()

    def pending(self) -> int:
        """Bytes that can be received."""
        return self._count

    def send(self, data: bytes) -> int:
        with self._lock:
            if self._count == 0:
                self._writer.send(data)
            self._count += 1
        return len(data)

    def recv(self, _: int) -> bytes:
        with self._lock:
            if self._count == 0:
                return b""
            self._count -= 1
            return self._reader.recv(1) if self._count == 0 else b"\0"

    def fill(self) -> None: ...

    def flush(self, _: float) -> None: ...

    def silent_in(self, _: float) -> float:
        return math.inf

    def close(self) -> None:
        """Let go of the pair. kazoo closes both of its ends, which is twice here."""
        self._reader.close()
        self._writer.close()


class KazooHandler:
    """Implements kazoo's `IHandler` for one client."""

    name = "ackgate"
    timeout_exception = KazooTimeoutError
    running = True

    def __init__(
        self,
        *,
        connect_seconds_max: float,
        is_wanted: Callable[[], bool],
        tls: ClientTls | None = None,
    ) -> None:
        """`is_wanted` is asked now and then, in kazoo's thread, whether to go on.

        `connect_seconds_max` holds for a connection, and for the first answer on it: a server that is
        just starting may accept a connection and forget about it.
        """
        self._connect_seconds_max = connect_seconds_max
        self._is_wanted = is_wanted
        self._tls = tls
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._answers = threading.Lock()
        self._connection: KazooConnection | None = None
        self._wake: Wake | None = None
        self.problem = ""
        """Why the last attempt to connect failed."""
        self.attempted_at = 0.0
        """When it was made, by the monotonic clock."""

    @property
    def negotiated_ms(self) -> int | None:
        """The session time-out that the server granted to the present connection."""
        return self._connection.negotiated_ms if self._connection is not None else None

    def give_up(self) -> None:
        """Connect no more, and end the connection there is. From any thread."""
        with self._lock:
            self._over.set()
            if self._connection is not None:
                self._connection.break_off()

    @property
    def is_over(self) -> bool:
        """Whether it was given up."""
        return self._over.is_set()

    # ---------------------------------------------------------------- what kazoo calls

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def sleep_func(self, seconds: float) -> None:
        """Wait, or until given up."""
        self._over.wait(seconds)

    def select(
        self,
        readers: list[KazooConnection | Wake],
        writers: list[KazooConnection],
        _: object,
        timeout: float | None = None,
    ) -> tuple[list[KazooConnection | Wake], list[KazooConnection], list[object]]:
        """Who has something to receive. Sends what waits before it waits itself."""
        seconds = 60.0 if timeout is None else timeout
        if writers:
            for writer in writers:
                if writer.is_full:
                    writer.flush(seconds)
            return [], writers, []
        ready = [reader for reader in readers if reader.pending()]
        if ready:
            return ready, [], []
        if self.is_over or not self._is_wanted():
            self.give_up()
            raise GivenUpError
        deadline = time.monotonic() + seconds
        poller = select.poll()
        for reader in readers:
            reader.flush(seconds)
            poller.register(reader, select.POLLIN)
        while not ready and (now := time.monotonic()) < deadline:
            silent_in = min(reader.silent_in(now) for reader in readers)
            found = {fd for fd, _ in poller.poll(max(0.0, min(deadline - now, silent_in)) * 1000)}
            for reader in readers:
                if reader.fileno() in found:
                    reader.fill()
            ready = [reader for reader in readers if reader.pending()]
            if not found and silent_in <= 0:
                raise TimeoutError("the server is silent")
        return ready, [], []

    def create_connection(
        self, address: tuple[str, int], timeout: float, hostname: str = "", **_: object
    ) -> KazooConnection:
        """Connect. One silent server may not take the time in which another could be reached."""
        if self._over.is_set() or not self._is_wanted():
            raise GivenUpError
        self.attempted_at = time.monotonic()
        seconds = min(timeout, self._connect_seconds_max)
        connected: socket.socket | None = None
        try:
            connected = socket.create_connection(address, seconds)
            if self._tls is not None:
                connected = self._tls.context().wrap_socket(
                    connected, server_hostname=hostname.strip("[]") or address[0]
                )
        except (OSError, ConfigurationError) as error:
            if connected is not None:
                connected.close()
            why = getattr(error, "strerror", None) or error
            self.problem = f"{address[0]}:{address[1]}: {why}"
            if isinstance(error, OSError):
                raise
            raise ConnectionRefusedError(str(error)) from error
        self.problem = f"{address[0]}:{address[1]}: connected, but no session was granted"
        with self._lock:
            self._connection = KazooConnection(
                connected, first_answer_seconds_max=self._connect_seconds_max
            )
            if self._over.is_set():
                self._connection.break_off()
            return self._connection

    def create_socket_pair(self) -> tuple[Wake, Wake]:
        """What wakes kazoo's thread when there are requests."""
        self._wake = Wake()
        return self._wake, self._wake

    def event_object(self) -> threading.Event:
        return threading.Event()

    def lock_object(self) -> threading.Lock:
        return threading.Lock()

    def rlock_object(self) -> Any:  # noqa: ANN401 - a factory's product has no public type
        """A lock that its holder may take again."""
        return threading.RLock()

    def async_result(self) -> Answer:
        return Answer(self._answers)

    def spawn(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        """Start kazoo's thread. It never keeps the process alive."""

        def guarded() -> None:
            try:
                run(*arguments)
            except Exception:
                logger.exception("kazoo's thread ended")
            finally:
                if self._wake is not None:
                    self._wake.close()

        thread = threading.Thread(target=guarded, name="ackgate-zookeeper", daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:  # noqa: ANN401
        """Hand over a watch event, in this thread: ours only post it to the loop."""
        callback.func(*callback.args)


kazoo_logger.setLevel(logging.ERROR)


class KazooBridge:
    """One session. Make it on a running loop, then `start` it."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        *,
        session_timeout_ms: int,
        digest: str | None,
        tls: ClientTls | None = None,
        on_state: Callable[[KazooBridge, SessionState], None],
        on_watch: Callable[[KazooBridge, WatchedEvent], None],
        on_batch: Callable[[], None],
    ) -> None:
        """The callbacks run on the loop: for a state, for a watch event, after a batch of answers."""
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._on_watch = on_watch
        self._on_batch = on_batch
        self._arrived: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._ended: asyncio.Future[None] | None = None
        self.session_timeout_ms = session_timeout_ms
        """As granted by the server; as asked before it has answered."""
        self.connected_at = 0.0
        """When the connection was requested, by the loop's clock: a server has received it after that."""
        self._handler = KazooHandler(
            connect_seconds_max=session_timeout_ms / 1000 / max(len(hosts), ATTEMPTS_MIN),
            is_wanted=lambda: not self._loop.is_closed(),
            tls=tls,
        )
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            auth_data={("digest", digest)} if digest is not None else None,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_RECONNECT_SECONDS_MIN,
                max_delay=_RECONNECT_SECONDS_MAX,
                sleep_func=self._handler.sleep_func,
            ),
            logger=kazoo_logger,
        )
        connection = self._client._connection
        connection._read_response = _in_order(connection._read_response)
        self._client.add_listener(self._hear_state)
        self.watch: Final = self._hear_watch
        """What to hand to kazoo as a watch. One and the same for all, so that kazoo keeps one."""

    @property
    def is_over(self) -> bool:
        """Whether the session is lost, or was closed."""
        return self._handler.is_over

    @property
    def problem(self) -> str:
        """Why the last attempt to connect failed."""
        return self._handler.problem

    # ------------------------------------------------------------------ on the loop

    def start(self) -> None:
        self._client.start_async()

    def send(
        self,
        request: Callable[[KazooClient], Answer],
        on_answer: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Hand a request to kazoo; it is sent as soon as there is a connection."""
        answer = request(self._client)
        answer.rawlink(lambda done: self._post(on_answer, done.value, done.exception))

    def give_up(self) -> None:
        """Send nothing more, ever; what has no answer yet is answered with a lost connection."""
        self._handler.give_up()
        self._end()

    async def close(self) -> None:
        """End the session at the server if it can be reached, and kazoo's thread."""
        ended = self._end()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await asyncio.shield(ended)
        except TimeoutError:
            self._handler.give_up()
        except asyncio.CancelledError:
            self._handler.give_up()
            raise

    def _end(self) -> asyncio.Future[None]:
        """Stop kazoo in a thread of its own: it waits for its other one to end."""
        if self._ended is not None:
            return self._ended
        ended = self._ended = self._loop.create_future()

        def stop() -> None:
            with contextlib.suppress(Exception):  # on any error the connection is given up
                self._client.stop()
            self._handler.give_up()
            with contextlib.suppress(Exception):
                self._client.close()
            self._post(resolve, ended)

        threading.Thread(target=stop, name="ackgate-zookeeper-end", daemon=True).start()
        return ended

    def _deliver(self) -> None:
        self._is_woken = False
        try:
            while self._arrived:
                function, arguments = self._arrived.popleft()
                function(*arguments)
        finally:
            if self._arrived:  # one of ours failed; the others still get their answers
                self._loop.call_soon(self._deliver)
        self._on_batch()

    # ------------------------------------------------------------------ in kazoo's thread

    def _hear_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._handler.give_up()
        elif state == KazooState.CONNECTED and self._handler.negotiated_ms is not None:
            self.session_timeout_ms = self._handler.negotiated_ms
            self.connected_at = self._handler.attempted_at
        self._post(self._on_state, self, _STATES[state])

    def _hear_watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._post(self._on_watch, self, event)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        self._arrived.append((function, arguments))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed, and so are the waiters
                self._handler.give_up()


def _in_order(read_response: Callable[..., Any]) -> Callable[..., Any]:
    """Drop a connection whose answers are out of order, as Java's client does.

    A server leaves requests without an answer when their session is about to expire. For kazoo that
    is an unknown error, which ends its thread.
    """

    def read(*arguments: Any) -> Any:  # noqa: ANN401
        try:
            return read_response(*arguments)
        except RuntimeError as error:
            raise ConnectionDropped(str(error)) from error

    return read
