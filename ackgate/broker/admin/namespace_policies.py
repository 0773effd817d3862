"""Policies of a namespace. Edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.admin.namespaces import check_namespace_exists
from ackgate.broker.admin.policy_level import PolicyLevel
from ackgate.broker.admin.refusals import RefusedError
from ackgate.broker.admin.router import Route
from ackgate.broker.policies import (
    DELAYED_DELIVERY,
    MESSAGE_TTL_SECONDS,
    PAUSE_ON_ACK_STATE,
    REDELIVERY_BACKOFF,
    RETENTION_MB,
    RETENTION_MINUTES,
    namespace_policy_path,
)

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply


async def _level(call: Call) -> PolicyLevel:
    await check_namespace_exists(call)
    return PolicyLevel(call.broker.parts.policies, namespace_policy_path(call.namespace_name))


async def get_pause(call: Call) -> Reply:
    """``dispatcherPauseOnAckStatePersistent``."""
    return await (await _level(call)).get_pause()


async def set_pause(call: Call) -> Reply:
    """``dispatcherPauseOnAckStatePersistent``."""
    return await (await _level(call)).set_pause(call)


async def clear_pause(call: Call) -> Reply:
    """``dispatcherPauseOnAckStatePersistent``."""
    return await (await _level(call)).clear(PAUSE_ON_ACK_STATE)


async def get_retention(call: Call) -> Reply:
    """``retention``."""
    return await (await _level(call)).get_retention()


async def set_retention(call: Call) -> Reply:
    """``retention``."""
    return await (await _level(call)).set_retention(call)


async def clear_retention(call: Call) -> Reply:
    """``retention``."""
    return await (await _level(call)).clear(RETENTION_MINUTES, RETENTION_MB)


async def get_ttl(call: Call) -> Reply:
    """``messageTTL``."""
    return await (await _level(call)).get_ttl()


async def set_ttl(call: Call) -> Reply:
    """``messageTTL``, seconds in the body."""
    seconds = call.json_integer("message TTL")
    if seconds < 0:
        raise RefusedError(412, "Invalid value for message TTL, message TTL must >= 0")
    return await (await _level(call)).set_ttl(seconds)


async def clear_ttl(call: Call) -> Reply:
    """``messageTTL``."""
    return await (await _level(call)).clear(MESSAGE_TTL_SECONDS)


async def get_delayed_delivery(call: Call) -> Reply:
    """``delayedDelivery``."""
    return await (await _level(call)).get_object(DELAYED_DELIVERY)


async def set_delayed_delivery(call: Call) -> Reply:
    """``delayedDelivery``."""
    return await (await _level(call)).set_object(DELAYED_DELIVERY, call)


async def clear_delayed_delivery(call: Call) -> Reply:
    """``delayedDelivery``."""
    return await (await _level(call)).clear(DELAYED_DELIVERY)


async def get_backoff(call: Call) -> Reply:
    """``redeliveryBackoff``."""
    return await (await _level(call)).get_object(REDELIVERY_BACKOFF)


async def set_backoff(call: Call) -> Reply:
    """``redeliveryBackoff``."""
    return await (await _level(call)).set_object(REDELIVERY_BACKOFF, call)


async def clear_backoff(call: Call) -> Reply:
    """``redeliveryBackoff``."""
    return await (await _level(call)).clear(REDELIVERY_BACKOFF)


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_PAUSE: Final = f"{_NAMESPACE}/dispatcherPauseOnAckStatePersistent"
_RETENTION: Final = f"{_NAMESPACE}/retention"
_TTL: Final = f"{_NAMESPACE}/messageTTL"
_DELAYED_DELIVERY: Final = f"{_NAMESPACE}/delayedDelivery"
_BACKOFF: Final = f"{_NAMESPACE}/redeliveryBackoff"

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
