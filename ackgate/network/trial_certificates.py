"""Certificates for trying TLS: an authority, one for a server, and some for clients.

Edge: writes files, each for its owner alone. They are of no use in earnest: the authority's key lies beside
them, so whoever reads the directory can pass for anybody.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import ConfigurationError
from ackgate.extras import named_extras

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import rsa

HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Names and addresses that the server's certificate always has."""

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_KEY_BITS: Final = 2048
_NAME_BYTES_MAX: Final = 64
"""X.509's limit for a common name."""

_EARLIER: Final = dt.timedelta(minutes=5)
"""How far before now validity begins, because clocks differ."""


class KeyPair(NamedTuple):
    """The PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class TrialCertificates(NamedTuple):
    """PEM files of an authority, and of certificates that it has signed for a server and for clients."""

    authority: Path
    """The authority's certificate: what the other side trusts."""
    server: KeyPair
    clients: dict[str, KeyPair]
    """Certificate and key of each client, by common name."""


def make_trial_certificates(
    directory: Path,
    *,
    clients: Sequence[str] = ("client", "admin"),
    hosts: Sequence[str] = (),
    days: int = 365,
    replaces: bool = False,
) -> TrialCertificates:
    """Write ``ca.pem``, ``server.pem``, ``client-NAME.pem`` and the keys (``*.key.pem``).

    `hosts`: further names and addresses of the server. `replaces`: whether files that are there are
    overwritten. Raises `ConfigurationError`, `MissingExtraError`.
    """
    wrong = [
        name
        for name in clients
        if not name or "/" in name or name.startswith(".") or len(name.encode()) > _NAME_BYTES_MAX
    ]
    if wrong:
        raise ConfigurationError(
            f"{wrong[0]!r} cannot be a client's name: it becomes a file's, and may have "
            f"{_NAME_BYTES_MAX} bytes"
        )
    try:
        directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        if not replaces and any(directory.glob("*.pem")):
            raise ConfigurationError(f"{directory} holds PEM files already, which stay as they are")
        with named_extras():
            for host in hosts:
                _general_name(host)  # rejects it before anything is written
            maker = _Maker(directory, days)
            return TrialCertificates(
                maker.authority_file,
                maker.sign("server", "localhost", hosts=(*HOSTS, *hosts)),
                {name: maker.sign(f"client-{name}", name) for name in clients},
            )
    except OSError as error:
        raise ConfigurationError(f"{directory}: cannot be written: {error.strerror}") from error


class _Maker:
    """Makes an authority, then certificates that it signs."""

    def __init__(self, directory: Path, days: int) -> None:
        self._directory = directory
        now = dt.datetime.now(dt.UTC)
        try:
            self._valid = (now - _EARLIER, now + dt.timedelta(days=days))
        except OverflowError:
            raise ConfigurationError(f"{days} days from now no calendar has a date") from None
        self._key, self._certificate = self._new_authority()
        self.authority_file = self._write("ca", self._key, self._certificate).certificate

    def _new_authority(self) -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
        from cryptography import x509  # noqa: PLC0415 - of an extra
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

        key = _new_key()
        name = _name("ackgate test authority")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return key, certificate

    def sign(self, file_name: str, common_name: str, hosts: Sequence[str] = ()) -> KeyPair:
        """Write a certificate and its key: for a client, or with `hosts` for a server."""
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

        key = _new_key()
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        # A broker is also a client of other brokers.
        usages = [
            ExtendedKeyUsageOID.CLIENT_AUTH,
            *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []),
        ]
        builder = (
            self._builder(_name(common_name), self._certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(authority, critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return self._write(file_name, key, builder.sign(self._key, hashes.SHA256()))

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey
    ) -> x509.CertificateBuilder:
        from cryptography import x509  # noqa: PLC0415

        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._valid[0])
            .not_valid_after(self._valid[1])
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )

    def _write(
        self, file_name: str, key: rsa.RSAPrivateKey, certificate: x509.Certificate
    ) -> KeyPair:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pair = KeyPair(
            self._directory / f"{file_name}.pem", self._directory / f"{file_name}.key.pem"
        )
        _write_file(pair.key, encoded)
        _write_file(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def _new_key() -> rsa.RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    return rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)


def _name(common_name: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ackgate test certificates"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigurationError(
            f"{host!r} cannot be a host's name in a certificate: write it in ASCII"
        ) from None


def _write_file(path: Path, content: bytes) -> None:
    """Write atomically: a broker that reads meanwhile sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.new")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(file, "wb") as writer:
        writer.write(content)
    beside.replace(path)
