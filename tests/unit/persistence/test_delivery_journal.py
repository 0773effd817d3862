"""The delivery journal's ledgers: what was appended is there, in order, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ackgate.config.journal import JournalSettings
from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    NotEnoughBookiesError,
    OwnershipError,
    StorageError,
)
from ackgate.persistence import (
    BookieLedgerClient,
    LedgerClient,
    LedgerState,
    MemoryMetadataStore,
    MetadataStore,
    PersistenceSettings,
    SqliteMetadataStore,
    open_bookies,
    topic_path,
)
from ackgate.persistence.deliveries.columns import (
    DeliveryEvent,
    EventColumns,
    EventKind,
    columns_of,
)
from ackgate.persistence.deliveries.events import decode_events
from ackgate.persistence.deliveries.journal import (
    DeliveryJournal,
    find_orphan_journals,
)
from ackgate.persistence.deliveries.node import DeliveryJournalNode, decode_journal_node
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

PATH = delivery_journal_path("public", "default", "topic")
TOPIC = topic_path("public", "default", "topic")


def block(
    first: int, count: int = 3, epoch: int = 1, details: Sequence[str | None] = ()
) -> EventColumns:
    events = [
        DeliveryEvent(EventKind.ACKED, first + i, "sub", ledger_id=7, entry_id=i, detail=detail)
        for i, detail in enumerate(details or [None] * count)
    ]
    return columns_of(events, topic="t", owner_epoch=epoch, first_sequence=first)


async def node_of(metadata: MetadataStore) -> DeliveryJournalNode:
    found = await metadata.get(PATH)
    assert found is not None
    return decode_journal_node(found.value, path=PATH)


async def sequences(client: LedgerClient, metadata: MetadataStore) -> list[tuple[int, int]]:
    """Epoch and number of every event that can be read, in the order of ledgers and entries."""
    found: list[tuple[int, int]] = []
    for ledger in (await node_of(metadata)).ledgers:
        reader = await client.open_without_recovery(ledger.ledger_id)
        last = await reader.last_entry_found()
        entries = await reader.read_unconfirmed(0, last) if last >= 0 else []
        for entry in entries:
            events = decode_events(entry.payload)
            found += [(events.owner_epoch, number) for number in events.sequences.tolist()]
        await reader.close()
    return found


def ledger_count(journal: DeliveryJournal) -> int:
    return len(journal.ledgers)


class World:
    def __init__(self, *rules: Rule, **settings: Any) -> None:
        self.storage, self.tree = MemoryLedgers(), MemoryTree()
        self.plan = FaultPlan(rules)
        self.memory = MemoryLedgerClient(self.storage)
        self.client = FaultyLedgerClient(self.memory, self.plan)
        self.below = MemoryMetadataStore(self.tree)
        self.metadata = FaultyMetadataStore(self.below, self.plan)
        self.journal_settings = JournalSettings(**settings)
        self.settings = PersistenceSettings()
        self.now_ms = 1_000_000

    async def open(self, epoch: int = 1) -> DeliveryJournal:
        return await DeliveryJournal.open(
            self.client,
            self.metadata,
            PATH,
            topic_path=TOPIC,
            owner_epoch=epoch,
            settings=self.settings,
            journal_settings=self.journal_settings,
            clock_ms=lambda: self.now_ms,
        )

    async def read(self) -> list[tuple[int, int]]:
        return await sequences(self.memory, self.below)

    async def node(self) -> DeliveryJournalNode:
        return await node_of(self.below)

    async def orphans(self) -> list[int]:
        return await find_orphan_journals(self.memory, self.below, sorted(self.storage.ledgers))


async def test_blocks_are_read_back_in_order_and_the_node_knows_the_ledger_at_the_end() -> None:
    world = World()
    journal = await world.open()
    assert world.storage.ledgers == {}, "no ledger before there is anything to write"
    await journal.append(block(0))
    await journal.append(block(3))
    (ledger,) = (await world.node()).ledgers
    assert (ledger.closed_ms, ledger.opened_ms) == (None, 1_000_000)
    world.now_ms += 5
    await journal.close()
    await journal.close()
    assert await world.read() == [(1, n) for n in range(6)]
    (ledger,) = (await world.node()).ledgers
    assert (ledger.event_count, ledger.closed_ms) == (6, 1_000_005)
    stored = world.storage.ledgers[ledger.ledger_id]
    assert stored.metadata.state is LedgerState.CLOSED
    assert ledger.size_bytes == stored.metadata.length_bytes > 0
    assert stored.metadata.custom_metadata["component"] == b"delivery-journal"
    assert TOPIC.encode() in stored.metadata.custom_metadata.values()
    with pytest.raises(ClosedHandleError):
        await journal.append(block(6))


def test_a_ledger_is_named_before_anything_is_written_into_it() -> None:
    async def main() -> None:
        world = World(Rule(Fault.FAIL, "metadata.put", PATH, nth=2))
        journal = await world.open()
        with pytest.raises(StorageError):
            await journal.append(block(0))
        assert (await world.node()).ledgers == ()
        (made,) = world.storage.ledgers
        assert world.storage.ledgers[made].entries == []
        assert await world.orphans() == [made]
        await asyncio.sleep(0.5)
        await journal.append(block(0))
        assert await world.orphans() == []
        assert made not in world.storage.ledgers

    run_in_virtual_time(main())


def test_a_ledger_that_the_node_may_yet_name_is_not_deleted() -> None:
    """The write of the node is on its way when we give up on it."""

    async def main() -> None:
        world = World(
            Rule(Fault.LANDS_LATE, "metadata.put", PATH, nth=2, seconds=5.0),
            Rule(Fault.FAIL, "metadata.get", PATH, nth=2),
        )
        journal = await world.open()
        with pytest.raises(StorageError):
            await journal.append(block(0))
        await journal.trim()
        await asyncio.sleep(6)
        (late,) = (await world.node()).ledgers
        assert late.ledger_id in world.storage.ledgers
        await journal.append(block(0))
        (ledger,) = (await world.node()).ledgers
        assert list(world.storage.ledgers) == [ledger.ledger_id] != [late.ledger_id]

    run_in_virtual_time(main())


def test_a_full_ledger_is_followed_by_another_and_so_is_an_old_one() -> None:
    async def main() -> None:
        world = World(
            delivery_journal_max_ledger_bytes=1, delivery_journal_max_ledger_age_seconds=50.0
        )
        journal = await world.open()
        for first in (0, 3, 6):
            await journal.append(block(first))
        assert [each.event_count for each in journal.ledgers] == [3, 3, None]
        journal.configure(JournalSettings(delivery_journal_max_ledger_age_seconds=50.0))
        await asyncio.sleep(49)
        await journal.append(block(9))
        assert ledger_count(journal) == 3
        await asyncio.sleep(1)
        await journal.append(block(12))
        assert ledger_count(journal) == 4
        assert await world.read() == [(1, n) for n in range(15)]
        states = [ledger.metadata.state for ledger in world.storage.ledgers.values()]
        assert states == [*[LedgerState.CLOSED] * 3, LedgerState.OPEN]

    run_in_virtual_time(main())


async def test_what_is_too_old_goes_but_never_the_ledger_that_is_written() -> None:
    world = World(delivery_journal_max_ledger_bytes=1, delivery_journal_retention_seconds=10.0)
    journal = await world.open()
    await journal.append(block(0))
    await journal.append(block(3))
    world.now_ms += 10_000
    await journal.trim()
    assert ledger_count(journal) == 2, "not older than that"
    world.now_ms += 1
    await journal.trim()
    assert await world.read() == [(1, 3), (1, 4), (1, 5)]
    assert list(world.storage.ledgers) == [each.ledger_id for each in journal.ledgers]


async def test_what_is_too_much_goes_from_the_old_end() -> None:
    world = World(delivery_journal_max_ledger_bytes=1)
    journal = await world.open()
    for first in range(0, 15, 3):
        await journal.append(block(first))
    sizes = [each.size_bytes for each in journal.ledgers[:4]]
    open_bytes = world.storage.ledgers[journal.ledgers[-1].ledger_id].entries[0][0]
    journal.configure(
        JournalSettings(delivery_journal_retention_bytes=len(open_bytes) + sum(sizes[2:]))
    )
    await journal.trim()
    assert await world.read() == [(1, n) for n in range(6, 15)]
    journal.configure(JournalSettings(delivery_journal_retention_bytes=0))
    await journal.trim()
    assert await world.read() == [(1, n) for n in range(12, 15)]
    assert len(world.storage.ledgers) == 1


async def test_there_are_never_more_ledgers_than_the_node_may_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ackgate.persistence.deliveries.journal.LEDGERS_MAX", 3)
    world = World(delivery_journal_max_ledger_bytes=1)
    journal = await world.open()
    for first in range(0, 18, 3):
        await journal.append(block(first))
        assert len((await world.node()).ledgers) <= 3
    assert await world.read() == [(1, n) for n in range(9, 18)]


async def test_a_ledger_that_could_not_be_deleted_is_deleted_later() -> None:
    world = World(
        Rule(Fault.FAIL, "ledger.delete"),
        delivery_journal_max_ledger_bytes=1,
        delivery_journal_retention_bytes=0,
    )
    journal = await world.open()
    await journal.append(block(0))
    await journal.append(block(3))
    assert (len((await world.node()).ledgers), len(world.storage.ledgers)) == (1, 2)
    assert len(await world.orphans()) == 1
    await journal.trim()
    assert len(world.storage.ledgers) == 1


def test_a_ledger_that_fails_is_replaced_after_a_while() -> None:
    async def main() -> None:
        world = World(Rule(Fault.FAIL, "ledger.append", nth=2))
        journal = await world.open()
        await journal.append(block(0))
        with pytest.raises(StorageError):
            await journal.append(block(3))
        with pytest.raises(StorageError, match="after a failure"):
            await journal.append(block(6))
        await asyncio.sleep(0.5)
        await journal.append(block(9))
        assert await world.read() == [(1, n) for n in (0, 1, 2, 9, 10, 11)]
        assert (await world.node()).ledgers[0].event_count is None
        await journal.close()
        assert await world.orphans() == []
        assert all(each.closed_ms is not None for each in (await world.node()).ledgers)

    run_in_virtual_time(main())


def test_a_full_ledger_is_used_on_while_there_can_be_no_other() -> None:
    async def main() -> None:
        world = World(delivery_journal_max_ledger_bytes=1)
        journal = await world.open()
        await journal.append(block(0))
        world.memory.create_error = NotEnoughBookiesError("none")
        await journal.append(block(3))
        world.memory.create_error = None
        await journal.append(block(6))
        assert ledger_count(journal) == 1
        await asyncio.sleep(1)
        await journal.append(block(9))
        assert ledger_count(journal) == 2
        assert await world.read() == [(1, n) for n in range(12)]

    run_in_virtual_time(main())


async def test_the_next_owner_closes_what_is_open_and_the_one_before_never_writes_again() -> None:
    world = World()
    before = await world.open(1)
    await before.append(block(0))
    after = await world.open(2)
    (ledger,) = (await world.node()).ledgers
    assert ledger.closed_ms == 1_000_000
    assert world.storage.ledgers[ledger.ledger_id].metadata.state is LedgerState.CLOSED
    await after.append(block(0, epoch=2))
    written = await world.below.get(PATH)
    with pytest.raises(OwnershipError, match="epoch 2, we are 1"):
        await before.append(block(3))
    for call in (before.trim, before.remove):
        with pytest.raises(OwnershipError):
            await call()
    await before.close()
    assert await world.below.get(PATH) == written
    assert await world.read() == [*((1, n) for n in range(3)), *((2, n) for n in range(3))]
    with pytest.raises(OwnershipError, match="epoch 2, we are 1"):
        await world.open(1)


def test_fenced_by_nobody_who_owns_it_the_journal_goes_on() -> None:
    async def main() -> None:
        world = World()
        journal = await world.open()
        await journal.append(block(0))
        await (await world.memory.open(journal.ledgers[0].ledger_id)).close()
        with pytest.raises(StorageError, match="was fenced"):
            await journal.append(block(3))
        await asyncio.sleep(0.5)
        await journal.append(block(3))
        assert await world.read() == [(1, n) for n in range(6)]

    run_in_virtual_time(main())


async def test_a_block_that_is_too_large_is_cut_and_an_event_that_is_too_large_refused() -> None:
    world = World()
    world.settings = PersistenceSettings(max_entry_bytes=65_536, cursor_record_chunk_bytes=32_768)
    random = Random(20261121)
    journal = await world.open()
    await journal.append(block(0, 40, details=[random.randbytes(4_000).hex() for _ in range(40)]))
    assert await world.read() == [(1, n) for n in range(40)]
    ledger = world.storage.ledgers[journal.ledgers[0].ledger_id]
    sizes = [len(payload) for payload, _ in ledger.entries]
    assert len(sizes) == 4
    assert max(sizes) <= 65_536
    with pytest.raises(CallerError, match="too large"):
        await journal.append(block(40, 1, details=[random.randbytes(100_000).hex()]))
    await journal.append(block(40))
    assert await world.read() == [(1, n) for n in range(43)]


async def test_a_removed_journal_leaves_nothing() -> None:
    world = World(delivery_journal_max_ledger_bytes=1)
    journal = await world.open()
    await journal.append(block(0))
    await journal.append(block(3))
    await journal.remove()
    assert world.storage.ledgers == {}
    assert await world.below.get(PATH) is None


@pytest.mark.parametrize("seed", range(60))
def test_under_faults_nothing_confirmed_is_lost_and_nothing_stays_behind(seed: int) -> None:
    """Whatever fails, and whenever owners change. The seed is the test's number."""

    async def main() -> None:
        world = World(delivery_journal_max_ledger_bytes=150, delivery_journal_retention_seconds=1e9)
        random = world.plan.random
        random.seed(seed)
        world.plan.rules += [
            Rule(
                random.choice([Fault.FAIL, Fault.DROP_ANSWER, Fault.REPEAT, Fault.LANDS_LATE]),
                random.choice(["ledger.*", "ledger.append", "metadata.put", "metadata.*"]),
                nth=random.randint(1, 12),
                times=random.randint(1, 4),
                seconds=random.choice([0.0, 0.3]),
            )
            for _ in range(4)
        ]
        confirmed: list[tuple[int, int]] = []
        journal, epoch = None, 0
        for number in range(40):
            if journal is None or random.random() < 0.08:
                epoch += 1
                journal = None
                try:
                    journal = await world.open(epoch)
                except AckGateError:
                    await asyncio.sleep(1)
                    continue
            try:
                await journal.append(block(number, 1, epoch))
            except StorageError:
                await asyncio.sleep(random.choice([0.1, 2.0]))
            else:
                confirmed.append((epoch, number))
        world.plan.rules.clear()
        await asyncio.sleep(1)
        last = await world.open(epoch + 1)
        await last.append(block(0, 1, epoch + 1))
        await last.close()
        found = await world.read()
        assert found == sorted(found)
        assert set(confirmed) <= set(found)
        assert all(each.closed_ms is not None for each in (await world.node()).ledgers)
        named = {each.ledger_id for each in (await world.node()).ledgers}
        assert named <= world.storage.ledgers.keys(), "what is named is there"
        assert set(await world.orphans()) == world.storage.ledgers.keys() - named

    run_in_virtual_time(main())


async def test_with_real_bookies(tmp_path: Path) -> None:
    """Two processes, the first of which dies without a word."""
    for epoch in (1, 2):
        metadata = await SqliteMetadataStore.open(tmp_path / "metadata.sqlite")
        client = BookieLedgerClient(await open_bookies([tmp_path / "bookie"]), metadata)
        journal = await DeliveryJournal.open(
            client,
            metadata,
            PATH,
            topic_path=TOPIC,
            owner_epoch=epoch,
            settings=PersistenceSettings(),
            journal_settings=JournalSettings(delivery_journal_max_ledger_bytes=2_000),
            clock_ms=lambda: 7,
        )
        for number in range(20):
            await journal.append(block(number * 50, 50, epoch))
        if epoch == 2:
            await journal.close()
            expected = [(each, n) for each in (1, 2) for n in range(1_000)]
            assert await sequences(client, metadata) == expected
            node = await node_of(metadata)
            assert len(node.ledgers) > 4
            assert all(each.closed_ms == 7 for each in node.ledgers)
            assert await find_orphan_journals(client, metadata, await client.ledger_ids()) == []
        await client.close()
        await metadata.close()
