"""What a connection to a bookie begins with, in wire protocol v3: TLS and authentication.

Edge. A connection may go from v3 to v2, once and for good::

    connect --> START_TLS, the handshake --> AUTH, AUTH --> v2
                     if configured           if configured

The one way of authentication that BookKeeper ships beside certificates is SASL, here with DIGEST-MD5. A
bookie does not answer a login that it refuses. So another request is sent after the login: a bookie that
is not content answers that it is not authorized.

The disk space of a bookie is asked for in v3, too: v2 has no request for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from google.protobuf.message import DecodeError

from ackgate.errors import BookieRefusedError, StorageError
from ackgate.persistence.bookkeeper.proto.wire_v3_pb2 import (
    AuthMessage,
    BKPacketHeader,
    GetBookieInfoRequest,
    OperationType,
    Request,
    Response,
    StartTLSRequest,
    StatusCode,
)
from ackgate.persistence.bookkeeper.protocol import FRAME_BYTES_MAX
from ackgate.persistence.system.futures import fail_quietly, resolve

if TYPE_CHECKING:
    from ackgate.network import ReloadedTls
    from ackgate.persistence.bookkeeper.metadata_format import BookieAddress
    from ackgate.persistence.bookkeeper.settings import BookieLogin

_VERSION: Final = 3
_SASL: Final = "sasl"
_AUTHENTICATION_IS_OFF: Final = "AuthDisabledPlugin"
_DIGEST_URI: Final = "bookkeeper/bookkeeper"
"""Service and host, both fixed: BookKeeper's SASL_MD5_DUMMY_HOSTNAME."""

_TOTAL_AND_FREE: Final = 1 | 2


class BookieDiskSpace(NamedTuple):
    """Disk space of a bookie: the sum of all its ledger directories."""

    total_bytes: int
    free_bytes: int


class Security(NamedTuple):
    """TLS and login that bookies require. None by default."""

    tls: ReloadedTls | None = None
    login: BookieLogin | None = None


class Handshake(asyncio.Protocol):
    """A connection that is still in protocol v3. Make it with `open`."""

    def __init__(self, bookie_id: str, host: str) -> None:
        self._name = f"bookie {bookie_id}"
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._error: StorageError | None = None
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._last_transaction = 0
        self._has_only_shaken_hands = False
        """TLS is there, and the bookie has not answered anything since."""

    @classmethod
    async def open(cls, bookie_id: str, address: BookieAddress, security: Security) -> Handshake:
        """Connect, with TLS and authentication as configured.

        Raises `BookieRefusedError`, and `StorageError` or `OSError` when the connection fails.
        """
        loop = asyncio.get_running_loop()
        _, handshake = await loop.create_connection(
            lambda: cls(bookie_id, address.host), address.host, address.port
        )
        try:
            if security.tls is not None:
                await handshake._start_tls(security.tls.newest())
            if security.login is not None:
                await handshake._log_in(security.login)
        except BaseException:
            handshake.close()
            raise
        return handshake

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Pass the connection on to another protocol. Raises `StorageError` if it has ended."""
        if self._error is not None or self._transport is None:
            raise self._error or StorageError(f"{self._name}: no connection")
        transport, self._transport = self._transport, None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def disk_space(self) -> BookieDiskSpace:
        """Ask for the bookie's disk space. Raises `BookieRefusedError`, `StorageError`."""
        reply = await self._disk_space()
        if reply.status != StatusCode.EOK:
            raise self._refusal(reply, "its disk space")
        found = reply.getBookieInfoResponse
        return BookieDiskSpace(found.totalDiskCapacity, found.freeDiskSpace)

    def _disk_space(self) -> asyncio.Future[Response]:
        asked = GetBookieInfoRequest(requested=_TOTAL_AND_FREE)
        return self._ask(OperationType.GET_BOOKIE_INFO, Request(getBookieInfoRequest=asked))

    # ------------------------------------------------------------------------ TLS and authentication

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        reply = await self._ask(OperationType.START_TLS, Request(startTLSRequest=StartTLSRequest()))
        if reply.status == StatusCode.EBADREQ:
            raise BookieRefusedError(f"{self._name} has no TLS, and this client wants it")
        if reply.status != StatusCode.EOK:
            raise self._refusal(reply, "TLS")
        transport = self._transport
        if transport is None:
            raise self._error or StorageError(f"{self._name}: no connection")
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(transport, self, context, server_hostname=self._host)
        except ssl.SSLError as error:
            raise tls_refusal(self._name, error) from error
        self._transport = secured
        self._has_only_shaken_hands = True

    async def _log_in(self, login: BookieLogin) -> None:
        first = await self._authenticate(b"")
        if first.status == StatusCode.EUA:
            raise BookieRefusedError(f"{self._name} wants another authentication than SASL")
        if first.status != StatusCode.EOK:
            raise self._refusal(first, "authentication")
        if first.authResponse.authPluginName == _AUTHENTICATION_IS_OFF:
            return
        digest = _Digest(login, first.authResponse.payload)
        answered = self._authenticate(digest.response())
        asked_after = self._disk_space()
        await asyncio.wait({answered, asked_after}, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            fail_quietly(answered, StorageError("no answer"))
            await asked_after
            raise BookieRefusedError(f"{self._name} refuses user {login.user!r}, or the password")
        second = await answered
        if second.status != StatusCode.EOK:
            raise BookieRefusedError(f"{self._name} refuses user {login.user!r}, or the password")
        if not digest.is_confirmed_by(second.authResponse.payload):
            raise BookieRefusedError(f"{self._name} does not know the password of {login.user!r}")
        await asked_after

    def _authenticate(self, payload: bytes) -> asyncio.Future[Response]:
        message = AuthMessage(authPluginName=_SASL, payload=payload)
        return self._ask(OperationType.AUTH, Request(authRequest=message))

    def _refusal(self, reply: Response, wanted: str) -> StorageError:
        if reply.status == StatusCode.EUA:
            return BookieRefusedError(f"{self._name} wants clients to authenticate")
        return StorageError(f"{self._name}: {StatusCode.Name(reply.status)} to {wanted}")

    # ------------------------------------------------------------------------------- requests, replies

    def _ask(self, operation: OperationType, request: Request) -> asyncio.Future[Response]:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        if self._error is not None or self._transport is None:
            fail_quietly(future, self._error or StorageError(f"{self._name}: no connection"))
            return future
        self._last_transaction += 1
        self._waiting[self._last_transaction] = future
        request.header.CopyFrom(
            BKPacketHeader(version=_VERSION, operation=operation, txnId=self._last_transaction)
        )
        frame = request.SerializeToString()
        self._transport.write(len(frame).to_bytes(4, "big") + frame)
        return future

    def data_received(self, data: bytes) -> None:
        self._has_only_shaken_hands = False
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big", signed=True)
            if not 0 < size <= FRAME_BYTES_MAX:
                self._fail(not_a_bookie(self._name, f"a frame of {size} bytes"))
                return
            if len(self._received) < 4 + size:
                return
            frame, self._received = self._received[4 : 4 + size], self._received[4 + size :]
            reply = Response()
            try:
                reply.ParseFromString(frame)
            except DecodeError as error:
                self._fail(not_a_bookie(self._name, str(error)))
                return
            future = self._waiting.pop(reply.header.txnId, None)
            if future is not None:
                resolve(future, reply)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(lost_connection(self._name, exc, is_after_tls=self._has_only_shaken_hands))

    def _fail(self, error: StorageError) -> None:
        if self._error is None:
            self._error = error
            for future in self._waiting.values():
                fail_quietly(future, type(error)(*error.args))
            self.close()


def not_a_bookie(name: str, reason: str) -> BookieRefusedError:
    """The error for a server that does not speak BookKeeper's protocol."""
    return BookieRefusedError(f"{name}: not BookKeeper's protocol: {reason}")


def tls_refusal(name: str, error: ssl.SSLError) -> BookieRefusedError:
    """The error for a failed TLS handshake: a certificate, as a rule."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BookieRefusedError(f"{name}: its certificate is refused: {error.verify_message}")
    reason = error.reason or str(error)
    if _CERTIFICATE_ALERT.search(reason):
        return BookieRefusedError(f"{_refused_certificate(name)} ({reason})")
    return BookieRefusedError(f"{name}: TLS: {reason}")


def lost_connection(
    name: str, exc: Exception | None, *, is_after_tls: bool = False
) -> StorageError:
    """The connection ended, by the bookie or by the network.

    `is_after_tls`: before its first answer. By TLS 1.3 a client learns only then that its certificate is
    not taken, and the reason may be lost with the connection.
    """
    if isinstance(exc, ssl.SSLError):
        return tls_refusal(name, exc)
    if is_after_tls:
        return BookieRefusedError(_refused_certificate(name))
    return StorageError(f"{name}: {exc or 'it closed the connection'}")


def _refused_certificate(name: str) -> str:
    return f"{name} ended the connection after the TLS handshake: it may want another certificate"


_CERTIFICATE_ALERT: Final = re.compile(r"ALERT_.*(CERTIFICATE|UNKNOWN_CA)")
"""OpenSSL's names for the alerts by which the other side rejects our certificate."""

_DIRECTIVE: Final = re.compile(rb'([\w-]+)=(?:"((?:[^"\\]|\\.)*)"|([^,\s]*))')


class _Digest:
    """One login by DIGEST-MD5, RFC 2831: the client's side, without protection of what follows."""

    def __init__(self, login: BookieLogin, challenge: bytes) -> None:
        directives = {
            name: re.sub(rb"\\(.)", rb"\1", quoted) or plain
            for name, quoted, plain in _DIRECTIVE.findall(challenge)
        }
        self._realm = directives.get(b"realm", b"")
        self._nonce = directives.get(b"nonce", b"")
        self._user = login.user.encode()
        self._client_nonce = secrets.token_hex(16).encode()
        user, password = _latin(login.user), _latin(login.password)
        first = hashlib.md5(b":".join((user, self._realm, password))).digest()  # noqa: S324  RFC 2831
        self._key = _hex_md5(b":".join((first, self._nonce, self._client_nonce)))

    def response(self) -> bytes:
        """The answer to the bookie's challenge."""
        directives = [
            b"charset=utf-8",
            b"username=" + _quoted(self._user),
            b"realm=" + _quoted(self._realm),
            b"nonce=" + _quoted(self._nonce),
            b"nc=00000001",
            b"cnonce=" + _quoted(self._client_nonce),
            b"digest-uri=" + _quoted(_DIGEST_URI.encode()),
            b"maxbuf=65536",
            b"response=" + self._proof(b"AUTHENTICATE"),
            b"qop=auth",
        ]
        return b",".join(directives)

    def is_confirmed_by(self, answer: bytes) -> bool:
        """Whether the bookie has proven that it knows the password, too."""
        return hmac.compare_digest(answer, b"rspauth=" + self._proof(b""))

    def _proof(self, method: bytes) -> bytes:
        target = _hex_md5(method + b":" + _DIGEST_URI.encode())
        parts = (self._key, self._nonce, b"00000001", self._client_nonce, b"auth", target)
        return _hex_md5(b":".join(parts))


def _latin(text: str) -> bytes:
    """RFC 2831: hashed in ISO 8859-1 where that has all the characters."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _hex_md5(data: bytes) -> bytes:
    return hashlib.md5(data).hexdigest().encode()  # noqa: S324  RFC 2831


def _quoted(value: bytes) -> bytes:
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
