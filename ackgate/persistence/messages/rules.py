"""When a topic's ledger is full, and which of its ledgers may go.

Pure. Pulsar's rules for roll-over and retention; `ManagedLedger` carries out what they say.

    ledgers   [ 1 ][ 2 ][ 3 ][ 4 ][ 5 (open) ]
              '-- consumed ---'
              oldest first: gone while too old, or while what stays is more than is to be kept
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.nodes.topic_node import MessageLedgerRecord


class RolloverLimits(NamedTuple):
    """When the current ledger is closed and a new one begun.

    Pulsar's rule: (entries or size) and the least age, or the greatest age.
    """

    entries_max: int
    size_bytes_max: int
    age_ms_min: int
    age_ms_max: int

    def is_full(self, *, entries: int, size_bytes: int, age_ms: int) -> bool:
        """Whether a ledger that holds so much, and is so old, is to be replaced."""
        is_large = entries >= self.entries_max or size_bytes >= self.size_bytes_max
        return (is_large and age_ms >= self.age_ms_min) or age_ms >= self.age_ms_max


class Retention(NamedTuple):
    """How long fully acked ledgers are kept: until one of the two is exceeded; -1 = forever.

    Pulsar's rule (`isLedgerRetentionOverSizeQuota` or `hasLedgerRetentionExpired`).
    """

    time_ms: int = 0
    size_bytes: int = 0


def trimmable(
    ledgers: Sequence[MessageLedgerRecord],
    consumed_through: Position,
    retention: Retention,
    *,
    size_bytes: int,
    now_ms: int,
) -> list[int]:
    """Closed ledgers that lie wholly at or below `consumed_through`, oldest first.

    Ends at the first that the retention keeps. `size_bytes`: of all of the topic's ledgers.
    """
    gone: list[int] = []
    kept_bytes = size_bytes
    for record in ledgers:
        if record.entry_count is None or record.closed_ms is None:
            break
        if Position(record.ledger_id, record.entry_count - 1) > consumed_through:
            break
        kept_bytes -= record.size_bytes
        is_old = 0 <= retention.time_ms <= now_ms - record.closed_ms
        is_surplus = 0 <= retention.size_bytes <= kept_bytes
        if not (is_old or is_surplus):
            break
        gone.append(record.ledger_id)
    return gone
