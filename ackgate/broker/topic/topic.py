"""One topic (or one partition): its producers, its messages, its subscriptions.

Edge. `Producer.publish` passes a message to the `ManagedLedger`, which calls `on_confirmed` once it
is durable: the producer gets its receipt, and subscriptions that wait for entries read on. All of
it runs on one event loop; nothing here waits while holding another's call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.cluster import (
    DEDUPLICATION,
    MAX_MESSAGE_BYTES,
    MAX_PRODUCERS,
    MESSAGE_TTL_SECONDS,
    PAUSE_ON_ACK_STATE,
    EffectivePolicies,
)
from ackgate.broker.delayed import CancelledMessages, SharedDelays, settings_of_cancelled
from ackgate.broker.journal import UNKNOWN_TIME, TopicJournaling, key_of_entry, time_of_entry
from ackgate.broker.topic.deduplication import (
    SequenceIds,
    TopicDeduplication,
    Verdict,
    sequence_ids,
)
from ackgate.broker.topic.opening import SubscriptionOpening
from ackgate.broker.topic.producers import Producer, TopicProducers
from ackgate.broker.wire import (
    ENTRY_FORM,
    Entry,
    InitialPosition,
    ProducerBlockedError,
    ProducerBusyError,
    ServerError,
    ServiceNotReadyError,
    TopicTerminatedError,
    server_error,
)
from ackgate.config.delayed import DelayedDeliveryPolicy
from ackgate.errors import AckGateError, CallerError, OwnershipError
from ackgate.network import NOWHERE
from ackgate.persistence.cursors.store import CursorStore
from ackgate.persistence.messages.managed_ledger import ManagedLedger
from ackgate.persistence.messages.rules import RolloverLimits
from ackgate.persistence.nodes.paths import (
    CANCELLED_CURSOR,
    DEDUP_CURSOR,
    DELAYED_INDEX_CURSOR,
    HIDDEN_CURSORS,
    cursor_path,
    name_of_node,
    topic_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.trace import Span

    from ackgate.broker.journal import TopicJournal
    from ackgate.broker.topic.services import SharedServices
    from ackgate.broker.topic.subscription import Consumer, SubscriptionDriver
    from ackgate.broker.wire import (
        ProducerRequest,
        SentEntry,
        SessionPort,
        SubscribeRequest,
        TopicName,
    )
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import Position
    from ackgate.network import Urls

log = logging.getLogger(__name__)

NO_POSITION: Final = 2**64 - 1
"""Ledger and entry id in the receipt of a duplicate: -1 as an unsigned 64-bit number."""

OWN_PREFIX: Final = "#ackgate."
"""Properties of a topic that begin so are the broker's: users neither see nor set them."""

TOPIC_EPOCH_PROPERTY: Final = f"{OWN_PREFIX}topicEpoch"


class _Publish(NamedTuple):
    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    received_at: float
    publish_time_ms: int
    key: str
    """This and `publish_time_ms` are for the delivery journal, if it is on. The metadata itself
    would be kept alive for long, and visited by the garbage collector."""
    sequence_ids: SequenceIds | None
    """The ids for de-duplication; None: it is off."""


class _TracedPublish(_Publish):
    """A publish that has a span."""

    span: Span


class Topic:
    """A loaded topic. Make it with `open`."""

    def __init__(self, name: TopicName, services: SharedServices) -> None:
        self.name = name
        self.services = services
        self.path = topic_path(name.tenant, name.namespace, name.local_name)
        self.policies = EffectivePolicies(services.policies, name)
        self.delayed_delivery = DelayedDeliveryPolicy()
        """The delayed delivery policy in effect, once the topic is open."""
        self.message_bytes_max = 0
        """The policy `maxMessageSize`: largest entry that is no chunk; 0: the broker's limit alone."""
        self.ledger: ManagedLedger[Entry] = ManagedLedger(
            self.path,
            services.ledger_client,
            services.metadata,
            form=ENTRY_FORM,
            cache=services.cache,
            options=services.ledger_options,
            limits=_rollover_limits(services),
            clock_ms=services.clock_ms,
            sink=self,
            buffer=services.publish_buffer,
            refusal=services.disk_space.refusal_of,
        )
        self.journaling = TopicJournaling(self)
        self.journal: TopicJournal | None = None
        """The delivery journal; None: it is off."""
        self.producers = TopicProducers(str(name), None, self._store_topic_epoch)
        self.subscriptions: dict[str, SubscriptionDriver] = {}
        self.cancelled = CancelledMessages(self, self._open_cancelled)
        self.shared_delays = SharedDelays(self, self._open_delayed_index)
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.delays_refused = 0
        """Number of entries rejected because their delay was too long."""
        self.last_used = time.monotonic()
        self.is_closing = False
        self.is_settling = False
        self._settled: asyncio.Event | None = None
        """Made by the first `settle`, and set when that is done."""
        self._opening = SubscriptionOpening(self)
        self._dedup: TopicDeduplication | None = None
        self._trim: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- life

    async def open(self, *, create: bool, properties: Mapping[str, str] | None = None) -> None:
        """Load everything. `properties`: of a topic that is created.

        Raises `NoSuchNodeError`, or what storage raises.
        """
        await self.policies.load()
        self._apply_policies()
        await self.ledger.open(create=create, properties=properties)
        self.journal = self.ledger.journal = self.journaling.begin()
        epoch = self.ledger.properties.get(TOPIC_EPOCH_PROPERTY)
        if epoch is not None:
            self.producers = TopicProducers(str(self.name), int(epoch), self._store_topic_epoch)
        nodes = await self.services.metadata.children(self.path)
        found = list(map(name_of_node, nodes))
        if CANCELLED_CURSOR in found:  # before the subscriptions: they ack what is cancelled
            await self.cancelled.load()
        await self.shared_delays.load(exists=DELAYED_INDEX_CURSOR in found)
        names = [name for name in found if name not in HIDDEN_CURSORS]
        await self._opening.stored(names)
        if self._deduplicates:
            await self._open_dedup(exists=DEDUP_CURSOR in found)

    def configure(self) -> None:
        """Apply changed settings and policies."""
        self.ledger.limits = _rollover_limits(self.services)
        self._apply_policies()
        self.cancelled.configure(self.services.settings.persistence)
        self.shared_delays.configure(self.services.settings.persistence)
        self.journaling.configure()
        for subscription in self.subscriptions.values():
            subscription.configure()

    def _apply_policies(self) -> None:
        self.delayed_delivery = self.policies.delayed_delivery(self.services.settings.delayed)
        self.message_bytes_max = self.policies.value(MAX_MESSAGE_BYTES, 0)

    @property
    def properties(self) -> dict[str, str]:
        """The properties that users have set."""
        return _users(self.ledger.properties)

    async def change_properties(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace the users' properties, durably. `change` may be called more than once.

        Raises what `change` raises, `OwnershipError`, `MetadataStoreError`, `NodeTooLargeError`.
        """

        def changed(present: Mapping[str, str]) -> dict[str, str]:
            users = _users(present)
            own = {key: value for key, value in present.items() if key not in users}
            return {**change(users), **own}

        await self.ledger.change_properties(changed)

    @property
    def partition(self) -> int:
        """Index of this partition, -1 for a topic that is not a partition."""
        return self.name.partition_index

    @property
    def is_deduplicated(self) -> bool:
        """Whether producers' sequence ids are checked."""
        return self._dedup is not None

    @property
    def _deduplicates(self) -> bool:
        """`brokerDeduplicationEnabled` as it applies to this topic."""
        return bool(
            self.policies.value(
                DEDUPLICATION, self.services.settings.broker.broker_deduplication_enabled
            )
        )

    @property
    def is_outdated(self) -> bool:
        """Whether it has to be loaded again for what `configure` cannot apply: de-duplication."""
        return self._deduplicates is not self.is_deduplicated

    @property
    def is_idle(self) -> bool:
        """Whether there is no producer, no consumer, and nothing was ever written."""
        return not self.is_used and self.ledger.ledgers.total_entries == 0

    @property
    def is_used(self) -> bool:
        """Whether a producer or consumer is connected."""
        return len(self.producers) > 0 or any(s.consumers for s in self.subscriptions.values())

    def is_deletable(self, mode: str) -> bool:
        """Whether it counts as inactive under `brokerDeleteInactiveTopicsMode`."""
        if self.is_used or self.is_closing:
            return False
        if mode == "delete_when_no_subscriptions":
            return not self.subscriptions
        return all(s.cursor.backlog_entries == 0 for s in self.subscriptions.values())

    @property
    def pauses_on_ack_state(self) -> bool:
        """`dispatcherPauseOnAckStatePersistentEnabled` as it applies to this topic."""
        return bool(
            self.policies.value(
                PAUSE_ON_ACK_STATE,
                self.services.settings.dispatcher.dispatcher_pause_on_ack_state_persistent_enabled,
            )
        )

    async def close(self) -> None:
        """Persist what is dirty, close the ledgers, disconnect all clients."""
        try:
            await self.settle()
        finally:
            self.send_away()

    async def settle(self) -> None:
        """Take no more work, confirm what is in flight, persist what is dirty.

        Clients stay connected: they would be back before another broker could serve them. A second call
        waits for the first.
        """
        if self._settled is not None:
            await self._settled.wait()
            return
        settled = self._settled = asyncio.Event()
        self.is_closing = self.is_settling = True
        try:
            await self._settle()
        finally:
            settled.set()

    async def _settle(self) -> None:
        closing = [s.close() for s in self.subscriptions.values()]
        closing.append(self.cancelled.close())
        closing.append(self.shared_delays.close())
        if self._dedup is not None:
            closing.append(self._dedup.close())
        failures = await asyncio.gather(*closing, return_exceptions=True)
        if self._trim is not None:
            await self._trim
        await self.ledger.close()
        await self.journaling.close()
        for failure in failures:
            if failure is not None:
                raise failure

    def send_away(self, urls: Urls = NOWHERE) -> None:
        """Disconnect all clients. They reconnect to `urls`, or look up again."""
        self.producers.disconnect_all(urls)
        for subscription in list(self.subscriptions.values()):  # readers' end with their consumers
            subscription.disconnect_consumers(urls)

    def abandon(self, error: OwnershipError) -> None:
        """Drop the topic at once, and write no more: it may have another owner."""
        self.is_closing = True
        for subscription in self.subscriptions.values():
            subscription.abandon(error)
        self.cancelled.abandon(error)
        self.shared_delays.abandon(error)
        if self._dedup is not None:
            self._dedup.abandon(error)
        self.ledger.abandon(error)
        self.journaling.abandon()
        self.send_away()

    def begin_deleting(self, *, force: bool) -> None:
        """Take no more clients. Raises `CallerError` if the topic is used, unforced."""
        if self.is_used and not force:
            raise CallerError(f"topic {self.name} has connected producers or consumers")
        self.is_closing = True
        self.producers.disconnect_all()

    async def delete(self) -> None:
        """Remove the topic with its subscriptions, after `begin_deleting`."""
        for subscription in list(self.subscriptions.values()):
            await subscription.delete()
        await self.cancelled.delete()
        await self.shared_delays.delete()
        if self._dedup is not None:
            await self._dedup.delete()
        await self.journaling.remove()
        await self.ledger.delete()

    async def terminate(self) -> Position:
        """Take no more messages, for good. Returns the last position."""
        last = await self.ledger.terminate()
        self.producers.disconnect_all()
        for subscription in self.subscriptions.values():
            subscription.report_end_if_reached()
        return last

    # ---------------------------------------------------------------- publishing

    async def add_producer(self, session: SessionPort, request: ProducerRequest) -> Producer:
        """Attach a producer.

        Raises `ProducerBusyError`, `ProducerFencedError`, `ProducerBlockedError`,
        `TopicTerminatedError`.
        """
        self.check_open()
        if self.services.disk_space.refusal is not None:
            raise ProducerBlockedError(str(self.services.disk_space.refusal))
        if self.ledger.is_terminated:
            raise TopicTerminatedError(f"topic {self.name} was terminated")
        if request.initial_subscription:
            await self.subscription(request.initial_subscription, InitialPosition.EARLIEST)
            self.check_open()
        most = self.policies.value(
            MAX_PRODUCERS, self.services.settings.broker.max_producers_per_topic
        )
        if most and len(self.producers) >= most:
            raise ProducerBusyError(f"Topic '{self.name}' reached max producers limit")
        name = request.name or self.services.next_producer_name()
        producer = Producer(self, session, request, name)
        if self._dedup is not None:
            producer.last_sequence_id = self._dedup.ids.last_sequence_id(name)
        await self.producers.add(producer)
        self.last_used = time.monotonic()
        return producer

    def publish(self, producer: Producer, sent: SentEntry) -> None:
        """Store one entry of a producer."""
        sequence_id, highest_sequence_id, message_count, entry, metadata, deliver_at_ms = sent
        if producer.is_closed or not producer.is_ready or self.is_closing:
            return  # the client is being disconnected, and sends again what it has no receipt for
        if 0 < self.message_bytes_max < len(entry) and metadata.num_chunks_from_msg <= 1:
            producer.session.send_error(
                *(producer.producer_id, sequence_id, ServerError.NOT_ALLOWED),
                "Exceed maximum message size",
            )
            return
        self.messages_in += message_count
        self.bytes_in += len(entry)
        ids = None
        if self._dedup is not None:
            ids = sequence_ids(sequence_id, highest_sequence_id, entry, metadata)
        if self._dedup is not None and ids is not None:
            match self._dedup.ids.check(producer.name, ids):
                case Verdict.DUPLICATE:
                    producer.session.send_receipts(
                        producer.producer_id,
                        [(sequence_id, highest_sequence_id, NO_POSITION, NO_POSITION)],
                    )
                    return
                case Verdict.UNKNOWN:
                    producer.session.send_error(
                        producer.producer_id,
                        sequence_id,
                        ServerError.UNKNOWN,
                        f"the outcome of sequence id {sequence_id} is not known yet",
                    )
                    return
                case Verdict.PARTLY:
                    rest = self._dedup.ids.without_durable(producer.name, ids, entry, metadata)
                    entry, message_count = rest or (entry, message_count)
                case Verdict.NEW:
                    pass
        publish_time_ms, key = UNKNOWN_TIME, ""
        if self.journal is not None:
            publish_time_ms, key = time_of_entry(metadata), key_of_entry(metadata)
        received_at = producer.session.received_at
        context = _Publish(
            producer, sequence_id, highest_sequence_id, received_at, publish_time_ms, key, ids
        )
        if (tracing := self.services.tracing) is not None:
            span = tracing.publishing(self.name, entry, metadata, producer.name, received_at)
            if span is not None:
                context = _TracedPublish(*context)
                context.span = span
        self.ledger.add(entry, message_count, context, deliver_at_ms)

    def on_confirmed(self, entries: list[Entry], contexts: list[Any]) -> None:
        """Confirm entries that became durable, and offer them to the subscriptions."""
        receipts: list[tuple[int, int, int, int]] = []
        current: Producer | None = None
        latency, now = self.services.latencies.publish, perf_counter()
        since, count = now, 0
        for entry, (producer, sequence_id, highest_sequence_id, received_at, *_) in zip(
            entries, contexts, strict=True
        ):
            if received_at != since:  # these came in another chunk
                latency.observe(now - since, count)
                since, count = received_at, 0
            count += 1
            if producer is not current:
                if current is not None:
                    current.session.send_receipts(current.producer_id, receipts)
                current, receipts = producer, []
            receipts.append((sequence_id, highest_sequence_id, *entry.position))
        latency.observe(now - since, count)
        if current is not None:
            current.session.send_receipts(current.producer_id, receipts)
        if (tracing := self.services.tracing) is not None:
            for entry, context in zip(entries, contexts, strict=True):
                if isinstance(context, _TracedPublish):
                    tracing.published(context.span, self.name, entry.position)
        if self.journal is not None and entries:
            self.journal.note_published(entries, contexts)
        if self._dedup is not None:
            self._dedup.confirmed(entries, contexts)
        self.shared_delays.published(entries)
        self.services.waits.came(self.ledger)

    def on_failed(self, contexts: list[Any], error: AckGateError) -> None:
        """Send errors to the producers of entries that will not be stored.

        Sends none if the topic has another owner: the producers will send those entries again
        there.
        """
        if (tracing := self.services.tracing) is not None:
            for context in contexts:
                if isinstance(context, _TracedPublish):
                    tracing.failed(context.span, error)
        code = server_error(error)
        for producer, sequence_id, *_ in contexts:
            if self._dedup is not None:
                self._dedup.ids.failed(producer.name)
            if not isinstance(error, OwnershipError):
                producer.session.send_error(producer.producer_id, sequence_id, code, str(error))
        if not self.is_closing:
            # Entries that they sent after the failed ones must not be stored first: they would be
            # out of order, and de-duplication would then take the failed ones for stored.
            self.producers.disconnect_all()

    def on_returned(self, entry_count: int) -> None:
        """Handle entries that were reported as failed and are stored after all."""
        if self._dedup is not None:
            # Messages sent again since then would be stored twice. A new load of the topic finds them.
            self.load_again(f"{entry_count} failed entries are stored")

    def load_again(self, why: str) -> None:
        """Drop the topic here, without a write: the next request loads it from storage."""
        if not self.is_closing:
            log.warning("topic %s: %s: loading it again", self.name, why)
            self.services.forget_topic(self)

    def on_trimmed(self, ledger_ids: Sequence[int]) -> None:
        """Make the cursors forget ledgers that were deleted."""
        if self.journal is not None:
            self.journal.note_ledgers_trimmed(ledger_ids)
        for ledger_id in ledger_ids:
            self.cancelled.ledger_trimmed(ledger_id)
            self.shared_delays.ledger_trimmed(ledger_id)
            for subscription in self.subscriptions.values():
                subscription.ledger_trimmed(ledger_id)

    def on_fenced(self, error: AckGateError) -> None:
        """Another broker owns the topic now: drop it here."""
        log.warning("topic %s: ownership lost: %s", self.name, error)
        self.services.forget_topic(self)

    async def _store_topic_epoch(self, epoch: int) -> None:
        await self.ledger.change_properties(
            lambda present: {**present, TOPIC_EPOCH_PROPERTY: str(epoch)}
        )

    async def _open_dedup(self, *, exists: bool) -> None:
        create_at = None if exists else self.ledger.ledgers.first_position
        store = await self.open_store(DEDUP_CURSOR, create_at=create_at)
        dedup = TopicDeduplication(self.ledger, store, self.services.settings.broker)
        await dedup.load()
        self._dedup = dedup

    # ---------------------------------------------------------------- subscriptions

    async def subscribe(self, session: SessionPort, request: SubscribeRequest) -> Consumer:
        """Attach a consumer, creating its subscription if need be. Raises `BrokerError`."""
        self.check_open()
        self._opening.check_consumer_limits(request)
        self.last_used = time.monotonic()
        if request.is_durable:
            subscription = await self.subscription(
                request.subscription,
                request.initial_position,
                properties=request.subscription_properties,
            )
        else:
            subscription = await self._opening.of_reader(request)
        try:
            self.check_open()
            self._opening.check_consumer_limits(request)  # others may have come meanwhile
            return subscription.add_consumer(session, request)
        except BaseException:
            subscription.end_if_unread()
            raise

    async def subscription(
        self,
        name: str,
        initial: InitialPosition | Position,
        *,
        properties: Mapping[str, str] | None = None,
        by_client: bool = True,
    ) -> SubscriptionDriver:
        return await self._opening.durable(
            name, initial, properties=properties, by_client=by_client
        )

    async def _open_cancelled(self, create_at: Position | None) -> CursorStore:
        settings = settings_of_cancelled(self.services.settings.persistence)
        return await self.open_store(CANCELLED_CURSOR, create_at=create_at, settings=settings)

    async def _open_delayed_index(self, create_at: Position | None) -> CursorStore:
        return await self.open_store(DELAYED_INDEX_CURSOR, create_at=create_at)

    async def open_store(
        self,
        name: str,
        *,
        create_at: Position | None,
        properties: Mapping[str, str] | None = None,
        settings: PersistenceSettings | None = None,
    ) -> CursorStore:
        """The store of a cursor, hidden or not.

        `create_at`: the mark-delete of a new one, None: it must be there. `settings`: others than the
        broker's. Raises `OwnershipError` if the topic has another owner, who may have listed the cursors
        before this one was there.
        """
        store = await CursorStore.open(
            path=cursor_path(self.path, name),
            ledgers=self.ledger.ledgers,
            ledger_client=self.services.ledger_client,
            metadata=self.services.metadata,
            settings=settings or self.services.settings.persistence,
            batch_index_acks=self.services.settings.cursor.acknowledgment_at_batch_index_level_enabled,
            owner_epoch=self.ledger.owner_epoch,
            clock_ms=self.services.clock_ms,
            create_at=create_at,
            cursor_properties=properties,
        )
        if create_at is not None and not self.is_closing:
            try:
                await self.ledger.confirm_owner()
            except (AckGateError, asyncio.CancelledError) as error:
                why = f"whether topic {self.name} is still owned is unknown: {error}"
                store.abandon(error if isinstance(error, OwnershipError) else OwnershipError(why))
                if isinstance(error, OwnershipError):
                    self.on_fenced(error)
                raise
        return store

    def remove_subscription(self, subscription: SubscriptionDriver) -> None:
        """Remove a subscription that was deleted, or whose last reader left."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            if self.journal is not None:
                self.journal.note_unsubscribed(subscription.name)
        self.trim_soon()

    def check_open(self) -> None:
        """Raise `ServiceNotReadyError` if the topic is being closed."""
        if self.is_closing:
            raise ServiceNotReadyError(f"topic {self.name} is being closed")

    # ---------------------------------------------------------------- upkeep

    def on_persisted(self, subscription: SubscriptionDriver) -> None:
        """A subscription's state became durable: trim ledgers before it."""
        ledgers = self.ledger.ledgers.ledger_ids
        if len(ledgers) > 1 and subscription.persisted_mark_delete.ledger_id > ledgers[0]:
            self.trim_soon()

    def trim_soon(self) -> None:
        """Start trimming consumed ledgers, unless that is under way or there is none to trim."""
        if self._trim is None and not self.is_closing and len(self.ledger.ledgers.ledger_ids) > 1:
            self._trim = asyncio.get_running_loop().create_task(self._run_trim())

    async def _run_trim(self) -> None:
        broker = self.services.settings.broker
        try:
            consumed = self.consumed_through()
            await self.ledger.trim(
                consumed,
                self.policies.retention(
                    broker.default_retention_time_in_minutes, broker.default_retention_size_in_mb
                ),
            )
        except AckGateError as error:
            log.warning("topic %s: not trimmed: %s", self.name, error)
        finally:
            self._trim = None

    async def until_trimmed(self) -> None:
        """Wait until no ledger is being deleted.

        A cursor that then moves back finds its messages.
        """
        while self._trim is not None:
            await asyncio.wait([self._trim])

    def consumed_through(self) -> Position:
        """The last position that all durable subscriptions have durably acked.

        Without any, the end. One that is being created has acked nothing after its beginning.
        """
        marks = [s.persisted_mark_delete for s in self.subscriptions.values() if s.is_durable]
        if self._dedup is not None:
            marks.append(self._dedup.persisted_mark_delete)
        marks += self._opening.beginnings.values()
        return min(marks, default=self.ledger.ledgers.last_confirmed)

    async def flush_cursors(self) -> None:
        await asyncio.gather(
            *(s.flush() for s in self.subscriptions.values()), return_exceptions=True
        )

    async def expire_messages(self) -> None:
        """For every subscription, ack the messages that are older than the time to live."""
        ttl_seconds = self.policies.value(
            MESSAGE_TTL_SECONDS, self.services.settings.broker.ttl_duration_default_in_seconds
        )
        if ttl_seconds > 0:
            for subscription in list(self.subscriptions.values()):
                try:
                    await subscription.expire_older_than(ttl_seconds)
                except AckGateError as error:  # the others' messages are as old
                    log.warning(
                        "topic %s: nothing expires for %s: %s", self.name, subscription.name, error
                    )

    async def keep_ledgers(self) -> None:
        """Roll over the current ledger if it is time; delete ledgers that need not be kept."""
        await self.ledger.roll_if_due()
        self.trim_soon()
        await self.journaling.trim()


def _users(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if not key.startswith(OWN_PREFIX)}


def _rollover_limits(services: SharedServices) -> RolloverLimits:
    broker = services.settings.broker
    return RolloverLimits(
        broker.managed_ledger_max_entries_per_ledger,
        broker.managed_ledger_max_size_per_ledger_mbytes * 1024 * 1024,
        broker.managed_ledger_min_ledger_rollover_time_minutes * 60_000,
        broker.managed_ledger_max_ledger_rollover_time_minutes * 60_000,
    )


# ---- Dropping the indexes of all subscriptions of a topic at once, a shared one included
#
# One after the other would not do where the index is shared: what one subscription still holds
# stays in it.


async def clear_delayed(topic: Topic) -> None:
    """Drop the indexes of all subscriptions and the shared one; reads rebuild them.

    Raises as `SubscriptionDriver.clear_delayed`.
    """
    subscriptions = [each for each in topic.subscriptions.values() if each.is_durable]
    async with AsyncExitStack() as pauses:
        for subscription in subscriptions:
            await pauses.enter_async_context(subscription.paused())
        for subscription in subscriptions:
            subscription.drop_delayed()
    for subscription in subscriptions:
        await subscription.tracking.until_cleared()
    await topic.shared_delays.until_cleared()
