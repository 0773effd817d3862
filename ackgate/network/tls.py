"""TLS contexts made of PEM files, for ports and for connections to others, and their files read anew.

Edge: reads files. An error is one line that names the setting and the file. A private key that is encrypted
is rejected: nobody is there to type its password.

A port's certificate is renewed while the port is in use::

    handshake --> due for a look? --> files changed? --> a fresh context --> this and later handshakes
                                          |                   `-- cannot be used: a line, the old one stays
                                          `-- no: the one there is

Sessions are not resumed: each connection is a handshake of its own, by the files of now. What the client has
shown in it is a `PeerCertificate`.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
_KEY: Final = re.compile(r"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""All authorities of a system's trust store have 250 kB."""


_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""OpenSSL's long names, and what RFC 2253 calls them; others keep theirs."""

_ESCAPED: Final = frozenset(',+"\\<>;=')


class PemFile(NamedTuple):
    """A PEM file, and the setting that names it."""

    key: str
    path: str
    """Empty if the setting was not given."""

    def __str__(self) -> str:
        return f"{self.key}={self.path}"

    def text(self) -> str:
        """Read the file. Raises `ConfigurationError`."""
        try:
            with Path(self.path).open("rb") as file:
                content = file.read(_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigurationError(f"{self}: cannot be read: {error.strerror}") from error
        if len(content) > _FILE_BYTES_MAX:
            raise ConfigurationError(f"{self}: is larger than {_FILE_BYTES_MAX} bytes")
        return content.decode("latin-1")


_NO_FILE: Final = PemFile("", "")

HANDSHAKE_FAILURES: Final = (
    *("not_tls", "protocol", "cipher", "no_certificate", "certificate_rejected"),
    *("broker_not_trusted", "timeout", "too_many", "gone", "other"),
)
"""All the reasons that the counters know; any other failure counts as `other`."""


class Handshakes:
    """Counts the TLS handshakes of one port."""

    __slots__ = ("failed", "succeeded")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = dict.fromkeys(HANDSHAKE_FAILURES, 0)
        """Failures by reason (`HANDSHAKE_FAILURES`), including handshakes that were cut off."""


class _Seen(NamedTuple):
    """What identifies the content of a file: if any of it differs, the file has changed."""

    changed_ns: int
    size: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS of connections that are made to other servers."""

    trust: PemFile = _NO_FILE
    """Certificates of the authorities that sign the servers'. No path: the system's."""

    certificate: PemFile = _NO_FILE
    """Shown to a server that asks for one. No path: none."""

    key: PemFile = _NO_FILE
    """The private key. No path: it is in the certificate's file."""

    key_password: str = field(default="", repr=False)
    """Empty if the key is not encrypted."""

    verifies_server: bool = True
    """False: any certificate will do, so anybody in between can read and change everything."""

    verifies_host_name: bool = True
    """Whether the certificate must name the host or address that was connected to."""

    protocols: tuple[str, ...] = ()
    """Allowed versions, of ``TLSv1.2`` and ``TLSv1.3``. Empty: both."""

    ciphers: tuple[str, ...] = ()
    """Allowed ciphers, by their OpenSSL or Java names. Empty: OpenSSL's defaults."""

    ciphers_key: str = "ciphers"

    @property
    def files(self) -> tuple[PemFile, ...]:
        """The files that the context is made of."""
        return tuple(each for each in (self.trust, self.certificate, self.key) if each.path)

    def context(self) -> ssl.SSLContext:
        """Read the files and make a context. Raises `ConfigurationError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verifies_server and self.verifies_host_name
        if not self.verifies_server:
            context.verify_mode = ssl.CERT_NONE
        elif self.trust.path:
            _load_trust(context, self.trust)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.certificate.path:
            _load_certificate(context, self.certificate, self.key, self.key_password)
        _restrict(context, self.protocols, self.ciphers, self.ciphers_key)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS of a port that listens."""

    certificate: PemFile
    key: PemFile
    """The private key. No path: it is in the certificate's file."""

    trust: PemFile = _NO_FILE
    """Certificates of the authorities that sign clients'. No path: clients are asked for none."""

    requires_client_certificate: bool = False
    """Reject clients without a certificate. Otherwise one is optional, and verified if shown."""

    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    ciphers_key: str = "ciphers"

    def context(self) -> ssl.SSLContext:
        """Read the files and make a context. Raises `ConfigurationError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= (
            ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        )
        context.num_tickets = 0
        _load_certificate(context, self.certificate, self.key)
        if self.trust.path:
            _load_trust(context, self.trust)
            context.verify_mode = (
                ssl.CERT_REQUIRED if self.requires_client_certificate else ssl.CERT_OPTIONAL
            )
        _restrict(context, self.protocols, self.ciphers, self.ciphers_key)
        return context

    @property
    def files(self) -> tuple[PemFile, ...]:
        """The files that the context is made of."""
        return tuple(each for each in (self.certificate, self.key, self.trust) if each.path)


class ReloadedTls:
    """A TLS context that is made anew when one of its files has changed.

    A port listens with `context`. A client takes `newest` for each connection. Call it on the event
    loop.
    """

    def __init__(
        self,
        tls: ServerTls | ClientTls,
        check_seconds: float,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files. Raises `ConfigurationError`.

        `check_seconds`: the first handshake after so long looks for changed files; 0: each one
        does.
        """
        self._tls = tls
        self._check_seconds = check_seconds
        self._seconds = seconds
        self._seen = self._look()
        self._checked_at = seconds()
        self.context = tls.context()
        """The context for a listening port; each handshake switches to the newest one."""
        self._newest = self.context
        self._certificate = tls.certificate.text() if tls.certificate.path else ""
        """PEM text of the certificate in use; empty if there is none."""
        self._expiry = _Expiry()
        if isinstance(tls, ServerTls):
            self.context.sni_callback = self._choose
        self.reloads = 0
        """How often changed files were put into use."""
        self.failures = 0
        """How often changed files could not be used."""
        self.handshakes = Handshakes()
        """Counts of the port that listens with this context."""

    @property
    def shows_certificate(self) -> bool:
        """Whether a certificate is shown to the other side; clients may have none."""
        return bool(self._certificate)

    @property
    def certificate_expires_at(self) -> float | None:
        """When the certificate in use expires, in seconds since 1970; None if that is not known.

        Looks for changed files, as a handshake does.
        """
        self._look_again()
        return self._expiry.of(self._certificate)

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext
    ) -> None:
        """Give the connection the newest context.

        OpenSSL calls this before it chooses a certificate.
        """
        newest = self.newest()
        if newest is not self.context:
            connection.context = newest

    def newest(self) -> ssl.SSLContext:
        """A context from the current files, which are looked at if it is time.

        If changed files cannot be used, returns the last context that could be made.
        """
        self._look_again()
        return self._newest

    def _look_again(self) -> None:
        now = self._seconds()
        if now - self._checked_at < self._check_seconds:
            return
        self._checked_at = now
        seen = self._look()
        if seen == self._seen:
            return
        try:
            newest = self._tls.context()
            certificate = self._tls.certificate.text() if self._certificate else ""
        except ConfigurationError as error:
            self.failures += 1
            log.error(  # noqa: TRY400 - the trace says nothing more
                "new TLS files cannot be used, the old ones stay in use: %s", error
            )
        else:
            self._newest, self._certificate = newest, certificate
            self.reloads += 1
            log.info("new TLS files are in use: %s", ", ".join(map(str, self._tls.files)))
        self._seen = seen

    def _look(self) -> list[_Seen | None]:
        return [_seen(Path(each.path)) for each in self._tls.files]


class CertificateFile:
    """A certificate that another library loads for its own connections."""

    def __init__(self, file: PemFile) -> None:
        self._file = file
        self._expiry = _Expiry()

    @property
    def certificate_expires_at(self) -> float | None:
        """When the certificate now in the file expires, in seconds since 1970.

        None if the file cannot be read or parsed.
        """
        try:
            return self._expiry.of(self._file.text())
        except ConfigurationError:
            return None


class _Expiry:
    """Parses when a certificate expires, and caches the last answer."""

    def __init__(self) -> None:
        self._text = ""
        self._expires_at: float | None = None

    def of(self, text: str) -> float | None:
        if text != self._text:
            self._text, self._expires_at = text, _expires_at(text)
        return self._expires_at


def _expires_at(text: str) -> float | None:
    try:
        from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415 - large

        # The first is the port's or client's own, the others are those of its authorities.
        return load_pem_x509_certificate(text.encode("latin-1")).not_valid_after_utc.timestamp()
    except (ImportError, ValueError):  # an extra; and stricter than OpenSSL
        return None


EXPIRY_WARNING_SECONDS: Final = 14 * 86_400.0
"""A certificate that expires sooner is worth a warning; the alert rule in ``deploy`` uses the
same."""


def expiry_warning(expires_at: float | None, now_seconds: float) -> str:
    """A warning about a certificate that expires soon or has expired; empty if there is none. Pure.

    Both times are in seconds since 1970.
    """
    if expires_at is None or expires_at - now_seconds >= EXPIRY_WARNING_SECONDS:
        return ""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires_at))
    left = expires_at - now_seconds
    if left <= 0:
        return f"has expired at {when}"
    return f"expires at {when}, in {left / 86_400:.0f} days"


def _seen(path: Path) -> _Seen | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _Seen(status.st_mtime_ns, status.st_size, status.st_ino)


def _load_trust(context: ssl.SSLContext, trust: PemFile) -> None:
    trust.text()  # says what is wrong with a file that cannot be read
    try:
        context.load_verify_locations(trust.path)
    except OSError as error:
        raise ConfigurationError(
            f"{trust}: holds no certificates in PEM form that can be read"
        ) from error


def _load_certificate(
    context: ssl.SSLContext, certificate: PemFile, key: PemFile, key_password: str = ""
) -> None:
    if _CERTIFICATE not in certificate.text():
        raise ConfigurationError(f"{certificate}: holds no certificate in PEM form")
    source = key if key.path else certificate
    if not _KEY.search(source.text()):
        raise ConfigurationError(f"{source}: holds no private key in PEM form")
    asked: list[bool] = []

    def password() -> str:  # else OpenSSL would ask at the terminal
        asked.append(True)
        return key_password

    try:
        context.load_cert_chain(certificate.path, source.path, password)
    except ssl.SSLError as error:
        if asked:
            why = "encrypted with another password" if key_password else "encrypted"
            raise ConfigurationError(f"{source}: the private key is {why}") from error
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                f"{source}: is not the key of the certificate in {certificate}"
            ) from error
        why = error.reason or "damaged"
        raise ConfigurationError(
            f"{certificate} and {source}: cannot be used: {why.lower().replace('_', ' ')}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{certificate}, {source}: {error.strerror}") from error


def _restrict(
    context: ssl.SSLContext, protocols: Sequence[str], ciphers: Sequence[str], ciphers_key: str
) -> None:
    """Allow only these protocols and ciphers. Raises `ConfigurationError`."""
    wanted = set(protocols) or set(_PROTOCOLS)
    older = [cipher for cipher in ciphers if not _is_of_1_3(cipher)]
    if ciphers and not older:
        wanted.discard("TLSv1.2")  # TLS 1.2 would be left without a cipher
    if not wanted:
        raise ConfigurationError(f"{ciphers_key}: none of them is of an allowed TLS protocol")
    context.minimum_version = min(_PROTOCOLS[name] for name in wanted)
    context.maximum_version = max(_PROTOCOLS[name] for name in wanted)
    if older:
        for cipher in older:
            _set_ciphers(context, [cipher], f"{ciphers_key}: {cipher!r} is not known here")
        _set_ciphers(context, older, f"{ciphers_key}: cannot be used")


def _set_ciphers(context: ssl.SSLContext, ciphers: Sequence[str], problem: str) -> None:
    try:
        context.set_ciphers(":".join(map(openssl_name, ciphers)))
    except ssl.SSLError as error:
        raise ConfigurationError(problem) from error


def _is_of_1_3(cipher: str) -> bool:
    return cipher.startswith("TLS_") and "_WITH_" not in cipher


def openssl_name(cipher: str) -> str:
    """OpenSSL's name of a TLS 1.2 cipher.

    `cipher`: as Java calls it, ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``. Others are returned as
    they are.
    """
    if "_WITH_" not in cipher:
        return cipher
    exchange, _, rest = cipher.removeprefix("TLS_").partition("_WITH_")
    name = re.sub(r"AES_(\d+)", r"AES\1", rest).replace("_CBC", "").replace("_", "-")
    if "CHACHA20" in name:
        name = name.removesuffix("-SHA256")
    return name if exchange == "RSA" else f"{exchange.replace('_', '-')}-{name}"


# ---------------------------------------------------------------------------- what a client has shown


class PeerCertificate(NamedTuple):
    """A client's certificate that was verified in the TLS handshake.

    Names are written as in RFC 2253, the most specific part first, as Java's ``X500Principal.getName`` has
    them: ``CN=alice,OU=sales,O=example``.
    """

    subject: str
    """Its distinguished name."""
    common_name: str
    """The most specific CN of the subject; empty: it has none."""


def peer_certificate(transport: asyncio.BaseTransport | None) -> PeerCertificate | None:
    """The verified certificate of the other side. None without TLS or without a certificate.

    The listener asks only for certificates that it verifies, so an unverified one is never
    returned.
    """
    found: Any = transport.get_extra_info("peercert") if transport is not None else None
    if not found:
        return None
    parts = [pair for part in found.get("subject", ()) for pair in part]
    names = [value for name, value in parts if name == "commonName"]
    subject = ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(found.get("subject", ()))
    )
    return PeerCertificate(subject, names[-1] if names else "")


def _escaped(value: str) -> str:
    text = "".join(f"\\{letter}" if letter in _ESCAPED else letter for letter in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if len(value) > 1 and value.endswith(" ") else text
