"""The managed cursor: what one subscription has acknowledged on a topic, and where it reads.

Pure. Acks and moves are method calls; ledgers come from the topic's `MessageLedgers`. It never
persists, waits or reads a clock: the cursor store takes its snapshots, the gate reads its counts,
the dispatcher its unacked entries.

    ledger 7      0 1 2 3 4 5 6 7 8 9        ledger 8   0 1 2 ...
                  # # # . . # # . # .                   # # .
                      ^     `-range-'                   `-range-'
                mark-delete 7:2                              ^ read position 8:2

Every entry at or before the **mark-delete** is acked; after it acked entries form **ranges** (per
ledger) with holes between. The state itself is `CursorAcks`; this class has its public operations.

Rejected without a change: positions without an entry, a cumulative ack that goes back. An ack of
an acked entry is no error and counts as zero. Moving the read position does not change the ack
state or raise the version. A cursor whose store is closed is *sealed*: it can be read, and every
change is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from ackgate.cursor.ack_state import CursorAcks
from ackgate.cursor.position import (
    ENTRY_ID_MAX,
    Position,
    by_ledger,
    check_position,
    entry_ids_below,
)
from ackgate.cursor.position_set import ranges_text
from ackgate.cursor.snapshots import RecoveredStateReport, clamp, fit
from ackgate.cursor.strict_budget import entry_budget
from ackgate.cursor.unacked_entries import nth_unacked, unacked_spans
from ackgate.described import statistic
from ackgate.errors import CallerError, CursorClosedError, PositionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike
    from pyroaring import BitMap

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import IdArray
    from ackgate.cursor.snapshots import CursorGrowth, CursorSnapshot
    from ackgate.cursor.unacked_entries import LeftOut, Span

ARRAY_PATH_POSITIONS_MIN: Final = 64
"""From this many positions on a list is applied as arrays: their fixed cost has paid off then."""

CONTAINER_BYTES: Final = 8192
"""A Roaring container as a bitset; the last one of a ledger is rarely full."""

OVERHEAD_BYTES: Final = 32
"""What a record, a ledger in it or a batch set costs beside its bits, roughly."""


class ManagedCursor:
    """One subscription's cursor. One owner calls it, and holds its parts."""

    __slots__ = (
        "_ackable",
        "_budget",
        "_entry_counts",
        "_forced_below",
        "_ledgers",
        "_read_position",
        "_sealed",
        "_state",
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
        if clamp(mark_delete, ledgers) != mark_delete:
            raise PositionError(
                f"mark-delete {mark_delete} is after the last entry {ledgers.last_confirmed}"
            )
        self._ledgers = ledgers
        self._entry_counts = ledgers.entry_counts
        self._ackable: Mapping[int, int] = ledgers.entry_counts
        """Entries by ledger that `ack` takes without a further look: none when sealed."""
        self._sealed: str | None = None
        self._state = CursorAcks(
            ledgers,
            mark_delete,
            batch_index_acks=batch_index_acks,
            properties=properties or {},
            version=version,
            track_growth=track_growth,
        )
        self._read_position = ledgers.next_valid(mark_delete)
        self._forced_below: Position | None = None
        self._budget: tuple[tuple[object, ...], int] | None = None

    @classmethod
    def from_snapshot(
        cls,
        ledgers: MessageLedgers,
        snapshot: CursorSnapshot,
        *,
        batch_index_acks: bool = True,
    ) -> tuple[ManagedCursor, RecoveredStateReport]:
        """Restore a cursor. Also returns what was dropped, since the ledgers no longer have it.

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
        cursor._state.restore(fitted)
        return cursor, fitted.report

    # -- what is acked, O(1) by default

    @property
    def version(self) -> int:
        """Changes of the ack state so far. Dirty means: larger than the persisted version."""
        return self._state.version

    @property
    def grown_since(self) -> int:
        """The version since which the state has only grown: whatever was acked then still is."""
        return self._state.grown_since

    @property
    def mark_delete(self) -> Position:
        """Every position at or before it is acked."""
        return self._state.mark_delete

    @property
    def acks_batch_indexes(self) -> bool:
        """Whether parts of batches can be acked (``acknowledgmentAtBatchIndexLevelEnabled``)."""
        return self._state.acks_batch_indexes

    @property
    def range_count(self) -> int:
        """Maximal acked runs above the mark-delete, counted per ledger."""
        return self._state.ranges.range_count

    @property
    def acked_count(self) -> int:
        """Acked entries above the mark-delete."""
        return self._state.ranges.entry_count

    @property
    def partly_acked_count(self) -> int:
        """Entries of which some batch indexes are acked and some are not."""
        return len(self._state.batches.unacked)

    @property
    def properties(self) -> Mapping[str, int]:
        return self._state.properties

    @property
    def backlog_entries(self) -> int:
        """Existing entries that are not acked."""
        return self._ledgers.count_after(self._state.mark_delete) - self._state.ranges.entry_count

    @property
    def byte_estimate(self) -> int:
        """Upper estimate of the encoded state before compression.

        A Roaring container takes the least of 4 bytes a range, 2 an entry and 8 KB, which is a bit
        for each of its 65,536 entries; the least of the sums is not below the sum of the least.
        """
        ranges, unacked = self._state.ranges, self._state.batches.unacked
        ledger_count = len(ranges.ledger_ids)
        spanned = self._ledgers.count_after(self._state.mark_delete)
        as_bits = spanned // 8 + CONTAINER_BYTES * ledger_count
        bitmaps = min(4 * ranges.range_count, 2 * ranges.entry_count, as_bits)
        return bitmaps + OVERHEAD_BYTES * (1 + ledger_count + len(unacked))

    @property
    def hole_count(self) -> int:
        """Unacked runs that lie before some acked entry. O(ledgers with ranges).

        One before every range, unless the range goes on where the one before stopped at the border.
        """
        ranges = self._state.ranges
        joined = sum(
            0 in bitmap and self._ledgers.previous(Position(ledger_id, 0)) in ranges
            for ledger_id, bitmap in ranges.bitmaps()
        )
        return ranges.range_count - joined

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acked."""
        return self._state.is_acked(position)

    def acked_entries(self, ledger_id: int) -> BitMap | None:
        """Acked entries of a ledger above mark-delete, to be read only, and only until the next call."""
        return self._state.ranges.bitmap(ledger_id)

    def unacked_mask(self, position: Position) -> int | None:
        """The unacked indexes of a partly acked entry; None when it is not partly acked."""
        return self._state.batches.unacked.get(position)

    def last_acked_position(self) -> Position | None:
        """Upper end of the last range; None when there is no range."""
        return self._state.ranges.last()

    def last_partly_acked_position(self) -> Position | None:
        """The highest partly acked entry; None when there is none. O(partly acked entries)."""
        return max(self._state.batches.unacked, default=None)

    def has_acked_above(self, position: Position) -> bool:
        """Whether anything after the position is acked, so that acking it may close a hole."""
        last = self._state.ranges.last()
        return last is not None and position < last

    def ranges_text(self, ranges_max: int) -> str:
        """The ranges in Pulsar's open-closed form, for the admin API."""
        return ranges_text(self._state.ranges, ranges_max)

    def statistics(self) -> CursorStatistics:
        """Counts of the ack state, as they are now."""
        backlog = self.backlog_entries
        return CursorStatistics(
            version=self.version,
            mark_delete=self.mark_delete,
            read_position=self.read_position,
            last_confirmed=self._ledgers.last_confirmed,
            backlog_entries=backlog,
            unread_entries=backlog - self._unacked_below_read(),
            acked_count=self.acked_count,
            range_count=self.range_count,
            hole_count=self.hole_count,
            partly_acked_count=self.partly_acked_count,
            byte_estimate=self.byte_estimate,
            properties=self.properties,
        )

    # -- acknowledging

    def ack(self, position: Position) -> bool:
        """Ack one entry. Returns whether it was unacked. The hot path."""
        ledger_id, entry_id = position
        if 0 <= entry_id < self._ackable.get(ledger_id, 0):
            return self._state.ack_entry(position)
        self._check_unsealed()
        is_known(
            position, self._ledgers, self._state.mark_delete
        )  # raises if nothing was ever there
        return False

    def ack_individual(self, positions: Sequence[Position]) -> int:
        """Ack entries, all or none. Returns how many of them were unacked."""
        self._check_unsealed()
        if len(positions) >= ARRAY_PATH_POSITIONS_MIN:
            try:
                pairs = np.fromiter(chain.from_iterable(positions), np.int64, 2 * len(positions))
            except OverflowError:
                pass  # an id that no array holds: the loop below names it
            else:
                return self.ack_many_pairs(pairs[0::2], pairs[1::2])
        ledgers, mark_delete = self._ledgers, self._state.mark_delete
        known = [position for position in positions if is_known(position, ledgers, mark_delete)]
        return sum(map(self._state.ack_entry, known))

    def ack_mixed(self, acks: Sequence[tuple[Position, int | None]]) -> int:
        """Ack entries and parts of entries, all or none: one ACK command.

        None stands for the whole entry; an int for the batch indexes that are *still unacked*, so 0
        is the whole entry too. Returns how many entries became acked as a whole.
        """
        self._check_unsealed()
        state = self._state
        mark_delete = state.mark_delete
        known = []
        for position, mask in acks:
            check_mask(mask)
            if is_known(position, self._ledgers, mark_delete):
                known.append((position, mask))
        return sum(
            state.ack_indexes(position, mask) if mask else state.ack_entry(position)
            for position, mask in known
        )

    def ack_many(self, ledger_id: int, entry_ids: ArrayLike) -> int:
        """Ack entries of one ledger, all or none; any order, repeats allowed."""
        self._check_unsealed()
        ids = known_ids(ledger_id, entry_ids, self._ledgers, self._state.mark_delete)
        return self._state.ack_ids(ledger_id, ids)

    def ack_many_pairs(self, ledger_ids: ArrayLike, entry_ids: ArrayLike) -> int:
        """Ack entries given as two arrays of one length, all or none."""
        self._check_unsealed()
        mark_delete = self._state.mark_delete
        groups = [
            (ledger_id, known_ids(ledger_id, ids, self._ledgers, mark_delete))
            for ledger_id, ids in by_ledger(ledger_ids, entry_ids)
        ]
        return sum(self._state.ack_ids(ledger_id, ids) for ledger_id, ids in groups)

    def ack_cumulative(
        self,
        position: Position,
        *,
        unacked_mask: int | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> None:
        """Ack everything up to and including the position.

        With a mask everything before it is acked, and of the entry itself what the mask does not
        hold. The same position again succeeds. `properties` None leaves them as they are.
        """
        self._check_unsealed()
        state = self._state
        check_mask(unacked_mask)
        check_cumulative(position, self._ledgers, state.mark_delete, is_whole=not unacked_mask)
        if properties is not None:
            state.set_properties(properties)
        if not unacked_mask or state.is_acked(position):
            state.ack_through(position)
        else:
            state.ack_through(self._ledgers.previous(position))
            state.ack_indexes(position, unacked_mask)

    def skip(self, entries: int) -> int:
        """Ack the next `entries` unacked entries. Returns how many there were."""
        self._check_unsealed()
        if entries < 0:
            raise CallerError(f"cannot skip {entries} entries")
        state = self._state
        skipped = min(entries, self.backlog_entries)
        if skipped:
            target = self.nth_unacked(skipped)
            assert target is not None, "the backlog count and the ledgers disagree"
            state.ack_through(target)
        return skipped

    def clear_backlog(self) -> int:
        """Ack everything there is. Returns how many entries were unacked."""
        self._check_unsealed()
        cleared = self.backlog_entries
        if cleared:
            # A snapshot of what is left is smaller than any growth.
            self._state.spoil_growth()
            self._state.ack_through(self._ledgers.last_confirmed)
        return cleared

    def set_properties(self, properties: Mapping[str, int]) -> None:
        self._check_unsealed()
        self._state.set_properties(properties)

    def catch_up(self, version: int) -> None:
        """Raise the version to this one: changes recorded one by one were applied at once."""
        self._check_unsealed()
        if version < self._state.version:
            raise CallerError(f"version {version} is lower than the present {self._state.version}")
        self._state.version = version

    # -- reading

    @property
    def read_position(self) -> Position:
        """The next position to read for dispatch. The mark-delete pushes it ahead."""
        mark_delete = self._state.mark_delete
        if self._read_position <= mark_delete and mark_delete != self._forced_below:
            self._read_position = self._ledgers.next_valid(mark_delete)
        return self._read_position

    def rewind(self) -> None:
        """Read again from the first entry after the mark-delete."""
        self._read_position = self._ledgers.next_valid(self._state.mark_delete)

    def seek(self, position: Position, *, force: bool = False) -> None:
        """Move the read position only; not to or before the mark-delete unless forced."""
        mark_delete = self._state.mark_delete
        self._read_position = self._ledgers.at_or_after(position)
        self._forced_below = mark_delete if force else None

    def reset(self, read_position: Position) -> None:
        """Forget all acks from the position on, ack all before it, and read from there.

        A position without an entry means the next one; `EARLIEST` and `LATEST` are allowed.
        """
        self._check_unsealed()
        target = self._ledgers.at_or_after(read_position)
        self._state.reset(self._ledgers.previous(target))
        self._read_position = target

    def ledger_trimmed(self, ledger_id: int) -> None:
        """Forget the acks of a ledger, after `MessageLedgers.trim_ledger`."""
        if ledger_id in self._entry_counts:
            raise CallerError(f"ledger {ledger_id} exists: trim it in the message ledgers first")
        self._state.ack_through(self._ledgers.trimmed_through)
        self._state.forget_ledger(ledger_id)
        self._read_position = self._ledgers.at_or_after(self._read_position)

    def unacked_spans(
        self,
        start: Position,
        entries_max: int,
        *,
        left_out: LeftOut | None = None,
        gap_entries_max: int = 0,
    ) -> list[Span]:
        """Maximal runs of existing, unacked entries from `start` on, up to `entries_max` entries.

        O(runs): acked stretches are hopped over, however long, and so is what `left_out` names, a
        ledger at a time. Runs of one ledger with no more than `gap_entries_max` entries between
        them come as one: the caller drops what it did not want. Such entries come on top of
        `entries_max`, but no more of them in all than that.
        """
        low = max(start, self._ledgers.next_valid(self._state.mark_delete))
        return unacked_spans(
            self._ledgers,
            self._state.ranges,
            low,
            entries_max,
            left_out=left_out,
            gap_entries_max=gap_entries_max,
        )

    def nth_unacked(self, n: int) -> Position | None:
        """The n-th unacked entry, counted from 1, sent or not; None when there are fewer."""
        return nth_unacked(self._ledgers, self._state.ranges, self._state.mark_delete, n)

    def entry_budget(self, ranges_max: int, *, entries_enough: int | None = None) -> int:
        """How many further unacked entries may be sent so that no acks can exceed the limit.

        The strict gate. Counted from the read position on; all unacked entries below it are in
        flight. When those alone could exceed `ranges_max`, the most they could make is the limit
        instead: what cannot make it worse may be sent, so delivery never dead-locks. Entries still
        to come count as if they went to the newest ledger: ask again when they are there. With
        `entries_enough` the answer may be just that number where more is allowed: then it mostly
        costs O(1), else O(ranges). Asked again while nothing has changed it costs nothing.
        """
        ranges = self._state.ranges
        if entries_enough is not None:
            candidates = self._unacked_below_read() + entries_enough
            # A hole adds half its entries, and half a range more at a border without neighbours.
            worst = ranges.range_count + (candidates + len(self._entry_counts) + 1) // 2
            if worst <= ranges_max:
                return entries_enough
        ledger_ids = self._ledgers.ledger_ids
        asked = (ranges_max, self.version, self.read_position, len(ledger_ids), ledger_ids[-1:])
        if self._budget is None or self._budget[0] != asked:
            first_unacked = self._ledgers.next_valid(self._state.mark_delete)
            budget = entry_budget(
                self._ledgers,
                ranges,
                first_unacked=first_unacked,
                boundary=max(self.read_position, first_unacked),
                ranges_max=ranges_max,
            )
            self._budget = (asked, budget)
        return self._budget[1]

    def _unacked_below_read(self) -> int:
        """Unacked entries below the read position: in flight, or waiting to be sent again."""
        ledger_id, entry_id = boundary = self.read_position
        before = Position(ledger_id, entry_id - 1)
        below = self._ledgers.count_between(self._state.mark_delete, before)
        ranges = self._state.ranges
        last = ranges.last()
        if last is None or last < boundary:
            return below - ranges.entry_count
        return below - (ranges.entry_count - ranges.count_from(boundary))

    # -- the end

    @property
    def is_sealed(self) -> bool:
        """Whether every change is refused."""
        return self._sealed is not None

    def seal(self, why: str) -> None:
        """Refuse every change from now on, with `CursorClosedError(why)`. The first reason counts."""
        if self._sealed is None:
            self._sealed, self._ackable = why, {}

    def _check_unsealed(self) -> None:
        if self._sealed is not None:
            raise CursorClosedError(self._sealed)

    # -- for persistence

    def snapshot(self) -> CursorSnapshot:
        """The whole state, in copies. O(containers)."""
        return self._state.snapshot()

    def take_snapshot(self) -> CursorSnapshot:
        """The whole state; growth is tracked from here on."""
        return self._state.take_snapshot()

    def take_growth(self) -> CursorGrowth | None:
        """What was acked since the last take, and track on from here.

        None when the state has not purely grown since, or nothing was taken yet: take a snapshot.
        """
        return self._state.take_growth()

    def check(self) -> None:
        self._state.check()
        assert self.backlog_entries >= 0, self.backlog_entries
        assert 0 <= self.hole_count <= self.range_count
        assert 0 <= self._unacked_below_read() <= self.backlog_entries


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """The ack state of one cursor at one moment."""

    version: int = statistic("Mutations so far")
    mark_delete: Position = statistic("Every position at or before it is acked")
    read_position: Position = statistic("The next position to read for dispatch")
    last_confirmed: Position = statistic("The last entry of the topic")
    backlog_entries: int = statistic("Existing entries that are not acked")
    unread_entries: int = statistic("Existing, unacked entries from the read position on")
    acked_count: int = statistic("Entries acked above the mark-delete")
    range_count: int = statistic("Ack ranges above the mark-delete")
    hole_count: int = statistic("Holes between acked entries", "", "ackgate_ack_holes")
    partly_acked_count: int = statistic(
        "Entries of which some batch indexes are acked", "", "ackgate_batches_partly_acked"
    )
    byte_estimate: int = statistic("Upper estimate of the persisted size", "bytes")
    properties: Mapping[str, int] = statistic('The mark-delete ("long") properties')


# ------------------------------------------------------------------------------ seek, skip, clear, expire
#
# Values: each records a move that was made and can repeat it. The delivery journal stores them, and a replay
# repeats them.


@dataclass(frozen=True, slots=True)
class Sought:
    """`ManagedCursor.reset`, and the acked part of a batch that was sought into."""

    mark_delete: Position
    """The mark-delete after the move; likewise in the other three."""

    target: Position
    unacked_mask: int | None
    """Bits of the batch at `target` that stay unacked; None: no part of it was acked."""

    def move(self, cursor: ManagedCursor) -> None:
        """Repeat the move; likewise in the other three."""
        cursor.reset(self.target)
        if self.unacked_mask is not None:
            cursor.ack_mixed([(self.target, self.unacked_mask)])


@dataclass(frozen=True, slots=True)
class Skipped:
    """`ManagedCursor.skip` acked the first unacked entries."""

    mark_delete: Position
    entries: int
    """How many were skipped."""

    def move(self, cursor: ManagedCursor) -> None:
        cursor.skip(self.entries)


@dataclass(frozen=True, slots=True)
class Cleared:
    """`ManagedCursor.clear_backlog` acked every entry of the backlog."""

    mark_delete: Position
    entries: int
    """How many were not acked."""

    def move(self, cursor: ManagedCursor) -> None:
        cursor.clear_backlog()


@dataclass(frozen=True, slots=True)
class Expired:
    """`ManagedCursor.ack_cumulative`, for the time to live or an administrator."""

    mark_delete: Position
    position: Position
    """Everything up to here was acked."""

    def move(self, cursor: ManagedCursor) -> None:
        cursor.ack_cumulative(self.position)


CursorMove: TypeAlias = Sought | Skipped | Cleared | Expired


# ------------------------------------------------------------------------------ what may be acked
#
# An entry at or below the mark-delete is always known, whether or not its ledger still exists: it is
# acked, and acking it again is no error. Above it, the message ledgers decide.


def is_known(position: Position, ledgers: MessageLedgers, mark_delete: Position) -> bool:
    """Whether the entry exists now. False: it is acked and trimmed. Raises for anything else."""
    ledger_id, entry_id = position
    entry_count = ledgers.entry_counts.get(ledger_id)
    if entry_count is not None and 0 <= entry_id < entry_count:
        return True
    text = f"{ledger_id}:{entry_id}"
    check_position(Position(ledger_id, entry_id))
    if entry_id < 0:
        raise PositionError(f"{text} is not an entry and cannot be acked")
    if position <= mark_delete:
        return False
    if entry_count is None:
        raise PositionError(
            f"{text} is unknown: there is no ledger {ledger_id} above the mark-delete {mark_delete}"
        )
    raise PositionError(f"{text} is unknown: ledger {ledger_id} has {entry_count} entries")


def known_ids(
    ledger_id: int, entry_ids: ArrayLike, ledgers: MessageLedgers, mark_delete: Position
) -> IdArray:
    """The ids as an array, all of them known. Raises `PositionError` naming one that is not."""
    entry_count = ledgers.entry_counts.get(ledger_id, 0)
    if ledger_id < mark_delete.ledger_id:
        entry_count = ENTRY_ID_MAX + 1
    elif ledger_id == mark_delete.ledger_id:
        entry_count = max(entry_count, mark_delete.entry_id + 1)
    return entry_ids_below(entry_ids, entry_count, ledger_id)


def check_cumulative(
    position: Position, ledgers: MessageLedgers, mark_delete: Position, *, is_whole: bool
) -> None:
    """Raise unless everything up to the position may be acked.

    It must be an entry, or the place before the first entry of a ledger; and not go back.
    """
    if position == mark_delete:
        return
    if position < mark_delete:
        raise PositionError(
            f"cumulative ack of {position} goes back: the mark-delete is {mark_delete}"
        )
    ledger_id, entry_id = position
    is_border = is_whole and entry_id == -1 and ledger_id in ledgers.entry_counts
    if not is_border:
        is_known(position, ledgers, mark_delete)


def check_mask(mask: int | None) -> None:
    """Raise for a set of batch indexes that is none."""
    if mask is not None and mask < 0:
        raise PositionError(f"a set of batch indexes cannot be negative: {mask}")
