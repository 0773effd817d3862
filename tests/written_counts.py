"""What a gate is told of a durable write, without the write."""

from __future__ import annotations

from typing import NamedTuple


class Written(NamedTuple):
    """See `ackgate.dispatcher.gate.WrittenCounts`."""

    ranges_in_memory: int
    ranges_persisted: int
    entries_dropped: int = 0
    batch_indexes_dropped: int = 0
    size_guard_hit: bool = False
