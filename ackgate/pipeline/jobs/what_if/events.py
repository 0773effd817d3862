"""The events of one topic and one subscription, as the arrays that a replay needs.

Pure. Made from a block of the journal, or from Arrow rows of the table ``delivery_journal``; both
hold events of one epoch, in order. Values that few events have (details, reasons, bits of a batch)
are kept in dictionaries by the index of the event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.persistence.deliveries.columns import KINDS, EventKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ackgate.persistence.deliveries.columns import EventColumns, WordColumn

CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
"""Event kind -> its code in `Events.kinds`."""

NUMBERS: Final = ("time_us", "ledger_id", "entry_id", "version", "is_cumulative", "deliver_at_ms")
WORDS: Final = ("reason", "detail", "unacked_indexes", "state")

EVENTS_COLUMNS: Final = (
    "topic",
    "subscription",
    "owner_epoch",
    "sequence",
    "event",
    *NUMBERS,
    *WORDS,
)
"""Columns read from the table ``delivery_journal``."""

NONE: Final = -1
"""Stands for null in arrays of numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events of one epoch: the topic's own and those of one subscription."""

    owner_epoch: int
    sequences: NDArray[np.int64]
    kinds: NDArray[np.int64]
    """Indexes into `KINDS`."""
    numbers: Mapping[str, NDArray[np.int64]]
    """Arrays by the names in `NUMBERS`; `NONE` where an event has no value."""
    words: Mapping[str, Mapping[int, Any]]
    """By the names in `WORDS`: index of an event -> its value. Dispatched events have their reason
    in `is_normal` only."""
    is_normal: NDArray[np.bool_]
    """Mask of dispatched events whose entry was read for the first time."""

    def __len__(self) -> int:
        return int(self.kinds.size)

    def of_epoch(self, owner_epoch: int) -> Events:
        """Return the same events with another epoch."""
        return replace(self, owner_epoch=owner_epoch)

    def part(self, start: int, stop: int) -> Events:
        """Return the events from `start` to `stop` - 1."""
        rows = slice(start, stop)
        return Events(
            self.owner_epoch,
            self.sequences[rows],
            self.kinds[rows],
            {name: column[rows] for name, column in self.numbers.items()},
            {
                name: {at - start: word for at, word in column.items() if start <= at < stop}
                for name, column in self.words.items()
            },
            self.is_normal[rows],
        )

    def places(self, *kinds: EventKind) -> NDArray[np.intp]:
        """Return the indexes of all events of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kinds, [CODES[kind] for kind in kinds]))


def joined(pieces: Sequence[Events]) -> Events:
    """Concatenate events of one epoch."""
    if len(pieces) == 1:
        return pieces[0]
    starts = np.cumsum([0, *map(len, pieces)]).tolist()
    return Events(
        pieces[0].owner_epoch,
        np.concatenate([piece.sequences for piece in pieces]),
        np.concatenate([piece.kinds for piece in pieces]),
        {name: np.concatenate([piece.numbers[name] for piece in pieces]) for name in NUMBERS},
        {
            name: {
                start + at: word
                for start, piece in zip(starts, pieces, strict=False)
                for at, word in piece.words[name].items()
            }
            for name in WORDS
        },
        np.concatenate([piece.is_normal for piece in pieces]),
    )


def events_of(block: EventColumns, subscription: str | None) -> Events:
    """Take from a block the events of the topic itself and of this subscription."""
    names = block.texts.get("subscription")
    if names is None:
        rows = np.arange(len(block))
    else:
        wanted = names.words.index(subscription) if subscription in names.words else -1
        rows = np.flatnonzero((names.codes == -1) | (names.codes == wanted))
    kinds = block.kinds[rows]
    numbers = {}
    for name in NUMBERS:
        column = block.numbers.get(name)
        numbers[name] = (
            np.full(rows.size, NONE, dtype=np.int64)
            if column is None
            else np.where(column.is_set, column.values, NONE)[rows]
        )
    words = {name: _sparse(block.texts.get(name) or block.blobs.get(name), rows) for name in WORDS}
    return made(block.owner_epoch, block.sequences[rows], kinds, numbers, words)


def made(
    owner_epoch: int,
    sequences: NDArray[np.int64],
    kinds: NDArray[np.int64],
    numbers: Mapping[str, NDArray[np.int64]],
    words: dict[str, dict[int, Any]],
) -> Events:
    """Build events from columns; reasons of dispatched ones move from `words` to `is_normal`."""
    is_normal = np.zeros(kinds.size, dtype=np.bool_)
    reasons = words["reason"]
    for at in np.flatnonzero(kinds == CODES[EventKind.DISPATCHED]).tolist():
        if reasons.pop(at, None) == "normal":
            is_normal[at] = True
    return Events(owner_epoch, sequences, kinds, numbers, words, is_normal)


def _sparse(
    column: WordColumn[str] | WordColumn[bytes] | None, rows: NDArray[np.intp]
) -> dict[int, Any]:
    if column is None:
        return {}
    codes = column.codes[rows]
    places = np.flatnonzero(codes >= 0)
    words: tuple[Any, ...] = column.words
    return {
        at: words[code] for at, code in zip(places.tolist(), codes[places].tolist(), strict=True)
    }
