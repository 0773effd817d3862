"""The index of delayed entries that all subscriptions of a topic share, with its storage.

Edge: ``delayedDeliverySharedIndexEnabled``. Entries go into it when they are published, so nobody
reads them before their time; what is not in it after a restart is brought by whichever subscription
reads it first. With buckets, their registry is the node of the topic's hidden cursor
``pulsar.delayed-index``, which acks nothing and holds up no trimming. ::

    publish --confirmed--> SharedIndex <--read, not in it yet-- subscriptions
                              |  |  |
                 view, view, view: what each of them holds back, and pops for itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ackgate.broker.delayed.hidden_cursors import HiddenCursor, HiddenCursorTopic
from ackgate.broker.delayed.tracker_status import DelayStatus
from ackgate.broker.delayed.trackers import TrackerHome, TrackerServices
from ackgate.config.delayed import BUCKET_FACTORY
from ackgate.cursor import EARLIEST
from ackgate.dispatcher.delayed import SharedIndex
from ackgate.persistence.nodes.paths import DELAYED_INDEX_CURSOR, cursor_path
from ackgate.subscription import delayed_by_ledger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.broker.wire import Entry
    from ackgate.config.delayed import DelayedDeliveryPolicy
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import ManagedCursor, Position
    from ackgate.dispatcher.buckets import BucketStatistics
    from ackgate.dispatcher.delayed import DelaySettings, SharedView
    from ackgate.errors import OwnershipError
    from ackgate.persistence.cursors.store import CursorStore


class _Everything:
    """Makes the index recover every entry; the views leave out what is acked."""

    mark_delete: Final = EARLIEST

    def acked_entries(self, ledger_id: int) -> None:
        """No entry is left out."""


class SharedIndexMember(Protocol):
    """What the shared index needs of a subscription."""

    @property
    def cursor(self) -> ManagedCursor: ...

    def ask_turn(self) -> None:
        """Look for due entries: there may be more."""

    def on_lost(self, entries: Mapping[int, BitMap]) -> None:
        """Read these delayed entries again: they were lost with a snapshot."""


class SharedIndexTopic(HiddenCursorTopic, Protocol):
    """What the shared index needs of its topic."""

    @property
    def services(self) -> TrackerServices: ...

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        """The delayed delivery policy in effect."""


class SharedDelays:
    """The shared index of one topic. It is made when the first subscription joins."""

    def __init__(
        self,
        topic: SharedIndexTopic,
        open_store: Callable[[Position | None], Awaitable[CursorStore]],
    ) -> None:
        """`open_store`: opens the hidden cursor, or creates it with this mark-delete."""
        settings = topic.services.settings.delayed
        self.is_on = settings.delayed_delivery_shared_index_enabled
        """Does not change while the topic is loaded here."""
        self._with_buckets = settings.delayed_delivery_tracker_factory_class_name == BUCKET_FACTORY
        self._topic = topic
        self._hidden = HiddenCursor(topic, open_store)
        self._home: TrackerHome | None = None
        self._index: SharedIndex | None = None
        self._members: list[SharedIndexMember] = []
        self._is_recovering = False

    # -- life -----------------------------------------------------------------------------------

    async def load(self, *, exists: bool) -> None:
        """Open the hidden cursor if it is needed. Call it before subscriptions join."""
        if self.is_on and (self._with_buckets or exists):
            await self._hidden.open(create=not exists)

    def configure(self, settings: PersistenceSettings) -> None:
        self._hidden.configure(settings)

    async def close(self) -> None:
        """Finish storage work, and close the hidden cursor."""
        if self._home is not None:
            await self._home.close()
        await self._hidden.close()

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more."""
        if self._home is not None:
            self._home.abandon()
        self._hidden.abandon(error)

    async def delete(self) -> None:
        """Delete the index, its snapshots and the hidden cursor."""
        if self._home is not None:
            await self._home.close(is_kept=False)
        await self._hidden.delete()
        if self._home is not None:
            await self._home.delete()

    def ledger_trimmed(self, ledger_id: int) -> None:
        """Note that a message ledger was deleted."""
        self._hidden.ledger_trimmed(ledger_id)

    # -- subscriptions --------------------------------------------------------------------------

    def join(self, subscription: SharedIndexMember, settings: DelaySettings) -> SharedView:
        """Add a subscription. Returns its view of the index, which the first one makes."""
        if self._index is None:
            self._index = self._make(settings)
        cursor = subscription.cursor
        self._members.append(subscription)
        return self._index.join(cursor.mark_delete, cursor.acked_entries)

    def leave(self, subscription: SharedIndexMember, view: SharedView) -> None:
        """Drop the view of a subscription that was deleted."""
        if self._index is not None and subscription in self._members:
            self._members.remove(subscription)
            self._index.leave(view)
            self.pump()

    def _make(self, settings: DelaySettings) -> SharedIndex:
        topic = self._topic
        self._home = TrackerHome(
            topic.services,
            cursor_path(topic.path, DELAYED_INDEX_CURSOR),
            _Everything(),
            self._hidden.store,
            on_change=self._on_change,
            on_lost=self._on_lost,
        )
        self._is_recovering = self._home.remembers
        return SharedIndex(self._home.make(settings), settings)

    def published(self, entries: Sequence[Entry]) -> None:
        """Add those that are delayed of the entries that became durable.

        Reads leave them out then.
        """
        index = self._index
        if index is None or not index.views or not self._topic.delayed_delivery.is_active:
            return
        now_ms = self._topic.services.clock_ms()
        delayed = delayed_by_ledger(entries, now_ms)
        for ledger_id, entry_ids, times_ms in delayed:
            index.add_published(ledger_id, entry_ids, times_ms, now_ms)
        if delayed:
            self.pump()

    # -- storage --------------------------------------------------------------------------------

    def pump(self) -> None:
        """Do the index's own work that is due. Cheap."""
        if self._home is not None:
            self._home.pump()

    async def until_cleared(self) -> None:
        """Call `TrackerHome.until_cleared` of the shared index, after all views were cleared."""
        if self._home is not None:
            await self._home.until_cleared()

    def _on_change(self) -> None:
        index, home = self._index, self._home
        if index is None or home is None:
            return
        if self._is_recovering:
            statistics = home.statistics()
            self._is_recovering = statistics is not None and statistics.buckets_unread > 0
            index.hear_recovered(self._topic.ledger.ledgers.ledger_ids)
        for subscription in self._members:
            subscription.ask_turn()

    def _on_lost(self, lost: Mapping[int, BitMap]) -> None:
        if self._index is not None:
            self._index.hear_lost(lost)
        for subscription in self._members:
            subscription.on_lost({ledger: entries.copy() for ledger, entries in lost.items()})

    def status(self) -> DelayStatus:
        """How delayed entries are tracked."""
        return DelayStatus() if self._home is None else self._home.status

    def statistics(self) -> BucketStatistics | None:
        """Statistics of the buckets; None if the index keeps none."""
        return None if self._home is None else self._home.statistics()


class SharedTracking:
    """Takes the place of a subscription's `TrackerHome` if its topic has a shared index.

    ``own``: the tracker home for what an earlier setting stored for this subscription alone.
    """

    remembers: Final = True
    """Make the view at once: other subscriptions may have added delayed entries already."""

    def __init__(
        self, subscription: SharedIndexMember, shared: SharedDelays, own: TrackerHome
    ) -> None:
        self._subscription = subscription
        self._shared = shared
        self._own = own
        self._view: SharedView | None = None

    @property
    def status(self) -> DelayStatus:
        """How delayed entries are tracked."""
        return self._shared.status() if self._view is not None else self._own.status

    def make(self, settings: DelaySettings) -> SharedView:
        self._own.clean()
        self._view = self._shared.join(self._subscription, settings)
        return self._view

    def pump(self) -> None:
        self._shared.pump()

    async def until_cleared(self) -> None:
        """Wait for the subscription's own snapshots to be deleted; the shared ones stay."""
        await self._own.until_cleared()

    async def close(self, *, is_kept: bool = True) -> None:
        await self._own.close(is_kept=is_kept)

    def abandon(self) -> None:
        self._own.abandon()

    async def delete(self) -> None:
        """Drop the view of the deleted subscription, and delete its own snapshots."""
        if self._view is not None:
            self._shared.leave(self._subscription, self._view)
        await self._own.delete()

    def statistics(self) -> BucketStatistics | None:
        """Statistics of the shared buckets; None before the view is made."""
        return self._shared.statistics() if self._view is not None else None
