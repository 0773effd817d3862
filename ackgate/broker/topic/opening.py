"""Opens the subscriptions of a topic: those that are stored, new ones, and those of readers.

Edge: the metadata store, by way of `Topic.open_store`. A request for a subscription that is being
opened waits for that; none is opened twice.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.broker.cluster import (
    AUTO_SUBSCRIPTION_CREATION,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_SUBSCRIPTIONS,
)
from ackgate.broker.topic.subscription import SubscribedTopic, SubscriptionDriver
from ackgate.broker.wire import (
    InitialPosition,
    LimitReachedError,
    NotAllowedError,
    SubscriptionNotFoundError,
)
from ackgate.cursor import EARLIEST, LATEST, Position
from ackgate.errors import CallerError, ConsumerBusyError, OwnershipError
from ackgate.persistence.nodes.paths import HIDDEN_CURSORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.broker.wire import Entry, SubscribeRequest
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.messages.managed_ledger import ManagedLedger

OPENS_AT_ONCE_MAX: Final = 100
"""Subscriptions of one topic that are opened at the same time."""


class OpeningTopic(SubscribedTopic, Protocol):
    """The topic whose subscriptions are opened."""

    @property
    def subscriptions(self) -> dict[str, SubscriptionDriver]:
        """The loaded subscriptions, by name."""

    def check_open(self) -> None:
        """Raise `ServiceNotReadyError` if the topic is being closed."""

    async def open_store(
        self,
        name: str,
        *,
        create_at: Position | None,
        properties: Mapping[str, str] | None = None,
        settings: PersistenceSettings | None = None,
    ) -> CursorStore:
        """Open or create the store of a cursor."""


class SubscriptionOpening:
    """Opens subscriptions of one topic, and adds them to its `subscriptions`."""

    def __init__(self, topic: OpeningTopic) -> None:
        self._topic = topic
        self._under_way: dict[str, asyncio.Future[SubscriptionDriver]] = {}
        self.beginnings: dict[str, Position] = {}
        """Mark-deletes of subscriptions that are being created: no message after them may be
        trimmed."""

    async def stored(self, names: Sequence[str]) -> None:
        """Open these, many at the same time. Raises storage errors; some may be open then."""
        for start in range(0, len(names), OPENS_AT_ONCE_MAX):
            await self._stored(names[start : start + OPENS_AT_ONCE_MAX])

    async def _stored(self, names: Sequence[str]) -> None:
        topic = self._topic
        opened = await asyncio.gather(
            *(topic.open_store(name, create_at=None) for name in names), return_exceptions=True
        )
        failure: BaseException | None = None
        for name, store in zip(names, opened, strict=True):
            if isinstance(store, BaseException):
                failure = failure or store
            else:
                topic.subscriptions[name] = SubscriptionDriver(topic, name, store.cursor, store)
        if failure is not None:
            raise failure

    async def durable(
        self,
        name: str,
        initial: InitialPosition | Position,
        *,
        properties: Mapping[str, str] | None = None,
        by_client: bool = True,
    ) -> SubscriptionDriver:
        """The durable subscription of this name, created if it does not exist.

        `by_client` False: an administrator asked, whom `allowAutoSubscriptionCreation` does not
        bind. Raises `ConsumerBusyError` for a reader's, `NotAllowedError`,
        `SubscriptionNotFoundError`, and what storage raises.
        """
        present = self._topic.subscriptions.get(name)
        if present is not None:
            if not present.is_durable:
                raise ConsumerBusyError(f"subscription {name} is that of a reader")
            return present
        opening = self._under_way.get(name)
        if opening is not None:
            return await asyncio.shield(opening)
        self._check_new(name, by_client=by_client)
        self._under_way[name] = opening = asyncio.ensure_future(
            self._created(name, initial, properties=properties)
        )
        try:
            return await asyncio.shield(opening)
        finally:
            if opening.done():
                self._under_way.pop(name, None)
            else:
                opening.add_done_callback(lambda _: self._under_way.pop(name, None))

    def _check_new(self, name: str, *, by_client: bool) -> None:
        topic, broker = self._topic, self._topic.services.settings.broker
        if name in HIDDEN_CURSORS:
            raise NotAllowedError(f"subscription name {name} is reserved")
        self._check_room()
        if by_client and not topic.policies.value(
            AUTO_SUBSCRIPTION_CREATION, broker.allow_auto_subscription_creation
        ):
            raise SubscriptionNotFoundError(
                f"subscription {name} does not exist on {topic.name} and may not be created"
            )

    def _check_room(self) -> None:
        """Raise `LimitReachedError` if there are as many subscriptions as there may be."""
        topic = self._topic
        most = topic.policies.value(
            MAX_SUBSCRIPTIONS, topic.services.settings.broker.max_subscriptions_per_topic
        )
        if most and len(topic.subscriptions) + len(self._under_way) >= most:
            raise LimitReachedError(
                f"Exceed the maximum number of subscriptions of the topic: {topic.name}"
            )

    def _initial_mark_delete(self, initial: InitialPosition | Position) -> Position:
        ledgers = self._topic.ledger.ledgers
        if initial is InitialPosition.LATEST or initial == LATEST:
            return ledgers.last_confirmed
        if initial is InitialPosition.EARLIEST:
            return ledgers.first_position
        if not isinstance(initial, Position):
            raise CallerError(f"not an initial position: {initial!r}")
        return max(ledgers.first_position, min(ledgers.previous(initial), ledgers.last_confirmed))

    async def _created(
        self,
        name: str,
        initial: InitialPosition | Position,
        *,
        properties: Mapping[str, str] | None,
    ) -> SubscriptionDriver:
        topic = self._topic
        await topic.until_trimmed()
        create_at = self.beginnings[name] = self._initial_mark_delete(initial)
        try:
            store = await topic.open_store(name, create_at=create_at, properties=properties)
        finally:
            del self.beginnings[name]
        if topic.is_closing:  # closing the topic did not include this one
            store.abandon(OwnershipError(f"topic {topic.name} was closed meanwhile"))
            topic.check_open()
        subscription = SubscriptionDriver(topic, name, store.cursor, store)
        topic.subscriptions[name] = subscription
        return subscription

    async def of_reader(self, request: SubscribeRequest) -> SubscriptionDriver:
        """Make a reader's subscription, which is not stored.

        Raises `ConsumerBusyError` if a durable one has the name, `LimitReachedError`.
        """
        topic, name = self._topic, request.subscription
        present = topic.subscriptions.get(name)
        if present is not None:
            if present.is_durable:
                raise ConsumerBusyError(f"subscription {name} is durable")
            return present
        first_read = await first_read_position(topic.ledger, request)
        if (raced := topic.subscriptions.get(name)) is not None:
            return raced
        self._check_room()
        subscription = SubscriptionDriver.for_reader(topic, name, first_read)
        topic.subscriptions[name] = subscription
        return subscription

    def check_consumer_limits(self, request: SubscribeRequest) -> None:
        """Raise `NotAllowedError` or `ConsumerBusyError` if the consumer may not be added."""
        topic, broker = self._topic, self._topic.services.settings.broker
        wanted = request.subscription_type.spelling
        if wanted not in broker.subscription_types_enabled:
            raise NotAllowedError(f"subscriptions of type {wanted} are not enabled")
        consumers = sum(len(s.consumers) for s in topic.subscriptions.values())
        most = topic.policies.value(MAX_CONSUMERS, broker.max_consumers_per_topic)
        if most and consumers >= most:
            raise ConsumerBusyError("Topic reached max consumers limit")
        present = topic.subscriptions.get(request.subscription)
        most = topic.policies.value(
            MAX_CONSUMERS_PER_SUBSCRIPTION, broker.max_consumers_per_subscription
        )
        if present is not None and most and len(present.consumers) >= most:
            raise ConsumerBusyError("Subscription reached max consumers limit")


# ---- Where a subscription begins to read


async def first_read_position(ledger: ManagedLedger[Entry], request: SubscribeRequest) -> Position:
    """The first position of a reader: its start position, a time ago, or an end of the topic."""
    if request.start_rollback_seconds > 0:
        publish_time_ms = int((time.time() - request.start_rollback_seconds) * 1000)
        return await ledger.reads.first_published_at(publish_time_ms)
    start = request.start_position
    if start is None:
        start = EARLIEST if request.initial_position is InitialPosition.EARLIEST else LATEST
    return ledger.ledgers.readable_at(start)
