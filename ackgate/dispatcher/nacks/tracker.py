"""Negatively acknowledged entries: each waits for its time, then it is to be delivered again.

Pure. As Pulsar's (PIP-393), times are kept as **keys**, the low `precision_bits` of a deadline
cleared; what has the same key is one bucket, and comes back together::

    nack at 12:00:00.300 for 10 s   deadline 12:00:10.300
    8 bits: 256 ms                  key      12:00:10.240     at most 255 ms early, never late

    deadline  --round down-->  whole entries (`held.HeldPositions`)
                                  |          or masks of a batch's messages (`members`)
    pop_due(now) <--- key <= now -+

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

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ackgate.cursor import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    bitmap_of,
    entry_ids_below,
    members,
    positions_of,
)
from ackgate.dispatcher.held import TIME_MS_MAX, HeldPositions
from ackgate.dispatcher.nacks.members import PAIR_BYTES, MemberNacks
from ackgate.dispatcher.nacks.settings import NackSettings, deadline_ms
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike, NDArray
    from pyroaring import BitMap


WHOLE: Final = -1
"""As ``indexes``: every message of the entry, however many there are."""

EXCLUDED_BYTES: Final = 220
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

    __slots__ = ("_delay_ms", "_excluded", "_key_mask", "_members", "_settings", "_whole")

    def __init__(self, settings: NackSettings | None = None) -> None:
        self._whole = HeldPositions()
        self._members = MemberNacks()
        self._excluded: dict[Position, int] = {}
        """An entry that waits as a whole -> messages of it that do not (any more)."""
        self.configure(NackSettings() if settings is None else settings)

    @classmethod
    def restore(
        cls, parts: Iterable[tuple[int, int, BitMap]], settings: NackSettings | None = None
    ) -> NackTracker:
        """A tracker that holds these `parts`. Keys stay as they are, also those that have passed."""
        tracker = cls(settings)
        for key, ledger_id, entry_ids in parts:
            ids = members(entry_ids).astype(np.int64)
            keys = np.full(ids.size, key, dtype=np.int64)
            tracker._whole.add_many(ledger_id, ids, keys, entry_ids.copy())
        return tracker

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
        if indexes == WHOLE:
            if self._excluded or self._members.pair_count:
                self._excluded.pop(position, None)
                self._members.discard(position, WHOLE)
            self._whole.put(ledger_id, entry_id, key)
        else:
            _check_indexes(indexes)
            position = Position(ledger_id, entry_id)
            if position in self._whole.index:
                self._excluded[position] = self._excluded.get(position, 0) | indexes
            self._members.put(position, key, indexes)
        return key

    def _key(self, now_ms: int, delay_ms: int) -> int:
        return deadline_ms(now_ms, delay_ms) & self._key_mask

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
        ids = entry_ids_below(entry_ids, ENTRY_ID_MAX + 1, ledger_id).astype(np.int64, copy=False)
        if type(ledger_id) is not int or not 0 <= ledger_id <= LEDGER_ID_MAX:
            raise PositionError(f"ledger id {ledger_id!r} is not in 0..{LEDGER_ID_MAX}")
        delays = self._settings.delays_of(ids.size, delays_ms, redelivery_counts, chances)
        keys = self._keys(now_ms, delays)
        if not ids.size:
            return 0
        if keys.size < ids.size:
            keys = np.full(ids.size, keys[0])
        entries = bitmap_of(ids)
        if len(entries) < ids.size:
            _, last = np.unique(ids[::-1], return_index=True)
            ids, keys = ids[::-1][last], keys[::-1][last]
        self._replace_members_of(ledger_id, entries)
        before = self._whole.discard_many(ledger_id, entries)
        self._whole.add_many(ledger_id, ids, keys, entries)
        return ids.size - before

    def _keys(self, now_ms: int, delays: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        if delays.size == 0:
            return np.empty(0, np.int64)
        self._key(now_ms, int(delays.min()))
        self._key(now_ms, int(delays.max()))
        return (delays.astype(np.int64) + now_ms) & self._key_mask

    def _replace_members_of(self, ledger_id: int, entries: BitMap) -> None:
        for position in [
            at for at in self._excluded if at.ledger_id == ledger_id and at.entry_id in entries
        ]:
            del self._excluded[position]
        waiting = self._members.positions.bitmap(ledger_id)
        for entry_id in () if waiting is None else waiting & entries:
            self._members.discard(Position(ledger_id, entry_id), WHOLE)

    # -- asking ---------------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool:
        """Whether the entry, or any message of it, waits."""
        return position in self._whole.index or position in self._members.positions

    def indexes(self, position: Position) -> int:
        """Messages of the entry that wait, as `DueNacks.indexes`; 0: none, `WHOLE`: all."""
        mask = self._members.mask(position)
        if position in self._whole.index:
            mask |= ~self._excluded.get(position, 0)
        return mask

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Entries of one ledger that wait as a whole: read it, and only until the next call."""
        return self._whole.index.bitmap(ledger_id)

    @property
    def whole_count(self) -> int:
        """Entries that wait as a whole. O(1)."""
        return self._whole.index.entry_count

    def __len__(self) -> int:
        """Entries that wait as a whole, and of others one for each time that messages wait for."""
        return self.whole_count + self._members.pair_count

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory, about. O(1)."""
        return (
            self._whole.byte_estimate
            + PAIR_BYTES * self._members.pair_count
            + self._members.positions.byte_estimate
            + EXCLUDED_BYTES * len(self._excluded)
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask `pop_due` next; in the past if something is due. None: nothing waits."""
        whole, of_members = self._whole.first_key, self._members.first_key
        if whole is None or of_members is None:
            return of_members if whole is None else whole
        return min(whole, of_members)

    # -- taking out -----------------------------------------------------------------------------

    def pop_due(self, now_ms: int, entries_max: int) -> DueNacks:
        """Take out what is due, `entries_max` entries at most. It is the caller's from here on."""
        if not self._members.pair_count and not self._excluded:
            popped = self._whole.pop(min(now_ms, TIME_MS_MAX), entries_max)
            return DueNacks(positions_of(*popped), {})
        due = DueNacks([], {})
        room = entries_max
        key = self.next_deadline_ms
        while room > 0 and key is not None and key <= now_ms:
            room -= self._take(key, room, due)
            key = self.next_deadline_ms
        return due

    def _take(self, key: int, room: int, due: DueNacks) -> int:
        """Take what has the key, the lowest there is, `room` entries at most. Returns how many."""
        whole = set(positions_of(*self._whole.pop(key, room)))
        lowest = sorted(whole.union(self._members.waiting(key)))
        for position in whole.intersection(lowest[room:]):
            self._whole.add(*position, key)
        new = 0
        for position in lowest[:room]:
            mask = self._members.take(position, key)
            if position in whole:
                mask |= ~self._excluded.pop(position, 0)
            new += due.add(position, mask)
        return new

    def discard(self, position: Position) -> bool:
        """The entry was acked: it waits no more, no message of it. Did it?"""
        is_whole = self._whole.discard(position)
        if is_whole and self._excluded:
            self._excluded.pop(position, None)
        return self._members.discard(position, WHOLE) or is_whole

    def discard_indexes(self, position: Position, indexes: int) -> bool:
        """These messages of it were acked: they wait no more. Did any of them?

        An entry that waits as a whole goes on waiting, without them.
        """
        _check_indexes(indexes)
        found = self._members.discard(position, indexes)
        if position in self._whole.index:
            excluded = self._excluded.get(position, 0)
            found = found or bool(indexes & ~excluded)
            self._excluded[Position(*position)] = excluded | indexes
        return found

    def forget_through(self, mark_delete: Position) -> int:
        """Everything up to this one is acked or trimmed. Returns how many entries waited there."""
        if self._excluded:
            self._excluded = {at: bits for at, bits in self._excluded.items() if at > mark_delete}
        through = list(takewhile(mark_delete.__ge__, self._members.positions))
        for position in through:
            self._members.discard(position, WHOLE)
        count = sum(position not in self._whole.index for position in through)
        return count + self._whole.forget_through(mark_delete)

    def clear(self) -> None:
        self._whole.clear()
        self._members = MemberNacks()
        self._excluded.clear()

    # -- the rest -------------------------------------------------------------------------------

    def parts(self) -> Iterator[tuple[int, int, BitMap]]:
        """Entries that wait as a whole: (key, ledger, entry ids), by time and then by ledger.

        Bitmaps are run-optimised, and the caller's own. Change nothing before the last of them.
        Entries that wait but for some messages are in it, too.
        """
        return self._whole.by_key()

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        self._whole.check()
        self._members.check()
        for position, excluded in self._excluded.items():
            assert position in self._whole.index, "excluded from nothing"
            assert excluded > 0
        for position in self._members.positions:
            if position in self._whole.index:
                both = self._members.mask(position) & ~self._excluded[position]
                assert not both, "waits for two times"


def _check_indexes(indexes: int) -> None:
    if type(indexes) is not int or not 0 < indexes < 1 << BATCH_INDEX_BITS_MAX:
        raise CallerError(
            f"indexes must be a mask of 1 to {BATCH_INDEX_BITS_MAX} bits, not {indexes!r}"
            if type(indexes) is not int or indexes <= 0
            else f"indexes must be a mask of at most {BATCH_INDEX_BITS_MAX} bits"
        )
