"""Which dispatcher a subscription type gets, and what settings say to it and to its gate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from ackgate.broker.wire_types import KeySharedMode, SubscriptionType
from ackgate.dispatcher import pausing
from ackgate.dispatcher.dispatcher import KeySharedMode as DispatcherKeySharedMode
from ackgate.dispatcher.dispatcher import KeySharedPolicy
from ackgate.dispatcher.key_shared import KeySharedDispatcher
from ackgate.dispatcher.limits import DispatchLimits
from ackgate.dispatcher.shared import SharedDispatcher
from ackgate.dispatcher.single_active import SingleActiveDispatcher
from ackgate.dispatcher.trackers.delayed import DelaySettings

if TYPE_CHECKING:
    from ackgate.broker.topic import Topic
    from ackgate.broker.wire_types import SubscribeRequest
    from ackgate.config.dispatcher import DispatcherSettings
    from ackgate.dispatcher.dispatcher import Dispatcher
    from ackgate.dispatcher.gate import GateSettings

PAUSING_TYPES = frozenset({SubscriptionType.SHARED, SubscriptionType.KEY_SHARED})
"""Exclusive and Failover subscriptions never pause, as in Pulsar."""

HOLDING_TYPES = PAUSING_TYPES
"""Exclusive and Failover subscriptions deliver delayed messages at once, as in Pulsar."""

DUE_WAITING_MAX: Final = {SubscriptionType.SHARED: 1_000, SubscriptionType.KEY_SHARED: 25_000}
"""With so many entries waiting for replay no more are taken that have fallen due. On Key_Shared up
to 20,000 may wait for their keys alone, which must not stop the others."""


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
    is_pausing = topic.pauses_on_ack_state and subscription_type in PAUSING_TYPES
    return pausing.gate_settings(topic.parts.settings, is_pausing=is_pausing)


def delay_settings(topic: Topic) -> DelaySettings:
    """How exact delivery times are on this topic."""
    settings = topic.parts.settings.delayed
    return DelaySettings(
        tick_ms=topic.delayed_delivery.tick_ms,
        is_strict=settings.is_delayed_delivery_deliver_at_time_strict,
        fixed_delay_lookahead=settings.delayed_delivery_fixed_delay_detection_lookahead,
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
