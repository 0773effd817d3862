"""Negatively acknowledged entries: each waits for its time, then it is to be delivered again.

Pure. As Pulsar's (PIP-393), times are kept as **keys**, the low `precision_bits` of a deadline
cleared; what has the same key is one bucket, and comes back together::

    nack at 12:00:00.300 for 10 s   deadline 12:00:10.300
    8 bits: 256 ms                  key      12:00:10.240     at most 255 ms early, never late

    deadline  --round down-->  bucket: one Roaring bitmap, entries of all ledgers (`slot_buckets`)
                                  |                        or masks of a batch's messages
    pop_due(now) <--- key <= now -+                                            (`member_nacks`)

Where it is not Pulsar's:

- A message waits for one time. **A later nack of the same message replaces the earlier**, be it
  shorter or longer (upstream delivers it twice, or late).
- A nack may be of some messages of a batch only (``indexes``, a mask as the cursor's
  ``unacked_mask``): only these come back, each at its time. A later nack of the whole entry
  replaces all of it; a later one of some messages takes just these out of the whole.
- An ack takes the nack away (upstream asks for redelivery all the same).
- There is one deadline, `next_deadline_ms`, and an earlier nack makes it earlier.

The broker leaves entries that are held as a whole (`tracked`) out of its reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, LEDGER_ID_MAX, Position, bitmap_of, entry_ids_below
from ackgate.dispatcher.nacks.frozen import FrozenNacks, MemberNack, check_frozen
from ackgate.dispatcher.nacks.members import PAIR_BYTES, MemberNacks
from ackgate.dispatcher.nacks.settings import NackSettings, deadline_ms
from ackgate.dispatcher.nacks.slot_buckets import SlotBuckets, by_key
from ackgate.dispatcher.nacks.slots import SlotTable, blocks_of
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray


WHOLE: Final = -1
"""As ``indexes``: every message of the entry, however many there are."""

BLOCKS_KEPT_MIN: Final = 64
"""So few blocks of slots are never looked through for dead ones."""

BLOCK_BYTES: Final = 300
"""Of memory for a block of slots: its names and numbers."""

EXCLUDED_BYTES: Final = 140
"""Of memory for an entry that waits but for some messages."""

BATCH_INDEX_BITS_MAX: Final = 1 << 20
"""No batch has more messages."""


class DueNacks(NamedTuple):
    """What is to be delivered again."""

    positions: list[Position]
    """Each once; by time bucket, then by position."""
    indexes: dict[Position, int]
    """Which messages, of entries nacked message by message (negative: all but some). Others
    whole."""

    def add(self, position: Position, indexes: int) -> bool:
        """Add these messages of the entry. Returns whether the position is new."""
        before = self.indexes.get(position, 0)
        indexes |= before
        if indexes != WHOLE:
            self.indexes[position] = indexes
        elif before:
            del self.indexes[position]
        if not before:
            self.positions.append(position)
        return not before


class NackTracker:
    """Pending nacks of one subscription, or of one consumer. One owner; it never calls back."""

    __slots__ = (
        "_blocks_max",
        "_delay_ms",
        "_excluded",
        "_key_mask",
        "_members",
        "_now_key",
        "_settings",
        "_table",
        "_whole",
        "version",
    )

    version: int
    """Grows with every change of what is held."""

    def __init__(self, settings: NackSettings | None = None) -> None:
        self.version = 0
        self._whole = SlotBuckets()
        self._members = MemberNacks()
        self._table = SlotTable()
        self._blocks_max = BLOCKS_KEPT_MIN
        self._now_key = -1
        self._excluded: dict[int, int] = {}
        """Slot of an entry that waits as a whole -> messages of it that do not (any more)."""
        self.configure(NackSettings() if settings is None else settings)

    def configure(self, settings: NackSettings) -> None:
        """Use new settings, for nacks from now on."""
        self._settings = settings
        self._delay_ms = None if settings.backoff is not None else settings.delay_of(0)
        self._key_mask = -1 << settings.precision_bits

    # -- adding ---------------------------------------------------------------------------------

    def add(
        self,
        position: Position,
        now_ms: int,
        *,
        delay_ms: int | None = None,
        redelivery_count: int = 0,
        indexes: int = WHOLE,
        chance: float = 0.0,
    ) -> int:
        """An entry, or these messages of it, was nacked. Returns when it comes back (its key).

        The delay is ``delay_ms`` (0: at once), or else what the settings say. Replaces what waits
        of the same messages. Raises `CallerError` or `PositionError` with nothing changed: a delay
        that is negative, no int, or ends beyond 2^63 - 1; a position out of bounds; no messages.
        """
        ledger_id, entry_id = position
        if not (
            type(ledger_id) is int
            and type(entry_id) is int
            and 0 <= ledger_id <= LEDGER_ID_MAX
            and 0 <= entry_id <= ENTRY_ID_MAX
        ):
            raise PositionError(f"no entry can be nacked at {position!r}")
        if delay_ms is None:
            delay_ms = self._delay_ms
            if delay_ms is None:
                delay_ms = self._settings.delay_of(redelivery_count, chance)
        key = self._key(now_ms, delay_ms)
        if indexes != WHOLE:
            _check_indexes(indexes)
        slot = self._table.slot(ledger_id, entry_id)
        self._changed(now_ms)
        if indexes == WHOLE:
            if self._excluded or self._members.pair_count:
                self._excluded.pop(slot, None)
                self._members.discard(slot, WHOLE)
            self._whole.put(slot, key)
        else:
            self._add_members(slot, key, indexes)
        return key

    def _changed(self, now_ms: int) -> None:
        self.version += 1
        now_key = now_ms & self._key_mask
        if now_key != self._now_key:
            self._now_key = now_key
            self._whole.close()

    def _key(self, now_ms: int, delay_ms: int) -> int:
        return deadline_ms(now_ms, delay_ms) & self._key_mask

    def _add_members(self, slot: int, key: int, indexes: int) -> None:
        if slot in self._whole.held:
            self._excluded[slot] = self._excluded.get(slot, 0) | indexes
        self._members.put(slot, key, indexes)

    def add_many(
        self,
        ledger_id: int,
        entry_ids: ArrayLike,
        now_ms: int,
        *,
        delays_ms: ArrayLike | None = None,
        redelivery_counts: ArrayLike | None = None,
        chances: ArrayLike | None = None,
    ) -> int:
        """As `add`, for whole entries of one ledger. Returns how many did not wait as a whole yet.

        ``delays_ms`` is one for all or an array of the ids' length; so is ``redelivery_counts``.
        Of an id that comes twice the last counts. Raises as `add`, with nothing changed.
        """
        ids = entry_ids_below(entry_ids, ENTRY_ID_MAX + 1, ledger_id)
        if type(ledger_id) is not int or not 0 <= ledger_id <= LEDGER_ID_MAX:
            raise PositionError(f"ledger id {ledger_id!r} is not in 0..{LEDGER_ID_MAX}")
        delays = self._settings.delays_of(ids.size, delays_ms, redelivery_counts, chances)
        keys = self._keys(now_ms, delays)
        if not ids.size:
            return 0
        slots = self._table.slots(ledger_id, ids)
        self._changed(now_ms)
        if keys.size == 1 or keys.min() == keys.max():
            all_slots = bitmap_of(slots)
            self._replace_members_of(all_slots)
            return self._whole.put_many(all_slots, int(keys[0]))
        columns = by_key(keys, slots, self._settings.precision_bits)
        self._replace_members_of(columns.all_slots)
        return self._whole.put_columns(columns)

    def _keys(self, now_ms: int, delays: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        if delays.size == 0:
            return np.empty(0, np.int64)
        self._key(now_ms, int(delays.min()))
        self._key(now_ms, int(delays.max()))
        return (delays.astype(np.int64) + now_ms) & self._key_mask

    def _replace_members_of(self, slots: BitMap) -> None:
        if self._excluded:
            for slot in [slot for slot in self._excluded if slot in slots]:
                del self._excluded[slot]
        if self._members.pair_count:
            for slot in self._members.slots & slots:
                self._members.discard(slot, WHOLE)

    # -- asking ---------------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        """Whether the entry, or any message of it, waits."""
        ledger_id, entry_id = position
        slot = self._table.find(ledger_id, entry_id)
        return slot is not None and (slot in self._whole.held or slot in self._members.slots)

    def indexes(self, position: Position) -> int:
        """Messages of the entry that wait, as `DueNacks.indexes`; 0: none, `WHOLE`: all."""
        ledger_id, entry_id = position
        slot = self._table.find(ledger_id, entry_id)
        if slot is None:
            return 0
        mask = self._members.mask(slot)
        return mask | ~self._excluded.get(slot, 0) if slot in self._whole.held else mask

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Entries of one ledger that wait as a whole; None if none does. The caller's own."""
        return self._table.entry_ids(ledger_id, self._whole.held) or None

    @property
    def whole_count(self) -> int:
        """Entries that wait as a whole. O(1)."""
        return self._whole.slot_count

    @property
    def member_count(self) -> int:
        """Entries of which messages wait, one for each time that any of them waits for. O(1)."""
        return self._members.pair_count

    def __len__(self) -> int:
        return self._whole.slot_count + self._members.pair_count

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory, about. O(1)."""
        return (
            self._whole.byte_estimate
            + PAIR_BYTES * self._members.pair_count
            + EXCLUDED_BYTES * len(self._excluded)
            + BLOCK_BYTES * len(self._table)
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask `pop_due` next; in the past if something is due. None: nothing waits."""
        whole, members = self._whole.first_key, self._members.first_key
        if whole is None or members is None:
            return members if whole is None else whole
        return min(whole, members)

    # -- taking out -----------------------------------------------------------------------------

    def pop_due(self, now_ms: int, entries_max: int) -> DueNacks:
        """Take out what is due, `entries_max` entries at most. It is the caller's from here on."""
        due = DueNacks([], {})
        room = entries_max
        key = self.next_deadline_ms
        while room > 0 and key is not None and key <= now_ms:
            room -= self._take(key, room, due)
            key = self.next_deadline_ms
        if due.positions:
            self._changed(now_ms)
            self._release_blocks()
        return due

    def _take(self, key: int, room: int, due: DueNacks) -> int:
        """Take what has the key, `room` entries at most. Returns how many."""
        whole, members = self._whole.waiting(key), self._members.waiting(key)
        if not members and not self._excluded:
            taken = self._lowest(whole, room)
            positions = self._table.positions(taken)
            self._whole.take(key, taken)
            due.positions.extend(positions)
            return len(positions)
        slots = self._lowest(whole | BitMap(members), room)
        taken = slots & whole
        self._whole.take(key, taken)
        new = 0
        for position, slot in self._in_order(slots):
            mask = self._members.take(slot, key)
            if slot in taken:
                mask |= ~self._excluded.pop(slot, 0)
            new += due.add(position, mask)
        return new

    def _lowest(self, slots: BitMap, entries_max: int) -> BitMap:
        """The first of the slots in the order of positions."""
        if len(slots) <= entries_max:
            return slots
        lowest = BitMap()
        for _, _, part in self._table.parts(slots):
            room = entries_max - len(lowest)
            if len(part) > room:
                return lowest | part[:room]
            lowest |= part
        return lowest

    def _in_order(self, slots: BitMap) -> list[tuple[Position, int]]:
        return sorted((self._table.position(slot), slot) for slot in slots)

    def discard(self, position: Position) -> bool:
        """The entry was acked: it waits no more, no message of it. Did it?"""
        slot = self._table.find(*position)
        if slot is None:
            return False
        is_whole = self._whole.discard(slot)
        if is_whole and self._excluded:
            self._excluded.pop(slot, None)
        has_members = self._members.discard(slot, WHOLE)
        if not (is_whole or has_members):
            return False
        self.version += 1
        self._release_blocks()
        return True

    def discard_indexes(self, position: Position, indexes: int) -> bool:
        """These messages of it were acked: they wait no more. Did any of them?

        An entry that waits as a whole goes on waiting, without them.
        """
        _check_indexes(indexes)
        slot = self._table.find(*position)
        if slot is None:
            return False
        found = self._members.discard(slot, indexes)
        if slot in self._whole.held:
            excluded = self._excluded.get(slot, 0)
            found = found or bool(indexes & ~excluded)
            self._excluded[slot] = excluded | indexes
        self.version += found
        self._release_blocks()
        return found

    def discard_many(self, ledger_id: int, entry_ids: BitMap) -> int:
        """As `discard`, for many entries of one ledger. Returns how many of them waited."""
        return self._discard_slots(self._table.find_all(ledger_id, entry_ids))

    def _discard_slots(self, slots: BitMap) -> int:
        if not slots:
            return 0
        members = self._members.slots & slots
        self._replace_members_of(slots)
        gone = self._whole.discard_many(slots)
        count = len(gone | members)
        self.version += count > 0
        self._release_blocks()
        return count

    def forget_through(self, mark_delete: Position) -> int:
        """Everything up to this one is acked or trimmed. Returns how many entries waited there.

        Quick when nothing waits down there.
        """
        if self._table.is_all_beyond(mark_delete):
            return 0
        before, slots = self._table.through(mark_delete)
        count = self._discard_slots(slots)
        if before and len(self):
            if self._whole.ghosts_among(slots):
                self._whole.lay_ghosts()
            for number in before:
                self._table.release(number)
        return count

    def clear(self) -> None:
        self.version += len(self) > 0
        self._whole.clear()
        self._members.clear()
        self._table.clear()
        self._excluded.clear()

    def _release_blocks(self) -> None:
        """Release the blocks of which nothing is kept. O(blocks), and rarely."""
        if not len(self):
            self._whole.clear()
            self._table.clear()
        elif len(self._table) > self._blocks_max:
            live = set(blocks_of(self._whole.kept | self._members.slots))
            for number in [each for each in self._table.numbers() if each not in live]:
                self._table.release(number)
            self._blocks_max = max(BLOCKS_KEPT_MIN, 2 * len(live))

    # -- as values ------------------------------------------------------------------------------

    def parts(self) -> Iterator[tuple[int, int, BitMap]]:
        """Entries that wait as a whole: (key, ledger, entry ids), by time and then by ledger.

        Bitmaps are run-optimised, and the caller's own. Change nothing before the last of them.
        Entries that wait but for some messages are in it, too.
        """
        self._whole.close()
        for key in self._whole.ordered_keys():
            for ledger_id, entry_ids in self._table.by_ledger(self._whole.waiting(key)):
                entry_ids.run_optimize()
                yield key, ledger_id, entry_ids

    def frozen(self, entries_max: int | None = None) -> FrozenNacks:
        """Everything, or what comes back first: `entries_max` entries, the rest is `dropped`."""
        self._whole.close()
        keys: list[int] = []
        ledger_ids: list[int] = []
        bitmaps: list[BitMap] = []
        members: list[MemberNack] = []
        room = len(self) if entries_max is None else entries_max
        dropped = len(self) - min(room, len(self))
        for key in sorted({*self._whole.ordered_keys(), *self._members.ordered_keys()}):
            if room <= 0:
                break
            room -= self._freeze(key, room, keys, ledger_ids, bitmaps, members)
        columns = np.array(keys, dtype=np.int64), np.array(ledger_ids, dtype=np.int64)
        return FrozenNacks(*columns, tuple(bitmaps), tuple(members), dropped)

    def _freeze(
        self,
        key: int,
        room: int,
        keys: list[int],
        ledger_ids: list[int],
        bitmaps: list[BitMap],
        members: list[MemberNack],
    ) -> int:
        whole = self._lowest(self._whole.waiting(key), room)
        partial = [slot for slot in self._excluded if slot in whole]
        taken = len(whole)
        plain = whole - BitMap(partial)
        for ledger_id, entry_ids in self._table.by_ledger(plain):
            entry_ids.run_optimize()
            keys.append(key)
            ledger_ids.append(ledger_id)
            bitmaps.append(entry_ids)
        masks = [(slot, ~self._excluded[slot]) for slot in partial]
        masks += self._members.waiting(key).items()
        found = sorted((self._table.position(slot), mask) for slot, mask in masks)
        for position, mask in found[: room - taken + len(partial)]:
            members.append(MemberNack(key, position, mask))
        return taken + min(len(found) - len(partial), room - taken)

    @classmethod
    def restore(cls, frozen: FrozenNacks, settings: NackSettings | None = None) -> NackTracker:
        """A tracker that holds this. Keys stay as they are, also those that have passed.

        Raises `CorruptRecordError` naming what cannot be. What was acked since is to be taken out
        by `discard_many` and `forget_through`.
        """
        check_frozen(frozen)
        tracker = cls(settings)
        columns = zip(
            frozen.keys_ms.tolist(), frozen.ledger_ids.tolist(), frozen.entry_ids, strict=True
        )
        for key, ledger_id, entry_ids in columns:
            tracker._whole.put_many(tracker._table.take_all(ledger_id, entry_ids), key)
        for key, position, indexes in frozen.members:
            slot = tracker._table.slot(*position)
            if indexes < 0:
                tracker._whole.put(slot, key)
                tracker._excluded[slot] = ~indexes
            else:
                tracker._members.put(slot, key, indexes)
        tracker._whole.close()
        return tracker

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self._whole.check()
        self._members.check()
        self._table.check()
        numbers = set(self._table.numbers())
        assert set(blocks_of(self._whole.kept | self._members.slots)) <= numbers
        for slot, excluded in self._excluded.items():
            assert slot in self._whole.held, "excluded from nothing"
            assert excluded > 0
        for slot in self._members.slots & self._whole.held:
            assert not self._members.mask(slot) & ~self._excluded[slot], "waits for two times"


def _check_indexes(indexes: int) -> None:
    if type(indexes) is not int or not 0 < indexes < 1 << BATCH_INDEX_BITS_MAX:
        raise CallerError(
            f"indexes must be a mask of 1 to {BATCH_INDEX_BITS_MAX} bits, not {indexes!r}"
            if type(indexes) is not int or indexes <= 0
            else f"indexes must be a mask of at most {BATCH_INDEX_BITS_MAX} bits"
        )
