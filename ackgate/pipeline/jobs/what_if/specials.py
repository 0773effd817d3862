"""Calls that are more than acks of whole entries, as they were made on the cursor. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.pipeline.jobs.what_if.tape import grow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.cursor import CursorMove, MessageLedgers, Position
    from ackgate.pipeline.jobs.what_if.tape import Played


@dataclass(frozen=True, slots=True)
class MixedAck:
    """Entries and parts of entries: a mask holds what stays unacked, None is the whole entry."""

    acks: Sequence[tuple[Position, int | None]]

    def __call__(self, on: Played) -> None:
        """Ack them."""
        on.cursor.ack_mixed(self.acks)


@dataclass(frozen=True, slots=True)
class CumulativeAck:
    """Everything up to a position."""

    position: Position
    unacked_mask: int | None
    properties: Mapping[str, int] | None
    whole: Sequence[Position] = ()
    """Further entries that the same command acked: the rest of a batch."""

    def __call__(self, on: Played) -> None:
        """Ack it."""
        on.cursor.ack_cumulative(
            self.position, unacked_mask=self.unacked_mask, properties=self.properties
        )
        for position in self.whole:
            on.cursor.ack(position)


@dataclass(frozen=True, slots=True)
class CursorMoved:
    """A seek, skip, clear or expiry."""

    reset: CursorMove

    def __call__(self, on: Played) -> None:
        """Move the cursor."""
        self.reset.move(on.cursor)


@dataclass(frozen=True, slots=True)
class LedgerOpened:
    """The topic writes into a new ledger."""

    ledger_id: int

    def __call__(self, on: Played) -> None:
        """Note it."""
        self.tell(on.ledgers)

    def tell(self, ledgers: MessageLedgers) -> None:
        """Of the topic."""
        if ledgers.entry_count(self.ledger_id) is None:
            ledgers.open_ledger(self.ledger_id)


@dataclass(frozen=True, slots=True)
class LedgerClosed:
    """A ledger of the topic takes no more entries."""

    ledger_id: int
    entries: int

    def __call__(self, on: Played) -> None:
        """Note it."""
        self.tell(on.ledgers)

    def tell(self, ledgers: MessageLedgers) -> None:
        """Of the topic."""
        if ledgers.entry_count(self.ledger_id) is not None:
            grow(ledgers, self.ledger_id, self.entries)
            ledgers.close_ledger(self.ledger_id, self.entries)


@dataclass(frozen=True, slots=True)
class LedgersTrimmed:
    """Ledgers of the topic were deleted, all at one time."""

    ledger_ids: tuple[int, ...]

    def __call__(self, on: Played) -> None:
        """Note it, and let the cursor forget them."""
        self.tell(on.ledgers)
        for ledger_id in self.ledger_ids:
            on.cursor.ledger_trimmed(ledger_id)

    def tell(self, ledgers: MessageLedgers) -> None:
        """Of the topic."""
        for ledger_id in self.ledger_ids:
            ledgers.trim_ledger(ledger_id)
