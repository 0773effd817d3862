"""What a write kept and what a recovery found: the one source of every figure about persistence.

Pure values. The cached count, the gate, the statistics, the warnings and the counters all come from
the `PersistOutcome` of the last write; nothing counts on its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

# At run time, too: the delivery journal reads the annotations.
from ackgate.cursor import (
    Position,
    RecoveredStateReport,
    WrittenCounts,
)
from ackgate.described import statistic


class PersistWhere(enum.Enum):
    """Where a write was stored."""

    LEDGER = "ledger"
    METADATA_STORE = "metadata-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistOutcome(WrittenCounts):
    """One durable write of a cursor's state: its counts and how it went. Flat, as its JSON is."""

    mark_delete: Position
    """The mark-delete of that version: what lies below it may be trimmed."""

    where: PersistWhere

    is_delta: bool
    """Whether only the growth was written."""

    bytes_written: int

    at_ms: int
    """When it became durable, in ms since 1970."""

    duration_ms: float
    """From taking the state until it was durable."""

    nacks_in_memory: int | None = None
    """Entries held back after a negative ack; None: this write says nothing of them."""

    nacks_persisted: int | None = None
    """The earliest of them; the others would be redelivered at once after a crash."""

    written_ms: int = 0
    """When its record was made, as that says itself; `at_ms` is when it was durable."""

    is_ledger_begun: bool = False
    """Whether a cursor ledger was begun for it."""

    is_last: bool = False
    """Whether it was written as the cursor was closed: into the metadata node if it fits there."""

    cursor_ledger_id: int | None = None
    """The cursor ledger that the node names now; None: the node holds the state."""

    node_bytes: int = 0
    """How many of the bytes written are the node's."""

    properties_bytes: int = 0
    """Bytes of the cursor's properties among these, before compression."""


class RecoverySource(enum.Enum):
    """Where the state that won came from."""

    NEW = "new"
    """Nowhere: the cursor was made by this opening."""

    LEDGER = "ledger"
    METADATA_STORE = "metadata-store"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a cursor found."""

    source: RecoverySource
    version: int
    """The version recovered."""

    mark_delete: Position
    ranges: int
    records_applied: int
    """The snapshot and its deltas."""

    cursor_ledger_id: int | None
    """The ledger that the node named."""

    torn_records: tuple[str, ...]
    """Entries of the ledger that were skipped, newest first, each with the reason."""

    lost: str | None
    """What was durable and could not be read, in words; None: nothing."""

    dropped: RecoveredStateReport | None
    """What of the state did not fit the message ledgers; None when it was not looked at."""

    duration_ms: float

    nacks: int = 0
    """Entries that are still held back after a negative ack."""

    nacks_dropped: int = 0
    """Such entries that are acked, or are not there (any more)."""

    damaged_records: int = 0
    """Records of the ledger that cannot be read, whether or not others replace them."""

    versions_lost: int | None = 0
    """Changes of the cursor that no intact record holds; None: some, of unknown number."""


@dataclass(frozen=True, slots=True)
class CursorStoreStats:
    """The writes of one cursor: what is durable, what waits, and what failed since it was opened."""

    report: RecoveryReport = statistic("What opening the cursor found")
    outcome: PersistOutcome | None = statistic("The last durable write; null before the first")
    persisted_version: int = statistic("The newest durable version of the ack state")
    dirty_versions: int = statistic(
        "Changes of the ack state that are not durable yet", "", "ackgate_cursor_dirty_versions"
    )
    receipts_waiting: int = statistic(
        "Acks whose receipt waits until they are durable", "", "ackgate_cursor_receipts_waiting"
    )
    is_on_fallback: bool = statistic(
        "1 while the state goes to the metadata store because the ledger fails",
        "",
        "ackgate_cursor_on_fallback",
    )
    failing_since_ms: int | None = statistic(
        "Since when neither can be written; null: one can", "ms since 1970"
    )
    last_failure: str | None = statistic("Why the last write that failed did")
    cursor_ledger_id: int | None = statistic("The ledger that the cursor's node names")
    cursor_ledger_last_entry: int = statistic(
        "Its last entry; -1 when no ledger is open for writing"
    )
    ledger_writes: int = statistic(
        "Writes to the cursor ledger", "", "pulsar_ml_cursor_persistLedgerSucceed"
    )
    ledger_errors: int = statistic(
        "Failed writes to the cursor ledger", "", "pulsar_ml_cursor_persistLedgerErrors"
    )
    metadata_writes: int = statistic(
        "Writes to the cursor's node in the metadata store",
        "",
        "pulsar_ml_cursor_persistZookeeperSucceed",
    )
    metadata_errors: int = statistic(
        "Failed writes to the cursor's node", "", "pulsar_ml_cursor_persistZookeeperErrors"
    )
    bytes_written: int = statistic("Written to both", "bytes", "pulsar_ml_cursor_writeLedgerSize")
    nacks_persisted: int = statistic(
        "Negatively acked entries in the newest durable image", default=0
    )
    nacks_dropped: int = statistic(
        "Negatively acked entries left out of it: after a crash they come at once", default=0
    )
