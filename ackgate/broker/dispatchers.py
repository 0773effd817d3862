"""Which dispatcher a subscription type gets, and what settings say to it and to its gate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from ackgate.broker.wire_types import KeySharedMode, SubscriptionType
from ackgate.dispatcher.dispatcher import KeySharedMode as DispatcherKeySharedMode
from ackgate.dispatcher.dispatcher import KeySharedPolicy
from ackgate.dispatcher.gate import GateSettings
from ackgate.dispatcher.key_shared import KeySharedDispatcher
from ackgate.dispatcher.limits import DispatchLimits
from ackgate.dispatcher.shared import SharedDispatcher
from ackgate.dispatcher.single_active import SingleActiveDispatcher

if TYPE_CHECKING:
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire_types import SubscribeRequest
    from ackgate.config.dispatcher import DispatcherSettings
    from ackgate.dispatcher.dispatcher import Dispatcher

PAUSING_TYPES = frozenset({SubscriptionType.SHARED, SubscriptionType.KEY_SHARED})
"""Exclusive and Failover subscriptions never pause, as in Pulsar."""


def make_dispatcher(topic: Topic, request: SubscribeRequest) -> Dispatcher:
    """The dispatcher for a subscription whose first consumer is this one."""
    limits = dispatch_limits(topic.parts.settings.dispatcher)
    if not request.is_durable:  # as Pulsar: a reader is not held back by what it owes
        limits = replace(limits, unacked_messages_per_consumer_max=0)
    match request.subscription_type:
        case SubscriptionType.SHARED:
            return SharedDispatcher(limits)
        case SubscriptionType.KEY_SHARED:
            return KeySharedDispatcher(limits, key_shared_policy(request))
        case SubscriptionType.EXCLUSIVE | SubscriptionType.FAILOVER:
            return SingleActiveDispatcher(
                limits,
                is_exclusive=request.subscription_type is SubscriptionType.EXCLUSIVE,
                topic=str(topic.name),
                partition_index=topic.name.partition_index if topic.name.is_partition else None,
            )
        case _:
            assert_never(request.subscription_type)


def key_shared_policy(request: SubscribeRequest) -> KeySharedPolicy:
    """What the consumer's KeySharedMeta says, in the dispatcher's words."""
    asked = request.key_shared
    if asked is None:
        return KeySharedPolicy()
    is_sticky = asked.mode is KeySharedMode.STICKY
    return KeySharedPolicy(
        DispatcherKeySharedMode.STICKY if is_sticky else DispatcherKeySharedMode.AUTO_SPLIT,
        asked.allows_out_of_order,
    )


def gate_settings(topic: Topic, subscription_type: SubscriptionType | None) -> GateSettings:
    """The gate of a subscription of this topic."""
    settings = topic.parts.settings
    resume = settings.dispatcher.dispatcher_pause_on_ack_state_resume_ranges
    return GateSettings(
        enabled=topic.pauses_on_ack_state and subscription_type in PAUSING_TYPES,
        ranges_max=settings.persistence.managed_ledger_max_unacked_ranges_to_persist,
        batch_indexes_max=settings.persistence.managed_ledger_max_batch_deleted_index_to_persist,
        resume_ranges=resume or None,
        is_strict=settings.dispatcher.dispatcher_pause_on_ack_state_strict_enabled,
        persist_failure_pause_ms=settings.dispatcher.ack_state_persist_failure_pause_seconds * 1000,
    )


def dispatch_limits(settings: DispatcherSettings) -> DispatchLimits:
    """The bounds of dispatch."""
    return DispatchLimits(
        read_entries_max=settings.dispatcher_max_read_batch_size,
        round_robin_entries_max=settings.dispatcher_max_round_robin_batch_size,
        unacked_messages_per_consumer_max=settings.max_unacked_messages_per_consumer,
        unacked_messages_per_subscription_max=settings.max_unacked_messages_per_subscription,
        hole_closing_redelivery_first=settings.dispatcher_hole_closing_redelivery_first,
        failover_delay_ms=settings.active_consumer_failover_delay_time_millis,
    )
