"""Policies of a topic; of a partitioned one they hold for all partitions.

Edge. With ``applied=true`` what holds is told, from whichever level it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.call import NOTHING, json_reply
from ackgate.broker.admin.policy_level import PolicyLevel
from ackgate.broker.admin.refusals import RefusedError, topic_not_found
from ackgate.broker.admin.router import Route
from ackgate.broker.policies import (
    DELAYED_DELIVERY,
    MESSAGE_TTL_SECONDS,
    PAUSE_ON_ACK_STATE,
    REDELIVERY_BACKOFF,
    RETENTION_MB,
    RETENTION_MINUTES,
    EffectivePolicies,
    topic_policy_path,
)

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply


async def _level(call: Call) -> PolicyLevel:
    name = call.topic_name
    if not await call.partitions() and not await call.broker.registry.exists(name):
        raise topic_not_found(name)
    return PolicyLevel(call.broker.parts.policies, topic_policy_path(name))


async def _effective(call: Call) -> EffectivePolicies:
    await _level(call)
    policies = EffectivePolicies(call.broker.parts.policies, call.topic_name)
    await policies.load()
    return policies


async def get_pause(call: Call) -> Reply:
    """``dispatcherPauseOnAckStatePersistent``."""
    if call.is_asked("applied"):
        dispatcher = call.broker.parts.settings.dispatcher
        return json_reply(
            (await _effective(call)).value(
                PAUSE_ON_ACK_STATE, dispatcher.dispatcher_pause_on_ack_state_persistent_enabled
            )
        )
    return await (await _level(call)).get_pause()


async def set_pause(call: Call) -> Reply:
    """``dispatcherPauseOnAckStatePersistent``."""
    return await (await _level(call)).set_pause(call)


async def clear_pause(call: Call) -> Reply:
    """``dispatcherPauseOnAckStatePersistent``."""
    return await (await _level(call)).clear(PAUSE_ON_ACK_STATE)


async def get_retention(call: Call) -> Reply:
    """``retention``."""
    if call.is_asked("applied"):
        policies, broker = await _effective(call), call.broker.parts.settings.broker
        return json_reply(
            {
                RETENTION_MINUTES: policies.value(
                    RETENTION_MINUTES, broker.default_retention_time_in_minutes
                ),
                RETENTION_MB: policies.value(RETENTION_MB, broker.default_retention_size_in_mb),
            }
        )
    return await (await _level(call)).get_retention()


async def set_retention(call: Call) -> Reply:
    """``retention``."""
    return await (await _level(call)).set_retention(call)


async def clear_retention(call: Call) -> Reply:
    """``retention``."""
    return await (await _level(call)).clear(RETENTION_MINUTES, RETENTION_MB)


async def get_ttl(call: Call) -> Reply:
    """``messageTTL``."""
    if call.is_asked("applied"):
        broker = call.broker.parts.settings.broker
        policies = await _effective(call)
        return json_reply(
            policies.value(MESSAGE_TTL_SECONDS, broker.ttl_duration_default_in_seconds)
        )
    return await (await _level(call)).get_ttl()


async def set_ttl(call: Call) -> Reply:
    """``messageTTL``, seconds in the query."""
    if "messageTTL" not in call.query:
        return await clear_ttl(call)
    seconds = call.integer_asked("messageTTL", 0, least=-(2**63))
    if seconds < 0:
        raise RefusedError(412, "Invalid value for message TTL")
    return await (await _level(call)).set_ttl(seconds)


async def clear_ttl(call: Call) -> Reply:
    """``messageTTL``."""
    return await (await _level(call)).clear(MESSAGE_TTL_SECONDS)


async def get_delayed_delivery(call: Call) -> Reply:
    """``delayedDelivery``."""
    if call.is_asked("applied"):
        holds = (await _effective(call)).delayed_delivery(call.broker.parts.settings.delayed)
        return json_reply(holds.to_json())
    return await (await _level(call)).get_object(DELAYED_DELIVERY)


async def set_delayed_delivery(call: Call) -> Reply:
    """``delayedDelivery``."""
    return await (await _level(call)).set_object(DELAYED_DELIVERY, call)


async def clear_delayed_delivery(call: Call) -> Reply:
    """``delayedDelivery``."""
    return await (await _level(call)).clear(DELAYED_DELIVERY)


async def get_backoff(call: Call) -> Reply:
    """``redeliveryBackoff``."""
    if call.is_asked("applied"):
        holds = (await _effective(call)).redelivery_backoff()
        return NOTHING if holds is None else json_reply(holds.to_json())
    return await (await _level(call)).get_object(REDELIVERY_BACKOFF)


async def set_backoff(call: Call) -> Reply:
    """``redeliveryBackoff``."""
    return await (await _level(call)).set_object(REDELIVERY_BACKOFF, call)


async def clear_backoff(call: Call) -> Reply:
    """``redeliveryBackoff``."""
    return await (await _level(call)).clear(REDELIVERY_BACKOFF)


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_PAUSE: Final = f"{_TOPIC}/dispatcherPauseOnAckStatePersistent"
_RETENTION: Final = f"{_TOPIC}/retention"
_TTL: Final = f"{_TOPIC}/messageTTL"
_DELAYED_DELIVERY: Final = f"{_TOPIC}/delayedDelivery"
_BACKOFF: Final = f"{_TOPIC}/redeliveryBackoff"

ROUTES: Final = (
    Route("GET", _PAUSE, get_pause),
    Route("POST", _PAUSE, set_pause),
    Route("DELETE", _PAUSE, clear_pause),
    Route("GET", _RETENTION, get_retention),
    Route("POST", _RETENTION, set_retention),
    Route("DELETE", _RETENTION, clear_retention),
    Route("GET", _TTL, get_ttl),
    Route("POST", _TTL, set_ttl),
    Route("DELETE", _TTL, clear_ttl),
    Route("GET", _DELAYED_DELIVERY, get_delayed_delivery),
    Route("POST", _DELAYED_DELIVERY, set_delayed_delivery),
    Route("DELETE", _DELAYED_DELIVERY, clear_delayed_delivery),
    Route("GET", _BACKOFF, get_backoff),
    Route("POST", _BACKOFF, set_backoff),
    Route("DELETE", _BACKOFF, clear_backoff),
)
