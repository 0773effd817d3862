"""A subscription and its consumers in numbers. Pure, frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from ackgate.subscription.entries import ConsumerT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor import CursorStatistics
    from ackgate.dispatcher import (
        ConsumerStatistics,
        DispatcherStatistics,
        GateStatistics,
        SubscriptionKind,
    )
    from ackgate.subscription.held import HeldStatistics


@dataclass(frozen=True, slots=True)
class ConsumerCounts:
    """What one consumer did so far. Times in ms since 1970; 0: never."""

    messages_out: int
    messages_acked: int
    messages_redelivered: int
    last_flow_ms: int
    last_sent_ms: int
    last_acked_ms: int


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """Everything about a subscription, frozen."""

    kind: SubscriptionKind | None
    cursor: CursorStatistics
    gate: GateStatistics
    dispatcher: DispatcherStatistics | None
    held: HeldStatistics
    consumers: Mapping[Any, ConsumerCounts]
    dispatched: Mapping[Any, ConsumerStatistics]
    """Each attached consumer as the dispatcher sees it."""
    total: ConsumerCounts
    """Sum over all consumers, those that have left included."""
    receipts_waiting: int
    durable_version: int
    last_mark_delete_ms: int
    gate_opened_at_ms: int | None
    """When it last opened again; None: it never shut."""
    entries_expired: int
    last_expired_ms: int
    entries_lost: int
    """Delayed entries whose time was lost and that are still to be read again."""


class AttachedConsumer(Generic[ConsumerT]):
    """An attached consumer, and what it did."""

    __slots__ = (
        "identity",
        "key",
        "last_acked_ms",
        "last_flow_ms",
        "last_sent_ms",
        "messages_acked",
        "messages_out",
    )

    def __init__(self, identity: ConsumerT, key: int) -> None:
        self.identity = identity
        self.key = key
        """The dispatcher's number for it."""
        self.messages_out = 0
        self.messages_acked = 0
        self.last_flow_ms = 0
        self.last_sent_ms = 0
        self.last_acked_ms = 0

    def counts(self, messages_redelivered: int) -> ConsumerCounts:
        return ConsumerCounts(
            self.messages_out,
            self.messages_acked,
            messages_redelivered,
            self.last_flow_ms,
            self.last_sent_ms,
            self.last_acked_ms,
        )
