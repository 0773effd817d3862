"""What all connections of one broker share, and whom they report to.

Pure (types and one record).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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
    service_url: str = ""
    """What LOOKUP answers; known once the port is."""
