"""How a session to a metadata store on other machines is held: times, credentials, TLS.

Pure, but for `SessionOptions.of`, which reads the file of ZooKeeper's own client properties that
`metadataStoreConfigPath` names. Of TLS it takes what a client without Java can do: stores in PEM form. A key
store in that form is one file with the certificate and its key. ::

    zookeeper.client.secure=true
    zookeeper.ssl.trustStore.location=/etc/ackgate/ca.pem
    zookeeper.ssl.keyStore.location=/etc/ackgate/client-and-key.pem
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ackgate.config import defaults
from ackgate.config.properties import parse_properties
from ackgate.errors import ConfigurationError
from ackgate.network import ClientTls, PemFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.config.persistence import PersistenceSettings

_SETTING: Final = "metadataStoreConfigPath"
_PREFIX: Final = "zookeeper."


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Time limits and credentials. Stores on this machine have no use for them."""

    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    """Asked of the server, which may answer with another one."""

    operation_timeout_seconds: float = defaults.METADATA_OPERATION_TIMEOUT_SECONDS
    """How long one call waits, for the connection or for its answer; also the first connection."""

    digest: str | None = field(default=None, repr=False)
    """``user:password`` of ZooKeeper's digest scheme. Never in a message or a log."""

    acl: Literal["open", "creator"] = "open"
    """Who may use the nodes that this session makes: everybody, or only the digest's user."""

    tls: ClientTls | None = None
    """None: in clear. Its files are read anew with each connection."""

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for what cannot be meant."""
        if self.digest is not None:
            user, colon, _ = self.digest.partition(":")
            if not user or not colon:
                raise ConfigurationError("metadataStoreDigest must read user:password")
        elif self.acl == "creator":
            raise ConfigurationError("metadataStoreAcl = creator needs a metadataStoreDigest")

    @classmethod
    def of(cls, settings: PersistenceSettings) -> SessionOptions:
        """What the settings say, and the file that they name. Raises `ConfigurationError`."""
        tls = _zookeeper_tls(settings.metadata_store_config_path)
        if tls is not None:
            tls.context()  # what cannot be read is to be known at the start
        return cls(
            session_timeout_ms=settings.metadata_store_session_timeout_millis,
            operation_timeout_seconds=settings.metadata_store_operation_timeout_seconds,
            digest=settings.metadata_store_digest.get_secret_value() or None,
            acl=settings.metadata_store_acl,
            tls=tls,
        )


def _zookeeper_tls(path: str) -> ClientTls | None:
    """What the file asks for; None: nothing, or no file is named. Raises `ConfigurationError`."""
    if not path:
        return None
    file = PemFile(_SETTING, path)
    found = {each.key: each.value.strip() for each in parse_properties(file.text(), path)}
    if found.get(f"{_PREFIX}client.secure", "").lower() != "true":
        return None
    return ClientTls(
        trust=_store(found, path, "ssl.trustStore"),
        certificate=_store(found, path, "ssl.keyStore"),
        verifies_host_name=found.get(f"{_PREFIX}ssl.hostnameVerification", "").lower() != "false",
        protocols=tuple(
            each.strip()
            for each in found.get(f"{_PREFIX}ssl.enabledProtocols", "").split(",")
            if each.strip() in {"TLSv1.2", "TLSv1.3"}
        ),
        ciphers=tuple(
            each.strip()
            for each in found.get(f"{_PREFIX}ssl.ciphersuites", "").split(",")
            if each.strip()
        ),
        ciphers_key=f"{path}: {_PREFIX}ssl.ciphersuites",
    )


def _store(found: Mapping[str, str], path: str, name: str) -> PemFile:
    key = f"{_PREFIX}{name}"
    location = found.get(f"{key}.location", "")
    kind = found.get(f"{key}.type", "").upper() or (Path(location).suffix[1:].upper())
    if location and kind != "PEM":
        raise ConfigurationError(
            f"{path}: {key}.location={location}: a store of type {kind or 'JKS'}; it must be PEM "
            f"({key}.type=PEM)"
        )
    return PemFile(f"{path}: {key}.location", location)
