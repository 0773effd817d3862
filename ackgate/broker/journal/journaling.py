"""The delivery journal of one topic: off, or on from the topic's opening to its end.

Edge: makes the writer and what it writes to. The topic's node gives the owner's epoch; the
journal's own node lies in a tree of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ackgate.broker.cluster import BrokerServices
from ackgate.broker.journal.writer import JournalPace, JournalWriter
from ackgate.config.field import key_of
from ackgate.config.settings import ROOMS
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.deliveries.details import Configured, MessageLedger, Opened, TopicPolicies
from ackgate.persistence.deliveries.journal import DeliveryJournal
from ackgate.persistence.nodes.paths import delivery_journal_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.cluster import EffectivePolicies
    from ackgate.broker.journal.topic_journal import TopicJournal
    from ackgate.broker.journal.writer import JournalStatistics
    from ackgate.broker.wire import TopicName
    from ackgate.config.delayed import DelayedDeliveryPolicy
    from ackgate.persistence.messages.managed_ledger import ManagedLedger


class JournalServices(BrokerServices, Protocol):
    """What a journal needs of its broker."""

    @property
    def journal_pace(self) -> JournalPace:
        """Limits the time that all journals take together."""

    @property
    def clock_us(self) -> Callable[[], int]:
        """The broker's clock, in microseconds since 1970."""


class JournaledTopic(Protocol):
    """What a journal needs of its topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def path(self) -> str: ...

    @property
    def services(self) -> JournalServices: ...

    @property
    def ledger(self) -> ManagedLedger[Any]: ...

    @property
    def policies(self) -> EffectivePolicies: ...

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        """The delayed delivery policy in effect."""

    @property
    def pauses_on_ack_state(self) -> bool:
        """Whether the gates of its subscriptions may shut."""


class TopicJournaling:
    """Decides whether a topic has a journal, and runs it."""

    def __init__(self, topic: JournaledTopic) -> None:
        self._topic = topic
        self._writer: JournalWriter | None = None
        self._settings: dict[str, str] = {}
        self._policies: TopicPolicies | None = None

    @property
    def _path(self) -> str:
        name = self._topic.name
        return delivery_journal_path(name.tenant, name.namespace, name.local_name)

    def begin(self) -> TopicJournal | None:
        """Start once the topic's ledgers are open.

        Returns the journal to note in, or None if it is off.
        """
        topic = self._topic
        services = topic.services
        if not services.settings.journal.delivery_journal_enabled:
            return None
        self._writer = JournalWriter(
            str(topic.name),
            topic.ledger.owner_epoch,
            services.settings.journal,
            services.journal_pace,
            open_journal=self._open,
            clock_us=services.clock_us,
        )
        self._settings, self._policies = settings_of(topic), policies_of(topic)
        self._writer.notes.row(EventKind.OPENED, detail=opened(topic, self._settings))
        return self._writer.notes

    async def _open(self) -> DeliveryJournal:
        topic = self._topic
        services = topic.services
        return await DeliveryJournal.open(
            services.ledger_client,
            services.metadata,
            self._path,
            topic_path=topic.path,
            owner_epoch=topic.ledger.owner_epoch,
            settings=services.settings.persistence,
            journal_settings=services.settings.journal,
            clock_ms=services.clock_ms,
        )

    def configure(self) -> None:
        """Apply changed settings, and note those that differ for this topic."""
        writer = self._writer
        if writer is None:
            return
        writer.configure(self._topic.services.settings.journal)
        before = self._settings, self._policies
        self._settings, self._policies = settings_of(self._topic), policies_of(self._topic)
        if before != (self._settings, self._policies):
            detail = configured(self._topic, before[0], self._settings)
            writer.notes.row(EventKind.CONFIGURED, detail=detail)

    def statistics(self) -> JournalStatistics | None:
        """Statistics of the journal; None if it is off."""
        return None if self._writer is None else self._writer.statistics()

    async def trim(self) -> None:
        """Delete what is older, or larger, than the settings allow. Raises `StorageError`."""
        if self._writer is not None:
            await self._writer.trim()

    async def close(self) -> None:
        """Write waiting notes, within bounds, and close the journal."""
        if self._writer is not None:
            await self._writer.close()

    def abandon(self) -> None:
        """Stop at once, and write no more: the topic may have another owner."""
        if self._writer is not None:
            self._writer.abandon()

    async def remove(self) -> None:
        """Delete the journal of a deleted topic, also one left from earlier.

        Raises `StorageError`.
        """
        if self._writer is not None:
            await self._writer.remove()
        elif await self._topic.services.metadata.get(self._path) is not None:
            await (await self._open()).remove()


# ---- Which settings the delivery journal records, with their values for one topic
#
# They are those that decide what is dispatched, when, and what of a cursor is kept: enough to do
# the same again (the pipeline's job ``what-if``). Policies of the topic and its namespace are laid over
# the settings that they are policies for. None of them is a secret.

WHOLE_ROOMS: Final = ("cursor", "dispatcher", "delayed")

OF_PERSISTENCE: Final = (
    "managed_ledger_max_unacked_ranges_to_persist",
    "managed_ledger_max_batch_deleted_index_to_persist",
    "managed_ledger_max_unacked_ranges_to_persist_in_metadata_store",
    "pending_nacks_max_bytes_to_persist",
    "managed_cursor_info_compression_type",
    "managed_cursor_info_compression_threshold_in_bytes",
    "max_entry_bytes",
    "cursor_record_chunk_bytes",
    "managed_ledger_default_mark_delete_rate_limit",
    "ack_persist_linger_ms",
    "managed_ledger_cursor_position_flush_seconds",
    "ack_receipt_durability",
    "ack_receipt_timeout_seconds",
    "fallback_rate_limit",
    "managed_ledger_cursor_max_entries_per_ledger",
    "managed_ledger_cursor_rollover_time_in_seconds",
    "cursor_deltas_per_snapshot_max",
    "cursor_delta_bytes_per_snapshot_max",
    "cursor_recovery_scan_entries_max",
    "metadata_store_max_node_bytes",
)

KEYS: Final = frozenset(
    (
        *(key_of(name) for room in WHOLE_ROOMS for name in ROOMS[room].model_fields),
        *map(key_of, OF_PERSISTENCE),
    )
)
"""Keys of the settings that the journal records."""


def settings_of(topic: JournaledTopic) -> dict[str, str]:
    """The recorded settings in effect for the topic, as texts of a broker.conf."""
    delayed = topic.delayed_delivery
    return {
        **{key: text for key, text in topic.services.settings.texts().items() if key in KEYS},
        "dispatcherPauseOnAckStatePersistentEnabled": str(topic.pauses_on_ack_state).lower(),
        "delayedDeliveryEnabled": str(delayed.is_active).lower(),
        "delayedDeliveryTickTimeMillis": str(delayed.tick_ms),
        "delayedDeliveryMaxDelayInMillis": str(delayed.max_delay_ms),
    }


def policies_of(topic: JournaledTopic) -> TopicPolicies:
    """The policies in effect for the topic that have no setting."""
    backoff = topic.policies.redelivery_backoff()
    return TopicPolicies(None if backoff is None else backoff.to_json())


def opened(topic: JournaledTopic, settings: Mapping[str, str]) -> Opened:
    """The first event: settings, policies and message ledgers of the topic at its opening."""
    entry_counts = topic.ledger.ledgers.entry_counts
    return Opened(
        dict(settings),
        policies_of(topic),
        tuple(
            MessageLedger(
                record.ledger_id, entry_counts[record.ledger_id], record.entry_count is None
            )
            for record in topic.ledger.ledger_records
        ),
    )


def configured(
    topic: JournaledTopic, before: Mapping[str, str], after: Mapping[str, str]
) -> Configured:
    """An event with the settings that differ, and all policies."""
    changed = {key: text for key, text in after.items() if before.get(key) != text}
    return Configured(changed, policies_of(topic))
