"""What ships for tests. As a pytest plugin it brings the fixtures of `pytest_plugin`.

A name is imported from its home at its first use: a broker process needs no memory store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.commands.stats.answer import StatsAnswer, SubscriptionAnswer
    from ackgate.commands.stats.query import query_stats
    from ackgate.commands.terminal.admin_client import AdminRefusedError
    from ackgate.testing.admin import BrokerAdmin
    from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess
    from ackgate.testing.cluster import BrokerCluster
    from ackgate.testing.credentials import CertificateMaker, TokenMaker
    from ackgate.testing.memory_ledgers import MemoryLedgerClient, MemoryLedgers
    from ackgate.testing.ports import free_ports
    from ackgate.testing.zookeeper import (
        ZooKeeperEnsemble,
        ZooKeeperFailedError,
        ZooKeeperProcess,
    )

__all__ = [
    "AdminRefusedError",
    "BrokerAdmin",
    "BrokerCluster",
    "BrokerFailedError",
    "BrokerProcess",
    "CertificateMaker",
    "MemoryLedgerClient",
    "MemoryLedgers",
    "StatsAnswer",
    "SubscriptionAnswer",
    "TokenMaker",
    "ZooKeeperEnsemble",
    "ZooKeeperFailedError",
    "ZooKeeperProcess",
    "free_ports",
    "query_stats",
]

if not TYPE_CHECKING:  # or mypy would take any name to be there
    __getattr__ = lazy_face(
        __name__,
        {
            "ackgate.commands.stats.answer": ("StatsAnswer", "SubscriptionAnswer"),
            "ackgate.commands.stats.query": ("query_stats",),
            "ackgate.commands.terminal.admin_client": ("AdminRefusedError",),
            "ackgate.testing.admin": ("BrokerAdmin",),
            "ackgate.testing.broker_process": ("BrokerFailedError", "BrokerProcess"),
            "ackgate.testing.cluster": ("BrokerCluster",),
            "ackgate.testing.credentials": ("CertificateMaker", "TokenMaker"),
            "ackgate.testing.memory_ledgers": ("MemoryLedgerClient", "MemoryLedgers"),
            "ackgate.testing.ports": ("free_ports",),
            "ackgate.testing.zookeeper": (
                "ZooKeeperEnsemble",
                "ZooKeeperFailedError",
                "ZooKeeperProcess",
            ),
        },
    )

# Read by pytest; nothing here imports it, so that the rest of the room works without pytest.
pytest_plugins = ("ackgate.testing.pytest_plugin",)
