"""One directory, opened by a host without a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ackgate.config.persistence import PersistenceSettings
from ackgate.cursor.message_ledgers import MessageLedgers
from ackgate.cursor.position import Position
from ackgate.errors import (
    CallerError,
    ConfigurationError,
    CursorClosedError,
    DataDirectoryBusyError,
    NoSuchNodeError,
)
from ackgate.persistence.cursor_ledger import CURSOR_PATH_KEY
from ackgate.persistence.cursor_store import CursorStore
from ackgate.persistence.embedded import EmbeddedStorage, open_embedded, until_durable
from ackgate.persistence.outcome import RecoverySource
from ackgate.persistence.ports import LedgerOptions

BEGIN = Position(7, -1)


def ledgers() -> MessageLedgers:
    facts = MessageLedgers()
    facts.open_ledger(7)
    facts.add_entries(7, 1_000)
    return facts


async def opened(storage: EmbeddedStorage, name: str = "billing") -> CursorStore:
    return await storage.open_cursor("orders", name, ledgers(), create_at=BEGIN)


async def test_what_is_acked_is_there_at_the_next_opening(tmp_path: Path) -> None:
    async with open_embedded(tmp_path / "made" / "for me") as storage:
        store = await opened(storage)
        assert store.report.source is RecoverySource.NEW
        store.cursor.ack_many(7, range(1, 1_000, 2))
        # Nobody notified the store: leaving the block writes what is dirty all the same.
    async with open_embedded(tmp_path / "made" / "for me") as storage:
        store = await opened(storage)
        assert (store.cursor.range_count, store.cursor.hole_count) == (500, 500)


async def test_durable_means_written(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        await until_durable(store)  # nothing to wait for
        assert store.statistics().ledger_writes == 0
        store.cursor.ack(Position(7, 41))
        await until_durable(store)
        assert not store.is_dirty
        assert store.outcome is not None
        assert store.outcome.version == store.cursor.version


async def test_who_waits_no_more_does_no_harm(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        store.cursor.ack(Position(7, 41))
        waiting = asyncio.ensure_future(until_durable(store))
        await asyncio.sleep(0)
        waiting.cancel()
        await until_durable(store)
        assert waiting.cancelled()


async def test_a_closed_store_makes_nothing_durable(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
    store.cursor.ack(Position(7, 41))
    with pytest.raises(CursorClosedError):
        await until_durable(store)


async def test_a_cursor_is_opened_once(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        await opened(storage)
        with pytest.raises(CallerError, match="'billing' of 'orders' is open already"):
            await opened(storage)
        await opened(storage, "shipping")


async def test_a_cursor_is_made_only_if_told_where(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        with pytest.raises(NoSuchNodeError):
            await storage.open_cursor("orders", "billing", ledgers())
        assert (await opened(storage)).cursor.mark_delete == BEGIN


async def test_properties_are_kept(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        await storage.open_cursor(
            "orders", "billing", ledgers(), create_at=BEGIN, properties={"team": "money"}
        )
    async with open_embedded(tmp_path) as storage:
        assert (await opened(storage)).cursor_properties == {"team": "money"}


async def test_one_host_at_a_time(tmp_path: Path) -> None:
    async with open_embedded(tmp_path):
        with pytest.raises(DataDirectoryBusyError):
            async with open_embedded(tmp_path):
                pass
    async with open_embedded(tmp_path):
        pass


async def test_an_error_of_the_host_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_embedded(tmp_path) as storage:
            store = await opened(storage)
            store.cursor.ack(Position(7, 41))
            _ = 1 // 0
    async with open_embedded(tmp_path) as storage:
        assert (await opened(storage)).cursor.is_acked(Position(7, 41))


async def test_settings_hold(tmp_path: Path) -> None:
    settings = PersistenceSettings(managed_ledger_max_unacked_ranges_to_persist=10)
    async with open_embedded(tmp_path, settings=settings) as storage:
        store = await opened(storage)
        store.cursor.ack_many(7, range(1, 101, 2))
        await until_durable(store)
        assert store.outcome is not None
        assert (store.outcome.ranges_in_memory, store.outcome.ranges_persisted) == (50, 10)


async def test_orphans_of_a_crash_go_and_messages_stay(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        messages = await storage.ledger_client.create(LedgerOptions())
        about = {CURSOR_PATH_KEY: b"/managed-ledgers/embedded/default/persistent/orders/gone"}
        await storage.ledger_client.create(LedgerOptions(custom_metadata=about))
    async with open_embedded(tmp_path) as storage:
        assert await storage.ledger_client.ledger_ids() == [messages.ledger_id]


async def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file cannot be used: File exists"):
        async with open_embedded(tmp_path / "file"):
            pass


async def test_ledgers_without_their_metadata_are_refused_again_and_again(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        await (await storage.ledger_client.create(LedgerOptions())).add_entry(b"a message")
    for path in tmp_path.glob("metadata.sqlite*"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="holds 1 ledgers"):
            async with open_embedded(tmp_path):
                pass
