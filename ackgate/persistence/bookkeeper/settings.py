"""Bounds and paces of the client of a BookKeeper cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ackgate.errors import ConfigurationError
from ackgate.persistence.bookkeeper.protocol import FRAME_BYTES_MAX


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

    recovery_step_entries: int = 128
    """Entries that a recovery looks at in one go (recoveryReadBatchSize)."""

    entry_bytes_max: int = FRAME_BYTES_MAX - 1024
    """Largest payload of one entry. The bookies' frame (nettyMaxFrameSizeBytes) must hold it and its
    head."""

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
