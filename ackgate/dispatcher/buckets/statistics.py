"""A bucket tracker in numbers: what it has, what it asked for, how long that took. Pure."""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.described import statistic

if TYPE_CHECKING:
    from collections.abc import Mapping

LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)
"""Upper bounds, inclusive; longer times are counted after the last one."""


class OperationType(enum.Enum):
    """Kinds of operations: ``type`` of ``pulsar_delayed_message_index_bucket_op_count``."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class OperationStatistics:
    """One type of operation, since the tracker was made. "all" is the sum of both states."""

    succeeded: int
    failed: int
    latency_counts: tuple[int, ...]
    """Both states, by `LATENCY_BOUNDS_MS`, and one more for what took longer."""
    latency_sum_ms: int


class OperationCounter:
    """Counts one type of operation."""

    __slots__ = ("_counts", "_failed", "_succeeded", "_sum_ms")

    def __init__(self) -> None:
        self._succeeded = 0
        self._failed = 0
        self._counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._sum_ms = 0

    def count(self, latency_ms: int, *, succeeded: bool) -> None:
        if succeeded:
            self._succeeded += 1
        else:
            self._failed += 1
        self._counts[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1
        self._sum_ms += latency_ms

    def statistics(self) -> OperationStatistics:
        return OperationStatistics(self._succeeded, self._failed, tuple(self._counts), self._sum_ms)


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """Counts and sizes of a bucket tracker, frozen."""

    entries: int = statistic("Tracked entries; without those of buckets that are not read yet")
    byte_estimate: int = statistic("Memory of the index", "bytes")
    buckets: int = statistic("Sealed buckets", "", "pulsar_delayed_message_index_bucket_total")
    buckets_unread: int = statistic(
        "Registered buckets whose metadata was not read yet: the index is being rebuilt"
    )
    buckets_storing: int = statistic("Sealed buckets that are not registered yet")
    buckets_failing: int = statistic(
        "Buckets whose storage fails", "", "ackgate_delayed_buckets_failing"
    )
    buckets_blocked: int = statistic(
        "Stored buckets whose next segments could not be loaded at the last attempt"
    )
    buckets_merging: int = statistic("Buckets that are being merged")
    loaded_entries: int = statistic(
        "Delayed entries in memory", "", "pulsar_delayed_message_index_loaded"
    )
    mutable_entries: int = statistic("Entries of the bucket that is not sealed")
    snapshot_bytes: int = statistic(
        "Stored snapshots", "bytes", "pulsar_delayed_message_index_bucket_snapshot_size_bytes"
    )
    snapshots_to_delete: int = statistic(
        "Snapshots that nothing refers to and that are not deleted yet"
    )
    deletes_given_up: int = statistic(
        "Snapshots left for the sweep at the next start, since the tracker was made"
    )
    next_due_ms: int | None = statistic(
        "When the first known entry is due; in the past if it waits, null if there is none",
        "ms since 1970",
    )
    buckets_lost: int = statistic(
        "Buckets whose snapshot could not be read; their entries are read again",
        "",
        "ackgate_delayed_buckets_lost_total",
    )
    entries_lost: int = statistic(
        "Entries taken out of the index for that, since the tracker was made"
    )
    registry_failures: int = statistic("Changes of the registry that failed in a row")
    degraded: tuple[str, ...] = statistic("Why the tracker is not as it should be, in sentences")
    operations: Mapping[OperationType, OperationStatistics] = statistic("Operations by type")
