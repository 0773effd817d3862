"""Where acknowledgements are kept: the cursor store, and the ledgers and nodes below it."""

from ackgate.persistence.cursor_ledger import find_orphan_cursor_ledgers
from ackgate.persistence.cursor_store import CursorStore
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
from ackgate.persistence.metadata.memory import MemoryMetadataStore
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.metadata.url import open_metadata_store
from ackgate.persistence.offline import StoredCursorView, read_cursor
from ackgate.persistence.outcome import (
    PersistOutcome,
    PersistWhere,
    RecoveryReport,
    RecoverySource,
)
from ackgate.persistence.paths import cursor_path, topic_path
from ackgate.persistence.ports import (
    DigestType,
    LedgerClient,
    LedgerOptions,
    LedgerReader,
    LedgerWriter,
    MetadataStore,
)
from ackgate.persistence.store_stats import CursorStoreStats

__all__ = [
    "BookieLedgerClient",
    "CursorStore",
    "CursorStoreStats",
    "DigestType",
    "LedgerClient",
    "LedgerOptions",
    "LedgerReader",
    "LedgerWriter",
    "MemoryMetadataStore",
    "MetadataStore",
    "PersistOutcome",
    "PersistWhere",
    "RecoveryReport",
    "RecoverySource",
    "SqliteMetadataStore",
    "StoredCursorView",
    "cursor_path",
    "find_orphan_cursor_ledgers",
    "open_bookies",
    "open_metadata_store",
    "read_cursor",
    "topic_path",
]
