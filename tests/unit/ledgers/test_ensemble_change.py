"""Bookies that fail under a writer: a spare takes their place, or the ledger goes on without, or ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.errors import LedgerFencedError, LedgerWriteError, MetadataStoreError
from ackgate.persistence import (
    LedgerClient,
    LedgerMetadata,
    LedgerOptions,
    LedgerState,
    MemoryMetadataStore,
)
from tests.support.faulty_disk import disk_error
from tests.unit.ledgers.conftest import World

MakeWorld = Callable[..., World]


def break_bookies(world: World, *bookie_ids: str) -> None:
    """Their journals take nothing any more."""
    broken = {bookie_id.rpartition("-")[0] for bookie_id in bookie_ids}

    def before(operation: str, path: Path) -> None:
        if operation in ("append", "create") and "journal" in path.parts and broken & {*path.parts}:
            raise disk_error(errno.EIO, path)

    world.disk.before = before


async def changed(client: LedgerClient, ledger_id: int) -> LedgerMetadata:
    """The ledger's metadata once it has a second fragment."""
    async with asyncio.timeout(60):
        while len((found := await client.metadata(ledger_id)).fragments) < 2:
            await asyncio.sleep(0)
    return found


@pytest.mark.parametrize(
    "options", [LedgerOptions(), LedgerOptions(3, 2, 2), LedgerOptions(3, 3, 2)]
)
async def test_a_spare_takes_the_place_of_a_failed_bookie(
    make_world: MakeWorld, options: LedgerOptions
) -> None:
    world = make_world(4)
    client = await world.start()
    writer = await client.create(options)
    await writer.append([b"a%d" % i for i in range(10)]).durable
    first = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    break_bookies(world, first[0])
    tickets = [writer.append([b"b%d" % i for i in range(start, start + 7)]) for start in (0, 7)]
    for ticket in tickets:
        await ticket.durable
    found = await changed(client, writer.ledger_id)
    # With an ack quorum left, some may be confirmed before the failure is known.
    begins = found.fragments[1].first_entry_id
    assert begins == 10 or (options.ack_quorum < options.write_quorum and 10 < begins <= 24)
    assert first[0] not in found.fragments[1].ensemble
    assert found.fragments[1].ensemble[1:] == first[1:]
    await writer.append([b"c"]).durable
    expected = [b"a%d" % i for i in range(10)] + [b"b%d" % i for i in range(14)] + [b"c"]
    assert [e.payload for e in await writer.read(0, 24)] == expected
    await writer.close()
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 24)] == expected
    assert [e.payload for e in await reader.read(8, 13)] == expected[8:14]
    world.disk.before = None
    client = await world.restart()
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 24)] == expected


async def test_a_ledger_that_changed_its_ensemble_is_recovered(make_world: MakeWorld) -> None:
    world = make_world(4)
    client = await world.start()
    writer = await client.create(LedgerOptions(3, 2, 2))
    await writer.append([b"%d" % i for i in range(10)]).durable
    break_bookies(world, (await client.metadata(writer.ledger_id)).fragments[0].ensemble[1])
    await writer.append([b"%d" % i for i in range(10, 25)]).durable
    client = await world.restart()
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 24)] == [b"%d" % i for i in range(25)]
    assert reader.length_bytes == 10 + 15 * 2


async def test_a_first_fragment_that_confirmed_nothing_is_replaced(make_world: MakeWorld) -> None:
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions())
    first = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    break_bookies(world, *first)
    await writer.append([b"x"] * 3).durable
    (fragment,) = (await client.metadata(writer.ledger_id)).fragments
    assert fragment.first_entry_id == 0
    assert fragment.ensemble != first


async def test_without_a_spare_it_goes_on_while_there_is_an_ack_quorum(
    make_world: MakeWorld,
) -> None:
    world = make_world(3)
    client = await world.start()
    writer = await client.create(LedgerOptions(3, 3, 2))
    await writer.append([b"x"] * 5).durable
    ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    break_bookies(world, ensemble[2])
    for _ in range(5):
        await writer.append([b"y"] * 5).durable
    assert len((await client.metadata(writer.ledger_id)).fragments) == 1
    break_bookies(world, *ensemble[1:])
    with pytest.raises(LedgerWriteError, match="below the ack quorum"):
        await writer.append([b"z"]).durable
    world.disk.before = None
    await writer.close()
    found = await client.metadata(writer.ledger_id)
    assert (found.state, found.last_entry_id) == (LedgerState.CLOSED, 29)
    assert len(await (await client.open(writer.ledger_id)).read(0, 29)) == 30


async def test_below_the_ack_quorum_only_the_ledgers_concerned_fail(make_world: MakeWorld) -> None:
    world = make_world(2)
    client = await world.start()
    writers = [await client.create(LedgerOptions()) for _ in range(4)]
    for writer in writers:
        await writer.add_entry(b"x")
    mirrored = await client.create(LedgerOptions(2, 2, 2))
    broken = client.bookies[0].bookie_id
    break_bookies(world, broken)
    for writer in writers:
        assert await writer.add_entry(b"y") == 1, "the other bookie has taken over"
    with pytest.raises(LedgerWriteError):
        await mirrored.add_entry(b"y")
    for writer in writers:
        assert await writer.add_entry(b"z") == 2


async def test_a_bookie_that_came_back_is_used_again(make_world: MakeWorld) -> None:
    world = make_world(1)
    client = await world.start()
    writer = await client.create(LedgerOptions())
    break_bookies(world, client.bookies[0].bookie_id)
    with pytest.raises(LedgerWriteError):
        await writer.add_entry(b"x")
    world.disk.before = None
    assert await (await client.create(LedgerOptions())).add_entry(b"y") == 0


async def test_who_lost_the_ledger_learns_it_from_the_metadata(make_world: MakeWorld) -> None:
    """A failing bookie makes the writer touch the metadata, and there somebody else stands."""
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions())
    await writer.add_entry(b"x")
    other = await world.start()
    reader = await other.open(writer.ledger_id)
    break_bookies(world, *[bookie.bookie_id for bookie in client.bookies[:1]])
    with pytest.raises(LedgerFencedError):
        await writer.append([b"y"]).durable
    assert reader.last_add_confirmed == 0


async def test_a_metadata_store_that_is_down_ends_the_handle(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions())
    ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    await writer.add_entry(b"x")

    async def down(self: object, path: str, value: bytes, *, expected_version: int | None) -> int:
        raise MetadataStoreError("not there")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryMetadataStore, "put", down)
        break_bookies(world, *ensemble)
        with pytest.raises(LedgerWriteError, match="not there"):
            await writer.append([b"y"]).durable
        with pytest.raises(MetadataStoreError):
            await writer.close()
    world.disk.before = None
    await writer.close()
    assert (await client.metadata(writer.ledger_id)).last_entry_id == 0
