"""Ledgers on a real BookKeeper cluster: its wire protocol, its metadata in ZooKeeper, its rules.

::

    client --> cluster          nodes in ZooKeeper: metadata, ids, where bookies are
       |  `--> connections --> connection     one per bookie: frames out, replies in bulk
       |                            `--> handshake    TLS and authentication before the first frame
       |--> writer              adds, and another bookie for one that fails
       |--> reads               entries, batches of them, the last add confirmed
       `--> recovery            fence, look, add again, close

`protocol` and `metadata_format` are the bytes. Handles, quorums and compare-and-set loops are shared with
the bookies that are directories (`ackgate.persistence.ledgers`).
"""

from ackgate.persistence.bookkeeper.client import BookKeeperClient
from ackgate.persistence.bookkeeper.cluster import BookieState, KnownBookie
from ackgate.persistence.bookkeeper.handshake import BookieDiskSpace
from ackgate.persistence.bookkeeper.metadata_format import BookieEndpoint, BookieService
from ackgate.persistence.bookkeeper.settings import (
    BookieLogin,
    BookieTls,
    BookKeeperSettings,
    client_settings,
)
from ackgate.persistence.bookkeeper.statistics import (
    LATENCY_BOUNDS_MS,
    BookieTraffic,
    BookKeeperStatistics,
    LatencyCounts,
)

__all__ = [
    "LATENCY_BOUNDS_MS",
    "BookKeeperClient",
    "BookKeeperSettings",
    "BookKeeperStatistics",
    "BookieDiskSpace",
    "BookieEndpoint",
    "BookieLogin",
    "BookieService",
    "BookieState",
    "BookieTls",
    "BookieTraffic",
    "KnownBookie",
    "LatencyCounts",
    "client_settings",
]
