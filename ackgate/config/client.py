"""How a command reaches a broker: Pulsar's `client.conf`, by the keys that are used here. Pure.

`load.client_settings` reads them from the file, the environment and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ackgate.errors import ConfigurationError

KEYS = (
    "webServiceUrl",
    "authPlugin",
    "authParams",
    "tlsTrustCertsFilePath",
    "tlsCertificateFilePath",
    "tlsKeyFilePath",
    "tlsAllowInsecureConnection",
    "tlsEnableHostnameVerification",
)
"""Of `client.conf`. Others are of no use to a command, and passed over."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Texts as Pulsar's `client.conf` has them, by key; empty: not given."""

    texts: dict[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, key: str) -> str:
        return self.texts.get(key, "")

    def switch(self, key: str, *, default: bool) -> bool:
        """Raises `ConfigurationError`."""
        text = self[key].lower()
        if text not in {"", "true", "false"}:
            raise ConfigurationError(f"{key}={self[key]} is not allowed; it is true or false")
        return text == "true" if text else default
