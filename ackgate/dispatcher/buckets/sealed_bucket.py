"""A bucket that takes no new entries, and the states of its life. Pure.

::

      seal                                                 start
       |                                                     |
    WAITING --written--> STORING --Stored--> REGISTERING   UNREAD
       ^                    |                    |           |
       +------Failed--------+              Done  |           | MetadataLoaded
       |                                         v           |
       |                                      STORED <-------+
       v                                         |
      GONE <----- emptied, merged, lost, cleared +

Until it is STORED all its entries are in memory, as a run. Then they leave memory, except those that
are due soon, and are loaded again group by group. Its snapshot never changes; `unloaded` has the
entries that are only there.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from ackgate.cursor import BucketRecord, PositionSet
from ackgate.errors import IllegalTransitionError

if TYPE_CHECKING:
    from ackgate.cursor import Position, SnapshotSegment
    from ackgate.dispatcher.buckets.memory import LoadedRun
    from ackgate.dispatcher.buckets.segments import SegmentGroups

BUCKET_BYTES: Final = 2_000
"""A bucket without its entries: objects, empty sets, places in tables. Measured."""


class BucketState(enum.Enum):
    """The state of a bucket. See the module."""

    UNREAD = "unread"
    WAITING = "waiting"
    STORING = "storing"
    REGISTERING = "registering"
    STORED = "stored"
    GONE = "gone"


_NEXT: Final = {
    BucketState.UNREAD: {BucketState.STORED, BucketState.GONE},
    BucketState.WAITING: {BucketState.STORING, BucketState.GONE},
    BucketState.STORING: {BucketState.WAITING, BucketState.REGISTERING, BucketState.GONE},
    BucketState.REGISTERING: {BucketState.STORED, BucketState.GONE},
    BucketState.STORED: {BucketState.GONE},
    BucketState.GONE: set[BucketState](),
}


class SealedBucket:
    """A bucket that takes no new entries; see the module for its states."""

    __slots__ = (
        "attempts",
        "bytes_stored",
        "first",
        "group_entries",
        "groups",
        "is_loading",
        "is_merging",
        "last",
        "ledger_ids",
        "memory_entries",
        "merged_into",
        "next_group",
        "number",
        "runs",
        "snapshot_id",
        "state",
        "stored_columns",
        "unloaded",
        "unloaded_bytes",
    )

    number: Final[int]
    """Number of the bucket, counted by its tracker."""

    state: BucketState
    first: Position
    last: Position

    snapshot_id: int | None
    """Known from REGISTERING on, and while UNREAD."""

    bytes_stored: int
    """Bytes of its snapshot."""

    stored_columns: SnapshotSegment | None
    """What its snapshot holds; from STORING until it is STORED."""

    groups: SegmentGroups | None
    """How it is loaded; once it is known."""

    next_group: int
    """The first group that was not loaded."""

    group_entries: int
    """How many the group had that was loaded last."""

    unloaded: PositionSet
    """Tracked entries that are in the snapshot only."""

    ledger_ids: list[int]
    """Ledgers that it has, or had, unloaded entries of."""

    runs: list[LoadedRun]
    """Its entries in memory."""

    memory_entries: int
    """Entries in these runs; some may have been discarded since."""

    attempts: int
    """Failures in a row of what is being tried: create, metadata, load."""

    is_loading: bool
    """A load is under way, or waits for its next attempt."""

    is_merging: bool

    merged_into: SealedBucket | None
    """The bucket that took its entries over."""

    unloaded_bytes: int
    """What `unloaded` was last weighed at, in the tracker's sum."""

    def __init__(self, number: int, first: Position, last: Position, state: BucketState) -> None:
        self.number = number
        self.state = state
        self.first = first
        self.last = last
        self.snapshot_id = None
        self.bytes_stored = 0
        self.stored_columns = None
        self.groups = None
        self.next_group = 0
        self.group_entries = 0
        self.unloaded = PositionSet()
        self.ledger_ids = []
        self.runs = []
        self.memory_entries = 0
        self.attempts = 0
        self.is_loading = False
        self.is_merging = False
        self.merged_into = None
        self.unloaded_bytes = 0

    def __len__(self) -> int:
        """Entries that it still has, to within what was discarded in memory."""
        return self.unloaded.entry_count + self.memory_entries

    def move_to(self, state: BucketState) -> None:
        """Change the state. Raises `IllegalTransitionError`, with nothing changed, if it cannot."""
        if state not in _NEXT[self.state]:
            raise IllegalTransitionError(
                f"bucket {self.number} ({self.first}..{self.last}) cannot go from "
                f"{self.state.value} to {state.value}"
            )
        self.state = state

    @property
    def record(self) -> BucketRecord:
        """Its entry in the registry."""
        assert self.snapshot_id is not None
        return BucketRecord(self.first, self.last, self.snapshot_id)

    @property
    def next_load_key_ms(self) -> int | None:
        """The first key that is not loaded; None: there is none."""
        if self.groups is None or self.next_group >= len(self.groups):
            return None
        return int(self.groups.first_keys_ms[self.next_group])

    def check(self) -> None:
        """Assert every invariant but those that need the index."""
        self.unloaded.check()
        assert self.memory_entries == sum(map(len, self.runs))
        assert all(len(run) and run.owner is self for run in self.runs)
        if self.state is BucketState.STORED:
            assert self.groups is not None
            assert 0 <= self.next_group <= len(self.groups)
            assert self.stored_columns is None
            if self.unloaded.entry_count:
                assert self.next_load_key_ms is not None or self.is_loading, (
                    f"bucket {self.number} can never load what is left of it"
                )
        else:
            assert not self.unloaded.entry_count
            assert not self.is_loading
            assert not self.is_merging
