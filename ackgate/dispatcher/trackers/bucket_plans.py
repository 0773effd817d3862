"""What a bucket tracker wants done, and what it is told of it: plans out, outcomes in.

Pure values. The tracker does no I/O: it asks for these, in the order of `take_plans`, and the broker
carries them out through ``persistence`` and answers each exactly once (a second answer, or one of
before a `clear`, is ignored). ::

    seal     CreateSnapshot --stored--> ChangeRegistry(add one) --done--> the bucket is sealed
    merge    LoadSegments x k --> CreateSnapshot --stored--> ChangeRegistry(add one, remove k)
                                                              --done--> DeleteSnapshot x k
    due      LoadSegments(the next one, ahead of its time)
    emptied  ChangeRegistry(remove one) --done--> DeleteSnapshot
    start    LoadMetadata of every registered bucket, in the background

The registry is one small map, bucket -> snapshot, that is changed in one atomic step. A snapshot
that it does not name is nothing (a crash in between left it) and is deleted at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor.position import Position


class SnapshotSegment(NamedTuple):
    """A time-ordered slice of a bucket: three columns of one length, sorted by (key, position)."""

    keys_ms: NDArray[np.int64]
    """Rounded deliver-at times; see `delayed`."""
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]


class SegmentMetadata(NamedTuple):
    """What is known of a segment without loading it."""

    first_key_ms: int
    last_key_ms: int
    entry_count: int
    positions: Mapping[int, BitMap]
    """Its entry ids by message ledger, run-optimised."""


class BucketRecord(NamedTuple):
    """One registered bucket."""

    first: Position
    """The lowest position that its entries may have."""
    last: Position
    """The highest."""
    snapshot_id: int
    """The ledger that holds the snapshot: entry 0 the metadata, then a segment each."""


class CreateSnapshot(NamedTuple):
    """Write a snapshot into a new ledger, all of it or nothing. Answer: `Stored` or `Failed`."""

    plan: int
    first: Position
    last: Position
    segments: tuple[SnapshotSegment, ...]
    metadata: tuple[SegmentMetadata, ...]


class ChangeRegistry(NamedTuple):
    """Change the registry in one atomic, durable step. Answer: `Done` or `Failed`.

    Never two at a time. After a `Failed`, which may have been made nevertheless, the next one may
    add what is there and remove what is not: that is no error.
    """

    plan: int
    add: tuple[BucketRecord, ...]
    remove: tuple[int, ...]
    """Snapshot ids."""


class LoadMetadata(NamedTuple):
    """Read a snapshot's metadata. Answer: `MetadataLoaded`, `Missing` or `Failed`."""

    plan: int
    snapshot_id: int


class LoadSegments(NamedTuple):
    """Read segments ``first <= number < stop``, counted from 0.

    Answer: `SegmentsLoaded`, `Missing` or `Failed`.
    """

    plan: int
    snapshot_id: int
    first: int
    stop: int


class DeleteSnapshot(NamedTuple):
    """Delete a snapshot that the registry names no more. Answer: `Done` or `Failed`.

    One that is gone already is `Done`.
    """

    plan: int
    snapshot_id: int


Plan: TypeAlias = CreateSnapshot | ChangeRegistry | LoadMetadata | LoadSegments | DeleteSnapshot


class Stored(NamedTuple):
    """`CreateSnapshot` succeeded, durably."""

    snapshot_id: int
    bytes_stored: int


class MetadataLoaded(NamedTuple):
    """`LoadMetadata` succeeded."""

    segments: tuple[SegmentMetadata, ...]
    bytes_stored: int


class SegmentsLoaded(NamedTuple):
    """`LoadSegments` succeeded."""

    segments: tuple[SnapshotSegment, ...]


class Done(NamedTuple):
    """`ChangeRegistry` or `DeleteSnapshot` succeeded."""


class Missing(NamedTuple):
    """The snapshot, or what was asked of it, does not exist or cannot be read, and never will."""

    why: str


class Failed(NamedTuple):
    """It did not work now; perhaps later. Nothing is known to be done."""

    why: str


Outcome: TypeAlias = Stored | MetadataLoaded | SegmentsLoaded | Done | Missing | Failed
