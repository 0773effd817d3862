"""Damaged records of a cursor, in real files and by single faults: what is kept, and what is told.

Every other kind of damage, after every kind of life, is in tests/property.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from ackgate import EmbeddedStorage, open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import NotEnoughBookiesError
from ackgate.persistence import CursorStore, PersistenceSettings, RecoverySource
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import DeltaRecord
from tests.unit.persistence.store_world import World, state_of
from tests.unit.persistence.test_cursor_store import ack, virtual

ACKS = 30


def ledgers() -> MessageLedgers:
    facts = MessageLedgers()
    facts.open_ledger(7)
    facts.add_entries(7, 1_000)
    return facts


async def opened(storage: EmbeddedStorage) -> CursorStore:
    return await storage.open_cursor("orders", "billing", ledgers(), create_at=Position(7, -1))


async def thirty_acks(directory: Path, settings: PersistenceSettings | None = None) -> Path:
    """A copy of the directory as a kill leaves it after thirty acks, each of them durable."""
    async with open_embedded(directory / "live", settings=settings) as storage:
        store = await opened(storage)
        for entry_id in range(1, 2 * ACKS, 2):
            store.cursor.ack(Position(7, entry_id))
            await until_durable(store)
        await asyncio.to_thread(shutil.copytree, directory / "live", directory / "left")
    return directory / "left"


def flip_a_bit(bookie: Path, record: int) -> None:
    """Of the cursor's record of this number, in the bookie's journal."""
    (path,) = bookie.rglob("journal/*/*.avro")
    data = bytearray(path.read_bytes())
    # An envelope begins with its magic, its format and its kind (1 or 2).
    places = [
        at
        for at in range(len(data) - 4)
        if data[at : at + 2] == b"Ak" and data[at + 2] in {1, 2, 3} and data[at + 3] in {1, 2}
    ]
    assert len(places) == ACKS
    data[places[record] + 20] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("record", "kept", "lost"),
    [
        (0, ACKS, None),
        (3, ACKS - 1, "of cursor ledger 1: version 4"),
        (28, ACKS - 1, "of cursor ledger 1: version 29"),
    ],
)
async def test_a_flipped_bit_loses_one_ack_at_most_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record: int, kept: int, lost: str | None
) -> None:
    left = await thirty_acks(tmp_path)
    flip_a_bit(left / "bookies" / "0", record)
    with caplog.at_level(logging.WARNING):
        async with open_embedded(left) as storage:
            store = await opened(storage)
            assert store.cursor.acked_count == kept
            assert store.cursor.is_acked(Position(7, 2 * record + 1)) is (lost is None)
            assert store.report.lost == lost
            assert store.report.damaged_records == 1
            assert store.report.versions_lost == ACKS - kept
            assert store.report.source is RecoverySource.LEDGER
    assert f"lost: {lost or 'nothing'}; skipped: entry {record}: " in caplog.text
    async with open_embedded(left) as storage:
        store = await opened(storage)
        assert store.cursor.acked_count == kept
        assert (store.report.lost, store.report.damaged_records) == (None, 0)


@pytest.mark.slow
async def test_of_two_copies_the_good_one_is_read(tmp_path: Path) -> None:
    settings = PersistenceSettings(
        managed_ledger_default_ensemble_size=2,
        managed_ledger_default_write_quorum=2,
        managed_ledger_default_ack_quorum=2,
    )
    left = await thirty_acks(tmp_path, settings)
    for record in range(0, ACKS, 2):
        flip_a_bit(left / "bookies" / "0", record)
    for record in range(1, ACKS, 2):
        flip_a_bit(left / "bookies" / "1", record)
    async with open_embedded(left, settings=settings) as storage:
        store = await opened(storage)
        assert store.cursor.acked_count == ACKS
        assert (store.report.lost, store.report.damaged_records) == (None, 0)


# ------------------------------------------------------------------------- descents


async def reset(store: CursorStore, entry: int) -> None:
    store.cursor.reset(Position(3, entry))
    store.notify()
    await store.flush()


@virtual
async def test_a_reset_begins_another_ledger_so_that_the_node_has_it_too() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    await reset(store, 1)
    assert (await world.node()).cursor_ledger_id == 101
    assert store.outcome is not None
    assert store.outcome.is_ledger_begun
    ack(store, 5)
    await store.flush()
    assert not store.outcome.is_ledger_begun
    expected = state_of(store)
    world.stored[101].bad.add(0)
    store = await world.crash_and_reopen(store)
    assert state_of(store) == expected
    assert not store.cursor.is_acked(Position(3, 3))
    assert store.report.lost is None


@virtual
async def test_a_reset_goes_into_the_node_when_no_ledger_can_be_begun() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    world.ledgers.faults.create = NotEnoughBookiesError("none")
    await reset(store, 1)
    assert (await world.node()).cursor_ledger_id is None
    store = await world.crash_and_reopen(store)
    assert not store.cursor.is_acked(Position(3, 3))
    assert store.report.lost is None


@virtual
async def test_a_reset_out_of_touch_with_the_metadata_store_moves_to_its_own_ledger_later() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    world.metadata.suspend()
    await reset(store, 1)
    assert not store.is_dirty, "it is durable in the ledger that is open"
    ack(store, 5)
    await store.flush()
    records = [decode_record(payload) for payload in world.stored[100].entries]
    last = records[-1]
    assert isinstance(last, DeltaRecord)
    assert last.base_snapshot_version == records[-2].stamp.version
    world.metadata.resume()
    await store.flush()
    assert (await world.node()).cursor_ledger_id == 101
    store = await world.crash_and_reopen(store)
    assert not store.cursor.is_acked(Position(3, 3))
    assert store.cursor.is_acked(Position(3, 5))


@virtual
async def test_a_cleared_backlog_is_no_reset() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    store.cursor.clear_backlog()
    store.notify()
    await store.flush()
    assert (await world.node()).cursor_ledger_id == 100


@virtual
async def test_past_damage_the_whole_ledger_is_read() -> None:
    world = World(cursor_recovery_scan_entries_max=4, cursor_deltas_per_snapshot_max=3)
    store = await world.open()
    for entry in range(1, 60, 2):
        ack(store, entry)
        await store.flush()
    entries = world.stored[100].entries
    snapshots = [
        number
        for number, payload in enumerate(entries)
        if not isinstance(decode_record(payload), DeltaRecord)
    ]
    world.stored[100].bad.update(snapshots)
    store = await world.crash_and_reopen(store)
    assert store.cursor.acked_count == 30 - len(snapshots) + 1  # the first one is in the node
    assert store.report.versions_lost == len(snapshots) - 1
    assert store.report.damaged_records == len(snapshots)
