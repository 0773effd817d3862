"""What a subscription keeps of its delayed entries beside its acks: buckets, as values to be stored.

Pure values. A sealed bucket of delayed entries is written once, as a **snapshot**: what is known of
its segments, then the segments themselves, in the order of time. The registry of a subscription
names its buckets by their snapshots. The tracker of `dispatcher.buckets` makes and reads these
values, `persistence` stores them, and neither imports the other::

    BucketRecord 7:0..7:9, snapshot 4711      in the registry
        |
        v
    snapshot 4711   SegmentMetadata x 3   SnapshotSegment   SnapshotSegment   SnapshotSegment
                                          10:00-10:05       10:05-10:10       10:11-10:14
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor.position import Position


class SnapshotSegment(NamedTuple):
    """A slice of a bucket: columns of one length, sorted by (key, ledger, entry)."""

    keys_ms: NDArray[np.int64]
    """When to deliver, rounded by the tracker. A stored segment has each position once."""
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]


class SegmentMetadata(NamedTuple):
    """What is known of a segment without reading it."""

    first_key_ms: int
    last_key_ms: int
    entry_count: int
    positions: Mapping[int, BitMap]
    """Entry ids by message ledger."""


class BucketRecord(NamedTuple):
    """A bucket as the registry stores it."""

    first: Position
    """The lowest position that its entries may have."""
    last: Position
    """The highest."""
    snapshot_id: int
    """The ledger that holds its snapshot."""


class StoredSnapshot(NamedTuple):
    """A snapshot that is durable."""

    snapshot_id: int
    bytes_stored: int
