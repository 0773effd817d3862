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
"""(request id, code, message) -> frame."""

ReadHold: TypeAlias = Literal[
    "publishes", "requests", "output", "memory", "authentication", "permissions"
]
"""Why nothing is read from a connection at the moment."""


class ReadHolds(Protocol):
    """The reading side of a connection, which can be held."""

    def hold(self, reason: ReadHold) -> None:
        """Read nothing more until `release`."""

    def release(self, reason: ReadHold) -> None:
        """Read again, unless there is another reason not to."""

    def account(self) -> None:
        """Say what memory the connection holds now."""


class Connection(SessionPort, Protocol):
    """A connected client, as the commands see it."""

    @property
    def context(self) -> SessionContext:
        """What it shares with the others."""

    @property
    def listener(self) -> str:
        """The listener of the address that it connected to; empty: it has none."""

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings as they are now."""

    @property
    def intake(self) -> ReadHolds: ...

    @property
    def identity(self) -> ClientIdentity | None:
        """Who it is; None before it is known, and where nobody asks."""

    @property
    def producers(self) -> Sized: ...

    @property
    def consumers(self) -> Sized: ...

    def send(self, frame: bytes) -> None:
        """Send a frame, with whatever else is sent in this tick."""

    def send_many(self, pieces: Sequence[bytes]) -> None:
        """Send frames that come in pieces."""

    def run(
        self, request_id: int, work: Coroutine[Any, Any, bytes | None], fail: FailureReply = ...
    ) -> None:
        """Answer a request by what `work` returns, or by its failure, when that is there."""

    def note(self, logger: logging.Logger, message: str, *args: object, level: int = ...) -> None:
        """Log what this client did; not each time when clients of its host do it all the time."""

    def recheck(self) -> None:
        """Rights have changed: close the producers and consumers that are not allowed any more."""

    def close(self) -> None:
        """End the connection after its output is sent."""

    def abort(self) -> None:
        """End the connection at once."""


class Connections(Protocol):
    """Who keeps count of connections."""

    def opened(self, session: Connection) -> bool:
        """A connection was made; False: there are too many, refuse it."""

    def introduced(self, session: Connection) -> None:
        """A connection has completed CONNECT."""

    def closed(self, session: Connection) -> None:
        """It is gone, and its producers and consumers are detached."""


class Located(Protocol):
    """Where a topic is served."""

    @property
    def service(self) -> Urls:
        """Where clients reach that broker."""

    @property
    def is_here(self) -> bool:
        """Whether this broker serves it."""

    @property
    def is_owner(self) -> bool:
        """False: no broker serves it yet, and that one has to take it."""


class TopicOwners(Protocol):
    """Who knows which broker serves a topic."""

    def location_now(self, topic: TopicName) -> Located | None:
        """Where, if that is known without I/O."""

    async def locate(self, topic: TopicName, *, is_authoritative: bool = False) -> Located:
        """The broker of a topic; this one from now on if it is free and the plan gives it to us.

        `is_authoritative`: another broker says that it is. Raises `ServiceNotReadyError`.
        """

    def reached_by(self, located: Any, listener: str) -> Urls:  # noqa: ANN401 - what it has given
        """Where clients of a listener reach that broker. Raises `ServiceNotReadyError`."""


class _Here(NamedTuple):
    service: Urls
    is_here: bool = True
    is_owner: bool = True


class ServedHere:
    """There is no other broker: every topic is served at one address."""

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
    """Where the current settings are; they may be replaced while the broker runs."""

    @property
    def broker(self) -> BrokerSettings:
        """The settings of the broker's room."""


@dataclass(slots=True)
class SessionContext:
    """What all connections of one broker share."""

    registry: TopicRegistryPort
    schemas: SchemasPort
    connections: Connections
    settings: HasSettings
    server_version: str = "ackgate"
    owners: TopicOwners = field(default_factory=lambda: ServedHere(""))
    """Whom LOOKUP asks."""
    damper: LogDamper = field(default_factory=LogDamper)
    """Of the lines on what clients do, by host."""
    publish_buffer: PublishBuffer = field(default_factory=PublishBuffer)
    """Who counts the bytes of all connections."""
    authentication: Authentication | None = None
    """Who finds out who a client is; None: nobody asks."""
    refresh_seconds: float = 60.0
    """How often connections are looked at for credentials that have expired."""
    authorization: Authorization | None = None
    """Who decides what a client may do; None: everything."""
    now_seconds: Callable[[], float] = time.time
    """Since 1970."""
