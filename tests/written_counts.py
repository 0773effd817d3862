"""What a durable write held of the ack state, and what it left out: without a store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyroaring import BitMap

from ackgate.cursor import WrittenCounts

if TYPE_CHECKING:
    from ackgate.cursor import CursorSnapshot


def written_of(
    snapshot: CursorSnapshot,
    *,
    ranges_max: int,
    batch_indexes_max: int,
    size_guard_hit: bool = False,
) -> tuple[CursorSnapshot, WrittenCounts]:
    """What a store keeps that has room for the lowest so many ranges and partly acked entries."""
    kept: dict[int, BitMap] = {}
    ranges = entries_dropped = 0
    for ledger_id in sorted(snapshot.acked):
        before = None
        for entry_id in snapshot.acked[ledger_id]:
            ranges += before is None or entry_id != before + 1
            before = entry_id
            if ranges <= ranges_max:
                kept.setdefault(ledger_id, BitMap()).add(entry_id)
            else:
                entries_dropped += 1
    parts = dict(sorted(snapshot.unacked_indexes.items())[:batch_indexes_max])
    written = WrittenCounts(
        version=snapshot.version,
        ranges_in_memory=snapshot.range_count,
        ranges_persisted=min(ranges, ranges_max),
        entries_dropped=entries_dropped,
        batch_indexes_in_memory=len(snapshot.unacked_indexes),
        batch_indexes_persisted=len(parts),
        size_guard_hit=size_guard_hit,
    )
    count = written.ranges_persisted
    return replace(snapshot, acked=kept, range_count=count, unacked_indexes=parts), written
