"""The offsets of a stream: its position, the end, and the entries in between.

Pure. An offset is the position of the last entry that was read. The end is always in the newest ledger, so
that a ledger that was read and rolled over can be trimmed without harm::

    ledgers      4: 0..99 closed     7: 0..41 confirmed, open
    offset       4:60
    end                              7:41
    to read      4:61..4:99          7:0..7:41

The entries between two offsets never change: those up to the last add confirmed stay the same, and a
ledger with a successor is closed. So a batch that is planned again is the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_BEFORE_ALL: Final = "earliest"
"""The offset of a topic that has no ledger yet."""


class LedgerEnd(NamedTuple):
    """A ledger, and the last entry of it that is confirmed for good; -1: none."""

    ledger_id: int
    last_entry_id: int


class OffsetSpan(NamedTuple):
    """Entries first..last of a ledger, both included."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


def earliest(ledgers: Sequence[LedgerEnd]) -> Position:
    """Before everything that there is."""
    return Position(ledgers[0].ledger_id, -1) if ledgers else EARLIEST


def end_of(ledgers: Sequence[LedgerEnd]) -> Position:
    """The offset after everything that exists: the last entry of the last ledger, or `EARLIEST`."""
    return Position(*ledgers[-1]) if ledgers else EARLIEST


def behind(first_wanted: Position) -> Position:
    """The offset from which a stream reads this entry next."""
    return Position(first_wanted.ledger_id, max(-1, first_wanted.entry_id - 1))


def is_trimmed(start: Position, ledgers: Sequence[LedgerEnd]) -> bool:
    """Whether ledgers that held entries after `start` may be gone.

    Nobody knows any more whether they did: the node names only what is left.
    """
    return start != EARLIEST and bool(ledgers) and start.ledger_id < ledgers[0].ledger_id


def spans(start: Position, end: Position, ledgers: Sequence[LedgerEnd]) -> Iterator[OffsetSpan]:
    """Entries after `start`, up to and including `end`."""
    for ledger_id, confirmed in ledgers:
        if start.ledger_id <= ledger_id <= end.ledger_id:
            first = start.entry_id + 1 if ledger_id == start.ledger_id else 0
            last = min(confirmed, end.entry_id) if ledger_id == end.ledger_id else confirmed
            if first <= last:
                yield OffsetSpan(ledger_id, first, last)


def entry_count(start: Position, ledgers: Sequence[LedgerEnd]) -> int:
    """How many entries lie after `start`."""
    return sum(
        s.last_entry_id - s.first_entry_id + 1 for s in spans(start, end_of(ledgers), ledgers)
    )


def end_within(start: Position, ledgers: Sequence[LedgerEnd], entries_max: int | None) -> Position:
    """How far a batch from `start` goes; never back."""
    end = max(start, end_of(ledgers))
    if entries_max is None:
        return end
    at, left = start, entries_max
    for ledger_id, first, last in spans(start, end, ledgers):
        if last - first + 1 > left:
            return Position(ledger_id, first + left - 1) if left else at
        left -= last - first + 1
        at = Position(ledger_id, last)
        # At a closed ledger's end: go on to the next one, so that this one is not missed.
        after = next((other for other, _ in ledgers if other > ledger_id), None)
        at = at if after is None else Position(after, -1)
    return end


def shares(pending: Mapping[str, int], entries_max: int) -> dict[str, int]:
    """Divide a batch among topics: equal shares, and what small ones leave goes to the others."""
    found, left = {}, entries_max
    for done, (topic, count) in enumerate(sorted(pending.items(), key=lambda item: item[::-1])):
        # The last ones take the remainder, so that nothing is left over.
        found[topic] = min(count, left // (len(pending) - done))
        left -= found[topic]
    return found


def encode_offset(positions: Mapping[str, Position]) -> dict[str, str]:
    """As the checkpoint keeps it: ``{"persistent://public/default/orders": "7:41"}``."""
    return {
        topic: _BEFORE_ALL if position == EARLIEST else str(position)
        for topic, position in sorted(positions.items())
    }


def decode_offset(offset: Mapping[str, Any]) -> dict[str, Position]:
    """The positions again. Raises `CallerError` for a checkpoint of something else."""
    try:
        return {
            str(topic): EARLIEST if text == _BEFORE_ALL else Position.parse(str(text))
            for topic, text in offset.items()
        }
    except (PositionError, ValueError) as error:
        raise CallerError(f"this checkpoint is not of this data source: {error}") from None
