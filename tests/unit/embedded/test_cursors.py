"""One directory, opened by a host without a broker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from ackgate import EmbeddedStorage, open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import (
    CallerError,
    ConfigurationError,
    CursorClosedError,
    DataDirectoryBusyError,
    NoSuchNodeError,
    NotEnoughBookiesError,
)
from ackgate.persistence import (
    CursorStore,
    LedgerOptions,
    PersistenceSettings,
    PersistWhere,
    RecoverySource,
)
from ackgate.persistence.cursors.ledger import CURSOR_PATH_KEY
from ackgate.persistence.system.data_directory import DataDirectory

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


async def test_nobody_else_reads_what_is_made(tmp_path: Path) -> None:
    root = tmp_path / "parent" / "data"
    DataDirectory.acquire(root).release()
    modes: dict[str, int] = {}
    async with open_embedded(root) as storage:
        store = await opened(storage)
        store.cursor.ack(Position(7, 41))
        await until_durable(store)
        paths = [root.parent, root, *root.rglob("*")]
        modes |= {path.name: path.stat().st_mode & 0o777 for path in paths if path.is_file()}
        directories = [path.stat().st_mode & 0o777 for path in paths if path.is_dir()]
    assert {"lock", "bookie.json", "metadata.sqlite", "metadata.sqlite-wal"} <= modes.keys()
    assert modes == dict.fromkeys(modes, 0o600)
    assert directories == [0o700] * len(directories)


async def test_durable_means_written(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        await until_durable(store)  # nothing to wait for
        assert store.statistics().ledger_writes == 0
        store.cursor.ack(Position(7, 41))
        outcome = await until_durable(store)
        assert not store.is_dirty
        assert outcome is store.outcome
        assert outcome.version == store.cursor.version


async def test_who_waits_no_more_does_no_harm(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        store.cursor.ack(Position(7, 41))
        waiting = asyncio.ensure_future(until_durable(store))
        await asyncio.sleep(0)
        waiting.cancel()
        await until_durable(store)
        assert waiting.cancelled()


async def test_a_closed_store_takes_no_acks(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        store.cursor.ack(Position(7, 40))
    with pytest.raises(CursorClosedError, match=r"orders/billing is closed"):
        store.cursor.ack(Position(7, 41))
    assert not store.cursor.is_acked(Position(7, 41))
    outcome = await until_durable(store)  # what it took is durable
    assert (outcome.version, outcome.where) == (1, PersistWhere.METADATA_STORE)


async def test_until_durable_says_what_the_cap_has_dropped(tmp_path: Path) -> None:
    settings = PersistenceSettings(
        managed_ledger_max_unacked_ranges_to_persist=10,
        managed_ledger_max_batch_deleted_index_to_persist=1,
    )
    async with open_embedded(tmp_path, settings=settings) as storage:
        store = await opened(storage)
        store.cursor.ack_many(7, range(1, 101, 2))
        store.cursor.ack_mixed([(Position(7, 200), 0b1), (Position(7, 201), 0b1)])
        outcome = await until_durable(store)
        assert not outcome.is_complete
        assert (outcome.entries_dropped, outcome.batch_indexes_dropped) == (40, 1)
        # Asked again, with nothing new to write, it says the same.
        assert await until_durable(store) == outcome
        for entry_id in range(0, 101, 2):
            store.cursor.ack(Position(7, entry_id))
        store.cursor.ack(Position(7, 200))
        assert (await until_durable(store)).is_complete


async def test_until_durable_says_what_the_fallback_has_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PersistenceSettings(
        managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=10
    )
    async with open_embedded(tmp_path, settings=settings) as storage:

        async def fail(_: LedgerOptions) -> None:
            raise NotEnoughBookiesError("none")

        monkeypatch.setattr(storage.ledger_client, "create", fail)
        store = await opened(storage)
        store.cursor.ack_many(7, range(1, 101, 2))
        outcome = await until_durable(store)
        assert outcome.where is PersistWhere.METADATA_STORE
        assert (outcome.is_complete, outcome.entries_dropped) == (False, 40)
        monkeypatch.undo()


async def test_with_nothing_written_yet_the_outcome_is_that_of_the_recovery(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        new = await until_durable(await opened(storage))
        assert (new.version, new.mark_delete, new.is_complete) == (0, BEGIN, True)
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        store.cursor.ack(Position(7, 41))
        written = await until_durable(store)
    async with open_embedded(tmp_path) as storage:
        outcome = await until_durable(await opened(storage))
        assert (outcome.version, outcome.ranges_persisted, outcome.is_complete) == (1, 1, True)
        assert outcome.where is PersistWhere.METADATA_STORE
        assert outcome.at_ms >= written.written_ms


async def test_what_is_acked_without_a_word_to_the_store_is_durable_all_the_same(
    tmp_path: Path,
) -> None:
    async with open_embedded(tmp_path) as storage:
        store = await opened(storage)
        store.cursor.ack(Position(7, 41))
        assert await store.flush()
        outcome = await store.close()
        assert outcome.version == store.cursor.version


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


async def test_older_metadata_are_refused(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    aside.mkdir()
    async with open_embedded(data) as storage:
        await opened(storage)
    for path in data.glob("metadata.sqlite*"):
        shutil.copy2(path, aside)
    async with open_embedded(data) as storage:
        store = await opened(storage)
        store.cursor.ack_many(7, range(1, 1_000, 2))
    for path in data.glob("metadata.sqlite*"):
        path.unlink()
    for path in aside.iterdir():
        shutil.copy2(path, data)
    with pytest.raises(ConfigurationError, match=r"is older than bookie .*`ackgate ledgers adopt`"):
        async with open_embedded(data):
            pytest.fail("older metadata were believed")
