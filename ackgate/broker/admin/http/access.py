"""Who asks the admin interface, and whether it may.

Edge between HTTP and `ackgate.broker.security`, which decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.security import (
    Original,
    Scope,
    http_credentials,
    need_of_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.security import Authentication, ClientIdentity, Need

CHALLENGE: Final[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer realm="ackgate"'}
"""What every answer 401 says: how to authenticate."""


class Shown(NamedTuple):
    """What a request shows of its client; empty: nothing."""

    authorization: str = ""
    method: str = ""
    """Pulsar's header ``X-Pulsar-Auth-Method-Name``."""
    original_principal: str = ""
    """Pulsar's header ``X-Original-Principal``."""
    certificate: bytes | None = None


class AccessGuard:
    """Decides for each request."""

    def __init__(
        self,
        authentication: Authentication | None,
        now_seconds: Callable[[], float],
        *,
        asks_for_metrics: bool,
    ) -> None:
        self._authentication = authentication
        self._now_seconds = now_seconds
        self._asks_for_metrics = asks_for_metrics

    async def admit(self, method: str, template: str, shown: Shown) -> ClientIdentity | None:
        """Who asks; None: nobody needs to know. Raises `AuthenticationFailedError`."""
        if self._authentication is None or self._is_open(need_of_path(method, template)):
            return None
        credentials = http_credentials(
            shown.authorization, shown.certificate, named_method=shown.method
        )
        return await self._authentication.identify(
            credentials, self._now_seconds(), Original(shown.original_principal)
        )

    def _is_open(self, need: Need) -> bool:
        return need.is_open or (need.scope is Scope.METRICS and not self._asks_for_metrics)
