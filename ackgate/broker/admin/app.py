"""The admin interface: HTTP in front of the handlers of this package.

Edge, and the only module that knows aiohttp. It reads a request within bounds, finds the handler,
and turns whatever happens into a status and JSON. aiohttp's own router is not used: it decodes a
path before it is cut (`router.Router` cuts first).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl

from aiohttp import HttpVersion11, web

from ackgate.broker.admin import (
    brokers,
    bundles,
    delayed,
    messages,
    metrics,
    namespaces,
    page,
    permissions,
    policies,
    schemas,
    stats,
    subscriptions,
    topics,
)
from ackgate.broker.admin.http.access import CHALLENGE, AccessGuard, Shown
from ackgate.broker.admin.http.browsers import BrowserGuard, RequestHeaders
from ackgate.broker.admin.http.call import AUTHORITATIVE, Call, Reply, json_reply
from ackgate.broker.admin.http.refusals import RefusedError, status_of
from ackgate.broker.admin.http.router import Router
from ackgate.broker.security import AuthenticationFailedError, NotAuthorizedError, need_of_path
from ackgate.broker.wire import NotOwnedError
from ackgate.errors import AckGateError
from ackgate.network import LogDamper, and_left_out, listen, peer_certificate

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from aiohttp.web_protocol import RequestHandler

    from ackgate.broker.admin.http.call import AdminBroker
    from ackgate.network import Listener, ReloadedTls

log = logging.getLogger(__name__)

BODY_SECONDS_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 256
"""Connections at a time; tools and scrapers need a handful."""

SHUTDOWN_SECONDS: Final = 1.0
"""How long requests under way may take when the broker stops."""

QUERY_FIELDS_MAX: Final = 32

STREAMS_MAX: Final = 32
"""Streams of events at a time; each open view of the page has one."""

STREAMS_PER_CLIENT_MAX: Final = 8
"""Streams of one role, or of one address if clients do not authenticate."""

EVENT_SECONDS_MAX: Final = 10.0
"""How long a client may take to read one event."""

SECTIONS: Final = {
    "The page": page.ROUTES,
    "Brokers": brokers.ROUTES,
    "Bundles and lookups": bundles.ROUTES,
    "Metrics": metrics.ROUTES,
    "Tenants and namespaces": namespaces.ROUTES,
    "Rights": permissions.ROUTES,
    "Topics and schemas": (*topics.ROUTES, *schemas.ROUTES),
    "Partitioned topics": topics.PARTITION_ROUTES,
    "Statistics": stats.ROUTES,
    "Messages": messages.ROUTES,
    "Subscriptions": subscriptions.ROUTES,
    "Moving cursors": subscriptions.CURSOR_ROUTES,
    "Delayed messages": delayed.ROUTES,
    "Policies": policies.ROUTES,
}
"""All routes, as the reference page shows them. Literal pieces come before parameters."""

ROUTER: Final = Router(route for routes in SECTIONS.values() for route in routes)


class AdminServer:
    """The admin interface on one or more ports. Make it with `serve_http`."""

    def __init__(
        self,
        make_runner: Callable[[str], web.ServerRunner],
        handshake_seconds: Callable[[], float],
        streams: _Streams,
    ) -> None:
        self._make_runner = make_runner
        self._runners: dict[str, web.ServerRunner] = {}
        """By the name of a listener: a runner does not know which of its ports a request came
        by."""
        self._handshake_seconds = handshake_seconds
        self._streams = streams
        self._listeners: list[Listener] = []

    async def listen(
        self,
        host: str,
        port: int,
        tls: ReloadedTls | None = None,
        sockets: Sequence[socket.socket] = (),
        listener_name: str = "",
    ) -> int:
        """Listen on one more port, and return its number. Raises `OSError`.

        `sockets`, which listen already, are used instead of host and port. `listener_name`: clients
        that connect here get the addresses of this listener, unless they name another one.
        """
        runner = self._runners.get(listener_name)
        if runner is None:
            runner = self._runners[listener_name] = self._make_runner(listener_name)
            await runner.setup()
        server = runner.server
        assert server is not None
        listener = await listen(
            host,
            port,
            server,
            tls=tls,
            handshake_seconds=self._handshake_seconds,
            sockets=sockets,
        )
        self._listeners.append(listener)
        return listener.port

    async def close(self) -> None:
        """Close the ports. Close connections once their requests are answered or take too long."""
        while self._listeners:
            self._listeners.pop().close()
        self._streams.end()
        await asyncio.gather(*(runner.cleanup() for runner in self._runners.values()))


def serve_http(broker: AdminBroker) -> AdminServer:
    """Make the admin interface of a broker. Call `listen` for each port."""
    settings = broker.settings.broker
    guard = BrowserGuard(
        broker.host_names,
        settings.web_service_allowed_hosts,
        settings.web_service_allowed_origins,
    )

    access = AccessGuard(
        broker.authentication,
        broker.authorization,
        time.time,
        asks_for_metrics=broker.settings.security.authenticate_metrics_endpoint,
    )
    streams = _Streams()

    async def handle(listener_name: str, request: web.BaseRequest) -> web.StreamResponse:
        reply = await answer(broker, guard, access, request, listener_name)
        client = reply.client or request.remote or ""
        if reply.events is not None:
            reply = streams.refusal(client, is_role=bool(reply.client)) or reply
        headers = _headers(reply)
        headers += guard.answer_headers(request.headers.get("Origin", "")).items()
        if reply.events is not None:
            return await streams.send(request, client, reply.events, headers)
        return web.Response(status=reply.status, body=reply.body or None, headers=headers)

    def make_runner(listener_name: str) -> web.ServerRunner:
        handler = partial(handle, listener_name)
        return web.ServerRunner(_BoundedServer(handler, streams), shutdown_timeout=SHUTDOWN_SECONDS)

    return AdminServer(
        make_runner, lambda: broker.services.settings.broker.handshake_timeout_seconds, streams
    )


class _Stream(NamedTuple):
    task: asyncio.Task[None]
    client: str
    """A role or an address."""


class _Streams:
    """The event streams that are open."""

    def __init__(self) -> None:
        self._sending: dict[RequestHandler, _Stream] = {}
        """By the connection."""

    def refusal(self, client: str, *, is_role: bool) -> Reply | None:
        """The answer that rejects one more stream of this client; None: it may have one."""
        if sum(each.client == client for each in self._sending.values()) >= STREAMS_PER_CLIENT_MAX:
            whose = "your role" if is_role else "your address"
            reason = (
                f"{STREAMS_PER_CLIENT_MAX} streams of events are open for {whose},"
                " which is its share: close one"
            )
            return json_reply({"reason": reason}, 429)
        if len(self._sending) >= STREAMS_MAX:
            return json_reply({"reason": f"{STREAMS_MAX} streams of events are open"}, 503)
        return None

    async def send(
        self,
        request: web.BaseRequest,
        client: str,
        events: AsyncIterator[bytes],
        headers: list[tuple[str, str]],
    ) -> web.StreamResponse:
        """Send events until they end, the client is gone or too slow, or the broker stops."""
        response = web.StreamResponse(headers=[*headers, ("Cache-Control", "no-store")])
        connection = request.protocol
        task = asyncio.create_task(_send_each(request, response, events))
        self._sending[connection] = _Stream(task, client)  # it counts from here on
        try:
            await asyncio.wait((task,))
        finally:
            del self._sending[connection]
            task.cancel()
        return response

    def end_of(self, connection: RequestHandler) -> None:
        """End the stream of a connection that is lost: aiohttp lets its handler go on."""
        if connection in self._sending:
            self._sending[connection].task.cancel()

    def end(self) -> None:
        for stream in self._sending.values():
            stream.task.cancel()


async def _send_each(
    request: web.BaseRequest, response: web.StreamResponse, events: AsyncIterator[bytes]
) -> None:
    try:
        await response.prepare(request)
        async for event in events:
            async with asyncio.timeout(EVENT_SECONDS_MAX):
                await response.write(event)
        await response.write_eof()
    except (ConnectionError, TimeoutError):
        response.force_close()
    except Exception:
        log.exception("a stream of events failed")
        response.force_close()


def _headers(reply: Reply) -> list[tuple[str, str]]:
    headers = [
        (name, text)
        for name, value in reply.headers.items()
        for text in ((value,) if isinstance(value, str) else value)
    ]
    if reply.body or reply.events is not None:
        headers.append(("Content-Type", reply.content_type))
    if reply.location:
        headers.append(("Location", reply.location))
    return headers


class _BoundedServer(web.Server):
    """Drops the oldest connection if there are too many: some never send a request.

    Ends the stream of a connection that is lost.
    """

    def __init__(
        self, handler: Callable[..., Awaitable[web.StreamResponse]], streams: _Streams
    ) -> None:
        super().__init__(handler, access_log=None, logger=_http_log)
        self._streams = streams

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        connections = self.connections
        if len(connections) > CONNECTIONS_MAX:
            connections[0].force_close()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._streams.end_of(handler)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether to log aiohttp's record as it is. Logs a bad request by itself, in one line.

    aiohttp logs an error with a stack trace for each client that does not speak HTTP.
    """
    if record.exc_info is None:
        return log.isEnabledFor(record.levelno)
    text = " ".join(str(record.exc_info[1]).split())
    if _SPEAKS_TLS in text:
        text = "a client speaks TLS on the port in clear"
    left_out = _damper.admit(text if len(text) < 80 else "other", time.monotonic())
    if len(text) > BAD_REQUEST_CHARACTERS_MAX:
        text = f"{text[:BAD_REQUEST_CHARACTERS_MAX]}..."
    if left_out is not None:
        log.info("bad request: %s%s", text, and_left_out(left_out))
    return False


BAD_REQUEST_CHARACTERS_MAX: Final = 200
"""Longest text of a bad request in the log: aiohttp includes up to 8 KiB that the client sent."""

_SPEAKS_TLS: Final = "HTTPS traffic"
"""Part of aiohttp's error when a client begins a TLS handshake."""
_damper: Final = LogDamper()
_http_log: Final = logging.getLogger(f"{__name__}.http")
_http_log.addFilter(_is_worth_a_line)
_http_log.setLevel(logging.DEBUG)  # some clients that speak no HTTP are shown at this level only


async def answer(
    broker: AdminBroker,
    guard: BrowserGuard,
    access: AccessGuard,
    request: web.BaseRequest,
    listener: str = "",
) -> Reply:
    """Answer a request, whatever happens. `listener`: that of the port it came by."""
    try:
        listener = _only(request, "X-Pulsar-ListenerName") or listener
        headers = _headers_of(request)
        raw_path, _, raw_query = request.raw_path.partition("?")
        guard.check(headers, is_page=raw_path == page.PAGE_PATH and request.method == "GET")
        if request.method == "OPTIONS" and headers.origin:
            return guard.preflight(headers)
        found = ROUTER.find(request.method, raw_path)
        need = need_of_path(request.method, found.template)
        identity = await access.identify(need, _shown(request))
        query = _query(raw_query)
        call = Call(
            broker, found.parameters, query, b"", request.method, raw_path, identity, listener
        )
        await access.authorize(need, call)
        body = await _body(request, found.body_bytes_max)
        if body:
            guard.check_body(headers)
        return await found.handler(replace(call, body=body))
    except NotOwnedError as error:
        web_of_owner = broker.ownership.web_reached_by(error.web, listener)
        return _redirect(error, web_of_owner.like(is_tls=request.secure), request.raw_path)
    except NotAuthorizedError as error:
        access.note_refusal(request.remote or "", request.method, error)
        return json_reply({"reason": str(error)}, status_of(error))
    except AuthenticationFailedError as error:
        access.note_failure(request.remote or "", error)
        return json_reply({"reason": str(error)}, status_of(error))._replace(headers=CHALLENGE)
    except AckGateError as error:
        status = status_of(error)
        if status >= 500:
            log.warning("%s %s: %s", request.method, request.path, error)
        return json_reply({"reason": str(error)}, status)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return json_reply({"reason": "internal error; the broker's log has more"}, 500)


def _headers_of(request: web.BaseRequest) -> RequestHeaders:
    """The headers by which `BrowserGuard` judges where a request comes from."""
    names = ("Host", "Origin", "Sec-Fetch-Site", "Content-Type")
    texts = {name: _only(request, name) for name in names}
    if request.version < HttpVersion11 and not texts["Host"]:
        texts["Host"] = "localhost"  # HTTP/1.0 has no such header; no browser uses that
    return RequestHeaders(*texts.values())


def _only(request: web.BaseRequest, name: str) -> str:
    """The value of a header, or an empty text.

    Raises `RefusedError` if the request has it twice.
    """
    lines = request.headers.getall(name, [])
    if len(lines) > 1:
        raise RefusedError(400, f"there is more than one header {name}")
    return lines[0].strip() if lines else ""


def _shown(request: web.BaseRequest) -> Shown:
    """The credentials that the request shows."""
    certificate = peer_certificate(request.transport)
    return Shown(
        authorization=_only(request, "Authorization"),
        method=_only(request, "X-Pulsar-Auth-Method-Name"),
        original_principal=_only(request, "X-Original-Principal"),
        certificate_name=certificate.common_name if certificate is not None else "",
    )


def _redirect(error: NotOwnedError, address: str, raw_path: str) -> Reply:
    """Redirect to the broker that serves the topic, or that has to take it."""
    location = address + raw_path
    if not error.is_owner and f"{AUTHORITATIVE}=true" not in raw_path:
        location += f"{'&' if '?' in raw_path else '?'}{AUTHORITATIVE}=true"
    return Reply(307, location=location)


def _query(raw_query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw_query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX))
    except ValueError as error:
        raise RefusedError(400, f"the query cannot be read: {error}") from None


async def _body(request: web.BaseRequest, bytes_max: int) -> bytes:
    too_large = RefusedError(413, f"the body is larger than {bytes_max} bytes")
    if (request.content_length or 0) > bytes_max:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > bytes_max:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive in {BODY_SECONDS_MAX:.0f} s") from None
    return bytes(body)
