"""What a bookie remembers of ledgers, and which metadata it will not go with."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ackgate.errors import ConfigurationError, StorageError
from ackgate.persistence.bookies.origins import LedgerOrigin
from ackgate.persistence.bookies.register import FileRemovals, LedgerRegister, Mark, T
from ackgate.persistence.ledgers.metadata_check import forgotten_ledgers, refuse_older_metadata
from ackgate.persistence.metadata.memory import MemoryMetadataStore, MemoryTree
from ackgate.persistence.nodes.changes import count_up
from ackgate.persistence.ports import LedgerOptions
from ackgate.persistence.system.disk import OsDisk
from tests.unit.ledgers.conftest import World

RUNS = "/runs"


_writers = itertools.count()


def register(directory: Path, *, others: Sequence[str] = ()) -> LedgerRegister:
    made = LedgerRegister(OsDisk(), directory)
    made.join(f"{next(_writers):016x}", others)
    return made


def origin(ledger_id: int) -> LedgerOrigin:
    return LedgerOrigin(ledger_id, b'{"of":%d}' % ledger_id)


def test_the_highest_mark_of_any_process_counts(tmp_path: Path) -> None:
    one, other = register(tmp_path), register(tmp_path, others=["0" * 16])
    one.raise_mark(Mark(101, 3))
    other.raise_mark(Mark(201, 1))
    one.raise_mark(Mark(101, 2))
    assert one.mark == Mark(101, 3)
    assert register(tmp_path).mark == Mark(201, 3)
    assert register(tmp_path).damages == []


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_mark_is_reported_and_its_second_copy_counts(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    made = register(tmp_path)
    for run in range(rng.randrange(1, 4)):
        made.raise_mark(Mark(100 * run + 101, run))
    path = tmp_path / "marks"
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    looking = LedgerRegister(OsDisk(), tmp_path)
    looking.look()
    assert looking.mark == made.mark
    assert len(looking.damages) == 1
    assert register(tmp_path).mark == made.mark  # reported, and written anew
    assert register(tmp_path).damages == []


def test_a_lost_mark_is_known_from_the_ledgers(tmp_path: Path) -> None:
    made = register(tmp_path)
    assert made.origins.begin([origin(7), origin(9)]) == set()
    made.sync(Mark(101, 4))
    (tmp_path / "marks").unlink()
    again = register(tmp_path)
    assert again.mark == Mark(10, -1)
    assert "marks is missing or empty although there are ledgers" in again.damages[0]
    assert register(tmp_path).damages == []


def test_deleted_ledgers_are_remembered_until_nobody_can_bring_them_back(tmp_path: Path) -> None:
    made = register(tmp_path)
    assert made.deleted() == frozenset()
    made.delete([3, 5])
    with (tmp_path / "deleted").open("ab") as file:
        file.write(b"stump")
    made.delete([8])
    assert register(tmp_path).deleted() == {3, 5, 8}
    made.all_deleted()
    assert made.deleted() == frozenset()


# ---------------------------------------------------------------------- bookies and their metadata


async def test_a_bookie_refuses_an_id_that_it_has(world: World) -> None:
    client = await world.start()
    for _ in range(3):
        await (await client.create(LedgerOptions())).add_entry(b"first")
    world.tree = MemoryTree()
    client = await world.restart()
    with pytest.raises(
        ConfigurationError, match=r"has a ledger 1 already.*`ackgate ledgers adopt`"
    ):
        await client.create(LedgerOptions())
    assert await client.ledger_ids() == []  # nothing was made
    assert len(await client.bookies[0].last_entries(1)) == 1  # nothing is gone


async def test_a_ledger_takes_entries_only_when_it_is_durable_that_it_was_begun(
    world: World,
) -> None:
    client = await world.start()
    may_sync = threading.Event()

    def hold(what: str, path: Path) -> None:
        if what == "sync" and path.parent.name == "origins":
            may_sync.wait()

    world.disk.before = hold
    creating = asyncio.create_task(client.create(LedgerOptions()))
    while not await client.ledger_ids():  # its metadata are written meanwhile
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not creating.done()
    may_sync.set()
    assert await (await creating).add_entry(b"first") == 0


async def test_ids_of_ledgers_from_before_there_were_origins_are_refused_too(world: World) -> None:
    client = await world.start()
    await (await client.create(LedgerOptions())).add_entry(b"first")
    await client.close()
    for path in (world.directories[0] / "origins").iterdir():
        path.unlink()
    (world.directories[0] / "marks").unlink()
    world.tree = MemoryTree()
    client = await world.restart()
    with pytest.raises(ConfigurationError, match="has a ledger 1 already"):
        await client.create(LedgerOptions())


def older(tree: MemoryTree) -> MemoryTree:
    """A copy, as it is now."""
    made = MemoryTree()
    made._nodes = copy.deepcopy(tree._nodes)  # nobody else copies a tree
    return made


async def start(world: World) -> MemoryMetadataStore:
    """As a broker starts: compare, count, go on."""
    client = await world.start()
    metadata = world.metadata()
    await refuse_older_metadata(metadata, client.bookies, counter_path=RUNS)
    client.run = await count_up(metadata, RUNS, first=0)
    return metadata


async def test_metadata_of_an_earlier_run_are_refused(world: World) -> None:
    await start(world)
    await (await world.clients[-1].create(LedgerOptions())).add_entry(b"x")
    old = older(world.tree)
    world.crash()
    await start(world)
    await world.clients[-1].delete((await world.clients[-1].create(LedgerOptions())).ledger_id)
    new, world.tree = world.tree, old
    await world.metadata().put("/ledgers/idgen", b"100000", expected_version=None)
    world.crash()
    with pytest.raises(ConfigurationError, match="counted runs up to 0, the bookie has seen run 1"):
        await start(world)
    world.tree = new
    world.crash()
    await start(world)


async def test_metadata_that_gave_out_fewer_ids_are_refused(world: World) -> None:
    await start(world)
    old = older(world.tree)
    await (await world.clients[-1].create(LedgerOptions())).add_entry(b"x")
    world.tree = old
    world.crash()
    with pytest.raises(ConfigurationError, match="ids below 1, the bookie has seen ids up to 100"):
        await start(world)


async def test_a_hot_copy_that_lacks_a_ledger_with_entries_is_refused(world: World) -> None:
    await start(world)
    client = world.clients[-1]
    await (await client.create(LedgerOptions())).add_entry(b"x")
    deleted = await client.create(LedgerOptions())
    await deleted.add_entry(b"x")
    old = older(world.tree)
    await client.delete(deleted.ledger_id)
    world.crash()
    kept, world.tree = world.tree, old
    await start(world)  # what was deleted since is no reason
    world.tree = kept
    world.crash()
    await start(world)
    await world.clients[-1].create(LedgerOptions())
    old = older(world.tree)
    await world.clients[-1].create(LedgerOptions())  # nor is a ledger that holds nothing
    forgotten = await world.clients[-1].create(LedgerOptions())
    await forgotten.add_entry(b"x")
    world.tree = old
    world.crash()
    client = await world.start()
    assert await forgotten_ledgers(world.metadata(), client.bookies[0]) == {forgotten.ledger_id}
    world.crash()
    match = f"does not know 1 ledgers that hold entries there .{forgotten.ledger_id}.: "
    with pytest.raises(ConfigurationError, match=match):
        await start(world)


async def test_origins_that_a_full_disk_did_not_take_are_written_later(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    client = await world.start()
    origins = world.directories[0] / "origins"

    def fail(what: str, path: Path) -> None:
        if what in {"create", "append"} and path.parent == origins:
            raise OSError(28, "No space left on device", str(path))

    world.disk.before = fail
    writer = await client.create(LedgerOptions())
    assert not any(path.read_bytes() for path in origins.iterdir())
    world.disk.before = None
    await writer.add_entry(b"x")
    await client.bookies[0].checkpoint()
    await writer.add_entry(b"y")
    await client.close()
    world.crash()
    client = await world.start()
    assert [each.ledger_id for each in await client.bookies[0].origins()] == [writer.ledger_id]


async def test_files_asked_to_be_removed_in_one_turn_go_in_one_go() -> None:
    rounds: list[list[int]] = []

    async def on_storage(work: Callable[[], T], /) -> T:
        await asyncio.sleep(0)
        return work()

    def remove(ledger_ids: Sequence[int]) -> dict[int, StorageError]:
        rounds.append(list(ledger_ids))
        return {i: StorageError(f"{i} stays") for i in ledger_ids if i % 100 == 7}

    removals = FileRemovals(on_storage, remove)
    answers = await asyncio.gather(*map(removals.remove, range(250)), return_exceptions=True)
    assert rounds == [list(range(100)), list(range(100, 200)), list(range(200, 250))]
    assert [i for i, answer in enumerate(answers) if answer is not None] == [7, 107, 207]
    first = asyncio.ensure_future(removals.remove(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # its round has begun
    await removals.remove(2)
    await first
    assert rounds[3:] == [[1], [2]]


async def test_a_disk_that_fails_is_the_answer_to_all_whose_files_were_to_go() -> None:
    async def on_storage(work: Callable[[], T], /) -> T:
        raise StorageError("no answer")

    removals = FileRemovals(on_storage, lambda _: {})
    answers = await asyncio.gather(*map(removals.remove, (1, 2)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["no answer"] * 2
