"""The cursor store over real bookies and a real SQLite file: what a crash leaves is there again."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ackgate.cursor import MessageLedgers, Position
from ackgate.persistence import (
    BookieLedgerClient,
    CursorStore,
    PersistenceSettings,
    PersistWhere,
    RecoverySource,
    SqliteMetadataStore,
    find_orphan_cursor_ledgers,
    open_bookies,
    read_cursor,
)
from tests.unit.persistence.store_world import PATH, Heard, state_of

ENTRIES = 200_000


def topic() -> MessageLedgers:
    ledgers = MessageLedgers()
    ledgers.open_ledger(3)
    ledgers.add_entries(3, ENTRIES)
    return ledgers


@contextlib.asynccontextmanager
async def process(
    directory: Path, *, read_only: bool = False
) -> AsyncIterator[tuple[BookieLedgerClient, SqliteMetadataStore]]:
    metadata = await SqliteMetadataStore.open(directory / "metadata.sqlite", read_only=read_only)
    bookies = await open_bookies([directory / "bookie"], is_read_only=read_only)
    client = BookieLedgerClient(bookies, metadata)
    try:
        yield client, metadata
    finally:
        await client.close()
        await metadata.close()


async def opened(
    client: BookieLedgerClient, metadata: SqliteMetadataStore, epoch: int, **settings: object
) -> CursorStore:
    return await CursorStore.open(
        path=PATH,
        ledgers=topic(),
        ledger_client=client,
        metadata=metadata,
        settings=PersistenceSettings.model_validate(settings),
        batch_index_acks=True,
        owner_epoch=epoch,
        clock_ms=lambda: 7,
        create_at=Position(3, -1),
    )


SETTINGS = {
    "ack_persist_linger_ms": 0,
    "managed_ledger_cursor_max_entries_per_ledger": 20,
    "cursor_deltas_per_snapshot_max": 6,
    "cursor_record_chunk_bytes": 4096,
    "managed_ledger_max_unacked_ranges_to_persist": 1_000_000,
}


@pytest.mark.slow
async def test_what_had_its_receipt_is_in_every_image_of_the_disk(tmp_path: Path) -> None:
    """The disk is copied right after a receipt, and each copy opened as after a power cut."""
    seeded = random.Random(20261121)
    entries = seeded.sample(range(ENTRIES), 40_000)
    promised = []
    (tmp_path / "live").mkdir()
    async with process(tmp_path / "live") as (client, metadata):
        store = await opened(client, metadata, 1, **SETTINGS)
        for step in range(60):
            count = seeded.choice([1, 3, 50, 2000])
            for _ in range(min(count, len(entries))):
                store.cursor.ack(Position(3, entries.pop()))
            receipt = Heard()
            store.notify()
            store.when_durable(store.cursor.version, receipt)
            await store.flush()
            assert receipt.is_durable
            if step % 12 == 7:
                image = tmp_path / f"image-{step}"
                shutil.copytree(tmp_path / "live", image)
                promised.append((image, state_of(store)))
        assert store.statistics().ledger_errors == 0
        assert len(await client.ledger_ids()) <= 2
    for image, expected in promised:
        async with process(image, read_only=True) as (client, metadata):
            view = await read_cursor(PATH, ledger_client=client, metadata=metadata)
            assert dict(view.snapshot.acked) == expected[1]
        async with process(image) as (client, metadata):
            candidates = await client.ledger_ids()
            store = await opened(client, metadata, 2, **SETTINGS)
            assert state_of(store) == expected
            assert store.report.source is RecoverySource.LEDGER
            assert store.report.lost is None
            orphans = await find_orphan_cursor_ledgers(client, metadata, candidates)
            assert len(orphans) == len(candidates) - 1
            await store.close()


async def test_beside_a_writer_tools_see_its_last_write(tmp_path: Path) -> None:
    async with process(tmp_path) as (client, metadata):
        store = await opened(client, metadata, 1)
        for entry in range(1, 11, 2):
            store.cursor.ack(Position(3, entry))
            store.notify()
            await store.flush()
            async with process(tmp_path, read_only=True) as (reader, nodes):
                view = await read_cursor(PATH, ledger_client=reader, metadata=nodes)
                assert view.snapshot.version == store.cursor.version
                assert view.lost is None
        await store.close()
        assert store.outcome is not None
        assert store.outcome.where is PersistWhere.METADATA_STORE
        assert await client.ledger_ids() == []
