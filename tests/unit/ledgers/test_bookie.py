"""One bookie: checkpoints, deletion, bounds, files that are not its own."""

from __future__ import annotations

import asyncio
import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.errors import ClosedHandleError, ConfigurationError, StorageError
from ackgate.persistence import LedgerOptions, open_bookies
from ackgate.persistence.bookies.settings import BookieSettings, LedgerClientSettings
from tests.support.faulty_disk import disk_error
from tests.unit.ledgers.conftest import World, avro_records

MakeWorld = Callable[..., World]


@pytest.mark.slow
async def test_one_sync_carries_all_that_waits(world: World) -> None:
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(200)]
    await writers[0].add_entry(b"the journal file is there now")
    commits, syncs = client.bookies[0].statistics().commit_count, world.disk.calls["sync"]
    tickets = [writer.append([b"x"]) for writer in writers for _ in range(5)]
    await asyncio.gather(*(ticket.durable for ticket in tickets))
    assert client.bookies[0].statistics().commit_count == commits + 1
    assert world.disk.calls["sync"] == syncs + 1


@pytest.mark.slow
async def test_hundreds_of_ledgers_are_written_read_and_recovered(make_world: MakeWorld) -> None:
    world = make_world(settings=BookieSettings(checkpoint_idle_seconds=None, open_files_max=16))
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(300)]
    for round_ in range(3):
        tickets = [w.append([b"%d" % w.ledger_id] * 2) for w in writers]
        await asyncio.gather(*(ticket.durable for ticket in tickets))
        if round_ == 1:
            await client.bookies[0].checkpoint()
    for writer in writers[::30]:
        assert len(await writer.read(0, 5)) == 6
    client = await world.restart()
    readers = await asyncio.gather(*(client.open(w.ledger_id) for w in writers))
    for reader in readers:
        entries = await reader.read(0, 5)
        assert {e.payload for e in entries} == {b"%d" % reader.ledger_id}
    assert client.bookies[0].statistics().open_files <= 16


@pytest.mark.slow
async def test_file_descriptors_are_bounded(make_world: MakeWorld) -> None:
    world = make_world(settings=BookieSettings(checkpoint_idle_seconds=None, open_files_max=8))
    before = len(os.listdir("/proc/self/fd"))
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(60)]
    most = 0

    def before_call(operation: str, path: Path) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    world.disk.before = before_call
    for _ in range(2):
        tickets = [writer.append([b"x"]) for writer in writers]
        await asyncio.gather(*(ticket.durable for ticket in tickets))
        await client.bookies[0].checkpoint()
        for writer in writers:
            await writer.read(0, 0)
    # Beside the fragment files: journal, fences, two locks, and the one being listed.
    assert most <= before + 8 + 5


@pytest.mark.slow
async def test_an_idle_ledger_takes_little_memory(world: World) -> None:
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(300)]
    await client.bookies[0].checkpoint()
    tracemalloc.start()
    try:
        more = [await client.create(LedgerOptions()) for _ in range(300)]
        for writer in more:
            writer.append([b"x" * 100])
        await more[-1].add_entry(b"x")
        await client.bookies[0].checkpoint()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(more) < 5_000, "bytes per open ledger, its metadata node included"
    assert len(writers) == len(more)


async def test_a_checkpoint_comes_when_nothing_was_added_for_a_while(
    make_world: MakeWorld,
) -> None:
    world = make_world(settings=BookieSettings(checkpoint_idle_seconds=0.02))
    client = await world.start()
    writer = await client.create(LedgerOptions())
    written = asyncio.Event()
    loop = asyncio.get_running_loop()

    def before(operation: str, path: Path) -> None:
        if operation == "remove" and "journal" in path.parts:
            loop.call_soon_threadsafe(written.set)

    world.disk.before = before
    await writer.add_entry(b"x")
    await asyncio.wait_for(written.wait(), 60)
    assert len(avro_records(world.files()[0])) == 1


async def test_a_checkpoint_comes_when_the_journal_is_long(make_world: MakeWorld) -> None:
    world = make_world(
        settings=BookieSettings(checkpoint_idle_seconds=None, journal_bytes_max=10_000)
    )
    client = await world.start()
    writer = await client.create(LedgerOptions())
    for _ in range(50):
        await writer.append([bytes(1000)] * 2).durable
    assert client.bookies[0].statistics().journal_bytes < 30_000
    await client.close()
    assert len(avro_records(world.files()[0])) == 100


async def test_deleted_ledgers_leave_nothing_behind(world: World) -> None:
    client = await world.start()
    (bookie,) = client.bookies
    in_files, in_cache, kept = [await client.create(LedgerOptions()) for _ in range(3)]
    await in_files.append([b"x"] * 5).durable
    await bookie.checkpoint()
    await in_cache.append([b"x"] * 5).durable
    await kept.append([b"x"] * 5).durable
    for writer in (in_files, in_cache):
        await writer.close()
        await client.delete(writer.ledger_id)
    assert bookie.statistics().cached_bytes < 1000
    await bookie.checkpoint()
    assert [int(file.name[:19]) for file in world.files()] == [kept.ledger_id]
    assert await bookie.ledger_ids() == {kept.ledger_id}


async def test_a_ledger_that_cannot_be_removed_hinders_no_other(world: World) -> None:
    client = await world.start()
    (bookie,) = client.bookies
    writers = [await client.create(LedgerOptions()) for _ in range(5)]
    await asyncio.gather(*(writer.append([b"x"]).durable for writer in writers))
    await bookie.checkpoint()
    ids = [writer.ledger_id for writer in writers]

    def before(operation: str, path: Path) -> None:
        if operation == "remove" and path.name.startswith(f"{ids[2]:019}"):
            raise disk_error(errno.EIO, path)

    world.disk.before = before
    failures = await asyncio.gather(*map(bookie.delete_ledger, ids), return_exceptions=True)
    assert [type(each) for each in failures] == [type(None)] * 2 + [StorageError] + [type(None)] * 2
    assert [int(file.name[:19]) for file in world.files()] == [ids[2]]
    world.disk.before = None
    await bookie.delete_ledger(ids[2])
    assert world.files() == []


async def test_a_crash_brings_nothing_back_of_deleted_ledgers(world: World) -> None:
    client = await world.start()
    deleted, kept = [await client.create(LedgerOptions()) for _ in range(2)]
    for writer in (deleted, kept):
        await writer.append([b"x"] * 5).durable
    await client.delete(deleted.ledger_id)
    client = await world.restart()
    assert await client.bookies[0].ledger_ids() == {kept.ledger_id}
    assert await client.delete_orphans() == []
    assert [int(file.name[:19]) for file in world.files()] == [kept.ledger_id]
    assert (await client.open(kept.ledger_id)).last_add_confirmed == 4


async def test_foreign_files_are_named_and_left_alone(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([b"x"] * 5).durable
    world.crash()
    directory = world.directories[0]
    foreign = [
        directory / "notes.txt",
        directory / "ledgers" / "backup.avro",
        directory / "ledgers" / "0000000000000000001-0000000000000000000-nothexnothexnoth.avro",
        directory / "journal" / "README",
        next((directory / "journal").iterdir()) / "core",
    ]
    for path in foreign:
        path.write_bytes(b"not ours")
    client = await world.start()
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 4)) == 5
    named = client.bookies[0].statistics().foreign_files
    assert named == (
        "notes.txt",
        "journal/README",
        "ledgers/0000000000000000001-0000000000000000000-nothexnothexnoth.avro",
        "ledgers/backup.avro",
    )
    await client.close()
    assert all(path.read_bytes() == b"not ours" for path in foreign)


async def test_every_file_is_plain_avro_with_documentation(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([b"a", b"b"]).durable
    await writer.append([b"c"]).durable
    (journal,) = world.files(part="journal")
    assert [r["payload"] for r in avro_records(journal)] == [b"a", b"b", b"c"]
    await client.bookies[0].checkpoint()
    (fragment,) = world.files()
    records = avro_records(fragment)
    assert [(r["entry_id"], r["last_add_confirmed"], r["confirmed_bytes"]) for r in records] == [
        (0, -1, 0), (1, -1, 0), (2, 1, 2),
    ]  # fmt: skip
    assert b"HMAC-SHA-256" in fragment.read_bytes()


async def test_blocks_stay_small_however_much_is_added(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([bytes(100)] * 20_000).durable
    entries = await writer.read(19_990, 19_999)
    await client.bookies[0].checkpoint()
    assert await writer.read(19_990, 19_999) == entries
    data = world.files()[0].read_bytes()
    assert data.count(data[-16:]) > len(data) / (80 * 1024)


async def test_a_closed_bookie_takes_nothing(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.add_entry(b"x")
    (bookie,) = client.bookies
    await client.close()
    await bookie.close()
    with pytest.raises(Exception, match="closed"):
        await writer.append([b"y"]).durable
    with pytest.raises(ClosedHandleError):
        await bookie.read(1, 0, 0, 1)


async def test_a_directory_is_opened_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        await open_bookies([tmp_path / "a", tmp_path / "b" / ".." / "a"])
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "settings", [{"open_files_max": 1}, {"journal_bytes_max": 0}, {"checkpoint_idle_seconds": 0}]
)
def test_impossible_settings_are_named(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        BookieSettings(**settings)


def test_impossible_client_settings_are_named() -> None:
    with pytest.raises(ConfigurationError, match="in_flight_adds_max"):
        LedgerClientSettings(in_flight_adds_max=0)
