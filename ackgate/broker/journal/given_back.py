"""What a consumer gives back when it asks for redelivery, or leaves: as the journal tells it.

Pure; looks at a live subscription. Shared and Key_Shared know what is in flight with whom; for
Exclusive and Failover it is all that was read and is not acked, if the consumer is the active one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ackgate.broker.reads import cut, joined
from ackgate.cursor.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ackgate.broker.consumer import Consumer
    from ackgate.broker.subscription import Subscription
    from ackgate.cursor.unacked_entries import Span


def note_given_back(
    subscription: Subscription,
    consumer: Consumer,
    reason: Literal["asked", "consumer_closed"],
    positions: Sequence[Position] | None = None,
) -> None:
    """Tell it, before the dispatcher hears of it. `positions`: only these; None: all."""
    journal, dispatcher = subscription.journal, subscription.dispatcher
    if journal is None or dispatcher is None:
        return
    if dispatcher.active_consumer is None:
        spans = joined(_chosen(dispatcher.in_flight(consumer.key), positions))
    elif dispatcher.active_consumer == consumer.key:
        spans = _read_and_unacked(subscription)
    else:
        spans = []
    journal.note_nacked(
        subscription.name, consumer.label, reason, spans, _masks(subscription, spans)
    )


def _chosen(
    in_flight: Collection[Position], positions: Sequence[Position] | None
) -> Sequence[Position]:
    if positions is None:
        return list(in_flight)
    return [position for position in positions if position in in_flight]


def _read_and_unacked(subscription: Subscription) -> list[Span]:
    cursor, facts = subscription.cursor, subscription.topic.ledger.facts
    last_read = facts.previous(cursor.read_position)
    entries = facts.count_between(cursor.mark_delete, last_read)
    if not entries:
        return []
    return cut(cursor.unacked_spans(facts.next_valid(cursor.mark_delete), entries), last_read)


def _masks(subscription: Subscription, spans: Sequence[Span]) -> dict[Position, int]:
    cursor = subscription.cursor
    if not cursor.partly_acked_count:
        return {}
    positions = (
        Position(span.ledger_id, entry_id)
        for span in spans
        for entry_id in range(span.start, span.stop)
    )
    masks = ((position, cursor.unacked_mask(position)) for position in positions)
    return {position: mask for position, mask in masks if mask is not None}
