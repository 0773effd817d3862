"""What a write kept and what a recovery found: the one source of every figure about persistence.

Pure values. The cached count, the gate, the statistics, the warnings and the counters all come from
the `PersistOutcome` of the last write; nothing counts on its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

# At run time, too: the delivery journal reads the annotations.
from ackgate.cursor.position import Position  # noqa: TC001
from ackgate.cursor.recovered import RecoveredStateReport  # noqa: TC001


class PersistWhere(enum.Enum):
    """Where a write went."""

    LEDGER = "ledger"
    METADATA_STORE = "metadata-store"


@dataclass(frozen=True, slots=True)
class PersistOutcome:
    """One durable write of a cursor's state."""

    version: int
    """The version that is durable now."""

    mark_delete: Position
    """The mark-delete of that version: what lies below it may be trimmed."""

    where: PersistWhere

    is_delta: bool
    """Whether only the growth was written."""

    ranges_in_memory: int

    ranges_persisted: int
    """Fewer than in memory when the cap or the size guard cut the state; the lowest are kept."""

    entries_dropped: int
    """Acked entries that would come again after a crash now."""

    batch_indexes_in_memory: int
    """Partly acked entries of the cursor."""

    batch_indexes_persisted: int

    size_guard_hit: bool
    """Whether the metadata node's size limit cut the state, beyond what the caps did."""

    bytes_written: int

    at_ms: int
    """When it became durable, in ms since 1970."""

    duration_ms: float
    """From taking the state to its durability."""

    nacks_in_memory: int | None = None
    """Entries held back after a negative ack; None: this write says nothing of them."""

    nacks_persisted: int | None = None
    """The earliest of them; the others would come again at once after a crash."""

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

    @property
    def ranges_dropped(self) -> int:
        """Ranges that exist in memory only."""
        return self.ranges_in_memory - self.ranges_persisted

    @property
    def batch_indexes_dropped(self) -> int:
        """Partly acked entries that are so in memory only."""
        return self.batch_indexes_in_memory - self.batch_indexes_persisted

    @property
    def is_complete(self) -> bool:
        """Whether all acks that were in memory are durable."""
        return (
            self.ranges_dropped == 0
            and self.entries_dropped == 0
            and self.batch_indexes_dropped == 0
        )


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
    """Entries at the ledger's tail that were skipped, newest first, each with the reason."""

    lost: str | None
    """Why newer state than this may have existed and could not be read; None: nothing was lost."""

    dropped: RecoveredStateReport | None
    """What of the state did not fit the message ledgers; None when it was not looked at."""

    duration_ms: float

    nacks: int = 0
    """Entries that are still held back after a negative ack."""

    nacks_dropped: int = 0
    """Such entries that are acked, or are not there (any more)."""
