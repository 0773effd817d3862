"""Requests to ZooKeeper on their way: waiting, under way, answered, or too late.

Edge for the loop only. A request waits while there is no connection, or while too much is under way
already; then it is handed to the bridge. Each has a deadline; each ends exactly once::

                     .-- deadline, suspended --> StoreSuspendedError   (nothing was done)
    ask --> waiting <
              ^      `-- session lost ---------> SessionLostError      (nothing was done)
              |
              |  the connection broke, a read
              `-------------------------------.
    under way --- answered ------------------> result, or ZooKeeper's error
               `- the connection broke, a write,
                  or the deadline passed ----> OutcomeUnknownError     (done, or not)

A caller that was cancelled is forgotten: what was not sent is never sent, a late answer is dropped.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as zk

from ackgate.errors import (
    AckGateError,
    MetadataStoreError,
    OutcomeUnknownError,
    SessionLostError,
    StoreSuspendedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kazoo.client import KazooClient

    from ackgate.persistence.zookeeper.kazoo_bridge import Answer, KazooBridge

OPERATIONS_WAITING_MAX: Final = 200_000
"""Beyond this the store refuses: something is far slower than what it is asked to do."""

OPERATIONS_UNDER_WAY_MAX: Final = 1_000
"""As many as a ZooKeeper server takes before it stops reading (``globalOutstandingLimit``)."""

BYTES_UNDER_WAY_MAX: Final = 8 * 1024 * 1024
"""Bounds what kazoo copies, and how much is asked again or in doubt when a connection breaks."""

_SWEEP_SECONDS_MIN: Final = 0.05

_BROKEN: Final = (zk.ConnectionLoss, zk.OperationTimeoutError, zk.AuthFailedError, RuntimeError)
"""kazoo's words for a request whose answer never came; the last one, that another came instead."""

_NOT_SENT: Final = (zk.ConnectionClosedError, zk.SessionExpiredError, zk.SessionMovedError)
"""Words for a request that was refused: its session is not there."""


@dataclass(slots=True, eq=False)
class Request:
    """One request. `path` is for messages."""

    send: Callable[[KazooClient], Answer]
    done: asyncio.Future[Any]
    path: str
    is_repeatable: bool
    size_bytes: int
    deadline: float
    on_answer: Callable[[Any, BaseException | None], None] | None = None
    """Called in place of `done`, in the order in which answers and watch events came."""
    sent_at: float = 0.0

    def succeed(self, value: Any) -> None:  # noqa: ANN401
        if not self.done.done():
            if self.on_answer is None:
                self.done.set_result(value)
            else:
                self.done.cancel()
                self.on_answer(value, None)

    def fail(self, error: BaseException) -> None:
        """Fail the request: it gets no answer, or ZooKeeper answered with an error."""
        if not self.done.done():
            if self.on_answer is None:
                self.done.set_exception(error)
            else:
                self.done.cancel()
                self.on_answer(None, error)


class Requests:
    """All requests of one store, over all its sessions."""

    def __init__(self, address: str, *, timeout_seconds: float) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._bridge: KazooBridge | None = None
        self._waiting: deque[Request] = deque()
        self._held: deque[Request] = deque()
        self._under_way: dict[Request, KazooBridge] = {}
        self._bytes_under_way = 0
        self._sweep: asyncio.TimerHandle | None = None
        self.answered = 0
        """Requests answered so far."""
        self.in_touch_at = -math.inf
        """By the loop's clock: the latest moment after which a server surely received a request."""

    def ask(
        self,
        send: Callable[[KazooClient], Answer],
        *,
        path: str,
        is_repeatable: bool,
        size_bytes: int = 0,
        is_held: bool = False,
    ) -> asyncio.Future[Any]:
        """Queue a request and return its future answer.

        `is_held`: it waits for `release` before anything else.
        """
        if len(self._waiting) + len(self._held) >= OPERATIONS_WAITING_MAX:
            raise MetadataStoreError(
                f"{self._address}: {OPERATIONS_WAITING_MAX} operations are waiting"
            )
        done: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + self._timeout_seconds
        request = Request(send, done, path, is_repeatable, size_bytes, deadline)
        (self._held if is_held else self._waiting).append(request)
        if self._sweep is None:
            self._sweep = self._loop.call_at(deadline, self._end_overdue)
        self.send()
        return done

    def look(
        self,
        send: Callable[[KazooClient], Answer],
        on_answer: Callable[[Any, BaseException | None], None],
        *,
        path: str,
    ) -> None:
        """Queue a request of the watches: `on_answer` gets its answer.

        It has no deadline; only a lost connection ends it.
        """
        done: asyncio.Future[Any] = self._loop.create_future()
        request = Request(send, done, path, False, 0, math.inf, on_answer)  # noqa: FBT003
        self._waiting.append(request)
        self.send()

    def connected(self, bridge: KazooBridge) -> None:
        """There is a connection: what waits can go."""
        self._bridge = bridge
        self.in_touch_at = bridge.connected_at
        self.send()

    def suspended(self) -> None:
        """There is none: what comes has to wait."""
        self._bridge = None

    def release(self) -> None:
        """What was held may go, after what waits already."""
        self._waiting += self._held
        self._held.clear()
        self.send()

    def end(self, error: AckGateError) -> None:
        """The session is over: whatever waits has failed. What is under way is answered yet."""
        self._bridge = None
        for request in (*self._waiting, *self._held):
            request.fail(error)
        self._waiting.clear()
        self._held.clear()

    def abandon(self, error: AckGateError) -> None:
        """As `end`, and what is under way is not waited for: its answer may never come."""
        self.end(error)
        for request in self._under_way:
            request.fail(error if request.is_repeatable else self._unknown(request))
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def send(self) -> None:
        """Hand over what waits, as far as there is room. Called after every batch of answers."""
        bridge = self._bridge
        while (
            bridge is not None
            and self._waiting
            and len(self._under_way) < OPERATIONS_UNDER_WAY_MAX
            and self._bytes_under_way < BYTES_UNDER_WAY_MAX
        ):
            request = self._waiting.popleft()
            if not request.done.done():
                self._hand_over(bridge, request)

    def _hand_over(self, bridge: KazooBridge, request: Request) -> None:
        self._under_way[request] = bridge
        request.sent_at = self._loop.time()
        self._bytes_under_way += request.size_bytes
        bridge.send(
            request.send, lambda value, error: self._answered(bridge, request, value, error)
        )

    def _answered(
        self,
        bridge: KazooBridge,
        request: Request,
        value: Any,  # noqa: ANN401
        error: BaseException | None,
    ) -> None:
        del self._under_way[request]
        self._bytes_under_way -= request.size_bytes
        self.answered += 1
        if bridge is self._bridge and not isinstance(error, (*_BROKEN, *_NOT_SENT)):
            self.in_touch_at = max(self.in_touch_at, request.sent_at)
        if request.done.done():
            return
        if error is None:
            request.succeed(value)
        elif isinstance(error, _BROKEN):
            if not request.is_repeatable:
                request.fail(self._unknown(request))
            elif bridge.is_over:
                request.fail(self.lost())
            else:
                self._waiting.appendleft(request)
        elif isinstance(error, _NOT_SENT):
            if bridge.is_over:
                request.fail(self.lost())
            else:
                self._waiting.appendleft(request)
        else:
            request.fail(error)

    # ------------------------------------------------------------------ deadlines

    def _end_overdue(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for queue in (self._waiting, self._held):
            if any(request.deadline <= now for request in queue):
                for request in queue:
                    if request.deadline <= now:
                        request.fail(self._too_late())
                kept = [request for request in queue if not request.done.done()]
                queue.clear()
                queue.extend(kept)
        for request in self._under_way:
            if request.deadline <= now:
                request.fail(self._unanswered(request))
        self._sweep_later(now)

    def _sweep_later(self, now: float) -> None:
        first = min(
            (
                request.deadline
                for queue in (self._waiting, self._held, self._under_way)
                for request in queue
                if not request.done.done()
            ),
            default=math.inf,
        )
        if first < math.inf:
            self._sweep = self._loop.call_at(
                max(first, now + _SWEEP_SECONDS_MIN), self._end_overdue
            )

    # ------------------------------------------------------------------ what went wrong

    def lost(self) -> SessionLostError:
        """The error of requests after the session was lost."""
        return SessionLostError(f"the session to {self._address} has expired")

    def _too_late(self) -> MetadataStoreError:
        waited = f"for {self._timeout_seconds:g} s (metadataStoreOperationTimeoutSeconds)"
        if self._bridge is None:
            return StoreSuspendedError(f"{self._address} could not be reached {waited}")
        return MetadataStoreError(f"{self._address}: an operation had to wait {waited}, not sent")

    def _unanswered(self, request: Request) -> MetadataStoreError:
        what = f"{self._address} did not answer for {self._timeout_seconds:g} s: {request.path}"
        kind = MetadataStoreError if request.is_repeatable else OutcomeUnknownError
        return kind(what)

    def _unknown(self, request: Request) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"the connection to {self._address} broke in the midst of writing {request.path}"
        )
