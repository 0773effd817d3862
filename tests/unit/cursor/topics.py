"""Ready-made topics for the tests of this room."""

from __future__ import annotations

from ackgate.cursor import ManagedCursor, MessageLedgers, Position


def ledgers_of(*counts: int) -> MessageLedgers:
    """Ledgers 1, 2, ... with so many entries each; the last one stays open."""
    ledgers = MessageLedgers()
    for ledger_id, count in enumerate(counts, start=1):
        ledgers.open_ledger(ledger_id)
        ledgers.add_entries(ledger_id, count)
    return ledgers


def cursor_over(*counts: int) -> ManagedCursor:
    """A cursor at the beginning of such ledgers."""
    return ManagedCursor(ledgers_of(*counts), Position(1, -1))


def at(*texts: str) -> list[Position]:
    """Positions from ``"1:0", "1:5"``."""
    return [Position.parse(text) for text in texts]
