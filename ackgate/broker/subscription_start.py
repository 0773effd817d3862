"""Where a subscription begins to read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ackgate.broker.wire_types import InitialPosition
from ackgate.cursor.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from ackgate.broker.managed_ledger import ManagedLedger
    from ackgate.broker.wire_types import SubscribeRequest


async def first_read_position(ledger: ManagedLedger, request: SubscribeRequest) -> Position:
    """What a reader wants first: its start position, a time ago, or an end of the topic."""
    if request.start_rollback_seconds > 0:
        publish_time_ms = int((time.time() - request.start_rollback_seconds) * 1000)
        return await ledger.reads.first_published_at(publish_time_ms)
    start = request.start_position
    if start is None:
        start = EARLIEST if request.initial_position is InitialPosition.EARLIEST else LATEST
    return resolve(ledger, start)


def resolve(ledger: ManagedLedger, position: Position) -> Position:
    """An existing or next-to-come position for `EARLIEST`, `LATEST` and anything in between."""
    facts = ledger.facts
    end = facts.next_valid(facts.last_confirmed)
    if position >= end:
        return end
    if position <= facts.first_position:
        return facts.next_valid(facts.first_position)
    return facts.next_valid(facts.previous(position))
