"""What is stored of a cursor: snapshots, deltas, and chunks of either.

Pure values. Records are ordered by their stamp; a delta builds on the record directly before it.
Records between which nothing was done but acknowledge are one *descent*, named by the snapshot that
began it. A reset begins another one:

                 snapshot v10   delta v10 -> v14   snapshot v40   reset, snapshot v41   delta v41 -> v43
    descends     from v10       v10                v10            v41                   v41
    from
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ackgate.cursor import NO_NACKS, PendingNacks

if TYPE_CHECKING:
    from ackgate.cursor import CursorGrowth, CursorSnapshot, Position


class RecordKind(enum.IntEnum):
    """The kind byte of the envelope."""

    SNAPSHOT = 1
    DELTA = 2
    CHUNK = 3
    NODE = 4
    DELAYED_METADATA = 5
    DELAYED_SEGMENT = 6
    DELAYED_CHUNK = 7
    DELIVERY_EVENTS = 8


class Stamp(NamedTuple):
    """Which of two states is the newer one: the later owner's, then the later version.

    That of the snapshot which began it names a descent.
    """

    owner_epoch: int
    version: int

    def __str__(self) -> str:
        return f"epoch {self.owner_epoch} version {self.version}"


class SnapshotRecord(NamedTuple):
    """The whole state, as far as it is kept."""

    owner_epoch: int
    written_ms: int
    snapshot: CursorSnapshot
    """What is kept; its `range_count` counts the ranges persisted."""
    ranges_in_memory: int
    entries_dropped: int
    batch_indexes_in_memory: int
    nacks: PendingNacks = NO_NACKS
    """Entries that are held back; those acked by now may be among them."""
    base_snapshot_version: int | None = None
    """The snapshot that began its descent; None: this one does."""

    @property
    def stamp(self) -> Stamp:
        """Its place in the order of all records."""
        return Stamp(self.owner_epoch, self.snapshot.version)

    @property
    def descent(self) -> Stamp:
        """All acks of this descent up to here still hold."""
        base = self.base_snapshot_version
        return self.stamp if base is None else Stamp(self.owner_epoch, base)

    @property
    def mark_delete(self) -> Position:
        """Every position at or before it is acked."""
        return self.snapshot.mark_delete

    @property
    def is_complete(self) -> bool:
        """Whether the limits left nothing out of the acks."""
        return self.ranges_in_memory == self.snapshot.range_count and self.entries_cut == 0

    @property
    def entries_cut(self) -> int:
        """Acked and partly acked entries that the limits left out."""
        partly = self.batch_indexes_in_memory - len(self.snapshot.unacked_indexes)
        return self.entries_dropped + partly


class DeltaRecord(NamedTuple):
    """What was acked since the record before."""

    owner_epoch: int
    written_ms: int
    growth: CursorGrowth
    nacks: PendingNacks | None = None
    """In place of those before; None: they stay as they were, less what is acked."""
    base_snapshot_version: int | None = None
    """The snapshot that began its descent; None: an earlier build wrote it, which did not say."""

    @property
    def stamp(self) -> Stamp:
        """Its place in the order of all records."""
        return Stamp(self.owner_epoch, self.growth.version)

    @property
    def descent(self) -> Stamp | None:
        """All acks of this descent up to here still hold; None: it is not known which one it is."""
        base = self.base_snapshot_version
        return None if base is None else Stamp(self.owner_epoch, base)

    @property
    def mark_delete(self) -> Position:
        """Every position at or before it is acked."""
        return self.growth.mark_delete

    @property
    def base(self) -> Stamp:
        """The record that it builds on."""
        return Stamp(self.owner_epoch, self.growth.base_version)


class ChunkRecord(NamedTuple):
    """A piece of an encoded record."""

    stamp: Stamp
    chunk_index: int
    chunk_count: int
    piece: bytes


CursorRecord: TypeAlias = SnapshotRecord | DeltaRecord
AnyRecord: TypeAlias = SnapshotRecord | DeltaRecord | ChunkRecord
