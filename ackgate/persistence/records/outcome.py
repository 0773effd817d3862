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
    """From taking the state to its durability."""

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
    """What properties of the cursor take among these, before compression."""


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
    """What `CursorStore.statistics` returns. Pulsar's name for a field in brackets."""

    report: RecoveryReport
    """What opening the cursor found."""

    outcome: PersistOutcome | None
    """The last durable write: when, where, bytes, ms, what was dropped; None before the first."""

    persisted_version: int

    dirty_versions: int
    """Changes that are not durable yet."""

    receipts_waiting: int
    """Acks whose consumer waits for a receipt."""

    is_on_fallback: bool
    """Whether writes go to the metadata node because the ledger cannot be written."""

    failing_since_ms: int | None
    """Since when nothing could be written at all."""

    last_failure: str | None

    cursor_ledger_id: int | None
    """The ledger that the node names [cursorLedger]."""

    cursor_ledger_last_entry: int
    """-1 when no ledger is open for writing [cursorLedgerLastEntry]."""

    ledger_writes: int
    """[persistLedgerSucceed]"""

    ledger_errors: int
    """[persistLedgerErrors]"""

    metadata_writes: int
    """[persistZookeeperSucceed]"""

    metadata_errors: int
    """[persistZookeeperErrors]"""

    bytes_written: int
    """To both [writeCursorLedgerSize]."""

    nacks_persisted: int = 0
    """Entries held back after a negative ack that are kept durably."""

    nacks_dropped: int = 0
    """Those that were left out, to keep within the cap: after a crash they are redelivered at once."""
