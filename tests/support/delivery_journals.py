"""The delivery journals of a data directory, read without Spark: for tests and benchmarks.

Edge: opens the directory read-only, whether or not a broker runs on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import NoSuchLedgerError
from ackgate.persistence.deliveries.events import decode_events
from ackgate.persistence.deliveries.node import decode_journal_node
from ackgate.persistence.offline_storage import opened_storage, storage_places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from ackgate.persistence.deliveries.columns import DeliveryEvent, EventColumns
    from ackgate.persistence.ports import LedgerClient, MetadataStore


class StoredBlock(NamedTuple):
    """A block of events, and what it takes."""

    block: EventColumns
    size_bytes: int


async def read_stored_blocks(data_directory: Path, journal_path: str) -> list[StoredBlock]:
    """All blocks of a journal in the order of their events, each once; empty: there is none."""
    async with opened_storage(storage_places(data_directory=data_directory)) as storage:
        return await blocks_of(
            storage.client, storage.metadata, journal_path, password=storage.places.password
        )


async def blocks_of(
    client: LedgerClient, metadata: MetadataStore, journal_path: str, *, password: bytes = b""
) -> list[StoredBlock]:
    """As `read_stored_blocks`, of stores that are open."""
    blocks: dict[tuple[int, int], StoredBlock] = {}
    stored = await metadata.get(journal_path)
    if stored is None:
        return []
    node = decode_journal_node(stored.value, path=journal_path)
    for ledger in node.ledgers:
        async for payload in _entries(client, ledger.ledger_id, password):
            block = decode_events(payload)
            place = block.owner_epoch, block.first_sequence
            blocks[place] = StoredBlock(block, len(payload))
    return [blocks[place] for place in sorted(blocks)]


def events_of(blocks: Iterable[StoredBlock]) -> list[DeliveryEvent]:
    """The events of blocks, one by one."""
    return [event for each in blocks for event in each.block.rows()]


async def read_events(data_directory: Path, journal_path: str) -> list[DeliveryEvent]:
    """All events of a journal."""
    return events_of(await read_stored_blocks(data_directory, journal_path))


async def _entries(client: LedgerClient, ledger_id: int, password: bytes) -> AsyncIterator[bytes]:
    try:
        reader = await client.open_without_recovery(ledger_id, password=password)
    except NoSuchLedgerError:
        return
    last_entry_id = await reader.last_entry_found()
    if last_entry_id >= 0:  # the last one may be stored, and not be known to be
        for entry in await reader.read_unconfirmed(0, last_entry_id):
            yield entry.payload
    await reader.close()
