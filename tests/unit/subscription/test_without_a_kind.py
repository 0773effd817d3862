"""A subscription that has had no consumer yet, and so no kind: acks and holds apply all the same."""

from __future__ import annotations

from ackgate.cursor import MessageLedgers, Position
from ackgate.subscription import EntryRead, Subscription


def test_entry_that_is_acked_part_by_part_is_not_held_any_more() -> None:
    ledgers = MessageLedgers()
    ledgers.open_ledger(7)
    ledgers.add_entries(7, 3)
    sub: Subscription[str, EntryRead] = Subscription(ledgers, kind=None)
    batch = Position(7, 1)
    assert sub.hold([batch], until_ms=5_000, now_ms=0) == 1
    sub.ack(None, [], parts=[(batch, 0b10)], now_ms=1)
    assert sub.is_held(batch)
    sub.ack(None, [], parts=[(batch, 0b01)], now_ms=2)
    assert sub.cursor.is_acked(batch)
    assert not sub.is_held(batch)
