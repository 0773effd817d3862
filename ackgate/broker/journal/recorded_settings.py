"""Which settings the delivery journal tells, and as what they hold for one topic.

Pure. They are those that decide what is dispatched, when, and what of a cursor is kept: enough to do
the same again (the pipeline's job ``what-if``). Policies of the topic and its namespace are laid over
the settings that they are policies for. None of them is a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.config.field import key_of
from ackgate.config.settings import ROOMS
from ackgate.persistence.delivery_details import (
    Configured,
    MessageLedger,
    Opened,
    TopicPolicies,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.broker.topic import Topic

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
"""By their names in broker.conf."""


def settings_of(topic: Topic) -> dict[str, str]:
    """As they hold for the topic now, as texts of a broker.conf."""
    delayed = topic.delayed_delivery
    return {
        **{key: text for key, text in topic.parts.settings.texts().items() if key in KEYS},
        "dispatcherPauseOnAckStatePersistentEnabled": str(topic.pauses_on_ack_state).lower(),
        "delayedDeliveryEnabled": str(delayed.is_active).lower(),
        "delayedDeliveryTickTimeMillis": str(delayed.tick_ms),
        "delayedDeliveryMaxDelayInMillis": str(delayed.max_delay_ms),
    }


def policies_of(topic: Topic) -> TopicPolicies:
    """What holds for the topic and is no setting."""
    backoff = topic.policies.redelivery_backoff()
    return TopicPolicies(None if backoff is None else backoff.to_json())


def opened(topic: Topic, settings: Mapping[str, str]) -> Opened:
    """The topic as it was opened."""
    entry_counts = topic.ledger.facts.entry_counts
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


def configured(topic: Topic, before: Mapping[str, str], after: Mapping[str, str]) -> Configured:
    """What has changed."""
    changed = {key: text for key, text in after.items() if before.get(key) != text}
    return Configured(changed, policies_of(topic))
