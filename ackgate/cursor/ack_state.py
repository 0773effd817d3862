"""The ack state of one cursor: all that is persisted of it, and how it changes.

Pure. Takes positions that exist (`ManagedCursor` has checked them) and keeps its fields
consistent: mark-delete, ranges, batch sets, properties, version, growth.

How the mark-delete moves (`M` the mark-delete, `#` acked, `.` not):

    ack the entry after it       M . # # .   ->   # # # M .       it absorbs the run it now touches,
    cumulative                   M . # . # .  ->  # # # # M .     across ledger borders, and over
                                       ^                          ledgers that are empty or gone

Invariants (`check`): ranges and batch sets lie above the mark-delete, on existing entries; the
entry after the mark-delete is not acked; an entry is in a range or has a batch set, never both.
`version` grows with every change; since `grown_since` there were only acks.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from pyroaring import BitMap

from ackgate.cursor.bitmaps import bitmap_of
from ackgate.cursor.position import Position
from ackgate.cursor.position_set import PositionSet
from ackgate.cursor.snapshots import CursorGrowth, CursorSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import IdArray
    from ackgate.cursor.snapshots import FittedState


class CursorAcks:
    """Mark-delete, ranges, batch sets and properties, with one version over all of them."""

    __slots__ = (
        "_entry_counts",
        "_growth",
        "_ledgers",
        "acks_batch_indexes",
        "batches",
        "grown_since",
        "mark_delete",
        "properties",
        "ranges",
        "version",
    )

    mark_delete: Position
    """Every position at or before it is acked. Written here only, as all that follows."""

    ranges: PositionSet
    batches: BatchAcks

    properties: Mapping[str, int]
    """Replaced as a whole, never changed in place: may be handed out."""

    version: int
    """Changes so far."""

    grown_since: int
    """The version since which the state has only grown: of the last reset, or of the beginning."""

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
        self.acks_batch_indexes = batch_index_acks
        self._growth = GrowthLog(is_on=track_growth)
        self.mark_delete = mark_delete
        self.ranges = PositionSet(counts_ranges=True)
        self.batches = BatchAcks()
        self.properties = dict(properties)
        self.version = self.grown_since = version

    def restore(self, fitted: FittedState) -> None:
        """Take over what was recovered, into an empty state."""
        for ledger_id, bitmap in fitted.acked.items():
            self.ranges.add_many(ledger_id, bitmap)
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
        if not self.acks_batch_indexes or self.is_acked(position):
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
        acked = bitmap_of(ids)
        if ledger_id == self.mark_delete.ledger_id:
            acked.remove_range(0, self.mark_delete.entry_id + 1)
        new = self.ranges.add_many(ledger_id, acked)
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
        self.ranges.take_through(target)
        self._settle()
        self.version += 1

    def set_properties(self, properties: Mapping[str, int]) -> None:
        if properties != self.properties:
            self.properties = dict(properties)
            self._growth.set_properties()
            self.version += 1

    def _settle(self) -> None:
        """Absorb the runs directly after the mark-delete, and drop what it covers."""
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
        """Set the mark-delete: everything up to it is acked, and nothing else."""
        is_bare = not self.ranges.range_count and not self.batches.unacked
        if is_bare and mark_delete == self.mark_delete:
            return
        self.mark_delete = mark_delete
        self.ranges.clear()
        self.batches.replace({})
        self._growth.spoil()
        self.version += 1
        self.grown_since = self.version

    def forget_ledger(self, ledger_id: int) -> None:
        """Forget the acks of a ledger that does not exist any more.

        What it held apart may now touch. That counts as growth: an older record that still has them
        acks nothing that exists.
        """
        had_ranges = bool(self.ranges.take_ledger(ledger_id))
        had_batches = self.batches.drop_ledger(ledger_id)
        before = self.mark_delete
        self._settle()
        if had_ranges or had_batches:
            self._growth.spoil()
        if had_ranges or had_batches or self.mark_delete != before:
            self.version += 1

    def spoil_growth(self) -> None:
        """Make the next record a snapshot."""
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
        self.ranges.check()
        self.batches.check()
        assert self._ledgers.next_valid(self.mark_delete) not in self.ranges, self.mark_delete
        for ledger_id, bitmap in self.ranges.bitmaps():
            assert Position(ledger_id, bitmap.min()) > self.mark_delete, self.mark_delete
            assert bitmap.max() < self._entry_counts[ledger_id], ledger_id
        for position in self.batches.unacked:
            assert self._ledgers.exists(position), position
            assert not self.is_acked(position), position


class BatchAcks:
    """Partly acked entries: which messages of a batch are still unacked.

    An entry that holds a batch can be acked message by message. Kept is the set of its *unacked*
    indexes, as an int: bit i set = message i is not acked yet (the polarity of the wire's `ack_set`).

        stored      1 1 1 0 1      message 1 was acked (bit 1 of 0..4 is the second from the right)
        ack set     1 0 1 1 1      a client that knows only of message 3
        result      1 0 1 0 1      AND: acks only ever clear bits, none comes back

    Dropping below a position costs O(log n) per set dropped. Invariants: no kept set is empty (that
    is a full ack, and belongs to the ranges); the heap holds every kept position, and perhaps some
    that are no longer kept.
    """

    __slots__ = ("_lowest_first", "unacked")

    unacked: dict[Position, int]
    """Position -> unacked indexes, never 0. Others read it; only this class writes it."""

    def __init__(self) -> None:
        self.unacked = {}
        self._lowest_first: list[Position] = []

    def restrict(self, position: Position, unacked_mask: int) -> int:
        """Clear what the mask does not hold. Returns what is left; 0: the entry is acked now."""
        stored = self.unacked.get(position)
        left = unacked_mask if stored is None else stored & unacked_mask
        if left == 0:
            self.unacked.pop(position, None)
            return 0
        if stored is None:
            heappush(self._lowest_first, position)
        self.unacked[position] = left
        return left

    def discard(self, position: Position) -> None:
        """Forget an entry that was acked as a whole."""
        self.unacked.pop(position, None)

    def discard_bitmap(self, ledger_id: int, acked: BitMap) -> None:
        """Forget entries of one ledger that were acked as a whole.

        O(the smaller of the two sets).
        """
        if len(self.unacked) <= len(acked):
            gone = [p for p in self.unacked if p[0] == ledger_id and p[1] in acked]
        else:
            gone = [Position(ledger_id, entry_id) for entry_id in acked]
        for position in gone:
            self.unacked.pop(position, None)

    def drop_through(self, position: Position) -> None:
        """Forget everything at or before the position."""
        heap = self._lowest_first
        while heap and heap[0] <= position:
            self.unacked.pop(heappop(heap), None)

    def drop_ledger(self, ledger_id: int) -> bool:
        """Forget one ledger. Returns whether there was anything."""
        gone = [position for position in self.unacked if position[0] == ledger_id]
        for position in gone:
            del self.unacked[position]
        return bool(gone)

    def replace(self, unacked: Mapping[Position, int]) -> None:
        self.unacked = dict(unacked)
        self._lowest_first = list(self.unacked)
        heapify(self._lowest_first)

    def check(self) -> None:
        assert all(mask > 0 for mask in self.unacked.values()), self.unacked
        assert set(self._lowest_first) >= set(self.unacked)
        assert len(self._lowest_first) == len(set(self._lowest_first))


class GrowthLog:
    """What was acked since the last record: the input of a `CursorGrowth`.

    While the state only grows, a record holds only what is new. After anything else (reset, clear, a
    lost ledger) growth is *spoilt*: nothing is tracked until the next snapshot. A log that is off
    stays off.

        snapshot taken       reset           snapshot taken
              |                |                   |
        ------+== tracking ====+---- spoilt -------+== tracking ==
    """

    __slots__ = (
        "_acked",
        "_base_version",
        "_batches",
        "_has_new_properties",
        "is_on",
        "is_tracking",
    )

    is_tracking: bool
    """Whether changes have to be recorded. A plain attribute, since the hot path reads it."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.is_tracking = False
        self._forget(0)

    def add(self, ledger_id: int, entry_id: int) -> None:
        bitmap = self._acked.get(ledger_id)
        if bitmap is None:
            self._acked[ledger_id] = BitMap((entry_id,))
        else:
            bitmap.add(entry_id)

    def add_bitmap(self, ledger_id: int, acked: BitMap) -> None:
        """Record many acked entries of one ledger. `acked` is not taken over."""
        bitmap = self._acked.get(ledger_id)
        if bitmap is None:
            self._acked[ledger_id] = acked.copy()
        else:
            bitmap |= acked

    def add_batch(self, position: Position) -> None:
        """Record that an entry's unacked indexes changed."""
        self._batches[position] = None

    def set_properties(self) -> None:
        self._has_new_properties = True

    def spoil(self) -> None:
        """Stop tracking: the state did something else than grow."""
        self.is_tracking = False
        self._forget(0)

    def begin(self, version: int) -> None:
        """Track from this snapshot on, if the log is on."""
        self.is_tracking = self.is_on
        self._forget(version)

    def take(
        self,
        *,
        version: int,
        mark_delete: Position,
        range_count: int,
        unacked: Mapping[Position, int],
        properties: Mapping[str, int],
    ) -> CursorGrowth | None:
        """The growth up to the given state, and track on from there. None when spoilt or off."""
        if not self.is_tracking:
            return None
        ledger_id, entry_id = mark_delete
        acked = {}
        for grown_id in sorted(self._acked):
            bitmap = self._acked[grown_id]
            if grown_id == ledger_id:
                bitmap.remove_range(0, entry_id + 1)
            if grown_id >= ledger_id and bitmap:
                acked[grown_id] = bitmap
        growth = CursorGrowth(
            base_version=self._base_version,
            version=version,
            mark_delete=mark_delete,
            acked=acked,
            range_count=range_count,
            unacked_indexes={
                position: unacked[position]
                for position in sorted(self._batches.keys() & unacked.keys())
            },
            properties=dict(properties) if self._has_new_properties else None,
        )
        self._forget(version)
        return growth

    def _forget(self, base_version: int) -> None:
        self._base_version = base_version
        self._acked: dict[int, BitMap] = {}
        self._batches: dict[Position, None] = {}  # a third of an empty set
        self._has_new_properties = False
