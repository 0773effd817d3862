"""Limits and credentials of the client of a BookKeeper cluster.

Pure, but for the certificates that `BookieTls.loaded` reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.errors import ConfigurationError
from ackgate.network import ClientTls, PemFile, ReloadedTls
from ackgate.persistence.bookkeeper.protocol import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from ackgate.config.persistence import PersistenceSettings


@dataclass(frozen=True, slots=True)
class BookieTls:
    """TLS to bookies. All files are PEM. Names in brackets are BookKeeper's."""

    trust_file: str | Path | None = None
    """Certificates of the authorities that sign the bookies' (tlsTrustStore). None: the system's."""

    certificate_file: str | Path | None = None
    """This client's certificate, where bookies want one (tlsCertificatePath)."""

    key_file: str | Path | None = None
    """Its key (tlsKeyStore). None: in the same file."""

    key_password: str | None = field(default=None, repr=False)

    verifies_host_name: bool = True
    """Whether the name or address that a bookie is registered with must be in its certificate. The Java
    client does not ask for that by default."""

    reload_seconds: float = 300.0
    """Connections made so long after the last look at the files see whether they have changed. 0: never."""

    def loaded(self) -> ReloadedTls:
        """Read the files. Raises `ConfigurationError`."""

        def pem(name: str, path: str | Path | None) -> PemFile:
            return PemFile(name, "" if path is None else str(path))

        tls = ClientTls(
            trust=pem("trust_file", self.trust_file),
            certificate=pem("certificate_file", self.certificate_file),
            key=pem("key_file", self.key_file),
            key_password=self.key_password or "",
            verifies_host_name=self.verifies_host_name,
        )
        try:
            return ReloadedTls(tls, self.reload_seconds or math.inf)
        except ConfigurationError as error:
            raise ConfigurationError(f"TLS to bookies: {error}") from error


@dataclass(frozen=True, slots=True)
class BookieLogin:
    """A user of the bookies' SASL plugin with DIGEST-MD5 (SASLClientProviderFactory)."""

    user: str
    """Bookies take only names that match their saslJaasClientAllowedIds: ``.*bookkeeper.*``."""

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    """The client's bounds. Names in brackets are BookKeeper's."""

    timeout_seconds: float = 5.0
    """A bookie that owes an answer and gives none for so long has failed (addEntryTimeoutSec,
    readEntryTimeoutSec); also the longest that connecting takes."""

    speculative_read_seconds: float | None = 2.0
    """A bookie that does not answer a read for so long is not waited for alone: the next one is asked,
    too (speculativeReadTimeout). None: it is waited for until it has failed."""

    in_flight_adds_max: int = 50_000
    """Adds not yet confirmed per handle, above which `has_room` is False."""

    in_flight_bytes_max: int = 64 * 1024 * 1024
    """Their payload bytes, above which it is False, too."""

    batch_bytes_max: int = 32 * 1024
    """Entries of one append are cut into batches of about this size on their way to the bookies."""

    reads_at_once: int = 400
    """Single reads of one call under way at a time, where a bookie lacks entries of the range."""

    recovery_step_entries: int = 1_024
    """Entries that a recovery reads and adds again in one go, if they are small (recoveryReadBatchSize)."""

    entry_bytes_max: int = FRAME_BYTES_MAX - 1024
    """Largest payload of one entry. The bookies' frame (nettyMaxFrameSizeBytes) must hold it and its
    head."""

    tls: BookieTls | None = None
    """None: entries go over the network in clear."""

    login: BookieLogin | None = None
    """None: bookies take clients without authentication, or by their certificate alone."""

    def __post_init__(self) -> None:
        for name in (
            "timeout_seconds",
            "in_flight_adds_max",
            "in_flight_bytes_max",
            "batch_bytes_max",
            "reads_at_once",
            "recovery_step_entries",
            "entry_bytes_max",
        ):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}={getattr(self, name)}: must be above 0")


def client_settings(settings: PersistenceSettings) -> BookKeeperSettings:
    """Bounds and credentials of a broker's client, and of the tools."""
    return BookKeeperSettings(
        timeout_seconds=settings.bookkeeper_client_timeout_in_seconds,
        speculative_read_seconds=(
            settings.bookkeeper_client_speculative_read_timeout_in_millis / 1000 or None
        ),
        in_flight_adds_max=settings.ledger_in_flight_adds_max,
        entry_bytes_max=settings.max_entry_bytes,
        tls=_tls_of(settings),
        login=_login_of(settings),
    )


def _tls_of(settings: PersistenceSettings) -> BookieTls | None:
    if not settings.bookkeeper_tls_client_authentication:
        return None
    return BookieTls(
        trust_file=settings.bookkeeper_tls_trust_certs_file_path or None,
        certificate_file=settings.bookkeeper_tls_certificate_file_path or None,
        key_file=settings.bookkeeper_tls_key_file_path or None,
        verifies_host_name=settings.bookkeeper_tls_hostname_verification_enabled,
        reload_seconds=settings.bookkeeper_tls_cert_files_refresh_duration_seconds,
    )


def _login_of(settings: PersistenceSettings) -> BookieLogin | None:
    if not settings.bookkeeper_client_authentication_plugin:
        return None
    parameters = settings.bookkeeper_client_authentication_parameters.get_secret_value()
    user, _, password = parameters.partition(":")
    return BookieLogin(user, password)
