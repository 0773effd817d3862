"""Settings of every room: Pulsar's `broker.conf` keys as frozen models.

What is exported here is pure. Reading files and the environment is `ackgate.config.load`.
"""

from ackgate.config.broker import BrokerSettings
from ackgate.config.cursor import CursorSettings
from ackgate.config.dispatcher import DispatcherSettings
from ackgate.config.persistence import PersistenceSettings
from ackgate.config.settings import Settings

__all__ = [
    "BrokerSettings",
    "CursorSettings",
    "DispatcherSettings",
    "PersistenceSettings",
    "Settings",
]
