"""How a session to a metadata store on other machines is held. Pure, but for `SessionOptions.of`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ackgate.config import defaults
from ackgate.errors import ConfigurationError
from ackgate.persistence.metadata.zookeeper_config import zookeeper_tls

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.network import ClientTls


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
        tls = zookeeper_tls(settings.metadata_store_config_path)
        if tls is not None:
            tls.context()  # what cannot be read is to be known at the start
        return cls(
            session_timeout_ms=settings.metadata_store_session_timeout_millis,
            operation_timeout_seconds=settings.metadata_store_operation_timeout_seconds,
            digest=settings.metadata_store_digest.get_secret_value() or None,
            acl=settings.metadata_store_acl,
            tls=tls,
        )
