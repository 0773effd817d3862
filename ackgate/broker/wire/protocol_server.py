"""The ports of the binary protocol: listens, counts connections, and closes them.

Edge: owns the listening sockets, in clear and by TLS, and the set of sessions. Bounds: connections in all
(`brokerMaxConnections`), per address (`brokerMaxConnectionsPerIp`), and those that have not sent
CONNECT (`HALF_OPEN_MAX`; a new one drops the oldest, so that a flood of silent connections locks a
client out only until its next attempt).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING, Final

from ackgate.broker.wire.ports import SessionContext
from ackgate.broker.wire.publish_buffer import PublishBuffer
from ackgate.broker.wire.session import Session
from ackgate.network import listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from ackgate.broker.security import Authentication, Authorization
    from ackgate.broker.wire.ports import (
        Connection,
        HasSettings,
        SchemasPort,
        TopicOwners,
        TopicRegistryPort,
    )
    from ackgate.config.broker import BrokerSettings
    from ackgate.network import Listener, ReloadedTls

log = logging.getLogger(__name__)

HALF_OPEN_MAX: Final = 1_000
"""Connections that have not sent CONNECT yet. Clients send it within a round trip."""

FLUSH_SECONDS: Final = 0.5
"""How long clients may take to read what was sent before the server closed. A client that reads
nothing, or has megabytes of messages to read first, is cut off; it gets them from the next
owner."""

RECHECK_SECONDS: Final = 0.1
"""Changes of rights within this time are handled together."""

DETACH_SECONDS: Final = 10.0
"""How long sessions may take to detach from their topics when the server closes."""


class ProtocolServer:
    """Serves the binary protocol. Implements `Connections`."""

    def __init__(
        self,
        services: HasSettings,
        registry: TopicRegistryPort,
        schemas: SchemasPort,
        owners: TopicOwners,
        publish_buffer: PublishBuffer | None = None,
        authentication: Authentication | None = None,
        authorization: Authorization | None = None,
        refresh_seconds: float = 60.0,
    ) -> None:
        self.context = SessionContext(
            registry,
            schemas,
            self,
            services,
            owners,
            server_version=f"ackgate {_version()}",
            publish_buffer=publish_buffer or PublishBuffer(),
            authentication=authentication,
            refresh_seconds=refresh_seconds,
            authorization=authorization,
        )
        self._listeners: list[Listener] = []
        self._recheck: asyncio.TimerHandle | None = None
        self._sessions: set[Connection] = set()
        self._half_open: dict[Connection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def _settings(self) -> BrokerSettings:
        """The broker's settings as they are now."""
        return self.context.services.settings.broker

    async def listen(
        self,
        host: str,
        port: int,
        tls: ReloadedTls | None = None,
        sockets: Sequence[socket.socket] = (),
        listener_name: str = "",
    ) -> int:
        """Listen on one more port; 0 lets the system choose. Returns the port. Raises `OSError`.

        `sockets`, which listen already, are used instead of host and port. `listener_name`: clients
        that connect here get the addresses of this listener, unless they name another one.
        """
        listener = await listen(
            host,
            port,
            lambda: Session(self.context, listener_name),
            tls=tls,
            handshake_seconds=lambda: self._settings.handshake_timeout_seconds,
            sockets=sockets,
        )
        self._listeners.append(listener)
        return listener.port

    @property
    def sessions(self) -> frozenset[Connection]:
        """The connections of now, including those without CONNECT."""
        return frozenset(self._sessions)

    def rights_changed(self) -> None:
        """Soon have every connection close producers and consumers that are no longer allowed."""
        if self.context.authorization is not None and self._recheck is None:
            loop = asyncio.get_running_loop()
            self._recheck = loop.call_later(RECHECK_SECONDS, self._recheck_all)

    def _recheck_all(self) -> None:
        self._recheck = None
        for session in list(self._sessions):
            session.recheck()

    def stop_accepting(self) -> None:
        """Close the ports. Connections stay open."""
        while self._listeners:
            self._listeners.pop().close()

    async def close(self) -> None:
        """Close the ports and every connection; return when all are detached from their topics."""
        self.stop_accepting()
        for session in list(self._sessions):
            session.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._is_empty.wait()
        for session in list(self._sessions):
            session.abort()
        try:
            async with asyncio.timeout(DETACH_SECONDS):
                await self._is_empty.wait()
        except TimeoutError:
            log.warning("%d connections did not detach in time", len(self._sessions))

    # ---- Connections

    def opened(self, session: Connection) -> bool:
        """Count a new connection. False: there are too many, or the server is closing."""
        settings = self._settings
        address = _host(session)
        connections_max = settings.broker_max_connections
        per_address_max = settings.broker_max_connections_per_ip
        is_welcome = bool(self._listeners) and not (
            0 < connections_max <= len(self._sessions)
            or 0 < per_address_max <= self._per_address[address]
        )
        self._sessions.add(session)
        self._per_address[address] += 1
        self._is_empty.clear()
        if is_welcome:
            self._half_open[session] = None
            if len(self._half_open) > HALF_OPEN_MAX:
                oldest = next(iter(self._half_open))
                why = "connection of %s ended: too many connections without CONNECT"
                oldest.note(log, why, oldest.peer, level=logging.WARNING)
                del self._half_open[oldest]
                oldest.abort()
        return is_welcome

    def introduced(self, session: Connection) -> None:
        """Count a connection that has completed CONNECT."""
        self._half_open.pop(session, None)

    def closed(self, session: Connection) -> None:
        """Forget a connection that is closed and detached from its topics."""
        self._half_open.pop(session, None)
        self._sessions.discard(session)
        address = _host(session)
        self._per_address[address] -= 1
        if self._per_address[address] <= 0:
            del self._per_address[address]
        if not self._sessions:
            self._is_empty.set()


def _host(session: Connection) -> str:
    return session.peer.rpartition(":")[0]


def _version() -> str:
    try:
        return metadata.version("ackgate")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0"
