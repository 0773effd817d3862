"""A bucket tracker in numbers: what it has, what it asked for, how long that took. Pure."""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)
"""Upper bounds, inclusive; longer times are counted after the last one."""


class OperationType(enum.Enum):
    """Label ``type`` of ``pulsar_delayed_message_index_bucket_op_count``."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


class OperationStatistics(NamedTuple):
    """One type of operation, since the tracker was made. "all" is the sum of both states."""

    succeeded: int
    failed: int
    latency_counts: tuple[int, ...]
    """Of both, by `LATENCY_BOUNDS_MS`, and one more for what took longer."""
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
    """A frozen description of a bucket tracker. Pulsar's metric in brackets."""

    entries: int
    """Tracked; without those of buckets that are not read yet [pulsar_subscription_delayed]."""

    byte_estimate: int
    """Memory [pulsar_delayed_message_index_size_bytes]."""

    buckets: int
    """Sealed ones and the mutable one [pulsar_delayed_message_index_bucket_total]."""

    buckets_unread: int
    """Registered ones whose metadata was not read yet: the index is being rebuilt."""

    buckets_storing: int
    """Sealed ones that are not registered yet."""

    buckets_failing: int
    """Of these, the ones whose snapshot could not be written after all attempts: degraded, they
    stay in memory whole, and are tried again now and then."""

    buckets_blocked: int
    """Stored ones whose next segments could not be loaded at the last attempt."""

    buckets_merging: int

    loaded_entries: int
    """In memory, the mutable bucket's too [pulsar_delayed_message_index_loaded]."""

    mutable_entries: int

    snapshot_bytes: int
    """In storage [pulsar_delayed_message_index_bucket_snapshot_size_bytes]."""

    snapshots_to_delete: int
    """Snapshots that nothing refers to and that are not deleted yet."""

    deletes_given_up: int
    """Snapshots left for the sweep at the next start, since the tracker was made."""

    next_due_ms: int | None
    """When the first entry is due that is known, loaded or not; in the past: it waits. None: none."""

    buckets_lost: int
    """Whose snapshot was missing or unreadable. Their entries are read again by the cursor."""

    entries_lost: int
    """Taken out of the index for that, since the tracker was made."""

    registry_failures: int
    """Changes in a row that failed."""

    degraded: tuple[str, ...]
    """Why it is not what it should be: sentences. Empty: all is well."""

    operations: Mapping[OperationType, OperationStatistics]
