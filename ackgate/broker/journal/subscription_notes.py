"""What one subscription tells the delivery journal, beside its deliveries.

Pure; looks at a live subscription. Where there is no journal all of this does nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ackgate.broker.journal.given_back import note_given_back
from ackgate.cursor.managed_cursor import ARRAY_PATH_POSITIONS_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.broker.consumer import Consumer
    from ackgate.broker.subscription import Subscription
    from ackgate.broker.wire_types import SubscribeRequest
    from ackgate.cursor.position import Position
    from ackgate.persistence.delivery_details import Reset


class SubscriptionNotes:
    """Of one subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._journal = subscription.journal
        self._was_gate_open = True
        self._gate_reasons: list[str] = []

    def new(self) -> None:
        """It has just been made."""
        subscription = self._subscription
        if self._journal is not None:
            self._journal.note_subscribed(
                subscription.name,
                subscription.cursor.mark_delete,
                is_durable=subscription.store is not None,
            )

    def recovered(self) -> None:
        """It was there before, and this is its state now."""
        subscription = self._subscription
        if self._journal is not None and subscription.store is not None:
            report, state = subscription.store.report, subscription.cursor.snapshot()
            self._journal.note_recovered(subscription.name, report, state)

    def consumer_added(self, consumer: Consumer, request: SubscribeRequest) -> None:
        """It may have switched the gate on."""
        if self._journal is not None:
            keys = request.key_shared
            self._journal.note_consumer_added(
                self._subscription.name,
                consumer.label,
                request.subscription_type.spelling,
                is_out_of_order=keys is not None and keys.allows_out_of_order,
            )
            self.gate()

    def consumer_left(self, consumer: Consumer) -> None:
        """Before the dispatcher hears of it."""
        if self._journal is not None:
            note_given_back(self._subscription, consumer, "consumer_closed")
            self._journal.note_consumer_removed(self._subscription.name, consumer.label)

    def asked_again(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """It wants these again (None: all), of which the dispatcher has not heard yet."""
        if self._journal is not None:
            note_given_back(self._subscription, consumer, "asked", positions)

    def acked(
        self, consumer: str | None, positions: Sequence[Position], *, at_once: bool | None = None
    ) -> None:
        """One call has acked these whole entries. `at_once`: as arrays; None: as their number says."""
        if self._journal is not None:
            if at_once is None:
                at_once = len(positions) >= ARRAY_PATH_POSITIONS_MIN
            subscription = self._subscription
            self._journal.note_acked(
                subscription.name, consumer, positions, subscription.cursor.version, at_once=at_once
            )

    @property
    def tell_cancelled(self) -> Callable[[Sequence[Position]], None] | None:
        """Who is to be told of entries that are acked because they were cancelled."""
        return None if self._journal is None else partial(self.acked, None, at_once=True)

    def reset(self, reset: Reset) -> None:
        """The cursor was moved by other means than acks."""
        if self._journal is not None:
            subscription = self._subscription
            self._journal.note_reset(subscription.name, reset, subscription.cursor.version)

    def gate(self) -> None:
        """If the gate has shut or opened since this was asked last."""
        gate = self._subscription.gate
        if self._journal is not None and gate.is_open is not self._was_gate_open:
            self._was_gate_open = gate.is_open
            if not gate.is_open:
                self._gate_reasons = [reason.value for reason in gate.reasons]
            name = self._subscription.name
            self._journal.note_gate(name, self._gate_reasons, is_open=gate.is_open)
