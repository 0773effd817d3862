"""The ack state of one cursor: all that is persisted of it, and how it changes.

Pure. Takes positions that are known to exist (`known_positions` has checked them) and keeps the
parts in step: mark-delete, ranges, batch sets, properties, version, growth.

How the mark-delete moves (`M` the mark-delete, `#` acked, `.` not):

    ack the entry behind it      M . # # .   ->   # # # M .       it absorbs the run it now touches,
    cumulative                   M . # . # .  ->  # # # # M .     across ledger borders, and over
                                       ^                          ledgers that are empty or gone

Invariants (`check`): ranges and batch sets lie above the mark-delete, on existing entries; the
entry behind the mark-delete is not acked; an entry is in a range or has a batch set, never both.
`version` grows with every change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.cursor.ack_ranges import AckRanges
from ackgate.cursor.batch_acks import BatchAcks
from ackgate.cursor.bitmap_pack import pack
from ackgate.cursor.growth import GrowthLog
from ackgate.cursor.position import Position
from ackgate.cursor.snapshot import CursorGrowth, CursorSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor.id_arrays import IdArray
    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.recovered import FittedState


class AckState:
    """Mark-delete, ranges, batch sets and properties, with one version over all of them."""

    __slots__ = (
        "_batch_index_acks",
        "_entry_counts",
        "_growth",
        "_ledgers",
        "batches",
        "mark_delete",
        "properties",
        "ranges",
        "version",
    )

    mark_delete: Position
    """Every position at or before it is acked. Written here only, as all that follows."""

    ranges: AckRanges
    batches: BatchAcks

    properties: Mapping[str, int]
    """Replaced as a whole, never changed in place: may be handed out."""

    version: int
    """Changes so far."""

    def __init__(
        self,
        ledgers: MessageLedgers,
        mark_delete: Position,
        *,
        batch_index_acks: bool,
        properties: Mapping[str, int],
        version: int,
        track_growth: bool,
    ) -> None:
        self._ledgers = ledgers
        self._entry_counts = ledgers.entry_counts
        self._batch_index_acks = batch_index_acks
        self._growth = GrowthLog(is_on=track_growth)
        self.mark_delete = mark_delete
        self.ranges = AckRanges()
        self.batches = BatchAcks()
        self.properties = dict(properties)
        self.version = version

    def restore(self, fitted: FittedState) -> None:
        """Take over what was recovered, into an empty state."""
        for ledger_id, bitmap in fitted.acked.items():
            self.ranges.add_bitmap(ledger_id, bitmap)
        self.batches.replace(fitted.unacked_indexes)
        self._settle()

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acked."""
        return position <= self.mark_delete or position in self.ranges

    # -- growing

    def ack_entry(self, position: Position) -> bool:
        """Ack one entry. Returns whether it was unacked. The hot path."""
        ledger_id, entry_id = position
        mark_ledger_id, mark_entry_id = self.mark_delete
        if ledger_id == mark_ledger_id:
            if entry_id <= mark_entry_id:
                return False
            is_next = entry_id == mark_entry_id + 1
        elif ledger_id < mark_ledger_id:
            return False
        else:
            is_next = entry_id == 0 and position == self._ledgers.next_valid(self.mark_delete)
        if is_next:
            # In order: no bitmap is touched unless a range lies ahead.
            self.mark_delete = position
            self._settle()
        elif self.ranges.add(ledger_id, entry_id):
            if self._growth.is_tracking:
                self._growth.add(ledger_id, entry_id)
            if self.batches.unacked:
                self.batches.discard(position)
        else:
            return False
        self.version += 1
        return True

    def ack_indexes(self, position: Position, unacked_mask: int) -> bool:
        """Ack a part of one entry. Returns whether the whole entry became acked by it."""
        if not self._batch_index_acks or self.is_acked(position):
            return False
        before = self.batches.unacked.get(position)
        left = self.batches.restrict(position, unacked_mask)
        if left == 0:
            return self.ack_entry(position)
        if left != before:
            if self._growth.is_tracking:
                self._growth.add_batch(position)
            self.version += 1
        return False

    def ack_ids(self, ledger_id: int, ids: IdArray) -> int:
        """Ack entries of one ledger. Returns how many of them were unacked."""
        if ids.size == 0 or ledger_id < self.mark_delete.ledger_id:
            return 0
        acked = pack(ids)
        if ledger_id == self.mark_delete.ledger_id:
            acked.remove_range(0, self.mark_delete.entry_id + 1)
        new = self.ranges.add_bitmap(ledger_id, acked)
        if not new:
            return 0
        if self._growth.is_tracking:
            self._growth.add_bitmap(ledger_id, new)
        if self.batches.unacked:
            self.batches.discard_bitmap(ledger_id, new)
        self._settle()
        self.version += 1
        return len(new)

    def ack_through(self, target: Position) -> None:
        """Ack everything up to the target; nothing happens when that is acked already."""
        if target <= self.mark_delete:
            return
        self.mark_delete = target
        self.ranges.drop_through(target)
        self._settle()
        self.version += 1

    def set_properties(self, properties: Mapping[str, int]) -> None:
        """Replace the mark-delete properties."""
        if properties != self.properties:
            self.properties = dict(properties)
            self._growth.set_properties()
            self.version += 1

    def _settle(self) -> None:
        """Absorb the runs directly behind the mark-delete, and drop what it covers."""
        while self.ranges.range_count:
            ledger_id, entry_id = self.mark_delete
            entry_id += 1
            entry_count = self._entry_counts.get(ledger_id, 0)
            if entry_id >= entry_count:
                ledger_id, entry_id = self._ledgers.next_valid(self.mark_delete)
                entry_count = self._entry_counts.get(ledger_id, 0)
            stop = self.ranges.pop_run_at(ledger_id, entry_id, entry_count)
            if stop == entry_id:
                break
            self.mark_delete = Position(ledger_id, stop - 1)
        self.batches.drop_through(self.mark_delete)

    # -- changes that are not growth

    def reset(self, mark_delete: Position) -> None:
        """Everything up to the mark-delete is acked, and nothing else."""
        is_bare = not self.ranges.range_count and not self.batches.unacked
        if is_bare and mark_delete == self.mark_delete:
            return
        self.mark_delete = mark_delete
        self.ranges.clear()
        self.batches.replace({})
        self._growth.spoil()
        self.version += 1

    def forget_ledger(self, ledger_id: int) -> None:
        """The ledger does not exist any more: its acks go, and what it held apart may now touch."""
        had_ranges = self.ranges.drop_ledger(ledger_id)
        had_batches = self.batches.drop_ledger(ledger_id)
        before = self.mark_delete
        self._settle()
        if had_ranges or had_batches:
            self._growth.spoil()
        if had_ranges or had_batches or self.mark_delete != before:
            self.version += 1

    def spoil_growth(self) -> None:
        """The next record shall be a snapshot."""
        self._growth.spoil()

    # -- for persistence

    def snapshot(self) -> CursorSnapshot:
        """The whole state, in copies. O(containers)."""
        unacked = self.batches.unacked
        return CursorSnapshot(
            version=self.version,
            mark_delete=self.mark_delete,
            acked=self.ranges.copies(),
            range_count=self.ranges.range_count,
            unacked_indexes={position: unacked[position] for position in sorted(unacked)},
            properties=self.properties,
        )

    def take_snapshot(self) -> CursorSnapshot:
        """The whole state; growth is tracked from here on."""
        self._growth.begin(self.version)
        return self.snapshot()

    def take_growth(self) -> CursorGrowth | None:
        """What was acked since the last take. None when the state did something else than grow."""
        return self._growth.take(
            version=self.version,
            mark_delete=self.mark_delete,
            range_count=self.ranges.range_count,
            unacked=self.batches.unacked,
            properties=self.properties,
        )

    def check(self) -> None:
        """Assert every invariant. O(state)."""
        self.ranges.check()
        self.batches.check()
        assert self._ledgers.next_valid(self.mark_delete) not in self.ranges, self.mark_delete
        for ledger_id, bitmap in self.ranges.bitmaps():
            assert Position(ledger_id, bitmap.min()) > self.mark_delete, self.mark_delete
            assert bitmap.max() < self._entry_counts[ledger_id], ledger_id
        for position in self.batches.unacked:
            assert self._ledgers.exists(position), position
            assert not self.is_acked(position), position
