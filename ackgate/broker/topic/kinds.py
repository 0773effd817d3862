"""Converts a client's request, and the settings in force, to the types of `ackgate.subscription`.

Pure.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from ackgate.broker.cluster import MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION
from ackgate.broker.wire import SubscriptionType
from ackgate.dispatcher import (
    DispatchLimits,
    Exclusive,
    Failover,
    KeyShared,
    Shared,
    gate_settings,
)
from ackgate.dispatcher.delayed import DelaySettings
from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
from ackgate.subscription import SubscriptionSettings

if TYPE_CHECKING:
    from ackgate.broker.cluster import EffectivePolicies
    from ackgate.broker.topic.services import SharedServices
    from ackgate.broker.wire import SubscribeRequest, TopicName
    from ackgate.config.delayed import DelayedDeliveryPolicy
    from ackgate.dispatcher import SubscriptionKind


SHARED_MAX: Final = 64
"""Distinct settings that subscriptions share. Policies of topics make them differ."""


class TopicRules(Protocol):
    """The settings and policies in force for a topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def services(self) -> SharedServices: ...

    @property
    def policies(self) -> EffectivePolicies: ...

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        """The delayed delivery policy in effect."""

    @property
    def pauses_on_ack_state(self) -> bool:
        """Whether the gates of the topic's subscriptions may shut."""


def kind_of_request(
    topic: TopicRules, request: SubscribeRequest, *, present: SubscriptionKind | None
) -> SubscriptionKind:
    """The kind that a consumer asks for. Key_Shared without a policy takes the `present` kind."""
    match request.subscription_type:
        case SubscriptionType.SHARED:
            return Shared()
        case SubscriptionType.KEY_SHARED:
            asked = request.key_shared
            if asked is None:
                return present if isinstance(present, KeyShared) else KeyShared()
            return KeyShared(asked.mode, asked.allows_out_of_order)
        case SubscriptionType.EXCLUSIVE:
            return Exclusive()
        case SubscriptionType.FAILOVER:
            name = topic.name
            return Failover(str(name), name.partition_index if name.is_partition else None)
        case _:
            assert_never(request.subscription_type)


def subscription_settings(topic: TopicRules, *, is_durable: bool) -> SubscriptionSettings:
    """The settings and policies in force for a subscription of this topic."""
    settings, backoff = topic.services.settings, topic.policies.redelivery_backoff()
    dispatcher, persistence = settings.dispatcher, settings.persistence
    limits = DispatchLimits(
        read_entries_max=dispatcher.dispatcher_max_read_batch_size,
        round_robin_entries_max=dispatcher.dispatcher_max_round_robin_batch_size,
        unacked_messages_per_consumer_max=topic.policies.value(
            MAX_UNACKED_PER_CONSUMER, dispatcher.max_unacked_messages_per_consumer
        ),
        unacked_messages_per_subscription_max=topic.policies.value(
            MAX_UNACKED_PER_SUBSCRIPTION, dispatcher.max_unacked_messages_per_subscription
        ),
        hole_closing_redelivery_first=dispatcher.dispatcher_hole_closing_redelivery_first,
        failover_delay_ms=dispatcher.active_consumer_failover_delay_time_millis,
    )
    if not is_durable:  # as in Pulsar: a reader is not limited by its unacked messages
        limits = replace(limits, unacked_messages_per_consumer_max=0)
    in_force = SubscriptionSettings(
        gate=gate_settings(settings, is_pausing=topic.pauses_on_ack_state),
        limits=limits,
        delays=DelaySettings(
            tick_ms=topic.delayed_delivery.tick_ms,
            is_strict=settings.delayed.is_delayed_delivery_deliver_at_time_strict,
            fixed_delay_lookahead=settings.delayed.delayed_delivery_fixed_delay_detection_lookahead,
        ),
        delays_enabled=topic.delayed_delivery.is_active,
        backoff=None
        if backoff is None
        else MultiplierRedeliveryBackoff(
            backoff.min_delay_ms, backoff.max_delay_ms, backoff.multiplier, backoff.jitter
        ),
        receipts_mean_durable=persistence.ack_receipt_durability != "applied",
        receipt_timeout_ms=int(persistence.ack_receipt_timeout_seconds * 1000),
    )
    return _shared(in_force)


@lru_cache(maxsize=SHARED_MAX)
def _shared(settings: SubscriptionSettings) -> SubscriptionSettings:
    """The first of equal settings, so that thousands of subscriptions share one object."""
    return settings
