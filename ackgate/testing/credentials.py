"""Credentials that only a test knows: tokens, and the settings of a broker that takes them.

Edge: draws a secret from the system's random source. Nothing is written to disk::

    tokens = TokenMaker()
    broker = BrokerProcess(directory, settings=tokens.settings).start()
    client = pulsar.Client(
        broker.service_url, authentication=pulsar.AuthenticationToken(tokens.token("billing"))
    )
    admin = BrokerAdmin(broker.admin_url, token=tokens.token("admin"))
"""

from __future__ import annotations

import base64
from typing import Final

from ackgate.broker.security import new_secret, sign, signing_secret

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
