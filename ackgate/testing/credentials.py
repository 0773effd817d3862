"""Credentials that only a test knows: tokens and certificates, and the settings of a broker that takes them.

Edge: draws from the system's random source. Tokens' secrets stay in memory, certificates are files::

    tokens = TokenMaker()
    broker = BrokerProcess(directory, settings=tokens.settings).start()
    client = pulsar.Client(
        broker.service_url, authentication=pulsar.AuthenticationToken(tokens.token("billing"))
    )
    admin = BrokerAdmin(broker.admin_url, token=tokens.token("admin"))

    certificates = CertificateMaker(directory)
    broker = BrokerProcess(directory, settings=certificates.settings).start()
    client = pulsar.Client(
        broker.service_url_tls, tls_trust_certs_file_path=str(certificates.authority)
    )
    admin = BrokerAdmin(broker.admin_url_tls, authority=certificates.authority)
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from ackgate.broker.security import new_secret, sign, signing_secret
from ackgate.network import make_trial_certificates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


class TokenMaker:
    """Signs tokens with a secret of its own, and says what makes a broker take them."""

    def __init__(self, secret: bytes | None = None) -> None:
        """`secret`: at least 32 bytes; default: random ones. Raises `ConfigurationError`."""
        self._secret = new_secret("HS256") if secret is None else secret
        self._signing = signing_secret(self._secret, what="the secret of the tests")

    def token(self, role: str, **claims: object) -> str:
        """A token for `role`. `claims`: more members, such as ``exp`` (seconds since 1970)."""
        return sign(self._signing, {"sub": role, **claims})

    @property
    def settings(self) -> dict[str, object]:
        """Keys of broker.conf. Clients without a token of this secret are refused."""
        return {
            "authenticationEnabled": True,
            "authenticationProviders": _PROVIDER,
            "tokenSecretKey": f"data:;base64,{base64.b64encode(self._secret).decode()}",
        }


class CertificateMaker:
    """An authority of its own, with certificates of a server on this machine and of clients."""

    def __init__(self, directory: Path, *, clients: Sequence[str] = ("client", "admin")) -> None:
        """Write PEM files. `clients`: their common names. Raises `ConfigurationError`."""
        made = make_trial_certificates(directory, clients=clients)
        self.authority = made.authority
        """The certificate that clients trust."""
        self.clients: Mapping[str, tuple[Path, Path]] = made.clients
        """By common name: a certificate and its key."""
        self._server = made.server

    @property
    def settings(self) -> dict[str, object]:
        """Keys of broker.conf: TLS ports beside those in clear. A client may show a certificate."""
        return {
            "brokerServicePortTls": 0,
            "webServicePortTls": 0,
            "tlsCertificateFilePath": self._server.certificate,
            "tlsKeyFilePath": self._server.key,
            "tlsTrustCertsFilePath": self.authority,
        }
