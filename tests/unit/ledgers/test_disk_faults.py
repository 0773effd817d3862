"""Disks that fail: full, read-only, failing syncs. What fails is named, and nothing else is."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ackgate.errors import (
    LedgerWriteError,
    NotEnoughBookiesError,
    StorageError,
)
from ackgate.persistence import LedgerOptions
from ackgate.persistence.bookies.settings import BookieSettings
from tests.support.faulty_disk import ShortWrite, disk_error
from tests.unit.ledgers.conftest import World, avro_records

Fault = Callable[[str, Path], None]


def failing(operation: str, part: str, *, code: int = errno.EIO, times: int = 10**9) -> Fault:
    """Fail an operation on files whose path has this part, so many times."""
    left = times

    def before(asked: str, path: Path) -> None:
        nonlocal left
        if asked == operation and part in str(path) and left:
            left -= 1
            if operation == "append":
                raise ShortWrite(3, code)
            raise disk_error(code, path)

    return before


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("operation", ["append", "sync"])
async def test_one_failed_write_goes_to_a_new_journal_file(world: World, operation: str) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([b"first"]).durable
    world.disk.before = failing(operation, "journal", times=1)
    await writer.append([b"second"]).durable
    await writer.append([b"third"]).durable
    assert len(world.files(part="journal")) == 2
    assert len(avro_records(world.files(part="journal")[0])) == 1, "cut back to what was synced"
    client = await world.restart()
    entries = await (await client.open(writer.ledger_id)).read(0, 2)
    assert [e.payload for e in entries] == [b"first", b"second", b"third"]


async def test_a_file_whose_sync_failed_is_never_synced_again(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.add_entry(b"x")
    synced: list[Path] = []

    def before(operation: str, path: Path) -> None:
        if operation == "sync":
            synced.append(path)
            if len(synced) == 1:
                raise disk_error(errno.EIO, path)

    world.disk.before = before
    await writer.add_entry(b"y")
    await writer.add_entry(b"z")
    assert synced[0] not in synced[1:]


@pytest.mark.parametrize("operation", ["append", "sync", "create"])
async def test_a_full_disk_fails_the_adds_and_later_ledgers_work(
    world: World, operation: str
) -> None:
    client = await world.start()
    kept, writer = await client.create(LedgerOptions()), await client.create(LedgerOptions())
    await kept.append([b"kept"] * 3).durable
    await kept.close()
    await client.bookies[0].checkpoint()
    world.disk.before = failing(operation, "journal", code=errno.ENOSPC)
    ticket = writer.append([b"lost"])
    with pytest.raises(LedgerWriteError, match="No space left"):
        await ticket.durable
    with pytest.raises(LedgerWriteError):
        writer.append([b"more"])
    with pytest.raises(NotEnoughBookiesError, match="No space left"):
        await client.create(LedgerOptions())
    assert client.bookies[0].statistics().last_error is not None
    assert len(await (await client.open_without_recovery(kept.ledger_id)).read(0, 2)) == 3
    world.disk.before = None
    again = await client.create(LedgerOptions())
    await again.append([b"room"]).durable
    await writer.close()
    assert client.bookies[0].statistics().last_error is None
    assert (await client.open(writer.ledger_id)).last_add_confirmed == -1


async def test_a_file_size_limit_of_the_system_is_one_more_full_disk(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    with file_size_limit(40_000):
        # The journal reaches the limit and goes on in a new file.
        for i in range(10):
            await writer.append([b"%d" % i * 10_000]).durable
        # An entry that fits into no file fails its ledger.
        with pytest.raises(LedgerWriteError, match="File too large"):
            await writer.append([bytes(50_000)]).durable
        other = await client.create(LedgerOptions())
        await other.append([b"small"]).durable
    client = await world.restart()
    assert (await client.open(writer.ledger_id)).last_add_confirmed == 9
    assert (await client.open(other.ledger_id)).last_add_confirmed == 0


@pytest.mark.parametrize("operation", ["append", "sync", "create", "sync_directory"])
async def test_a_checkpoint_that_fails_is_made_up_for_later(world: World, operation: str) -> None:
    client = await world.start()
    (bookie,) = client.bookies
    writers = [await client.create(LedgerOptions()) for _ in range(3)]
    for round_ in range(3):
        for writer in writers:
            await writer.append([b"%d" % round_] * 4).durable
        if round_ == 0:
            if operation != "create":
                await bookie.checkpoint()
            world.disk.before = failing(operation, "ledgers", times=2)
        elif round_ == 1:
            for _ in range(2):
                with pytest.raises(StorageError):
                    await bookie.checkpoint()
            for writer in writers:
                assert len(await writer.read(0, 7)) == 8
    await bookie.checkpoint()
    await bookie.checkpoint()
    assert bookie.statistics().cached_bytes == 0
    assert world.files(part="journal") == []
    for writer in writers:
        assert [e.payload for e in await writer.read(0, 11)] == [
            b"%d" % (i // 4) for i in range(12)
        ]
    for file in world.files():
        ids = [record["entry_id"] for record in avro_records(file)]
        assert ids == sorted(set(ids)), "ascending within a file"


async def test_adds_wait_for_a_full_cache_and_fail_when_it_stays_full(
    make_world: Callable[..., World],
) -> None:
    world = make_world(
        settings=BookieSettings(write_cache_bytes_max=4096, checkpoint_idle_seconds=None)
    )
    client = await world.start()
    writer = await client.create(LedgerOptions())
    for _ in range(20):
        await writer.append([bytes(1000)] * 3).durable
    assert client.bookies[0].statistics().cached_bytes < 4 * 4096
    world.disk.before = failing("sync", "ledgers")
    with pytest.raises(LedgerWriteError):
        for _ in range(20):
            await writer.append([bytes(1000)] * 3).durable
    world.disk.before = None
    again = await client.create(LedgerOptions())
    for _ in range(20):
        await again.append([bytes(1000)] * 3).durable


async def test_a_directory_that_cannot_be_written_is_named(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world()
    in_the_way = world.directories[0]
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where a directory should be")
    with pytest.raises(StorageError, match=in_the_way.name):
        await world.start()

    read_only = make_world()

    def before(operation: str, path: Path) -> None:
        if operation in ("make_directory", "create", "open_append", "lock"):
            raise disk_error(errno.EROFS, path)

    read_only.disk.before = before
    with pytest.raises(StorageError, match=f"{read_only.directories[0]}.*Read-only"):
        await read_only.start()


async def test_a_read_that_fails_is_an_error_of_that_read(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([b"x"]).durable
    await client.bookies[0].checkpoint()
    world.disk.before = failing("read", "ledgers")
    with pytest.raises(StorageError, match="Input/output error"):
        await writer.read(0, 0)
    world.disk.before = None
    assert await writer.read(0, 0) == [(0, b"x")]
    assert await writer.add_entry(b"y") == 1


async def test_close_with_a_dead_disk_ends_and_the_next_start_replays(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([b"x"] * 5).durable
    world.disk.before = failing("append", "ledgers")
    await asyncio.wait_for(client.close(), 60)
    world.disk.before = None
    client = await world.restart()
    assert client.bookies[0].statistics().replayed_entries == 5
    assert len(await (await client.open(writer.ledger_id)).read(0, 4)) == 5


def test_a_short_write_lets_a_part_through(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.disk.create(tmp_path / "f")
    world.disk.before = failing("append", "f", times=1)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.append(b"abcdef")
    file.append(b"X")
    assert (tmp_path / "f").read_bytes() == b"abcX"


async def test_a_dead_writers_journal_stays_until_there_is_room_and_is_read_there(
    world: World,
) -> None:
    client = await world.start()
    writer, deleted = [await client.create(LedgerOptions()) for _ in range(2)]
    await writer.append([b"%d" % n for n in range(100)]).durable
    await deleted.append([bytes(1 << 20)]).durable
    world.crash()
    world.disk.room_bytes = 300_000
    client = await world.start()
    assert not world.files()
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 99)] == [b"%d" % n for n in range(100)]
    # What was deleted needs no room: the rest fits now.
    await client.delete(deleted.ledger_id)
    await client.bookies[0].make_up()
    assert {record["ledger_id"] for file in world.files() for record in avro_records(file)} == {
        writer.ledger_id
    }
    assert len(world.files(part="journal")) <= 1
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 99)] == [b"%d" % n for n in range(100)]


async def test_a_checkpoint_that_does_not_fit_takes_no_room(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append([bytes(100_000) for _ in range(10)]).durable
    world.disk.room_bytes = 1_000_000
    with pytest.raises(StorageError, match="no room for what the journal holds"):
        await client.bookies[0].checkpoint()
    assert not world.files()
    await writer.append([b"the journal goes on"]).durable
    world.disk.room_bytes = None
    await client.bookies[0].make_up()
    assert sum(len(avro_records(file)) for file in world.files()) == 11
    assert (await writer.read(10, 10))[0].payload == b"the journal goes on"
