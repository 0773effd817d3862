"""What a nack tracker holds, as values: to be written somewhere, and taken in again later.

Pure. Three columns of one length for entries nacked as a whole, in the order of time and then of
ledgers, and a list of what is nacked message by message::

    keys_ms      12:00:00.000   12:00:00.000   12:00:00.256
    ledger_ids              3              4              4
    entry_ids      {17, 18, 19}         {0, 1}         {2, 9}      run-optimised
    members      (12:00:10.240, 3:1, 0b0110)

A key is when they come back: a time in ms, its low bits cleared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import LEDGER_ID_MAX, Position, check_position
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CorruptRecordError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class MemberNack(NamedTuple):
    """Some messages of one entry wait for one time."""

    key_ms: int
    position: Position
    indexes: int
    """Bit i set: message i waits. Negative, as an int of Python with bits without end: all messages
    but some (the entry was nacked as a whole, and some of it was acked or nacked again since)."""


class FrozenNacks(NamedTuple):
    """Everything that a tracker holds, or the earliest of it."""

    keys_ms: NDArray[np.int64]
    ledger_ids: NDArray[np.int64]
    entry_ids: tuple[BitMap, ...]
    members: tuple[MemberNack, ...] = ()
    dropped: int = 0
    """Entries (at a time each) that were left out: the latest."""

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int, BitMap]]) -> FrozenNacks:
        """What waits as a whole, from (key, ledger, entry ids)."""
        columns = list(zip(*parts, strict=True)) or [(), (), ()]
        keys_ms, ledger_ids = (np.array(column, dtype=np.int64) for column in columns[:2])
        return cls(keys_ms, ledger_ids, tuple(columns[2]))

    @property
    def entry_count(self) -> int:
        return sum(map(len, self.entry_ids)) + len(self.members)


NOTHING_FROZEN = FrozenNacks(np.empty(0, np.int64), np.empty(0, np.int64), ())


def check_frozen(frozen: FrozenNacks) -> None:
    """Raise `CorruptRecordError` naming the first thing that cannot be.

    Positions are checked for their bounds, and for waiting for one time only.
    """
    keys, ledgers, bitmaps = frozen.keys_ms, frozen.ledger_ids, frozen.entry_ids
    if not len(keys) == len(ledgers) == len(bitmaps):
        raise CorruptRecordError(
            f"nacks: {len(keys)} times, {len(ledgers)} ledgers and {len(bitmaps)} bitmaps"
        )
    seen: dict[int, BitMap] = {}
    columns = zip(_int64(keys, "times"), _int64(ledgers, "ledger ids"), bitmaps, strict=True)
    for key, ledger_id, bitmap in columns:
        _check_key(key)
        if not 0 <= ledger_id <= LEDGER_ID_MAX:
            raise CorruptRecordError(f"nacks: ledger id {ledger_id} is not in 0..{LEDGER_ID_MAX}")
        if not isinstance(bitmap, BitMap) or not bitmap:
            raise CorruptRecordError(f"nacks: no entries of ledger {ledger_id} at {key} ms")
        before = seen.setdefault(ledger_id, BitMap())
        if before.intersect(bitmap):
            twice = Position(ledger_id, (before & bitmap).min())
            raise CorruptRecordError(f"nacks: {twice} waits for two times")
        before |= bitmap
    _check_members(frozen.members, seen)


def _check_members(members: tuple[MemberNack, ...], whole: dict[int, BitMap]) -> None:
    seen: dict[Position, int] = {}
    for key, position, indexes in members:
        _check_key(key)
        try:
            check_position(position)
        except PositionError as error:
            raise CorruptRecordError(f"nacks: {error}") from None
        if position.entry_id < 0 or isinstance(indexes, bool) or not isinstance(indexes, int):
            raise CorruptRecordError(f"nacks: {position} with indexes {indexes!r}")
        if indexes in {0, -1}:
            raise CorruptRecordError(f"nacks: {position} with indexes {indexes} among members")
        is_whole = position.ledger_id in whole and position.entry_id in whole[position.ledger_id]
        if is_whole or seen.get(position, 0) & indexes:
            raise CorruptRecordError(f"nacks: messages of {position} wait for two times")
        seen[position] = seen.get(position, 0) | indexes


def _check_key(key: int) -> None:
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key <= TIME_MS_MAX:
        raise CorruptRecordError(f"nacks: {key!r} is no time in 0..{TIME_MS_MAX} ms")


def _int64(column: NDArray[np.int64], what: str) -> list[int]:
    array = np.asarray(column)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise CorruptRecordError(f"nacks: {what} are no column of whole numbers")
    return array.tolist()  # type: ignore[no-any-return]
