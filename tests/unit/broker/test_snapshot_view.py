"""Snapshots of delayed entries as `ackgate ledgers` tells them."""

from __future__ import annotations

from ackgate.commands.ledgers.entry_view import SNAPSHOT_HEAD, snapshot_json, snapshot_row
from ackgate.persistence import BucketSnapshots, LedgerEntry, PersistenceSettings
from ackgate.persistence.ledger_owner import owner_of
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.unit.persistence.bucket_content import bucket, summary_of

PATH = "/managed-ledgers/public/default/persistent/orders/billing"


async def stored(entries: int, **settings: object) -> tuple[MemoryLedgers, int]:
    storage = MemoryLedgers()
    snapshots = BucketSnapshots(MemoryLedgerClient(storage), PATH, PersistenceSettings(**settings))
    first, last, segments = bucket(entries, segment_entries=entries // 2, seed=1)
    summaries = [summary_of(columns) for columns in segments]
    return storage, (await snapshots.create(first, last, segments, summaries)).snapshot_id


async def test_whose_it_is() -> None:
    storage, snapshot_id = await stored(100)
    owner = owner_of(storage.ledgers[snapshot_id].metadata)
    assert owner.kind == "delayed"
    assert owner.text == "persistent://public/default/orders cursor billing"


async def test_metadata_and_segments() -> None:
    storage, snapshot_id = await stored(100)
    told = [
        snapshot_json(snapshot_id, LedgerEntry(entry_id, payload))
        for entry_id, (payload, _) in enumerate(storage.ledgers[snapshot_id].entries)
    ]
    assert [record["kind"] for record in told] == ["metadata", "segment", "segment"]
    assert [record["delayedEntries"] for record in told] == [100, 50, 50]
    rows = [snapshot_row(record) for record in told]
    assert all(len(row) == len(SNAPSHOT_HEAD) for row in rows)
    assert rows[0][2] == "7:0..7:99, 2 segments"
    assert rows[1][4].startswith("2023-11-14T")


async def test_chunks_and_what_is_damaged() -> None:
    storage, snapshot_id = await stored(
        20_000, cursor_record_chunk_bytes=4096, managed_cursor_info_compression_type="NONE"
    )
    entries = storage.ledgers[snapshot_id].entries
    chunk = snapshot_json(snapshot_id, LedgerEntry(0, entries[0][0]))
    assert chunk["kind"] == "chunk"
    assert snapshot_row(chunk)[2].startswith("1 of ")
    for told in (
        snapshot_json(snapshot_id, LedgerEntry(0, entries[0][0][:-1])),
        snapshot_json(snapshot_id + 1, LedgerEntry(0, entries[0][0])),
    ):
        assert told["kind"] == "damaged"
        assert told["error"] in snapshot_row(told)
