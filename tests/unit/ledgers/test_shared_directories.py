"""Several processes with the same directories: fencing, reading along, taking over from the dead."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.errors import CallerError, ConfigurationError, LedgerFencedError, StorageError
from ackgate.persistence import (
    BookieLedgerClient,
    LedgerOptions,
    LedgerState,
    SqliteMetadataStore,
    open_bookies,
)
from ackgate.persistence.bookies.layout import LOCK_FILE
from ackgate.persistence.system.disk import OsDisk
from tests.unit.ledgers.conftest import World

MakeWorld = Callable[..., World]


async def test_bytes_in_flight_are_not_confirmed_once_it_is_fenced(make_world: MakeWorld) -> None:
    """The writer's sync is held up; meanwhile another process recovers the ledger."""
    world = make_world()
    writing = await world.start()
    writer = await writing.create(LedgerOptions())
    await writer.append([b"before"]).durable
    (own_journal,) = (path.parent for path in world.files(part="journal"))
    is_held, may_go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def before(operation: str, path: Path) -> None:
        if operation == "sync" and path.parent == own_journal and not is_held.is_set():
            loop.call_soon_threadsafe(is_held.set)
            asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()

    world.disk.before = before
    ticket = writer.append([b"in flight"])
    await is_held.wait()
    recovering = await world.start()
    reader = await recovering.open(writer.ledger_id)
    found = [e.payload for e in await reader.read(0, reader.last_add_confirmed)]
    assert found == [b"before", b"in flight"], "its bytes were there already"
    may_go_on.set()
    with pytest.raises(LedgerFencedError):
        await ticket.durable
    with pytest.raises(LedgerFencedError):
        writer.append([b"after"])
    await writer.close()
    assert (await recovering.metadata(writer.ledger_id)).last_entry_id == 1


async def test_a_process_that_was_stopped_while_joining_holds_up_no_recovery(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    writing, recovering = await world.start(), await world.start()
    writer = await writing.create(LedgerOptions())
    await writer.append([b"x"] * 3).durable
    held = OsDisk().lock(writing.bookies[0].directory / LOCK_FILE, wait=False)
    assert held is not None
    reader = await recovering.open(writer.ledger_id)
    held.release()
    assert reader.last_add_confirmed == 2
    with pytest.raises(LedgerFencedError):
        await writer.append([b"late"]).durable
    await writer.close()


async def test_entries_that_come_after_the_fence_are_in_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    writing, recovering = await world.start(), await world.start()
    writer = await writing.create(LedgerOptions())
    await writer.append([b"x"] * 3).durable
    reader = await recovering.open(writer.ledger_id)
    ticket = writer.append([b"late"])
    with pytest.raises(LedgerFencedError):
        await ticket.durable
    await writing.bookies[0].checkpoint()
    assert reader.last_add_confirmed == 2
    assert len(await reader.read(0, 2)) == 3
    client = await world.restart()
    assert (await client.open(writer.ledger_id)).last_add_confirmed == 2


async def test_a_reader_follows_entries_from_journal_to_fragment_file(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    writing, reading = await world.start(), await world.start(is_read_only=True)
    writer = await writing.create(LedgerOptions())
    reader = await reading.open_without_recovery(writer.ledger_id)
    for i in range(6):
        await writer.append([b"%d" % i] * 3).durable
        if i % 2:
            await writing.bookies[0].checkpoint()
        last = await reader.read_last_add_confirmed()
        assert last == i * 3 - 1
        if i:
            expected = [b"%d" % (e // 3) for e in range(last + 1)]
            assert [e.payload for e in await reader.read(0, last)] == expected


async def test_a_recovered_ledger_is_read_while_its_old_writer_goes_on(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    old, new = await world.start(), await world.start()
    fenced, other = await old.create(LedgerOptions()), await old.create(LedgerOptions())
    for i in range(4):
        await fenced.append([b"%d" % i] * 5).durable
        await other.append([b"o"]).durable
    reader = await new.open(fenced.ledger_id)
    expected = [b"%d" % (e // 5) for e in range(20)]
    assert [e.payload for e in await reader.read(0, 19)] == expected
    assert await other.add_entry(b"unharmed") == 4
    # The old one's checkpoint moves the entries from its journal to its fragment file.
    await old.bookies[0].checkpoint()
    assert [e.payload for e in await reader.read(0, 19)] == expected
    await new.bookies[0].checkpoint()
    assert [e.payload for e in await reader.read(3, 17)] == expected[3:18]


async def test_reading_only_changes_nothing(make_world: MakeWorld) -> None:
    world = make_world(2)
    client = await world.start()
    writer = await client.create(LedgerOptions(2, 2, 2))
    await writer.append([b"x"] * 5).durable
    await writer.append([b"y"]).durable
    before = {path: path.read_bytes() for path in world.directory.rglob("*") if path.is_file()}
    reading = await world.start(is_read_only=True)
    for forbidden in (
        reading.create(LedgerOptions()),
        reading.open(writer.ledger_id),
        reading.delete(writer.ledger_id),
        reading.delete_orphans(),
    ):
        with pytest.raises(CallerError):
            await forbidden
    reader = await reading.open_without_recovery(writer.ledger_id)
    assert len(await reader.read(0, 4)) == 5
    assert await reading.bookies[0].ledger_ids() == {writer.ledger_id}
    await reading.close()
    after = {path: path.read_bytes() for path in world.directory.rglob("*") if path.is_file()}
    assert before == after
    assert world.disk.calls["lock"] == 4, "two bookies opened to write, none to read"
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN


async def test_reading_only_needs_a_bookies_directory(make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises((ConfigurationError, StorageError), match="bookie-0"):
        await world.start(is_read_only=True)
    assert not world.directories[0].exists()


async def test_a_dead_writers_journal_is_taken_over_while_running(make_world: MakeWorld) -> None:
    world = make_world()
    alive = await world.start()
    dying_world = World(world.directory, tree=world.tree)
    dying = await dying_world.start()
    writer = await dying.create(LedgerOptions())
    await writer.append([b"x"] * 5).durable
    assert await alive.bookies[0].take_over_dead_journals() == 0
    dying_world.crash()
    reader = await alive.open(writer.ledger_id)
    assert reader.last_add_confirmed == 4
    assert alive.bookies[0].statistics().replayed_entries == 5
    assert world.files(part="journal") == []
    assert len(await reader.read(0, 4)) == 5


async def test_a_damaged_identity_is_named(world: World) -> None:
    client = await world.start()
    await client.close()
    identity = world.directories[0] / "bookie.json"
    for content in (b"", b"{}", b"[1]", b'{"format": 9, "bookie_id": "x"}', b"\xff"):
        identity.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"bookie\.json"):
            await world.start()


OWNER = """
    import asyncio, sys
    from pathlib import Path
    from ackgate.errors import LedgerFencedError
    from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
    from ackgate.persistence.metadata.memory import MemoryMetadataStore
    from ackgate.persistence.ledgers.catalog import LedgerCatalog
    from ackgate.persistence.ports import LedgerOptions

    async def main():
        client = BookieLedgerClient(await open_bookies([Path(sys.argv[1])]), MemoryMetadataStore())
        writer = await client.create(LedgerOptions())
        node = await client._catalog._store.get(f"/ledgers/{writer.ledger_id}")
        print(writer.ledger_id, node.value.decode(), flush=True)
        while True:
            try:
                first = (await write(writer))
            except LedgerFencedError:
                print("fenced", flush=True)
                return
            print(first, flush=True)

    async def write(writer):
        ticket = writer.append([b"entry"] * 10)
        await ticket.durable
        return ticket.first_entry_id + 9

    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["fenced", "killed"])
async def test_another_process_is_fenced_or_its_journal_taken_over(
    make_world: MakeWorld, tmp_path: Path, ending: str
) -> None:
    """The real thing: another process writes as fast as it can while we recover its ledger."""
    world = make_world()
    world.directory.mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(OWNER), str(world.directories[0]),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    ledger_id, _, metadata = (await process.stdout.readline()).decode().partition(" ")
    confirmed = -1
    for _ in range(30):
        confirmed = int(await process.stdout.readline())
    if ending == "killed":
        process.kill()
    client = await world.start()
    await world.metadata().put(f"/ledgers/{ledger_id}", metadata.encode(), expected_version=-1)
    reader = await client.open(int(ledger_id))
    rest = (await process.stdout.read()).decode().split()
    await process.wait()
    if ending == "fenced":
        assert rest.pop() == "fenced"
    for line in rest:
        confirmed = int(line)
    assert reader.last_add_confirmed >= confirmed
    entries = await reader.read(0, reader.last_add_confirmed)
    assert {e.payload for e in entries} == {b"entry"}
    assert len(entries) == reader.last_add_confirmed + 1


async def test_it_works_on_the_embedded_metadata_store(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    client = BookieLedgerClient(await open_bookies([tmp_path / "0"]), store)
    writer = await client.create(LedgerOptions())
    await writer.append([b"x"] * 5).durable
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 4)) == 5
    await client.delete(writer.ledger_id)
    await client.close()
    await store.close()
