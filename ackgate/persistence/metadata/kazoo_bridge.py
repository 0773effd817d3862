"""The one bridge between kazoo's thread and the event loop.

Edge: one kazoo client, which is one session. kazoo's thread never touches anything of ours: what it
has to say is put into a queue, and the loop is woken once for all that has come together until it
looks. Everything here that is called on the loop returns at once.

The queue is bounded by what the loop has asked for: each request has one answer, each watch that
was set fires once, and a session has few states. A bridge serves one session: when that is lost the
bridge has given up for good, and another one begins the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry

from ackgate.persistence.metadata.kazoo_handler import KazooHandler
from ackgate.persistence.ports import SessionState
from ackgate.persistence.system.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from kazoo.protocol.states import WatchedEvent

    from ackgate.persistence.metadata.kazoo_handler import Answer

kazoo_logger: Final = logging.getLogger(f"{__name__}.kazoo")
"""kazoo's own messages. It reports each failed attempt to connect, which our session says better."""
kazoo_logger.setLevel(logging.ERROR)

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


class KazooBridge:
    """One session. Make it on a running loop, then `start` it."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        *,
        session_timeout_ms: int,
        digest: str | None,
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
        """When the connection was asked for, by the loop's clock: a server heard of us after that."""
        self._handler = KazooHandler(
            connect_seconds_max=session_timeout_ms / 1000 / max(len(hosts), ATTEMPTS_MIN),
            is_wanted=lambda: not self._loop.is_closed(),
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
            with contextlib.suppress(Exception):  # whatever it is, the connection is given up
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
            if self._arrived:  # one of ours failed; the others are to be heard all the same
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
            except RuntimeError:  # the loop is closed: nobody waits for an answer any more
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
