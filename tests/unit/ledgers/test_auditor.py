"""The auditor: what it finds, what it mends, what it leaves alone."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ackgate.errors import LedgerFencedError
from ackgate.persistence import BookieLedgerClient, DigestType, LedgerOptions, LedgerState
from ackgate.persistence.bookies.bookie import Bookie
from ackgate.persistence.bookies.settings import AuditSettings
from ackgate.persistence.ledgers.auditor import LedgerAudit
from tests.unit.ledgers.conftest import World, avro_records

MakeWorld = Callable[..., World]

SHAPES = [LedgerOptions(2, 2, 2), LedgerOptions(3, 2, 2), LedgerOptions(3, 3, 2)]
COUNT = 40


def payloads(count: int = COUNT) -> list[bytes]:
    return [b"payload %03d." % i for i in range(count)]


def damage(file: Path, payload: bytes) -> None:
    data = file.read_bytes()
    at = data.index(payload)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


async def stored(world: World, options: LedgerOptions) -> int:
    """A closed ledger, all of it in fragment files. No process has it open."""
    client = await world.start()
    writer = await client.create(options)
    for i in range(0, COUNT, 8):
        await writer.append(payloads()[i : i + 8]).durable
    await writer.close()
    await client.close()
    return writer.ledger_id


async def audit(
    client: BookieLedgerClient, *, is_repair: bool, password: bytes = b""
) -> list[LedgerAudit]:
    auditor = client.auditor(password=password)
    return [found async for found in auditor.audit(is_repair=is_repair)]


async def whole(client: BookieLedgerClient, ledger_id: int) -> None:
    """Every copy is where the metadata says, and good."""
    (found,) = [a for a in await audit(client, is_repair=False) if a.ledger_id == ledger_id]
    assert found.is_whole, (found.error, found.fragments)
    entries = await (await client.open(ledger_id)).read(0, COUNT - 1)
    assert [e.payload for e in entries] == payloads()


@pytest.mark.parametrize("options", SHAPES)
async def test_a_whole_ledger_is_whole_and_repair_does_nothing(
    make_world: MakeWorld, options: LedgerOptions
) -> None:
    world = make_world(3)
    ledger_id = await stored(world, options)
    client = await world.start()
    before = [bookie.statistics().committed_entries for bookie in client.bookies]
    (found,) = await audit(client, is_repair=True)
    assert found.is_whole
    assert found.repaired_entries == 0
    assert [bookie.statistics().committed_entries for bookie in client.bookies] == before
    await whole(client, ledger_id)


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("bookie", range(3))
async def test_what_a_bookie_has_lost_it_gets_back(
    make_world: MakeWorld, options: LedgerOptions, bookie: int
) -> None:
    world = make_world(3)
    ledger_id = await stored(world, options)
    lost = sum(len(avro_records(file)) for file in world.files(bookie))
    for file in world.files(bookie):
        file.unlink()
    client = await world.start()
    (found,) = await audit(client, is_repair=False)
    assert found.missing_copies == lost
    assert found.is_whole == (not lost)
    (found,) = await audit(client, is_repair=True)
    assert found.repaired_entries == lost
    await whole(client, ledger_id)
    await client.close()
    assert sum(len(avro_records(file)) for file in world.files(bookie)) == lost
    # It holds for the next process, too.
    await whole(await world.start(), ledger_id)


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.MAC])
async def test_a_damaged_copy_is_replaced_and_not_reported_any_more(
    make_world: MakeWorld, digest_type: DigestType
) -> None:
    world = make_world(3)
    options = LedgerOptions(3, 3, 2, digest_type=digest_type, password=b"secret")
    client = await world.start()
    writer = await client.create(options)
    await writer.append(payloads()).durable
    await writer.close()
    await client.close()
    for bookie, entry_id in ((0, 3), (0, 4), (1, 39)):
        damage(world.files(bookie)[0], payloads()[entry_id])
    client = await world.start()
    (found,) = await audit(client, is_repair=False, password=b"secret")
    (finding,) = found.fragments
    named = {copy.bookie_id: copy.damaged.text() for copy in finding.copies if copy.damaged}
    ids = [bookie.bookie_id for bookie in client.bookies]
    assert named == {ids[0]: "3-4", ids[1]: "39"}
    (found,) = await audit(client, is_repair=True, password=b"secret")
    assert (found.repaired_entries, found.is_mended) == (3, True)
    (again,) = await audit(client, is_repair=True, password=b"secret")
    assert again.is_whole
    client = await world.restart()
    world.bad_copies.clear()
    reader = await client.open(writer.ledger_id, password=b"secret")
    assert [e.payload for e in await reader.read(0, COUNT - 1)] == payloads()
    assert world.bad_copies == []


async def test_without_the_password_macs_are_not_verified_and_nothing_is_copied(
    make_world: MakeWorld,
) -> None:
    world = make_world(3)
    client = await world.start()
    options = LedgerOptions(2, 2, 2, digest_type=DigestType.MAC, password=b"secret")
    writer = await client.create(options)
    await writer.append(payloads()).durable
    await writer.close()
    await client.close()
    next(file for bookie in range(3) for file in world.files(bookie)).unlink()
    client = await world.start()
    (found,) = await audit(client, is_repair=True)
    assert found.missing_copies == COUNT
    assert not found.fragments[0].is_verified
    assert "password" in found.stuck[0]
    assert found.repaired_entries == 0
    (found,) = await audit(client, is_repair=True, password=b"secret")
    assert found.is_mended


@pytest.mark.parametrize("options", SHAPES)
async def test_a_spare_takes_the_place_of_a_bookie_that_is_gone(
    make_world: MakeWorld, options: LedgerOptions
) -> None:
    world = make_world(4)
    ledger_id = await stored(world, options)
    gone = next(i for i in range(4) if world.files(i))
    shutil.rmtree(world.directories[gone])
    client = await world.start()
    reader = await client.open(ledger_id)
    (found,) = await audit(client, is_repair=True)
    assert found.moved_places == 1
    assert found.is_mended
    (fragment,) = (await client.metadata(ledger_id)).fragments
    assert set(fragment.ensemble) <= {bookie.bookie_id for bookie in client.bookies}
    await whole(client, ledger_id)
    (again,) = await audit(client, is_repair=True)
    assert (again.is_whole, again.repaired_entries) == (True, 0)
    # A reader from before the change finds its way when the last of the old bookies goes.
    ensemble = set(fragment.ensemble)
    for bookie in client.bookies:
        if bookie.bookie_id not in ensemble:
            await bookie.delete_ledger(ledger_id)
    assert [e.payload for e in await reader.read(0, COUNT - 1)] == payloads()


async def test_a_bookie_that_is_away_for_a_moment_is_waited_for(make_world: MakeWorld) -> None:
    world = make_world(3)
    ledger_id = await stored(world, LedgerOptions(2, 2, 2))
    gone = next(i for i in range(3) if world.files(i))
    shutil.rmtree(world.directories[gone])
    client = await world.start()
    auditor = client.auditor(AuditSettings(lost_bookie_delay_seconds=0.05))
    assert [found async for found in auditor.ledgers_of_lost_bookies()] == [(ledger_id, False)]
    found = await auditor.audit_ledger(ledger_id, is_repair=True)
    assert "waited for" in found.stuck[0]
    assert found.moved_places == 0
    await asyncio.sleep(0.06)
    assert [found async for found in auditor.ledgers_of_lost_bookies()] == [(ledger_id, True)]
    found = await auditor.audit_ledger(ledger_id, is_repair=True)
    assert found.moved_places == 1


async def test_who_may_have_the_last_good_copy_stays_in_the_ensemble(make_world: MakeWorld) -> None:
    world = make_world(3)
    ledger_id = await stored(world, LedgerOptions(2, 2, 2))
    holders = [i for i in range(3) if world.files(i)]
    damage(world.files(holders[0])[0], payloads()[7])
    shutil.move(world.directories[holders[1]], world.directory / "elsewhere")
    client = await world.start()
    before = await client.metadata(ledger_id)
    (found,) = await audit(client, is_repair=True)
    assert "only good copies" in found.stuck[0]
    assert await client.metadata(ledger_id) == before
    await client.close()
    shutil.rmtree(world.directories[holders[1]])
    shutil.move(world.directory / "elsewhere", world.directories[holders[1]])
    client = await world.start()
    (found,) = await audit(client, is_repair=True)
    assert found.is_mended
    await whole(client, ledger_id)


async def test_an_entry_that_is_lost_is_named_and_the_rest_is_mended(make_world: MakeWorld) -> None:
    world = make_world(2)
    ledger_id = await stored(world, LedgerOptions(2, 2, 2))
    for bookie in range(2):
        damage(world.files(bookie)[0], payloads()[11])
    damage(world.files(1)[0], payloads()[20])
    client = await world.start()
    (found,) = await audit(client, is_repair=True)
    assert found.lost_entries == 1
    assert "11" in found.stuck[0]
    assert found.repaired_entries == 1
    reader = await client.open(ledger_id)
    assert (await reader.read(20, 20))[0].payload == payloads()[20]


async def test_the_open_fragment_is_its_writers_and_earlier_ones_are_mended_beside_it(
    make_world: MakeWorld,
) -> None:
    """The writer goes on, changes its ensemble and closes, although the metadata has changed."""
    world = make_world(4)
    client = await world.start()
    writer = await client.create(LedgerOptions(2, 2, 2))
    await writer.append(payloads()[:16]).durable
    ensemble = (await client.metadata(writer.ledger_id)).fragments[0].ensemble
    ids = [bookie.bookie_id for bookie in client.bookies]
    from tests.unit.ledgers.test_ensemble_change import break_bookies

    break_bookies(world, ensemble[0])
    await writer.append(payloads()[16:24]).durable
    # The bookie loses what it had of the first fragment, and still takes nothing.
    await client.bookies[ids.index(ensemble[0])].delete_ledger(writer.ledger_id)
    (found,) = await audit(client, is_repair=True)
    assert found.moved_places == 1, found.stuck
    assert len(found.fragments) == 1, "the open one is not looked at"
    second = (await client.metadata(writer.ledger_id)).fragments[1].ensemble
    break_bookies(world, second[0])
    await writer.append(payloads()[24:32]).durable
    world.disk.before = None
    await writer.append(payloads()[32:]).durable
    await writer.close()
    found_metadata = await client.metadata(writer.ledger_id)
    assert found_metadata.state is LedgerState.CLOSED
    assert len(found_metadata.fragments) == 3
    await audit(client, is_repair=True)
    await whole(client, writer.ledger_id)


async def test_a_writer_that_was_fenced_is_not_let_in_again(make_world: MakeWorld) -> None:
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions(2, 2, 2))
    await writer.append(payloads()).durable
    other = await world.start()
    await other.open(writer.ledger_id)
    await audit(client, is_repair=True)
    with pytest.raises(LedgerFencedError):
        await writer.append([b"late"]).durable


async def test_a_ledger_deleted_meanwhile_leaves_nothing_behind(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(3)
    ledger_id = await stored(world, LedgerOptions(2, 2, 2))
    next(file for bookie in range(3) for file in world.files(bookie)).unlink()
    client = await world.start()
    other = await world.start()
    auditor = client.auditor()

    rewrite = Bookie.rewrite

    async def deleted_first(*args: Any) -> None:
        await other.delete(ledger_id)
        await rewrite(*args)

    monkeypatch.setattr(Bookie, "rewrite", deleted_first)
    found = await auditor.audit_ledger(ledger_id, is_repair=True)
    assert found.is_deleted
    assert found.is_whole
    await client.close()
    await other.close()
    assert [file for bookie in range(3) for file in world.files(bookie)] == []


async def test_two_auditors_at_once_do_not_disturb_each_other(make_world: MakeWorld) -> None:
    world = make_world(5)
    ledger_id = await stored(world, LedgerOptions(3, 3, 2))
    gone = next(i for i in range(5) if world.files(i))
    shutil.rmtree(world.directories[gone])
    clients = [await world.start() for _ in range(2)]
    results = await asyncio.gather(*(audit(client, is_repair=True) for client in clients))
    assert sum(found.moved_places for (found,) in results) == 1
    await whole(clients[0], ledger_id)


async def test_it_keeps_to_its_pace(make_world: MakeWorld) -> None:
    world = make_world(2)
    ledger_id = await stored(world, LedgerOptions(2, 2, 2))
    client = await world.start()
    size = sum(map(len, payloads()))
    auditor = client.auditor(AuditSettings(bytes_per_second=size * 40))
    began = asyncio.get_running_loop().time()
    await auditor.audit_ledger(ledger_id, is_repair=False)
    took = asyncio.get_running_loop().time() - began
    assert took >= 2 / 40


async def test_damaged_metadata_stops_nothing(make_world: MakeWorld) -> None:
    world = make_world(2)
    ledger_id = await stored(world, LedgerOptions(2, 2, 2))
    client = await world.start()
    await world.metadata().put("/ledgers/999", b"{]", expected_version=None)
    found = {a.ledger_id: a for a in await audit(client, is_repair=True)}
    assert found[ledger_id].is_whole
    assert "damaged metadata" in (found[999].error or "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_random_damage_below_the_quorum_is_mended(make_world: MakeWorld, seed: int) -> None:
    """And a process that dies at any disk call of the repair leaves everything readable."""
    rng = random.Random(seed)
    world = make_world(5)
    ledgers = [await stored(world, rng.choice(SHAPES)) for _ in range(3)]
    # One copy of some entries is damaged or gone; of each entry at most one.
    for ledger_id in ledgers:
        bookie = rng.choice([i for i in range(5) if _files(world, i, ledger_id)])
        for file in _files(world, bookie, ledger_id):
            match rng.randrange(4):
                case 0:
                    file.unlink()
                case 1:
                    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
                case 2:
                    for record in rng.sample(avro_records(file), 3):
                        damage(file, record["payload"])
                case _:
                    data = bytearray(file.read_bytes())
                    for _ in range(rng.randint(1, 5)):
                        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                    file.write_bytes(data)
    left = rng.randint(1, 60)
    client = await world.start()

    def before(operation: str, path: Path) -> None:
        nonlocal left
        left -= operation in ("append", "sync", "create")
        if not left:
            world.disk.power_loss(rng)

    world.disk.before = before
    await audit(client, is_repair=True)
    client = await world.restart()
    for ledger_id in ledgers:
        reader = await client.open(ledger_id)
        assert [e.payload for e in await reader.read(0, COUNT - 1)] == payloads()
    await audit(client, is_repair=True)
    for found in await audit(client, is_repair=True):
        assert found.is_whole, (seed, found)
        assert found.repaired_entries == 0
    for ledger_id in ledgers:
        await whole(client, ledger_id)


def _files(world: World, bookie: int, ledger_id: int) -> list[Path]:
    return [f for f in world.files(bookie) if f.name.startswith(f"{ledger_id:019d}-")]
