"""What is left after a crash: everything confirmed, and nothing that was not added."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.errors import LedgerWriteError, StorageError
from ackgate.persistence import DigestType, LedgerOptions, LedgerState
from ackgate.persistence.bookies.settings import BookieSettings
from tests.support.faulty_disk import disk_error
from tests.unit.ledgers.conftest import World, avro_records

STRIPED = LedgerOptions(3, 2, 2)


def payloads(start: int, count: int) -> list[bytes]:
    return [b"entry %d " % i + bytes(i % 50) for i in range(start, start + count)]


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.MAC])
@pytest.mark.parametrize("checkpoint_after", [None, 0, 2, 4])
async def test_confirmed_entries_outlive_a_crash(
    world: World, digest_type: DigestType, checkpoint_after: int | None
) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions(digest_type=digest_type, password=b"p"))
    for i in range(5):
        await writer.append(payloads(i * 10, 10)).durable
        if i == checkpoint_after:
            await client.bookies[0].checkpoint()
    client = await world.restart()
    reader = await client.open(writer.ledger_id, password=b"p")
    assert reader.last_add_confirmed == 49
    assert [e.payload for e in await reader.read(0, 49)] == payloads(0, 50)
    assert reader.length_bytes == sum(map(len, payloads(0, 50)))
    # The replayed files are ordinary Avro files, and nothing is in them twice.
    ids = [r["entry_id"] for f in world.files() for r in avro_records(f)]
    assert sorted(ids) == list(range(50))
    assert world.files(part="journal") == []


@pytest.mark.slow
async def test_a_crash_between_append_and_confirm_leaves_a_prefix(world: World) -> None:
    """The disk goes away at every single call that an append leads to."""
    for die_at in range(1, 12):
        client = await world.start()
        writer = await client.create(LedgerOptions())
        confirmed = 0
        calls = 0

        def count(operation: str, path: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == die_at:  # noqa: B023
                world.disk.crash()

        world.disk.before = count
        for i in range(4):
            try:
                await writer.append(payloads(i * 5, 5)).durable
                confirmed += 5
            except LedgerWriteError:
                break
        client = await world.restart()
        reader = await client.open(writer.ledger_id)
        assert reader.last_add_confirmed + 1 >= confirmed
        found = reader.last_add_confirmed + 1
        if found:
            entries = await reader.read(0, found - 1)
            assert [e.payload for e in entries] == payloads(0, found)
        world.crash()


@pytest.mark.slow
async def test_a_crash_in_the_middle_of_a_checkpoint_loses_nothing(
    make_world: Callable[..., World],
) -> None:
    """The disk goes away at every single call of a checkpoint; also of the replay after it."""
    rng = random.Random(5)
    for die_at in range(1, 30):
        world = make_world(settings=BookieSettings(checkpoint_idle_seconds=None, open_files_max=8))
        client = await world.start()
        writers = [await client.create(LedgerOptions()) for _ in range(3)]
        for start in (0, 20):
            for writer in writers:
                await writer.append(payloads(start, 20)).durable
            if start == 0:
                await client.bookies[0].checkpoint()
        for _ in range(2):
            calls = 0

            def count(operation: str, path: Path) -> None:
                nonlocal calls
                calls += 1
                if calls == die_at:  # noqa: B023
                    world.disk.power_loss(rng)  # noqa: B023

            world.disk.before = count
            try:
                await client.bookies[0].checkpoint()
                world.crash()
                world.disk.before = count
                calls = 0
                client = await world.start()
            except (StorageError, OSError):
                pass
            if not world.disk.is_gone:
                world.disk.power_loss(rng)
            world.crash()
            client = await world.start()
        for writer in writers:
            reader = await client.open(writer.ledger_id)
            assert reader.last_add_confirmed == 39
            assert [e.payload for e in await reader.read(0, 39)] == payloads(0, 40)
        assert world.bad_copies == []


@pytest.mark.slow
async def test_a_power_loss_takes_nothing_that_was_confirmed(
    make_world: Callable[..., World],
) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        world = make_world(bookie_count=3)
        client = await world.start()
        confirmed: dict[int, list[bytes]] = {}
        for _ in range(3):
            writers = [await client.create(STRIPED) for _ in range(3)]
            for writer in writers:
                confirmed[writer.ledger_id] = []
            for _ in range(rng.randint(1, 8)):
                for writer in writers:
                    batch = payloads(len(confirmed[writer.ledger_id]), rng.randint(1, 30))
                    ticket = writer.append(batch)
                    if rng.random() < 0.9:
                        await ticket.durable
                        confirmed[writer.ledger_id] += batch
                    else:
                        await ticket.durable
                        confirmed[writer.ledger_id] += batch
                if rng.random() < 0.3:
                    await client.bookies[rng.randrange(3)].checkpoint()
            for writer in writers:
                writer.append(payloads(len(confirmed[writer.ledger_id]), 9))
            world.disk.power_loss(rng)
            client = await world.restart()
        for ledger_id, expected in confirmed.items():
            reader = await client.open(ledger_id)
            assert reader.last_add_confirmed + 1 >= len(expected), seed
            entries = await reader.read(0, reader.last_add_confirmed)
            assert [e.payload for e in entries[: len(expected)]] == expected, seed
            assert [e.payload for e in entries] == payloads(0, len(entries)), seed


async def test_what_was_recovered_once_stays_as_it_is(world: World) -> None:
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.append(payloads(0, 10)).durable
    client = await world.restart()
    first = await client.open(writer.ledger_id)
    client = await world.restart()
    second = await client.open(writer.ledger_id)
    assert first.last_add_confirmed == second.last_add_confirmed == 9
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.CLOSED
    assert len(await second.read(0, 9)) == 10


async def test_a_clean_close_leaves_no_journal_and_plain_avro_files(world: World) -> None:
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(5)]
    for writer in writers:
        await writer.append(payloads(0, 30)).durable
        await writer.close()
    await client.close()
    assert list((world.directories[0] / "journal").iterdir()) == []
    assert len(world.files()) == 5
    for file, writer in zip(world.files(), writers, strict=True):
        records = avro_records(file)
        assert [r["payload"] for r in records] == payloads(0, 30)
        assert {r["ledger_id"] for r in records} == {writer.ledger_id}


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_entries_of_several_files_come_in_order_however_those_are_listed(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, is_reversed: bool
) -> None:
    world = make_world(3)
    client = await world.start()
    writer = await client.create(LedgerOptions(3, 3, 3))
    await writer.append([b"%d" % number for number in range(9)]).durable

    def one_bookie_only(operation: str, path: Path) -> None:
        if operation == "append" and "bookie-2" not in str(path):
            raise disk_error(errno.EIO, path)

    world.disk.before = one_bookie_only
    with pytest.raises(StorageError):
        await writer.append([b"9"]).durable
    await client.bookies[2].checkpoint()  # the one that can write has written by now
    client = await world.restart()
    await client.open(writer.ledger_id)  # finds the last entry, and writes it where it is missing
    for bookie in client.bookies:
        await bookie.checkpoint()
    assert [len(world.files(bookie)) for bookie in range(3)] == [2, 2, 1]
    world.crash()
    listed = world.disk.list
    monkeypatch.setattr(world.disk, "list", lambda path: sorted(listed(path), reverse=is_reversed))
    client = await world.start()
    reader = await client.open_without_recovery(writer.ledger_id)
    assert [entry.entry_id for entry in await reader.read(0, 9)] == list(range(10))
    assert [entry.entry_id for entry in await reader.read(3, 9)] == list(range(3, 10))
