"""What all connections of one broker share, and whom they report to.

Pure (types and one record).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ackgate.broker.names import TopicName
    from ackgate.broker.ports import TopicRegistryPort
    from ackgate.broker.schemas import SchemaRegistry
    from ackgate.broker.session import Session
    from ackgate.config.broker import BrokerSettings


class Connections(Protocol):
    """Who keeps count of connections."""

    def opened(self, session: Session) -> bool:
        """A connection was made; False: there are too many, refuse it."""

    def introduced(self, session: Session) -> None:
        """It has said CONNECT."""

    def closed(self, session: Session) -> None:
        """It is gone, and its producers and consumers are detached."""


class Located(Protocol):
    """Where a topic is served."""

    @property
    def service_url(self) -> str:
        """Where clients connect."""

    @property
    def is_here(self) -> bool:
        """Whether this broker serves it."""

    @property
    def is_owner(self) -> bool:
        """False: nobody serves it yet, and that broker shall."""


class TopicOwners(Protocol):
    """Who knows which broker serves a topic."""

    def location_now(self, topic: TopicName) -> Located | None:
        """Where, if that is known without I/O."""

    async def locate(self, topic: TopicName, *, is_authoritative: bool = False) -> Located:
        """Where; here from now on, if nobody serves it and it is our turn.

        `is_authoritative`: another broker says that it is. Raises `ServiceNotReadyError`.
        """


class _Here(NamedTuple):
    service_url: str
    is_here: bool = True
    is_owner: bool = True


class ServedHere:
    """There is no other broker: every topic is served at one address."""

    def __init__(self, service_url: str) -> None:
        self._here = _Here(service_url)

    def location_now(self, topic: TopicName) -> Located | None:  # noqa: ARG002
        """Here."""
        return self._here

    async def locate(
        self,
        topic: TopicName,  # noqa: ARG002
        *,
        is_authoritative: bool = False,  # noqa: ARG002
    ) -> Located:
        """Here."""
        return self._here


class HasSettings(Protocol):
    """Where the current settings are; they may be replaced while the broker runs."""

    @property
    def broker(self) -> BrokerSettings:
        """This room's part."""


@dataclass(slots=True)
class SessionContext:
    """What all connections of one broker share."""

    registry: TopicRegistryPort
    schemas: SchemaRegistry
    connections: Connections
    settings: HasSettings
    server_version: str = "ackgate"
    owners: TopicOwners = field(default_factory=lambda: ServedHere(""))
    """Whom LOOKUP asks."""
