"""The session to ZooKeeper: begun, suspended, resumed, lost, replaced.

Edge for the loop only. kazoo reports the connection; the clock that ends a suspension is ours::

    CONNECTED <----> SUSPENDED --expired, or time-out by our clock--> LOST --begin()--> CONNECTED

While connected it makes a small request now and then, so that `lease_until` moves on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from ackgate.errors import MetadataStoreError
from ackgate.persistence.metadata.watches import SessionListeners
from ackgate.persistence.ports import SessionState
from ackgate.persistence.zookeeper.kazoo_bridge import KazooBridge

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.errors import AckGateError
    from ackgate.persistence.metadata.session_options import SessionOptions
    from ackgate.persistence.zookeeper.requests import Requests
    from ackgate.persistence.zookeeper.watches import ZooKeeperWatches

logger = logging.getLogger(__name__)

HEARTBEAT: Final = 0.25
"""Share of the session time-out after which a session that has nothing to ask asks all the same."""

RESOLVE_SECONDS_MAX: Final = 2.0
"""How long a name is looked up again, only to say why there is no connection."""


class ZooKeeperSession:
    """One session at a time, each with a bridge of its own. Lost until `begin`."""

    def __init__(
        self,
        name: str,
        hosts: tuple[str, ...],
        *,
        options: SessionOptions,
        requests: Requests,
        watches: ZooKeeperWatches,
    ) -> None:
        self._name = name
        self._hosts = hosts
        self._options = options
        self._requests = requests
        self._watches = watches
        self._loop = asyncio.get_running_loop()
        self._listeners = SessionListeners(self._loop)
        self._bridge: KazooBridge | None = None
        self._connecting: asyncio.Future[None] | None = None
        self._time_out: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.state = SessionState.LOST
        """See `MetadataStore.session_state`."""

    @property
    def lease_until(self) -> float:
        if self.state is SessionState.LOST:
            return -math.inf
        return self._requests.in_touch_at + self.timeout_ms / 1000

    @property
    def timeout_ms(self) -> int:
        """The session time-out, as the server granted it."""
        bridge = self._bridge
        return bridge.session_timeout_ms if bridge else self._options.session_timeout_ms

    def on_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(on_change)

    async def close(self, closed: AckGateError) -> None:
        """End it, at the server too if that can be reached. All waiting requests fail with `closed`."""
        self._is_closed = True
        self._stop_clock()
        self.state = SessionState.LOST
        self._requests.end(closed)
        self._watches.lost()
        self._listeners.clear()
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_exception(closed)
        try:
            if self._bridge is not None:
                await self._bridge.close()
        finally:
            self._requests.abandon(closed)

    async def begin(self) -> None:
        """Connect for a new session. Raises `MetadataStoreError` when that takes too long."""
        seconds = self._options.operation_timeout_seconds
        self._connecting = self._loop.create_future()
        bridge = self._bridge = KazooBridge(
            self._hosts,
            session_timeout_ms=self._options.session_timeout_ms,
            digest=self._options.digest,
            tls=self._options.tls,
            on_state=self._changed,
            on_watch=self._watches.fired,
            on_batch=self._requests.send,
        )
        bridge.start()
        try:
            async with asyncio.timeout(seconds):
                await self._connecting
        except TimeoutError:
            problem = bridge.problem or await _unresolved(self._hosts) or "not connected"
            raise MetadataStoreError(
                f"no session with {self._name} within {seconds:g} s"
                f" (metadataStoreOperationTimeoutSeconds): {problem}"
            ) from None
        finally:
            self._connecting = None
            if self.state is SessionState.LOST:
                bridge.give_up()

    def _changed(self, bridge: KazooBridge, state: SessionState) -> None:
        if bridge is not self._bridge or self._is_closed:
            return
        match state:
            case SessionState.CONNECTED if not bridge.is_over:
                self._connected(bridge)
            case SessionState.SUSPENDED if self.state is SessionState.CONNECTED:
                self._suspended(bridge)
            case SessionState.LOST:
                self._lost("the servers have given it up")

    def _connected(self, bridge: KazooBridge) -> None:
        self._stop_clock()
        if self.state is SessionState.SUSPENDED:
            logger.info("metadata session resumed: store=%s", self._name)
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_result(None)
        self._requests.connected(bridge)
        self._change(SessionState.CONNECTED)
        self._watches.connected(bridge)
        self._keep_in_touch(bridge)

    def _suspended(self, bridge: KazooBridge) -> None:
        logger.warning("metadata session suspended: store=%s", self._name)
        self._stop_clock()
        self._requests.suspended()
        self._watches.suspended()
        seconds = bridge.session_timeout_ms / 1000
        self._time_out = self._loop.call_later(
            seconds, self._lost, f"out of touch for its time-out of {seconds:g} s"
        )
        self._change(SessionState.SUSPENDED)

    def _lost(self, why: str) -> None:
        self._stop_clock()
        if self._bridge is not None:
            self._bridge.give_up()
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_exception(
                MetadataStoreError(f"no session with {self._name}: it was refused")
            )
        if self.state is SessionState.LOST:
            return
        logger.warning("metadata session lost: store=%s, %s", self._name, why)
        self._requests.end(self._requests.lost())
        self._watches.lost()
        self._change(SessionState.LOST)

    def _change(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            self._listeners.notify(state)

    def _keep_in_touch(self, bridge: KazooBridge) -> None:
        """Ask for something small again and again: `lease_until` moves on with its answers."""
        if bridge is self._bridge and self.state is SessionState.CONNECTED:
            self._requests.look(lambda client: client.exists_async("/"), lambda *_: None, path="/")
            seconds = bridge.session_timeout_ms / 1000 * HEARTBEAT
            self._heartbeat = self._loop.call_later(seconds, self._keep_in_touch, bridge)

    def _stop_clock(self) -> None:
        for timer in (self._time_out, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._time_out = self._heartbeat = None


async def _unresolved(hosts: tuple[str, ...]) -> str:
    """Which of the servers' names nobody knows, and who says so; kazoo passes over them."""
    problems: list[str] = []
    for address in hosts:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(RESOLVE_SECONDS_MAX):
                await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port))
        except TimeoutError:
            problems.append(f"{host}: no name server answers")
        except OSError as error:
            problems.append(f"{host}: {error.strerror or error}")
    return ", ".join(problems)
