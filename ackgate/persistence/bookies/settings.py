"""Limits of bookies and of their client.

Pure. What a `broker.conf` can say has its default, unit and bounds in `ackgate.config`; the rest is for
tests and tools. Tests need smaller bounds than a broker is allowed, so they are checked here again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.config import defaults
from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Sizes, times and limits of one bookie."""

    journal_bytes_max: int = defaults.BOOKIE_JOURNAL_BYTES_MAX
    """Journal size at which fragment files are brought up to date and a new journal starts. Bounds
    the replay after a crash."""

    write_cache_bytes_max: int = defaults.BOOKIE_WRITE_CACHE_BYTES_MAX
    """Entries held in memory until they are in fragment files; twice that while files are written."""

    open_files_max: int = defaults.BOOKIE_OPEN_FILES_MAX
    """File descriptors for fragment files, those for reading and for writing together."""

    checkpoint_idle_seconds: float | None = 5.0
    """Fragment files are brought up to date when nothing was added for so long.

    None: never by time.
    """

    commit_bytes_max: int = 4 * MEBIBYTE
    """Most that one group commit writes (a single larger batch, and small ones beside it, excepted)."""

    behind_bytes: int = 32 * MEBIBYTE
    """A bookie is behind when more than this waits for its group commits. Then adds are confirmed only
    after its own sync, although the ack quorum could do without it, which slows the writers down."""

    checkpoint_bytes_max: int = 16 * MEBIBYTE
    """Most that is written to fragment files, and copied for that, in one go."""

    block_bytes: int = 32 * 1024
    """Size at which a block of a fragment file is full: the least that a read decodes."""

    timeout_seconds: float | None = defaults.BOOKIE_TIMEOUT_SECONDS
    """A disk that does not answer for so long has failed, until it answers. None: wait forever."""

    def __post_init__(self) -> None:
        for name, least in (
            ("journal_bytes_max", 4096),
            ("write_cache_bytes_max", 4096),
            ("open_files_max", 8),
            ("commit_bytes_max", 4096),
            ("behind_bytes", 4096),
            ("checkpoint_bytes_max", 1),
            ("block_bytes", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name}={getattr(self, name)}: must be at least {least}")
        for name in ("checkpoint_idle_seconds", "timeout_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and seconds <= 0:
                raise ConfigurationError(f"{name}={seconds}: must be above 0")


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Limits of the auditor. Defaults are those of an audit by hand, not a broker's."""

    bytes_per_second: float | None = None
    """Most that it reads and writes. None: as fast as it goes."""

    lost_bookie_delay_seconds: float = 0.0
    """For how long a bookie must have been away before others get what it held."""

    window_bytes: int = 1024 * 1024
    """About as much of a ledger is looked at in one go, and held in memory once."""


@dataclass(frozen=True, slots=True)
class LedgerClientSettings:
    """Quorums, times and limits of the client of ledgers."""

    entry_bytes_max: int = defaults.ENTRY_BYTES_MAX
    """Largest payload of one entry: BookKeeper's frame."""

    in_flight_adds_max: int = defaults.IN_FLIGHT_ADDS_MAX
    """Adds not yet confirmed per handle, above which `has_room` is False."""

    in_flight_bytes_max: int = 64 * MEBIBYTE
    """Their payload bytes, above which it is False, too."""

    batch_bytes_max: int = 32 * 1024
    """Entries of one append are cut into batches of about this size on their way to the bookies."""

    speculative_read_seconds: float | None = defaults.SPECULATIVE_READ_MS / 1000
    """A bookie that does not answer a read for so long is not waited for alone: the next copy is asked
    too. None: it is waited for until it has failed."""

    def __post_init__(self) -> None:
        for name in (
            "entry_bytes_max",
            "in_flight_adds_max",
            "in_flight_bytes_max",
            "batch_bytes_max",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)}: must be at least 1")


def bookie_settings(settings: PersistenceSettings) -> BookieSettings:
    """The limits of each bookie, from a broker's settings."""
    return BookieSettings(
        journal_bytes_max=settings.bookie_journal_bytes_max,
        write_cache_bytes_max=settings.bookie_write_cache_bytes_max,
        open_files_max=settings.bookie_open_files_max,
        timeout_seconds=settings.bookkeeper_client_timeout_in_seconds,
    )


def ledger_client_settings(settings: PersistenceSettings) -> LedgerClientSettings:
    """The limits of the ledger client, from a broker's settings."""
    return LedgerClientSettings(
        entry_bytes_max=settings.max_entry_bytes,
        in_flight_adds_max=settings.ledger_in_flight_adds_max,
        speculative_read_seconds=(
            settings.bookkeeper_client_speculative_read_timeout_in_millis / 1000 or None
        ),
    )


def audit_settings(settings: PersistenceSettings) -> AuditSettings:
    """The limits of the auditor, from a broker's settings."""
    return AuditSettings(
        bytes_per_second=settings.auditor_bytes_per_second,
        lost_bookie_delay_seconds=settings.lost_bookie_recovery_delay,
    )
