"""Where acknowledgements are kept: the cursor store, and the ledgers and nodes below it.

A name is imported from its home at its first use, so that a store costs only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.buckets.snapshots import BucketSnapshots, find_orphan_snapshots
    from ackgate.persistence.cursors.ledger import find_orphan_cursor_ledgers
    from ackgate.persistence.cursors.loading import StoredCursorView, read_cursor
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
    from ackgate.persistence.metadata.memory import MemoryMetadataStore
    from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
    from ackgate.persistence.metadata_url import open_metadata_store
    from ackgate.persistence.nodes.paths import cursor_path, topic_path
    from ackgate.persistence.ports import (
        AppendTicket,
        DigestType,
        Fragment,
        LedgerClient,
        LedgerEntry,
        LedgerMetadata,
        LedgerOptions,
        LedgerReader,
        LedgerState,
        LedgerWriter,
        MetadataStore,
        NodeValue,
        SessionState,
        UnrecoveredReader,
        WatchEvent,
        WatchKind,
    )
    from ackgate.persistence.records.outcome import (
        CursorStoreStats,
        PersistOutcome,
        PersistWhere,
        RecoveryReport,
        RecoverySource,
    )
    from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore

__all__ = [
    "AppendTicket",
    "BookieLedgerClient",
    "BucketSnapshots",
    "CursorStore",
    "CursorStoreStats",
    "DigestType",
    "Fragment",
    "LedgerClient",
    "LedgerEntry",
    "LedgerMetadata",
    "LedgerOptions",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "MemoryMetadataStore",
    "MetadataStore",
    "NodeValue",
    "PersistOutcome",
    "PersistWhere",
    "PersistenceSettings",
    "RecoveryReport",
    "RecoverySource",
    "SessionState",
    "SqliteMetadataStore",
    "StoredCursorView",
    "UnrecoveredReader",
    "WatchEvent",
    "WatchKind",
    "ZooKeeperMetadataStore",
    "cursor_path",
    "find_orphan_cursor_ledgers",
    "find_orphan_snapshots",
    "open_bookies",
    "open_metadata_store",
    "read_cursor",
    "topic_path",
]

if not TYPE_CHECKING:  # or mypy would take any name to be there
    __getattr__ = lazy_face(
        __name__,
        {
            "ackgate.config.persistence": ("PersistenceSettings",),
            "ackgate.persistence.buckets.snapshots": ("BucketSnapshots", "find_orphan_snapshots"),
            "ackgate.persistence.cursors.ledger": ("find_orphan_cursor_ledgers",),
            "ackgate.persistence.cursors.store": ("CursorStore",),
            "ackgate.persistence.ledgers.client": ("BookieLedgerClient", "open_bookies"),
            "ackgate.persistence.metadata.memory": ("MemoryMetadataStore",),
            "ackgate.persistence.metadata.sqlite": ("SqliteMetadataStore",),
            "ackgate.persistence.metadata_url": ("open_metadata_store",),
            "ackgate.persistence.zookeeper.store": ("ZooKeeperMetadataStore",),
            "ackgate.persistence.cursors.loading": ("StoredCursorView", "read_cursor"),
            "ackgate.persistence.records.outcome": (
                "CursorStoreStats",
                "PersistOutcome",
                "PersistWhere",
                "RecoveryReport",
                "RecoverySource",
            ),
            "ackgate.persistence.nodes.paths": ("cursor_path", "topic_path"),
            "ackgate.persistence.ports": (
                "AppendTicket",
                "DigestType",
                "Fragment",
                "LedgerClient",
                "LedgerEntry",
                "LedgerMetadata",
                "LedgerOptions",
                "LedgerReader",
                "LedgerState",
                "LedgerWriter",
                "MetadataStore",
                "NodeValue",
                "SessionState",
                "UnrecoveredReader",
                "WatchEvent",
                "WatchKind",
            ),
        },
    )
