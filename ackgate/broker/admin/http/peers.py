"""Asks other brokers over HTTP for what only they can answer.

Edge. Used where one question concerns several brokers: the partitions of a topic, the bundles of a
namespace. A question that concerns one other broker alone is redirected instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import aiohttp

from ackgate.broker.admin.http.call import Reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.cluster import Bundle
    from ackgate.network import ReloadedTls, Urls

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 30.0
ACQUIRE_SECONDS_MAX: Final = 2.0
"""Clients of the bundle wait this long; without an answer they look up for themselves."""

CONNECTIONS_MAX: Final = 64
"""Connections to all brokers together."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""As large as `ackgate stats` accepts: the stats of a topic with very many consumers."""


class Peers:
    """HTTP client for the other brokers' admin interfaces."""

    def __init__(
        self,
        credentials: Callable[[], Mapping[str, str]] = dict,
        tls: Callable[[], ReloadedTls | None] = lambda: None,
    ) -> None:
        """Both arguments are called for each request.

        `credentials`: headers that prove who we are. `tls`: None to connect in clear.
        """
        self._credentials = credentials
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, web: Urls, method: str, path: str, body: bytes = b"") -> Reply:
        """The answer of another broker, whatever its status.

        Raises `RefusedError` (503) without one.
        """
        try:
            tls = self._tls()
        except ConfigurationError as error:
            raise RefusedError(503, f"broker {web.any} cannot be asked by TLS: {error}") from error
        web_url = web.plain if tls is None else web.tls
        if not web_url:
            raise RefusedError(
                503,
                f"broker {web.any} has no webServicePortTls, and brokerClientTlsEnabled wants it"
                if tls is not None
                else f"broker {web.any} is asked only by TLS: brokerClientTlsEnabled",
            )
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX),
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            )
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            headers |= self._credentials()
            async with self._session.request(
                method,
                web_url + path,
                data=body or None,
                headers=headers,
                ssl=True if tls is None else tls.newest(),
            ) as response:
                text = await response.content.read(ANSWER_BYTES_MAX + 1)
                while not response.content.at_eof() and len(text) <= ANSWER_BYTES_MAX:
                    text += await response.content.read(ANSWER_BYTES_MAX + 1 - len(text))
        except ConfigurationError as error:
            log.warning("other brokers cannot be asked: %s", error)
            raise RefusedError(503, "this broker cannot ask the others") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("%s %s%s: %r", method, web_url, path, error)
            raise RefusedError(503, f"broker {web_url} does not answer") from error
        if len(text) > ANSWER_BYTES_MAX:
            raise RefusedError(503, f"broker {web_url} answers more than {ANSWER_BYTES_MAX} bytes")
        return Reply(response.status, text, response.content_type)

    async def acquire(self, web: Urls, bundle: Bundle) -> bool:
        """Ask a broker to acquire a free bundle. Returns whether it did."""
        try:
            async with asyncio.timeout(ACQUIRE_SECONDS_MAX):
                reply = await self.ask(web, "PUT", f"{bundle_path(bundle)}/acquire")
        except (RefusedError, TimeoutError):
            return False
        return reply.status < 300

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def bundle_path(bundle: Bundle) -> str:
    """Path of a bundle in the admin interface."""
    names = (bundle.namespace.tenant, bundle.namespace.namespace, bundle.range_name)
    return "/admin/v2/namespaces/" + "/".join(quote(name, safe="") for name in names)
