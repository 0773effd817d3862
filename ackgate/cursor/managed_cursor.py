"""The managed cursor: everything one subscription has acknowledged on one topic.

Pure. It is told of acks and moves by method calls, and of ledgers through the topic's `MessageLedgers`.
It never persists, waits or reads a clock: the cursor store takes snapshots from it, the gate asks it for
counts, the dispatcher for unacked entries.

    ledger 7      0 1 2 3 4 5 6 7 8 9        ledger 8   0 1 2 ...
                  # # # . . # # . # .                   # # .
                      ^     `-range-'                   `-range-'
                mark-delete 7:2                              ^ read position 8:2

Every entry at or before the **mark-delete** is acked; behind it acked entries form **ranges** (per
ledger) with holes between. When a hole closes, the mark-delete absorbs the run behind it, over borders
and over ledgers that are empty or gone.

Refused, and then nothing is changed: positions that no entry has, a cumulative ack that goes back.
Already acked is no error and counts nothing.

Invariants (`check`): ranges and batch sets lie above the mark-delete, on existing entries; the entry
behind the mark-delete is not acked; an entry is either in a range or has a batch set, not both.
`version` grows with every change of what would be persisted, and with nothing else: moving the read
position is not a change.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import worst_case
from ackgate.cursor.ack_ranges import AckRanges
from ackgate.cursor.batch_acks import BatchAcks
from ackgate.cursor.bitmap_pack import pack
from ackgate.cursor.bitmap_runs import run_bounds
from ackgate.cursor.growth import GrowthLog
from ackgate.cursor.id_arrays import by_ledger, entry_ids_below
from ackgate.cursor.position import ENTRY_ID_MAX, Position, check_position
from ackgate.cursor.ranges_text import ranges_text
from ackgate.cursor.recovered import RecoveredStateReport, clamp, fit
from ackgate.cursor.snapshot import CursorGrowth, CursorSnapshot
from ackgate.cursor.stats import CursorStats
from ackgate.cursor.unacked_entries import Span, nth_unacked, unacked_spans
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike

    from ackgate.cursor.id_arrays import IdArray
    from ackgate.cursor.message_ledgers import MessageLedgers

ARRAY_PATH_POSITIONS_MIN: Final = 256
"""From this many positions on, a list is applied as arrays: the fixed cost has paid off by then."""


class ManagedCursor:
    """The ack state of one subscription. One owner calls it; nobody else holds its parts."""

    __slots__ = (
        "_batch_index_acks",
        "_batches",
        "_entry_counts",
        "_growth",
        "_ledgers",
        "_mark_delete",
        "_properties",
        "_ranges",
        "_read_position",
        "_version",
    )

    def __init__(
        self,
        ledgers: MessageLedgers,
        mark_delete: Position,
        *,
        batch_index_acks: bool = True,
        properties: Mapping[str, int] | None = None,
        version: int = 0,
        track_growth: bool = True,
    ) -> None:
        """A cursor that has acked everything up to `mark_delete` and nothing else.

        `track_growth` False: for cursors that are never persisted; `take_growth` answers None.
        """
        if mark_delete.ledger_id >= 0:
            check_position(mark_delete)
        if clamp(mark_delete, ledgers) != mark_delete:
            raise PositionError(
                f"mark-delete {mark_delete} lies behind the last entry {ledgers.last_confirmed}"
            )
        self._ledgers = ledgers
        self._entry_counts = ledgers.entry_counts
        self._mark_delete = mark_delete
        self._read_position = ledgers.next_valid(mark_delete)
        self._ranges = AckRanges()
        self._batches = BatchAcks()
        self._batch_index_acks = batch_index_acks
        self._properties: Mapping[str, int] = dict(properties or {})
        self._version = version
        self._growth = GrowthLog(is_on=track_growth)

    @classmethod
    def from_snapshot(
        cls,
        ledgers: MessageLedgers,
        snapshot: CursorSnapshot,
        *,
        batch_index_acks: bool = True,
    ) -> tuple[ManagedCursor, RecoveredStateReport]:
        """The cursor that left the snapshot, and what of it did not fit the ledgers any more.

        Has the snapshot's version, or the next one when something was dropped (then it is dirty).
        """
        fitted = fit(snapshot, ledgers, batch_index_acks=batch_index_acks)
        cursor = cls(
            ledgers,
            fitted.mark_delete,
            batch_index_acks=batch_index_acks,
            properties=snapshot.properties,
            version=snapshot.version + (not fitted.report.is_clean),
        )
        for ledger_id, bitmap in fitted.acked.items():
            cursor._ranges.add_bitmap(ledger_id, bitmap)  # noqa: SLF001  # its own class
        cursor._batches.replace(fitted.unacked_indexes)  # noqa: SLF001
        cursor._settle()  # noqa: SLF001
        return cursor, fitted.report

    # -- reading, O(1) unless said otherwise

    @property
    def version(self) -> int:
        """Changes so far. Dirty means: larger than the persisted version."""
        return self._version

    @property
    def mark_delete(self) -> Position:
        """Every position at or before it is acked."""
        return self._mark_delete

    @property
    def read_position(self) -> Position:
        """The next position to read for dispatch."""
        return self._read_position

    @property
    def range_count(self) -> int:
        """Maximal acked runs above the mark-delete, counted per ledger."""
        return self._ranges.range_count

    @property
    def acked_count(self) -> int:
        """Acked entries above the mark-delete."""
        return self._ranges.acked_count

    @property
    def partly_acked_count(self) -> int:
        """Entries with a batch set."""
        return len(self._batches.unacked)

    @property
    def backlog_entries(self) -> int:
        """Existing entries that are not acked."""
        return self._ledgers.count_after(self._mark_delete) - self._ranges.acked_count

    @property
    def byte_estimate(self) -> int:
        """Upper estimate of the encoded state, before compression.

        A ledger's bitmap takes the least of 4 bytes a range, 2 an entry and a bit for every entry
        spanned; the least of the sums cannot be below the sum of the least.
        """
        acked = self._ranges.acked_count
        spanned = self._ledgers.count_after(self._mark_delete)
        bitmaps = min(4 * self._ranges.range_count, 2 * acked, spanned // 8)
        return 32 + bitmaps + 32 * len(self._ranges.ledger_ids) + 32 * len(self._batches.unacked)

    @property
    def properties(self) -> Mapping[str, int]:
        """The mark-delete properties."""
        return self._properties

    @property
    def hole_count(self) -> int:
        """Unacked runs that lie before some acked entry. O(ledgers with ranges).

        One before every range, unless the range goes on where the one before stopped at the border.
        """
        joined = sum(
            0 in bitmap and self._ledgers.previous(Position(ledger_id, 0)) in self._ranges
            for ledger_id, bitmap in self._ranges.bitmaps()
        )
        return self._ranges.range_count - joined

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acked."""
        return position <= self._mark_delete or position in self._ranges

    def unacked_mask(self, position: Position) -> int | None:
        """The unacked indexes of a partly acked entry; None when it is not partly acked."""
        return self._batches.unacked.get(position)

    def last_acked_position(self) -> Position | None:
        """Upper end of the last range; None when there is no range."""
        return self._ranges.last()

    def has_acked_above(self, position: Position) -> bool:
        """Whether anything behind the position is acked: whether acking here may close a hole."""
        last = self._ranges.last()
        return last is not None and position < last

    def unacked_spans(self, start: Position, entries_max: int) -> list[Span]:
        """Maximal runs of existing, unacked entries from `start` on, up to `entries_max` entries.

        O(runs): acked stretches are hopped over, however long.
        """
        return unacked_spans(self._ledgers, self._ranges, max(start, self._read_floor()), entries_max)

    def ranges_text(self, ranges_max: int) -> str:
        """The ranges in Pulsar's open-closed form, for the admin API."""
        return ranges_text(self._ranges, ranges_max)

    def statistics(self) -> CursorStats:
        """Everything there is to say in numbers."""
        backlog = self.backlog_entries
        return CursorStats(
            version=self._version,
            mark_delete=self._mark_delete,
            read_position=self._read_position,
            last_confirmed=self._ledgers.last_confirmed,
            backlog_entries=backlog,
            unread_entries=backlog - self._unacked_below_read(),
            acked_count=self._ranges.acked_count,
            range_count=self._ranges.range_count,
            hole_count=self.hole_count,
            partly_acked_count=len(self._batches.unacked),
            byte_estimate=self.byte_estimate,
            properties=self._properties,
        )

    # -- acknowledging

    def ack(self, position: Position) -> bool:
        """Ack one entry. Returns whether it was unacked. The hot path."""
        ledger_id, entry_id = position
        if not 0 <= entry_id < self._entry_counts.get(ledger_id, 0):
            self._refuse_unknown(position)
            return False
        return self._ack_entry(position)

    def ack_individual(self, positions: Sequence[Position]) -> int:
        """Ack entries, all or none. Returns how many of them were unacked."""
        if len(positions) >= ARRAY_PATH_POSITIONS_MIN:
            try:
                pairs = np.fromiter(chain.from_iterable(positions), np.int64, 2 * len(positions))
            except (OverflowError, ValueError) as error:
                raise PositionError(f"not a list of positions: {error}") from None
            return self.ack_many_pairs(pairs[0::2], pairs[1::2])
        known = [position for position in positions if self._is_known(position)]
        return sum(map(self._ack_entry, known))

    def ack_mixed(self, acks: Sequence[tuple[Position, int | None]]) -> int:
        """Ack entries and parts of entries, all or none: one ACK command.

        None stands for the whole entry; an int for the batch indexes that are *still unacked*, so 0 is
        the whole entry too. Returns how many entries became acked as a whole.
        """
        for _, mask in acks:
            _check_mask(mask)
        known = [ack for ack in acks if self._is_known(ack[0])]
        return sum(
            self._ack_indexes(position, mask) if mask else self._ack_entry(position)
            for position, mask in known
        )

    def ack_many(self, ledger_id: int, entry_ids: ArrayLike) -> int:
        """Ack entries of one ledger, all or none; any order, repeats allowed."""
        return self._ack_array(ledger_id, self._known_ids(ledger_id, entry_ids))

    def ack_many_pairs(self, ledger_ids: ArrayLike, entry_ids: ArrayLike) -> int:
        """Ack entries given as two arrays of one length, all or none."""
        groups = [
            (ledger_id, self._known_ids(ledger_id, ids))
            for ledger_id, ids in by_ledger(ledger_ids, entry_ids)
        ]
        return sum(self._ack_array(ledger_id, ids) for ledger_id, ids in groups)

    def ack_cumulative(
        self,
        position: Position,
        *,
        unacked_mask: int | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> None:
        """Ack everything up to and including the position.

        With a mask everything before it is acked, and of the entry itself what the mask does not hold.
        The same position again succeeds. `properties` None leaves them as they are.
        """
        _check_mask(unacked_mask)
        if position < self._mark_delete:
            raise PositionError(
                f"cumulative ack of {position} goes back: the mark-delete is {self._mark_delete}"
            )
        self._check_target(position, is_whole=not unacked_mask)
        if properties is not None:
            self.set_properties(properties)
        if unacked_mask and not self.is_acked(position):
            self._move_mark_delete(self._ledgers.previous(position))
            # The mark-delete may have absorbed up to the position's neighbour, never the position.
            self._ack_indexes(position, unacked_mask)
        else:
            self._move_mark_delete(position)

    def skip(self, entries: int) -> int:
        """Ack the next `entries` unacked entries behind the mark-delete. Returns how many there were."""
        if entries < 0:
            raise CallerError(f"cannot skip {entries} entries")
        skipped = min(entries, self.backlog_entries)
        if skipped:
            target = nth_unacked(self._ledgers, self._ranges, self._mark_delete, skipped)
            assert target is not None, "the backlog count and the ledgers disagree"
            self._move_mark_delete(target)
        return skipped

    def clear_backlog(self) -> int:
        """Ack everything there is. Returns how many entries were unacked."""
        cleared = self.backlog_entries
        if cleared:
            # A snapshot of what is left is smaller than any growth.
            self._growth.spoil()
            self._move_mark_delete(self._ledgers.last_confirmed)
        return cleared

    def set_properties(self, properties: Mapping[str, int]) -> None:
        """Replace the mark-delete properties."""
        if properties != self._properties:
            self._properties = dict(properties)
            self._growth.set_properties()
            self._version += 1

    # -- moving

    def reset(self, read_position: Position) -> None:
        """Forget all acks from the position on, ack all before it, and read from there.

        A position without an entry stands for the next one; `EARLIEST` and `LATEST` are understood.
        """
        target = self._ledgers.at_or_after(read_position)
        mark_delete = self._ledgers.previous(target)
        if mark_delete != self._mark_delete or self._ranges.range_count or self._batches.unacked:
            self._mark_delete = mark_delete
            self._ranges.clear()
            self._batches.replace({})
            self._growth.spoil()
            self._version += 1
        self._read_position = target

    def rewind(self) -> None:
        """Read again from behind the mark-delete."""
        self._read_position = self._read_floor()

    def seek(self, position: Position, *, force: bool = False) -> None:
        """Move the read position only; not to or before the mark-delete unless forced."""
        if position <= self._mark_delete and not force:
            self._read_position = self._read_floor()
        else:
            self._read_position = self._ledgers.at_or_after(position)

    def ledger_trimmed(self, ledger_id: int) -> None:
        """`MessageLedgers.trim_ledger` was called: acks of that ledger concern nothing any more."""
        if ledger_id in self._entry_counts:
            raise CallerError(f"ledger {ledger_id} still exists: trim it in the message ledgers first")
        self._move_mark_delete(self._ledgers.trimmed_through)
        had_ranges = self._ranges.drop_ledger(ledger_id)
        had_batches = self._batches.drop_ledger(ledger_id)
        if had_ranges or had_batches:
            self._growth.spoil()
            self._version += 1
        before = self._mark_delete
        self._settle()
        if self._mark_delete != before:
            self._version += 1
        self._read_position = self._ledgers.at_or_after(self._read_position)

    # -- the strict gate

    def entry_budget(self, ranges_max: int, *, entries_enough: int | None = None) -> int:
        """How many further unacked entries may be sent so that no acks can exceed the limit.

        Counted from the read position on. All unacked entries below it count as in flight. When they
        alone could exceed `ranges_max`, the most that they could make is the limit instead: what cannot
        make it worse may be sent, so delivery never dead-locks. Entries that are still to come
        count as if they went to the newest ledger: ask again when they are there. With
        `entries_enough` the answer may be just that number where more would be allowed: then it
        costs O(1), else O(ranges).
        """
        boundary = max(self._read_position, self._read_floor())
        if entries_enough is not None:
            in_flight = self._unacked_below_read()
            borders = len(self._entry_counts)
            # A hole adds half its entries, and half a range more for each border without neighbour.
            if 2 * (ranges_max - self._ranges.range_count) >= in_flight + entries_enough + borders:
                return entries_enough
        below: list[worst_case.LedgerHoles] = []
        gain = in_flight = 0
        all_holes = self._holes()
        for ledger_id, holes in all_holes:
            below.append(holes)
            limit = boundary.entry_id if ledger_id == boundary.ledger_id else worst_case.ENDLESS
            ledger_gain, entries = worst_case.gain_below(holes, limit)
            gain += ledger_gain
            in_flight += entries
            if ledger_id >= boundary.ledger_id:
                break
        spare = max(ranges_max - self._ranges.range_count, gain)
        later = (holes for _, holes in all_holes)
        return worst_case.widest(chain(below, later), spare) - in_flight

    def _holes(self) -> Iterator[tuple[int, worst_case.LedgerHoles]]:
        """The holes behind the mark-delete, ledger by ledger; the newest ledger's last is endless."""
        ids = self._ledgers.ledger_ids
        floor = self._read_floor()
        for ledger_id in ids:
            if ledger_id < floor.ledger_id:
                continue
            low = floor.entry_id if ledger_id == floor.ledger_id else 0
            high = worst_case.ENDLESS if ledger_id == ids[-1] else self._entry_counts[ledger_id]
            bitmap = self._ranges.bitmap(ledger_id)
            starts, stops = (NO_IDS, NO_IDS) if bitmap is None else run_bounds(bitmap)
            yield (
                ledger_id,
                worst_case.ledger_holes(
                    starts,
                    stops,
                    low=low,
                    high=high,
                    touches_mark_delete=ledger_id == floor.ledger_id,
                ),
            )

    # -- for persistence

    def snapshot(self) -> CursorSnapshot:
        """The whole state, in copies. O(containers)."""
        unacked = self._batches.unacked
        return CursorSnapshot(
            version=self._version,
            mark_delete=self._mark_delete,
            acked=self._ranges.copies(),
            range_count=self._ranges.range_count,
            unacked_indexes={position: unacked[position] for position in sorted(unacked)},
            properties=dict(self._properties),
        )

    def take_snapshot(self) -> CursorSnapshot:
        """The whole state; growth is tracked from here on."""
        self._growth.begin(self._version)
        return self.snapshot()

    def take_growth(self) -> CursorGrowth | None:
        """What was acked since the last take, and track on from here.

        None when the state has not purely grown since, or nothing was taken yet: take a snapshot.
        """
        return self._growth.take(
            version=self._version,
            mark_delete=self._mark_delete,
            range_count=self._ranges.range_count,
            unacked=self._batches.unacked,
            properties=self._properties,
        )

    # -- inside

    def _ack_entry(self, position: Position) -> bool:
        """Ack an entry that exists or lies at or below the mark-delete."""
        ledger_id, entry_id = position
        mark_ledger_id, mark_entry_id = self._mark_delete
        if ledger_id == mark_ledger_id:
            if entry_id <= mark_entry_id:
                return False
            is_next = entry_id == mark_entry_id + 1
        elif ledger_id < mark_ledger_id:
            return False
        else:
            is_next = entry_id == 0 and position == self._ledgers.next_valid(self._mark_delete)
        if is_next:
            # In order: no bitmap is touched unless a range lies ahead.
            self._mark_delete = position
            self._settle()
        elif self._ranges.add(ledger_id, entry_id):
            if self._growth.is_tracking:
                self._growth.add(ledger_id, entry_id)
            if self._batches.unacked:
                self._batches.discard(position)
        else:
            return False
        self._version += 1
        return True

    def _ack_indexes(self, position: Position, unacked_mask: int) -> bool:
        """Ack a part of an entry. Returns whether the whole entry became acked by it."""
        if not self._batch_index_acks or self.is_acked(position):
            return False
        before = self._batches.unacked.get(position)
        left = self._batches.restrict(position, unacked_mask)
        if left == 0:
            return self._ack_entry(position)
        if left != before:
            if self._growth.is_tracking:
                self._growth.add_batch(position)
            self._version += 1
        return False

    def _ack_array(self, ledger_id: int, ids: IdArray) -> int:
        """Ack known entries of one ledger."""
        if ids.size == 0 or ledger_id < self._mark_delete.ledger_id:
            return 0
        acked = pack(ids)
        if ledger_id == self._mark_delete.ledger_id:
            acked.remove_range(0, self._mark_delete.entry_id + 1)
        new = self._ranges.add_bitmap(ledger_id, acked)
        if not new:
            return 0
        if self._growth.is_tracking:
            self._growth.add_bitmap(ledger_id, new)
        if self._batches.unacked:
            self._batches.discard_bitmap(ledger_id, new)
        self._settle()
        self._version += 1
        return len(new)

    def _move_mark_delete(self, target: Position) -> None:
        """Ack everything up to the target; nothing happens when that is acked already."""
        if target <= self._mark_delete:
            return
        self._mark_delete = target
        self._ranges.drop_through(target)
        self._settle()
        self._version += 1

    def _settle(self) -> None:
        """Absorb the runs directly behind the mark-delete, and let everything else follow it."""
        while self._ranges.range_count:
            ledger_id, entry_id = self._ledgers.next_valid(self._mark_delete)
            entry_count = self._entry_counts.get(ledger_id, 0)
            stop = self._ranges.pop_run_at(ledger_id, entry_id, entry_count)
            if stop == entry_id:
                break
            self._mark_delete = Position(ledger_id, stop - 1)
        self._batches.drop_through(self._mark_delete)
        if self._read_position <= self._mark_delete:
            self._read_position = self._ledgers.next_valid(self._mark_delete)

    def _read_floor(self) -> Position:
        """The lowest position that may be unacked."""
        return self._ledgers.next_valid(self._mark_delete)

    def _unacked_below_read(self) -> int:
        """Unacked entries below the read position: in flight, or waiting to be sent again."""
        boundary = max(self._read_position, self._read_floor())
        before = Position(boundary.ledger_id, boundary.entry_id - 1)
        acked_below = self._ranges.acked_count
        last = self._ranges.last()
        if last is not None and last >= boundary:
            acked_below -= self._ranges.count_from(boundary)
        return self._ledgers.count_between(self._mark_delete, before) - acked_below

    # -- refusing

    def _is_known(self, position: Position) -> bool:
        """Whether an entry lies there. Raises unless it does or the position is acked."""
        ledger_id, entry_id = position
        if 0 <= entry_id < self._entry_counts.get(ledger_id, 0):
            return True
        self._refuse_unknown(position)
        return False

    def _refuse_unknown(self, position: Position) -> None:
        """Raise for a position that no entry has, unless the mark-delete covers it."""
        ledger_id, entry_id = check_position(Position(*position))
        if entry_id < 0:
            raise PositionError(f"{ledger_id}:{entry_id} is not an entry and cannot be acked")
        if position <= self._mark_delete:
            return
        entry_count = self._entry_counts.get(ledger_id)
        if entry_count is None:
            raise PositionError(
                f"{ledger_id}:{entry_id} is unknown: there is no ledger {ledger_id} above the "
                f"mark-delete {self._mark_delete}"
            )
        raise PositionError(
            f"{ledger_id}:{entry_id} is unknown: ledger {ledger_id} has {entry_count} entries"
        )

    def _known_ids(self, ledger_id: int, entry_ids: ArrayLike) -> IdArray:
        """The ids as an array, every one of them existing or acked."""
        mark_ledger_id, mark_entry_id = self._mark_delete
        entry_count = self._entry_counts.get(ledger_id, 0)
        if ledger_id < mark_ledger_id:
            entry_count = ENTRY_ID_MAX + 1
        elif ledger_id == mark_ledger_id:
            entry_count = max(entry_count, mark_entry_id + 1)
        return entry_ids_below(entry_ids, entry_count, ledger_id)

    def _check_target(self, position: Position, *, is_whole: bool) -> None:
        """Raise unless a cumulative ack may go there: an entry, or just before a ledger's first."""
        if position == self._mark_delete:
            return
        ledger_id, entry_id = check_position(position)
        is_border = is_whole and entry_id == -1 and ledger_id in self._entry_counts
        if not is_border:
            self._is_known(position)

    def check(self) -> None:
        """Assert every invariant. O(state)."""
        self._ranges.check()
        self._batches.check()
        assert self._ledgers.next_valid(self._mark_delete) not in self._ranges
        for ledger_id, bitmap in self._ranges.bitmaps():
            assert Position(ledger_id, bitmap.min()) > self._mark_delete, self._mark_delete
            assert bitmap.max() < self._entry_counts[ledger_id], ledger_id
        for position in self._batches.unacked:
            assert self._ledgers.exists(position), position
            assert not self.is_acked(position), position
        assert self.backlog_entries >= 0
        assert 0 <= self.hole_count <= self.range_count


NO_IDS: Final = np.empty(0, dtype=np.int64)


def _check_mask(mask: int | None) -> None:
    if mask is not None and mask < 0:
        raise PositionError(f"a set of batch indexes cannot be negative: {mask}")
