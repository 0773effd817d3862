"""Authenticates and authorizes the clients of the admin interface.

Edge between HTTP and `ackgate.broker.security`, which decides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.security import (
    CLUSTER_WIDE,
    Original,
    Resource,
    Scope,
    decisions,
    http_credentials,
)
from ackgate.network import LogDamper, and_left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.security import (
        Authentication,
        AuthenticationFailedError,
        Authorization,
        ClientIdentity,
        Need,
        NotAuthorizedError,
    )

log = logging.getLogger(__name__)

CHALLENGE: Final[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer realm="ackgate"'}
"""Header of every answer 401: how to authenticate."""


class Shown(NamedTuple):
    """Credentials of a request. Empty: it has none of that kind."""

    authorization: str = ""
    method: str = ""
    """Pulsar's header ``X-Pulsar-Auth-Method-Name``."""
    original_principal: str = ""
    """Pulsar's header ``X-Original-Principal``."""
    certificate_name: str = ""


class AccessGuard:
    """Finds out who sent a request, and whether it may."""

    def __init__(
        self,
        authentication: Authentication | None,
        authorization: Authorization | None,
        now_seconds: Callable[[], float],
        *,
        asks_for_metrics: bool,
    ) -> None:
        self._authentication = authentication
        self._authorization = authorization
        self._now_seconds = now_seconds
        self._asks_for_metrics = asks_for_metrics
        self._damper = LogDamper()

    async def identify(self, need: Need, shown: Shown) -> ClientIdentity | None:
        """Find out who sent a request. None: this request needs no authentication.

        Raises `AuthenticationFailedError`.
        """
        if self._authentication is None or self._is_open(need):
            return None
        credentials = http_credentials(
            shown.authorization, shown.certificate_name, named_method=shown.method
        )
        return await self._authentication.identify(
            credentials, self._now_seconds(), Original(shown.original_principal)
        )

    async def authorize(self, need: Need, call: Call) -> None:
        """Return if the client may do this.

        Raises `NotAuthorizedError`, or an error for a bad name.
        """
        if self._authorization is None or call.identity is None:
            return
        resource = _resource(need, call)
        await self._authorization.authorize(call.identity, need, resource)
        decisions.debug("%s %s: %s, %s", call.method, call.raw_path, call.identity, resource)

    def note_refusal(self, address: str, method: str, error: NotAuthorizedError) -> None:
        """Log that a request was not authorized. Repeated ones of one host are not all logged."""
        self._note(decisions, address, f"{method} of {address} refused: {error}")

    def note_failure(self, address: str, error: AuthenticationFailedError) -> None:
        """Log that credentials were rejected. Repeated ones of one host are not all logged."""
        self._note(log, address, f"authentication of {address} failed: {error}")

    def _note(self, logger: logging.Logger, address: str, line: str) -> None:
        left_out = self._damper.admit((logger.name, address), self._now_seconds())
        level = logging.DEBUG if left_out is None else logging.INFO
        more = and_left_out(left_out or 0, of=address)
        logger.log(level, "%s%s", line, more)

    def _is_open(self, need: Need) -> bool:
        return need.is_open or (need.scope is Scope.METRICS and not self._asks_for_metrics)


def _resource(need: Need, call: Call) -> Resource:
    """What the path names. Rejects an invalid name with the same reason as the handler would."""
    match need.scope:
        case Scope.TOPIC:
            has_subscription = "subscription" in call.parameters
            return call.topic_name.resource(call.subscription_name if has_subscription else "")
        case Scope.NAMESPACE:
            return call.namespace_name.resource
        case Scope.TENANT:
            return Resource(call.tenant_name)
        case _:
            return CLUSTER_WIDE
