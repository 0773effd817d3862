"""A port that listens, in clear or by TLS.

Edge: owns the listening sockets, and each connection until its TLS handshake is through; from then on the
connection belongs to the protocol that the caller makes for it. In clear it does so from the start::

    accepted --> handshake --> protocol.connection_made(...)
                    |-- not through in time, or the oldest of too many: cut off
                    `-- failed: cut off, and a damped log line with the reason

Bounds of connections that have proved nothing yet: their number, and the time of their handshakes. The loop's
own servers have no bound of the first kind, so connections are accepted here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.network.damper import LogDamper, and_left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.network.tls import ReloadedTls

log = logging.getLogger(__name__)

HANDSHAKES_MAX: Final = 1_000
"""TLS handshakes under way on one port. A new one cuts off the oldest, so that a flood of silent
connections locks a client out only until its next attempt."""

BACKLOG: Final = 1_024
"""Connections that the kernel keeps for us before we accept them: Netty's figure."""

SHUTDOWN_SECONDS: Final = 5.0
"""How long the other side may take to answer the end of TLS."""

OUT_OF_FILES_SECONDS: Final = 1.0
"""How long nothing is accepted when the process has no file left for a connection; as asyncio does."""


class _Why(NamedTuple):
    """Why a handshake failed, for the counters and for the log."""

    reason: str
    """One of `HANDSHAKE_FAILURES`."""
    text: str


_REASONS: Final = {
    "WRONG_VERSION_NUMBER": _Why("not_tls", "it does not speak TLS, which this port wants"),
    "HTTP_REQUEST": _Why("not_tls", "it speaks HTTP in clear, and this port wants TLS"),
    "HTTPS_PROXY_REQUEST": _Why("not_tls", "it speaks HTTP in clear, and this port wants TLS"),
    "PACKET_LENGTH_TOO_LONG": _Why("not_tls", "it does not speak TLS, which this port wants"),
    "UNEXPECTED_MESSAGE": _Why("not_tls", "it does not speak TLS, which this port wants"),
    "RECORD_LAYER_FAILURE": _Why("not_tls", "it does not speak TLS, which this port wants"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": _Why("no_certificate", "it shows no certificate"),
    "UNSUPPORTED_PROTOCOL": _Why(
        "protocol", "it speaks only versions of TLS that are not allowed here"
    ),
    "NO_SHARED_CIPHER": _Why("cipher", "it has none of the ciphers that are allowed here"),
    "TLSV1_ALERT_UNKNOWN_CA": _Why(
        "broker_not_trusted", "it does not trust this broker's certificate"
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": _Why(
        "broker_not_trusted", "it does not accept this broker's certificate"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _Why(
        "broker_not_trusted", "it does not accept this broker's certificate"
    ),
}
"""By OpenSSL's name of the error. All others: see `_why`."""


class Listener:
    """A listening port. Make it with `listen`."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ReloadedTls | None,
        handshake_seconds: Callable[[], float],
    ) -> None:
        self.tls = tls
        self.port = 0
        self._make_protocol = make_protocol
        self._handshake_seconds = handshake_seconds
        self._servers: list[asyncio.Server] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._damper = LogDamper()

    async def open(self, host: str, port: int) -> None:
        """Listen on an address. Raises `OSError`."""
        if self.tls is not None:
            await self.adopt(await listening_sockets(host, port))
            return
        server = await asyncio.get_running_loop().create_server(
            self._make_protocol, host, port, backlog=BACKLOG
        )
        self.port = int(server.sockets[0].getsockname()[1])
        self._servers.append(server)

    async def adopt(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on sockets that listen already, perhaps shared with other processes."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            self.port = self.port or int(listening.getsockname()[1])
            if self.tls is None:
                self._servers.append(
                    await loop.create_server(self._make_protocol, sock=listening, backlog=BACKLOG)
                )
            else:
                self._accepting.append(loop.create_task(self._accept(listening, self.tls)))

    @property
    def failures(self) -> int:
        """Handshakes that failed so far, including those that were cut off."""
        return sum(self.tls.handshakes.failed.values()) if self.tls is not None else 0

    @property
    def handshakes(self) -> int:
        """How many TLS handshakes are under way."""
        return len(self._handshakes)

    def close(self) -> None:
        """Close the port and cut off handshakes; connections stay open. May be called twice."""
        while self._servers:
            self._servers.pop().close()
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        self._accepting.clear()

    async def _accept(self, listening: socket.socket, tls: ReloadedTls) -> None:
        loop = asyncio.get_running_loop()
        with listening:  # closed when the loop has let go of it
            while True:
                try:
                    accepted, address = await loop.sock_accept(listening)
                except OSError as error:
                    log.error("no connection can be accepted: %s", error)  # noqa: TRY400
                    await asyncio.sleep(OUT_OF_FILES_SECONDS)
                else:
                    self._begin(accepted, address, tls)

    def _begin(self, accepted: socket.socket, address: tuple[Any, ...], tls: ReloadedTls) -> None:
        accepted.setblocking(False)  # noqa: FBT003
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._shake_hands(accepted, address, tls))
        self._handshakes[task] = accepted
        task.add_done_callback(self._ended)
        if len(self._handshakes) > HANDSHAKES_MAX:
            oldest, its_socket = next(iter(self._handshakes.items()))
            del self._handshakes[oldest]
            with suppress(OSError):
                why = _Why("too_many", "too many are under way")
                self._failed(its_socket.getpeername(), why, tls)
            oldest.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a bug ended a TLS handshake", exc_info=error)

    async def _shake_hands(self, accepted: socket.socket, address: Any, tls: ReloadedTls) -> None:  # noqa: ANN401
        seconds = self._handshake_seconds()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                accepted,
                ssl=tls.context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:
            self._failed(address, _why(error, seconds), tls)
        except asyncio.CancelledError:
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
            raise
        else:
            tls.handshakes.succeeded += 1

    def _failed(self, address: tuple[Any, ...], found: _Why, tls: ReloadedTls) -> None:
        """Count the failure, and log why. Repeated failures of one host are not all logged."""
        reason, why = found
        tls.handshakes.failed[reason] += 1
        host, port = address[:2]
        left_out = self._damper.admit((host, why), asyncio.get_running_loop().time())
        if left_out is not None:
            more = and_left_out(left_out, of=host)
            log.warning("TLS handshake of %s:%s failed: %s%s", host, port, why, more)


async def listen(
    host: str,
    port: int,
    make_protocol: Callable[[], asyncio.BaseProtocol],
    *,
    tls: ReloadedTls | None = None,
    handshake_seconds: Callable[[], float] = lambda: 10.0,
    sockets: Sequence[socket.socket] = (),
) -> Listener:
    """Listen on a port; 0 lets the system choose one. Raises `OSError`.

    With `tls`, `connection_made` is called after the handshake, for which there are `handshake_seconds`.
    `sockets`, which listen already, are used instead of host and port.
    """
    listener = Listener(make_protocol, tls, handshake_seconds)
    if sockets:
        await listener.adopt(sockets)
    else:
        await listener.open(host, port)
    return listener


def words_of(error: OSError) -> str:
    """Why `listen` failed, in the operating system's words. asyncio's would repeat the address."""
    number = error.errno or 0  # without a number the error is about the host name
    return os.strerror(number) if number > 0 else str(error.strerror or error)


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Open a listening socket for each address of the host, all on one port. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.setblocking(False)  # noqa: FBT003
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind((address[0], port, *address[2:]))
            port = port or int(each.getsockname()[1])
            each.listen(BACKLOG)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _why(error: OSError, seconds: float) -> _Why:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate is not accepted: {error.verify_message}"
        return _Why("certificate_rejected", text)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _REASONS.get(reason) or _Why("other", (reason or "TLS").lower().replace("_", " "))
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return _Why("timeout", f"it did not come to an end within {seconds:g} s")
    return _Why("gone", "the client went away")
