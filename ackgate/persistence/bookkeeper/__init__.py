"""Ledgers on a real BookKeeper cluster: its wire protocol, its metadata in ZooKeeper, its rules.

::

    client --> cluster          nodes in ZooKeeper: metadata, ids, where bookies are
       |  `--> connections --> connection     one per bookie: frames out, replies in bulk
       |--> writer              adds, and another bookie for one that fails
       |--> reads               entries, batches of them, the last add confirmed
       `--> recovery            fence, look, add again, close

`protocol` and `metadata_format` are the bytes. Handles, quorums and compare-and-set loops are shared with
the bookies that are directories (`ackgate.persistence.ledgers`).
"""

from ackgate.persistence.bookkeeper.client import BookKeeperClient
from ackgate.persistence.bookkeeper.settings import BookKeeperSettings

__all__ = ["BookKeeperClient", "BookKeeperSettings"]
