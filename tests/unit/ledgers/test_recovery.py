"""Recovery of ledgers whose bookies are not all there, or not all honest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.errors import (
    DigestMismatchError,
    LedgerWriteError,
    NoSuchEntryError,
    StorageError,
)
from ackgate.persistence import DigestType, LedgerOptions, LedgerState
from ackgate.persistence.ledgers.recovery import STEP_ENTRIES
from tests.unit.ledgers.conftest import World, avro_records

MakeWorld = Callable[..., World]

MIRRORED = LedgerOptions(3, 3, 2)
STRIPED = LedgerOptions(3, 2, 2)


def payloads(count: int) -> list[bytes]:
    return [b"payload %d" % i for i in range(count)]


def damage(file: Path, payload: bytes) -> None:
    """Flip a bit in an entry's payload, wherever it is in the file."""
    data = file.read_bytes()
    at = data.index(payload)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


async def abandoned(world: World, options: LedgerOptions, count: int = 20) -> int:
    """A ledger that was not closed; all that was confirmed is in fragment files."""
    client = await world.start()
    writer = await client.create(options)
    for i in range(0, count, 5):
        await writer.append(payloads(count)[i : i + 5]).durable
    await client.close()
    return writer.ledger_id


@pytest.mark.parametrize("options", [MIRRORED, STRIPED])
async def test_a_lost_bookie_costs_nothing(make_world: MakeWorld, options: LedgerOptions) -> None:
    world = make_world(3)
    ledger_id = await abandoned(world, options)
    for file in world.files(1):
        file.unlink()
    client = await world.start()
    reader = await client.open(ledger_id)
    assert [e.payload for e in await reader.read(0, 19)] == payloads(20)


async def test_recovery_brings_entries_back_to_their_write_quorum(make_world: MakeWorld) -> None:
    world = make_world(3)
    ledger_id = await abandoned(world, MIRRORED)
    for bookie in (0, 2):
        for file in world.files(bookie):
            file.unlink()
    client = await world.start()
    reader = await client.open(ledger_id)
    assert reader.last_add_confirmed == 19
    await client.close()
    # What lay beyond the last add confirmed is on all three again; what lay before is the auditor's.
    for bookie in (0, 2):
        (file,) = world.files(bookie)
        assert [r["entry_id"] for r in avro_records(file)] == [15, 16, 17, 18, 19]


async def test_too_few_bookies_leave_the_ledger_as_it_is(make_world: MakeWorld) -> None:
    world = make_world(3)
    ledger_id = await abandoned(world, MIRRORED)
    world.bookie_count = 1
    client = await world.start()
    with pytest.raises(StorageError, match="cannot be fenced"):
        await client.open(ledger_id)
    reader = await client.open_without_recovery(ledger_id)
    assert reader.last_add_confirmed == 14
    assert len(await reader.read(0, 14)) == 15
    await client.close()
    world.bookie_count = 3
    client = await world.start()
    assert (await client.open(ledger_id)).last_add_confirmed == 19


@pytest.mark.parametrize("options", [MIRRORED, STRIPED])
@pytest.mark.parametrize("entry_id", [3, 19])
async def test_a_bad_copy_is_read_from_elsewhere_and_reported(
    make_world: MakeWorld, options: LedgerOptions, entry_id: int
) -> None:
    world = make_world(3)
    ledger_id = await abandoned(world, options)
    holder = next(i for i in range(3) if payloads(20)[entry_id] in world.files(i)[0].read_bytes())
    damage(world.files(holder)[0], payloads(20)[entry_id])
    client = await world.start()
    reader = await client.open(ledger_id)
    for first in range(20):
        assert [e.payload for e in await reader.read(first, 19)] == payloads(20)[first:]
    assert {(bad.entry_id, bad.bookie_id) for bad in world.bad_copies} == {
        (entry_id, client.bookies[holder].bookie_id)
    }


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.MAC])
@pytest.mark.parametrize("entry_id", [0, 7, 19])
async def test_an_entry_without_a_good_copy_says_so_and_the_rest_is_read(
    world: World, digest_type: DigestType, entry_id: int
) -> None:
    options = LedgerOptions(digest_type=digest_type)
    ledger_id = await abandoned(world, options)
    damage(world.files()[0], payloads(20)[entry_id])
    client = await world.start()
    reader = await client.open(ledger_id)
    assert reader.last_add_confirmed == 19
    with pytest.raises(DigestMismatchError, match=f"{ledger_id}:{entry_id}"):
        await reader.read(entry_id, entry_id)
    with pytest.raises(DigestMismatchError):
        await reader.read(0, 19)
    for other in (5, 18):
        assert await reader.read(other, other) == [(other, payloads(20)[other])]


async def test_only_damaged_copies_and_a_silent_bookie_are_no_end(make_world: MakeWorld) -> None:
    world = make_world(3)
    ledger_id = await abandoned(world, MIRRORED)
    for bookie in (0, 1):
        damage(world.files(bookie)[0], payloads(20)[17])
    world.bookie_count = 2
    client = await world.start()
    with pytest.raises(StorageError, match=f"{ledger_id}:17"):
        await client.open(ledger_id)
    await client.close()
    world.bookie_count = 3
    client = await world.start()
    reader = await client.open(ledger_id)
    assert [e.payload for e in await reader.read(0, 19)] == payloads(20)


async def test_a_lost_file_is_an_entry_that_is_not_there(world: World) -> None:
    ledger_id = await abandoned(world, LedgerOptions())
    client = await world.start()
    await client.open(ledger_id)
    await client.close()
    world.files()[0].unlink()
    client = await world.start()
    reader = await client.open(ledger_id)
    assert reader.last_add_confirmed == 19, "the metadata knows better"
    with pytest.raises(NoSuchEntryError, match=f"{ledger_id}:0"):
        await reader.read(0, 19)


async def test_a_bookie_that_is_not_there_is_a_storage_error(make_world: MakeWorld) -> None:
    world = make_world(2)
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(2)]
    for writer in writers:
        await writer.add_entry(b"x")
        await writer.close()
    await client.close()
    world.bookie_count = 1
    client = await world.start()
    outcomes = []
    for writer in writers:
        reader = await client.open(writer.ledger_id)
        try:
            outcomes.append(len(await reader.read(0, 0)))
        except StorageError as error:
            outcomes.append(str(error))
    assert min(map(str, outcomes)) == "1"
    assert "is not here" in sorted(map(str, outcomes))[1]


async def test_an_interrupted_recovery_is_finished_by_the_next(world: World) -> None:
    ledger_id = await abandoned(world, LedgerOptions())
    client = await world.start()
    entry = await client._catalog.read(ledger_id)
    from dataclasses import replace

    await client._catalog.replace(entry, replace(entry.metadata, state=LedgerState.IN_RECOVERY))
    client = await world.restart()
    assert (await client.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
    assert (await client.open_without_recovery(ledger_id)).last_add_confirmed == 14
    assert (await client.open(ledger_id)).last_add_confirmed == 19


async def test_unconfirmed_entries_can_be_looked_at(world: World) -> None:
    ledger_id = await abandoned(world, LedgerOptions())
    client = await world.start(is_read_only=True)
    reader = await client.open_without_recovery(ledger_id)
    assert reader.last_add_confirmed == 14
    assert await reader.last_entry_found() == 19
    assert [e.payload for e in await reader.read_unconfirmed(0, 19)] == payloads(20)
    with pytest.raises(NoSuchEntryError):
        await reader.read_unconfirmed(0, 20)


async def test_a_copied_bookie_directory_is_refused(make_world: MakeWorld) -> None:
    world = make_world(1)
    await abandoned(world, LedgerOptions())
    shutil.copytree(world.directories[0], world.directory / "bookie-1")
    world.bookie_count = 2
    with pytest.raises(ValueError, match="copy"):
        await world.start()


async def test_a_damaged_copy_of_what_was_never_confirmed_is_no_part_of_the_ledger(
    make_world: MakeWorld,
) -> None:
    world = make_world(3)
    ledger_id = await abandoned(world, MIRRORED)
    damage(world.files(0)[0], payloads(20)[17])
    for bookie in (1, 2):
        world.files(bookie)[0].unlink()
    client = await world.start()
    reader = await client.open(ledger_id)
    assert reader.last_add_confirmed == 16
    assert [e.payload for e in await reader.read(0, 16)] == payloads(20)[:17]


def break_writes(world: World, bookie: int) -> None:
    """No journal of this bookie takes anything; fences are written."""

    def before(operation: str, path: Path) -> None:
        below = path.is_relative_to(world.directories[bookie] / "journal")
        if operation in {"append", "sync", "create"} and below:
            raise OSError(28, "No space left on device", str(path))

    world.disk.before = before


@pytest.mark.slow
async def test_a_spare_has_nothing_to_say_about_what_the_writer_stored(
    make_world: MakeWorld,
) -> None:
    """A spare takes a place while the first entries are recovered. The later ones were never on it."""
    count = 2 * STEP_ENTRIES
    world = make_world(3)
    client = await world.start()
    writer = await client.create(MIRRORED)
    await writer.append(payloads(count)).durable
    await client.close()
    rejecting, answering, gone = 0, 1, 2
    damage(world.files(rejecting)[0], payloads(count)[5])
    damage(world.files(answering)[0], payloads(count)[STEP_ENTRIES + 5])
    world.directories[gone].rename(world.directory / "gone")
    world.bookie_count = 4
    client = await world.start()
    break_writes(world, rejecting)
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, count - 1)] == payloads(count)
    await client.close()

    # The spares have all of what they stand for: the two of the writer that are left are not needed.
    for bookie in (rejecting, answering):
        for file in world.files(bookie):
            file.unlink()
    reader = await (await world.start()).open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, count - 1)] == payloads(count)


async def test_what_was_never_confirmed_and_has_no_ack_quorum_is_left_out(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions(2, 2, 2))
    await writer.append([b"confirmed"]).durable
    break_writes(world, 1)
    with pytest.raises(LedgerWriteError):
        await writer.append([b"on one bookie only"]).durable
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == 0
    assert [e.payload for e in await reader.read(0, 0)] == [b"confirmed"]
    assert reader.length_bytes == len(b"confirmed")


async def test_what_was_never_confirmed_is_kept_where_it_can_be_brought_to_its_quorum(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions(2, 2, 2))
    await writer.append([b"confirmed"]).durable
    break_writes(world, 1)
    with pytest.raises(LedgerWriteError):
        await writer.append([b"on one bookie only"]).durable
    world.disk.before = None
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == 1


async def test_what_may_have_been_confirmed_is_kept_with_one_copy(make_world: MakeWorld) -> None:
    """The other bookie is not there: nobody knows what it has."""
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions(2, 2, 2))
    for payload in (b"a", b"b"):
        await writer.append([payload]).durable
    world.crash()
    world.bookie_count = 1
    reader = await (await world.start()).open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 1)] == [b"a", b"b"]
