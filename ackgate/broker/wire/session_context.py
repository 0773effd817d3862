"""A connection as the commands of the protocol see it, and what all connections of one broker share.

Pure (types and one record). Commands know a connection by these types only;
``session.py`` implements them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from ackgate.broker.wire.ports import SessionPort
from ackgate.broker.wire.publish_buffer import PublishBuffer
from ackgate.network import LogDamper, Urls

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Coroutine, Sequence, Sized

    from ackgate.broker.security import Authentication, Authorization, ClientIdentity
    from ackgate.broker.wire.names import TopicName
    from ackgate.broker.wire.ports import SchemasPort, TopicRegistryPort
    from ackgate.config.broker import BrokerSettings

FailureReply: TypeAlias = "Callable[[int, int, str], bytes]"
"""Builds the frame of a failure from (request id, code, message)."""

ReadHold: TypeAlias = Literal[
    "publishes", "requests", "output", "memory", "authentication", "permissions"
]
"""Why nothing is read from a connection at the moment."""


class ReadHolds(Protocol):
    """The reading side of a connection, which can be paused."""

    def hold(self, reason: ReadHold) -> None:
        """Stop reading until `release` is called with this reason."""

    def release(self, reason: ReadHold) -> None:
        """Remove a reason to hold. Reads again if there is no other one."""

    def account(self) -> None:
        """Report how many bytes the connection holds now."""


class Connection(SessionPort, Protocol):
    """A connected client, as the commands see it."""

    @property
    def context(self) -> SessionContext:
        """What all connections of the broker share."""

    @property
    def listener(self) -> str:
        """Name of the listener that it connected to; empty if that has none."""

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings as they are now."""

    @property
    def intake(self) -> ReadHolds: ...

    @property
    def identity(self) -> ClientIdentity | None:
        """The client's identity; None before it is known, and if authentication is off."""

    @property
    def producers(self) -> Sized: ...

    @property
    def consumers(self) -> Sized: ...

    def send(self, frame: bytes) -> None:
        """Send a frame, together with all others of this tick."""

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that come in pieces."""

    def run(
        self, request_id: int, work: Coroutine[Any, Any, bytes | None], fail: FailureReply = ...
    ) -> None:
        """Run `work`, and answer the request with what it returns, or with its failure."""

    def note(self, logger: logging.Logger, message: str, *args: object, level: int = ...) -> None:
        """Log what this client did. Repeated lines on clients of its host are left out."""

    def recheck(self) -> None:
        """After a change of rights, close producers and consumers that are no longer allowed."""

    def close(self) -> None:
        """End the connection after its output is sent."""

    def abort(self) -> None:
        """End the connection at once."""


class Connections(Protocol):
    """Counts connections."""

    def opened(self, session: Connection) -> bool:
        """Count a new connection. False: there are too many, so reject it."""

    def introduced(self, session: Connection) -> None:
        """Count a connection that has completed CONNECT."""

    def closed(self, session: Connection) -> None:
        """Forget a connection that is closed and detached from its topics."""


class Located(Protocol):
    """The broker that serves a topic, or is to serve it."""

    @property
    def service(self) -> Urls:
        """Its addresses for clients of the binary protocol."""

    @property
    def is_here(self) -> bool:
        """Whether it is this broker."""

    @property
    def is_owner(self) -> bool:
        """False: no broker serves the topic yet, and this one has to acquire it."""


class TopicOwners(Protocol):
    """Knows which broker serves a topic."""

    def location_now(self, topic: TopicName) -> Located | None:
        """The broker of a topic if that is known without I/O, or None."""

    async def locate(self, topic: TopicName, *, is_authoritative: bool = False) -> Located:
        """Find the broker of a topic.

        Acquires a free one here if the plan assigns it to this broker.

        `is_authoritative`: another broker says that it does. Raises `ServiceNotReadyError`.
        """

    def reached_by(self, located: Any, listener: str) -> Urls:  # noqa: ANN401 - what it has given
        """Addresses of that broker for clients of a listener. Raises `ServiceNotReadyError`."""


class _Here(NamedTuple):
    service: Urls
    is_here: bool = True
    is_owner: bool = True


class ServedHere:
    """For a single broker: it serves every topic, at one address."""

    def __init__(self, service_url: str) -> None:
        self._here = _Here(Urls(service_url))

    def location_now(self, topic: TopicName) -> Located | None:  # noqa: ARG002
        return self._here

    def reached_by(self, located: Any, listener: str) -> Urls:  # noqa: ANN401, ARG002 - as above
        urls: Urls = located.service
        return urls

    async def locate(
        self,
        topic: TopicName,  # noqa: ARG002
        *,
        is_authoritative: bool = False,  # noqa: ARG002
    ) -> Located:
        return self._here


class HasSettings(Protocol):
    """Holds the current settings, which may be replaced while the broker runs."""

    @property
    def broker(self) -> BrokerSettings:
        """The settings of the broker itself."""


@dataclass(slots=True)
class SessionContext:
    """What all connections of one broker share."""

    registry: TopicRegistryPort
    schemas: SchemasPort
    connections: Connections
    settings: HasSettings
    server_version: str = "ackgate"
    owners: TopicOwners = field(default_factory=lambda: ServedHere(""))
    """Answers LOOKUP."""
    damper: LogDamper = field(default_factory=LogDamper)
    """Limits log lines on what clients do, by host."""
    publish_buffer: PublishBuffer = field(default_factory=PublishBuffer)
    """Counts the bytes of all connections."""
    authentication: Authentication | None = None
    """Finds out who a client is. None: authentication is off."""
    refresh_seconds: float = 60.0
    """How often connections are checked for credentials that have expired."""
    authorization: Authorization | None = None
    """Decides what a client may do. None: authorization is off."""
    now_seconds: Callable[[], float] = time.time
    """The time, in seconds since 1970."""
