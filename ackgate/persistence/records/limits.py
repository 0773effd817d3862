"""How much of an ack state one record may hold, and how it is compressed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.persistence.records.envelope import Compression, Packing

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings


class PersistLimits(NamedTuple):
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
