"""The policies that a namespace or a topic can have, whichever of the two it is.

Edge. Read and changed at one place of the policy store (a *level*); the routes say which.

=======================================  ======================  ==================================
policy                                   set to                  not set
=======================================  ======================  ==================================
``dispatcherPauseOnAckStatePersistent``  ``true`` by any POST,   ``false`` is told
                                         ``false`` by a POST
                                         with that body (ours)
``retention``                            minutes and megabytes   an empty answer
``messageTTL``                           seconds                 an empty answer
``delayedDelivery``                      an object, whole; none  an empty answer
                                         at all clears it
``redeliveryBackoff`` (ours)             the same                an empty answer
=======================================  ======================  ==================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ackgate.broker.admin.call import DONE, NOTHING, json_reply
from ackgate.broker.admin.refusals import RefusedError
from ackgate.broker.delayed.nack_policy import RedeliveryBackoffPolicy
from ackgate.broker.policies import (
    DELAYED_DELIVERY,
    MESSAGE_TTL_SECONDS,
    PAUSE_ON_ACK_STATE,
    REDELIVERY_BACKOFF,
    RETENTION_MB,
    RETENTION_MINUTES,
)
from ackgate.config.delayed_policy import DelayedDeliveryPolicy
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.admin.call import Call, Reply
    from ackgate.broker.policies import PolicyStore

MINUTES_MAX: Final = 2**31 - 1
_NO_RETENTION: Final = {RETENTION_MINUTES: None, RETENTION_MB: None}


class _Policy(Protocol):
    def to_json(self) -> Mapping[str, Any]: ...


_READERS: Final[Mapping[str, Callable[[object], _Policy]]] = {
    DELAYED_DELIVERY: DelayedDeliveryPolicy.from_json,
    REDELIVERY_BACKOFF: RedeliveryBackoffPolicy.from_json,
}


class PolicyLevel(NamedTuple):
    """One namespace's or one topic's policies."""

    store: PolicyStore
    path: str

    async def get_pause(self) -> Reply:
        """Whether the gate is switched on here."""
        return json_reply((await self.store.load(self.path)).get(PAUSE_ON_ACK_STATE, False))

    async def set_pause(self, call: Call) -> Reply:
        """Switch it on, or with the body ``false`` off, whatever the levels above say."""
        value = call.json()
        if value is not None and type(value) is not bool:
            raise RefusedError(400, "the body must be true, false or nothing")
        await self.store.change(self.path, {PAUSE_ON_ACK_STATE: value is not False})
        return DONE

    async def clear(self, *keys: str) -> Reply:
        """Say nothing here, so that the level above holds."""
        await self.store.change(self.path, dict.fromkeys(keys))
        return DONE

    async def get_retention(self) -> Reply:
        """How long fully acked messages are kept."""
        stored = await self.store.load(self.path)
        if RETENTION_MINUTES not in stored:
            return NOTHING
        return json_reply({key: stored[key] for key in (RETENTION_MINUTES, RETENTION_MB)})

    async def set_retention(self, call: Call) -> Reply:
        """Change that."""
        value = call.json()
        limits = (
            [value.get(key) for key in (RETENTION_MINUTES, RETENTION_MB)]
            if isinstance(value, dict)
            else []
        )
        if len(limits) != 2 or not all(
            type(limit) is int and -1 <= limit <= MINUTES_MAX for limit in limits
        ):
            raise RefusedError(
                400,
                f"expected {RETENTION_MINUTES} and {RETENTION_MB}, integers from -1 (no limit)",
            )
        if (limits[0] == 0) != (limits[1] == 0):
            raise RefusedError(
                400,
                "Invalid retention policy: Setting a single time or size limit to 0 is invalid "
                "when one of the limits has a non-zero value. Use the value of -1 instead of 0 to "
                "ignore a specific limit. To disable retention both limits must be set to 0.",
            )
        await self.store.change(
            self.path, dict(zip((RETENTION_MINUTES, RETENTION_MB), limits, strict=True))
        )
        return DONE

    async def get_ttl(self) -> Reply:
        """After how many seconds a message counts as acked."""
        stored = await self.store.load(self.path)
        if MESSAGE_TTL_SECONDS not in stored:
            return NOTHING
        return json_reply(stored[MESSAGE_TTL_SECONDS])

    async def set_ttl(self, seconds: int | None) -> Reply:
        """Change that; None says nothing here."""
        if seconds is not None and seconds > MINUTES_MAX:
            raise RefusedError(412, f"message TTL is {seconds}, at most {MINUTES_MAX} is possible")
        await self.store.change(self.path, {MESSAGE_TTL_SECONDS: seconds})
        return DONE

    async def get_object(self, key: str) -> Reply:
        """A policy that is an object."""
        stored = await self.store.load(self.path)
        return json_reply(stored[key]) if key in stored else NOTHING

    async def set_object(self, key: str, call: Call) -> Reply:
        """Change it, whole; without a body it is said no more."""
        value = call.json()
        if value is None:
            return await self.clear(key)
        try:
            policy = _READERS[key](value)
        except CallerError as error:
            raise RefusedError(400, str(error)) from None
        await self.store.change(self.path, {key: dict(policy.to_json())})
        return DONE
