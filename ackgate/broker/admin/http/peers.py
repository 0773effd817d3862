"""Asks other brokers over HTTP for what only they can answer.

Edge. Used where one question concerns several brokers: the partitions of a topic, the bundles of a
namespace. A question that concerns one other broker alone is redirected instead.

A call to all partitions of a topic runs its handler here for those that this broker serves. The owner of any
other gets the same request over HTTP, for that partition alone. Partitions are asked at the same time and
independently: where some refuse, what the others did stays done.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import aiohttp

from ackgate.broker.admin.http.call import AUTHORITATIVE, Reply, json_reply
from ackgate.broker.admin.http.refusals import RefusedError, reason_of, status_of
from ackgate.errors import AckGateError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.admin.http.router import Handler
    from ackgate.broker.cluster import Bundle
    from ackgate.broker.wire import TopicName
    from ackgate.network import ReloadedTls, Urls

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 30.0
ACQUIRE_SECONDS_MAX: Final = 2.0
"""Clients of the bundle wait this long; without an answer they look up for themselves."""

CONNECTIONS_MAX: Final = 64
"""Connections to all brokers together."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""As large as `ackgate stats` accepts: the stats of a topic with very many consumers."""

ASKED_AT_ONCE_MAX: Final = 32
"""Partitions or bundles of one call that are asked at the same time: half of `CONNECTIONS_MAX`, so that a
call for many of them leaves room for others."""

T = TypeVar("T")


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


# ---- the partitions of a topic


async def on_each(
    call: Call, partitions: Iterable[TopicName], handler: Handler, tail: str | None = None
) -> list[Reply]:
    """Call `handler` for all partitions. `tail` replaces the path after the topic's name.

    Raises the first refusal once all have answered.
    """
    replies = await on_each_tried(call, partitions, handler, tail)
    for reply in replies:
        raise_refusal(reply)
    return replies


async def on_partitions(call: Call, handler: Handler) -> bool:
    """Call `handler` for all partitions of the topic in the path. False: it is not partitioned.

    Raises the first refusal once all have answered.
    """
    partitions = await call.partitions()
    await on_each(call, partitions, handler)
    return bool(partitions)


async def on_each_tried(
    call: Call, partitions: Iterable[TopicName], handler: Handler, tail: str | None = None
) -> list[Reply]:
    """As `on_each`, but returns refusals among the replies."""
    return await side_by_side(lambda partition: _on_one(call, partition, handler, tail), partitions)


async def side_by_side(ask: Callable[[T], Awaitable[Reply]], asked: Iterable[T]) -> list[Reply]:
    """Call `ask` for all, a bounded number at the same time. Refusals are among the replies."""
    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask_one(one: T) -> Reply:
        async with gate:
            try:
                return await ask(one)
            except AckGateError as error:
                return json_reply({"reason": str(error)}, status_of(error))

    return list(await asyncio.gather(*map(ask_one, asked)))


def raise_refusal(reply: Reply) -> None:
    """Raise `RefusedError` if the reply is a refusal."""
    if reply.status >= 300:
        raise RefusedError(reply.status, reason_of(reply.body))


async def _on_one(call: Call, partition: TopicName, handler: Handler, tail: str | None) -> Reply:
    location = await call.broker.ownership.locate(partition)
    if location.is_here:
        parameters = {**call.parameters, "topic": partition.local_name}
        return await handler(replace(call, parameters=parameters))
    query: dict[str, Any] = dict(call.query)
    if not location.is_owner:
        query[AUTHORITATIVE] = "true"
    names = (partition.tenant, partition.namespace, partition.local_name)
    path = "/admin/v2/persistent/" + "/".join(quote(name, safe="") for name in names)
    path += call.tail if tail is None else tail
    if query:
        path += f"?{urlencode(query)}"
    return await call.broker.peers.ask(location.web, call.method, path, call.body)
