"""A thousand cursors at once: what they need of the metadata store goes out in few commits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ackgate.persistence import MemoryMetadataStore, SqliteMetadataStore
from ackgate.persistence.ledgers.catalog import LedgerCatalog


async def test_ids_asked_for_together_share_their_looks_at_the_node(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db")
    catalog = LedgerCatalog(store)
    before = store.operations
    ids = await asyncio.gather(*(catalog.new_id() for _ in range(500)))
    assert ids == sorted(set(ids))
    assert store.operations - before < 50
    await store.close()


async def test_ids_ascend_across_two_catalogs_of_one_store() -> None:
    store = MemoryMetadataStore()
    first, second = LedgerCatalog(store), LedgerCatalog(store)
    ids = [
        new_id
        for _ in range(20)
        for catalog in (first, second)
        for new_id in await asyncio.gather(*(catalog.new_id() for _ in range(3)))
    ]
    assert ids == sorted(set(ids))


async def test_a_caller_that_gave_up_leaves_its_place_to_nobody() -> None:
    store = MemoryMetadataStore()
    first, second = LedgerCatalog(store), LedgerCatalog(store)
    await first.new_id()
    waiting = [asyncio.ensure_future(first.new_id()) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    newer = await second.new_id()
    assert await first.new_id() > newer
