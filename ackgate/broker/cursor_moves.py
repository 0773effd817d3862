"""Moving a subscription's cursor by other means than acks: seek, skip, clear, expire.

Edge. What goes on (`skip`, `clear_backlog`, `expire_*`) happens under the consumers; what may go back
(`reset`, `clear_delayed`) sends them away first, as Pulsar does, and they come back by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.broker.errors import PersistenceFailedError
from ackgate.broker.subscription_start import resolve
from ackgate.persistence.delivery_details import Cleared, Expired, Skipped, Sought

if TYPE_CHECKING:
    from ackgate.broker.subscription import Subscription
    from ackgate.cursor.position import Position


class CursorMoves:
    """Of one subscription. All return when the new state is durable.

    All raise `PersistenceFailedError` when it is not yet, though the cursor has moved.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.entries_expired = 0
        self.last_expired_ms = 0
        """When somebody asked last; 0: nobody has."""
        self._subscription = subscription

    async def reset(self, position: Position, unacked_mask: int | None = None) -> None:
        """Seek: read from `position` next. Of a batch, the indexes of `unacked_mask` are unacked.

        Raises `ServiceNotReadyError` while another move is under way, too.
        """
        subscription = self._subscription
        cursor, topic = subscription.cursor, subscription.topic
        async with subscription.paused():
            await topic.until_trimmed()
            target = resolve(topic.ledger, position)
            cursor.reset(target)
            mask = unacked_mask if unacked_mask and target == position else None
            if mask is not None:
                cursor.ack_mixed([(position, mask)])
            subscription.notes.reset(Sought(cursor.mark_delete, target, mask))
            topic.cancelled.ack_in(cursor, subscription.notes.tell_cancelled)
            if subscription.dispatcher is not None:
                subscription.dispatcher.reset()
            subscription.held.rewound()
            await self._moved()

    async def reset_to_time(self, publish_time_ms: int) -> None:
        """Seek to the first entry published at or after this time."""
        reads = self._subscription.topic.ledger.reads
        await self.reset(await reads.first_published_at(publish_time_ms))

    async def skip(self, entries: int) -> int:
        """Ack the next `entries` unacked entries. Returns how many there were."""
        cursor = self._subscription.cursor
        skipped = cursor.skip(entries)
        self._subscription.notes.reset(Skipped(cursor.mark_delete, skipped))
        await self._skipped()
        return skipped

    async def clear_backlog(self) -> int:
        """Ack everything that the topic holds. Returns how many entries were not."""
        cursor = self._subscription.cursor
        cleared = cursor.clear_backlog()
        self._subscription.notes.reset(Cleared(cursor.mark_delete, cleared))
        await self._skipped()
        return cleared

    async def expire_older_than(self, seconds: int) -> int:
        """Ack everything published longer ago. Returns how many entries were not acked."""
        topic = self._subscription.topic
        cutoff_ms = topic.parts.clock_ms() - seconds * 1000
        first_kept = await topic.ledger.reads.first_published_at(cutoff_ms)
        return await self.expire_through(topic.ledger.facts.previous(first_kept))

    async def expire_through(self, position: Position) -> int:
        """Ack everything up to this entry. Returns how many entries were not acked."""
        topic, cursor = self._subscription.topic, self._subscription.cursor
        self.last_expired_ms = topic.parts.clock_ms()
        position = min(position, topic.ledger.facts.last_confirmed)
        if position <= cursor.mark_delete:
            return 0
        before = cursor.backlog_entries
        cursor.ack_cumulative(position)
        self._subscription.notes.reset(Expired(cursor.mark_delete, position))
        expired = before - cursor.backlog_entries
        self.entries_expired += expired
        await self._skipped()
        return expired

    async def clear_delayed(self) -> None:
        """Drop the index of delayed entries, with what of it is stored; reading builds it anew.

        No entry is lost by this. Raises `PersistenceFailedError`: not all of what is stored could be
        deleted yet.
        """
        async with self._subscription.paused():
            self.drop_delayed()
        await self._subscription.tracking.until_cleared()

    def drop_delayed(self) -> None:
        """Hold no delayed entry any more, and read from the first unacked one. While `paused`."""
        subscription = self._subscription
        subscription.held.clear_delayed()
        if subscription.dispatcher is not None:
            subscription.dispatcher.reset()
        subscription.cursor.rewind()
        subscription.held.rewound()

    async def _skipped(self) -> None:
        subscription = self._subscription
        if subscription.dispatcher is not None:
            subscription.dispatcher.acked_through(subscription.cursor.mark_delete)
        await self._moved()

    async def _moved(self) -> None:
        subscription = self._subscription
        subscription.on_acked()
        store = subscription.store
        if store is not None:
            await store.flush()
            if store.failing_since_ms is not None:
                raise PersistenceFailedError(
                    f"subscription {subscription.name} has moved, but this is not durable yet: "
                    f"{store.last_failure}"
                )
