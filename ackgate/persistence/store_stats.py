"""A cursor store described in numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackgate.persistence.outcome import PersistOutcome, RecoveryReport


@dataclass(frozen=True, slots=True)
class CursorStoreStats:
    """What `CursorStore.statistics` answers. Pulsar's name for a field in brackets."""

    report: RecoveryReport
    """What opening the cursor found."""

    outcome: PersistOutcome | None
    """The last durable write: when, where, bytes, ms, what was dropped; None before the first."""

    persisted_version: int

    dirty_versions: int
    """Changes that are not durable yet."""

    receipts_waiting: int

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
    """Those that were left out, to keep within the cap: after a crash they come again at once."""
