"""Settings of every room: Pulsar's `broker.conf` keys as frozen models.

Pure. Reading files and the environment is `ackgate.config.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.config.broker import BrokerSettings
    from ackgate.config.dispatcher import DispatcherSettings
    from ackgate.config.persistence import CursorSettings, PersistenceSettings
    from ackgate.config.settings import Settings

__all__ = [
    "BrokerSettings",
    "CursorSettings",
    "DispatcherSettings",
    "PersistenceSettings",
    "Settings",
]

if not TYPE_CHECKING:  # or mypy would take any name to be there
    __getattr__ = lazy_face(
        __name__,
        {
            "ackgate.config.broker": ("BrokerSettings",),
            "ackgate.config.dispatcher": ("DispatcherSettings",),
            "ackgate.config.persistence": ("CursorSettings", "PersistenceSettings"),
            "ackgate.config.settings": ("Settings",),
        },
    )
