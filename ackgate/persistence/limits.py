"""The settings of persistence, in the form in which its parts take them.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.persistence.envelope import Compression, Packing
from ackgate.persistence.ledgers.settings import (
    AuditSettings,
    BookieSettings,
    LedgerClientSettings,
)

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings


@dataclass(frozen=True, slots=True)
class PersistLimits:
    """The caps of one kind of store."""

    ranges_max: int
    batch_indexes_max: int


def ledger_limits(settings: PersistenceSettings) -> PersistLimits:
    """What a record in a ledger may hold."""
    return PersistLimits(
        settings.managed_ledger_max_unacked_ranges_to_persist,
        settings.managed_ledger_max_batch_deleted_index_to_persist,
    )


def node_limits(settings: PersistenceSettings) -> PersistLimits:
    """What the record in a metadata node may hold, besides having to fit by its bytes."""
    return PersistLimits(
        min(
            settings.managed_ledger_max_unacked_ranges_to_persist_in_metadata_store,
            settings.managed_ledger_max_unacked_ranges_to_persist,
        ),
        settings.managed_ledger_max_batch_deleted_index_to_persist,
    )


def packing(settings: PersistenceSettings) -> Packing:
    """How records are compressed, in ledgers and nodes alike."""
    return Packing(
        Compression[settings.managed_cursor_info_compression_type],
        settings.managed_cursor_info_compression_threshold_in_bytes,
    )


def bookie_settings(settings: PersistenceSettings) -> BookieSettings:
    """The bounds of each bookie."""
    return BookieSettings(
        journal_bytes_max=settings.bookie_journal_bytes_max,
        write_cache_bytes_max=settings.bookie_write_cache_bytes_max,
        open_files_max=settings.bookie_open_files_max,
        timeout_seconds=settings.bookkeeper_client_timeout_in_seconds,
    )


def ledger_client_settings(settings: PersistenceSettings) -> LedgerClientSettings:
    """The bounds of the ledger client."""
    return LedgerClientSettings(
        entry_bytes_max=settings.max_entry_bytes,
        in_flight_adds_max=settings.ledger_in_flight_adds_max,
        speculative_read_seconds=(
            settings.bookkeeper_client_speculative_read_timeout_in_millis / 1000 or None
        ),
    )


def audit_settings(settings: PersistenceSettings) -> AuditSettings:
    """The pace of the auditor."""
    return AuditSettings(
        bytes_per_second=settings.auditor_bytes_per_second,
        lost_bookie_delay_seconds=settings.lost_bookie_recovery_delay,
    )
