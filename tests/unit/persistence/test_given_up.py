"""A ledger that nobody names, and that holds entries, goes only if the metadata prove that it may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.config.persistence import PersistenceSettings
from ackgate.persistence.buckets.snapshots import DELAYED_CURSOR_KEY
from ackgate.persistence.cursors.ledger import ledger_options
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.deliveries.node import (
    JOURNAL_PATH_KEY,
    DeliveryJournalNode,
    JournalLedgerRecord,
    encode_journal_node,
)
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
from ackgate.persistence.metadata.memory import MemoryMetadataStore
from ackgate.persistence.nodes.topic_node import (
    TOPIC_PATH_KEY,
    MessageLedgerRecord,
    TopicNode,
    encode_topic_node,
)
from ackgate.persistence.nodes.unnamed_ledgers import ADOPTED_KEY
from ackgate.persistence.ports import LedgerOptions
from ackgate.persistence.records.envelope import Compression, Packing

TOPIC = "/managed-ledgers/public/default/persistent/t"
CURSOR = f"{TOPIC}/s"
JOURNAL = "/ackgate/delivery-journals/public/default/t"
PACKING = Packing(Compression.NONE, 0)


class World:
    """One bookie, its metadata, and the sweep of a broker that starts."""

    def __init__(self, client: BookieLedgerClient, metadata: MemoryMetadataStore) -> None:
        self.client = client
        self.metadata = metadata

    async def ledger(self, options: LedgerOptions, *, entries: int = 1) -> int:
        writer = await self.client.create(options)
        for _ in range(entries):
            await writer.add_entry(b"confirmed")
        return writer.ledger_id

    async def put(self, path: str, value: bytes) -> None:
        await self.metadata.put(path, value, expected_version=None)

    async def topic(self, *named: int) -> None:
        records = tuple(MessageLedgerRecord(i, None, 0, 0, None) for i in named)
        await self.put(TOPIC, encode_topic_node(TopicNode(records)))

    async def cursor(self, named: int | None, *, epoch: int = 7) -> None:
        node = CursorNode(epoch, named, None, {})
        await self.put(CURSOR, encode_cursor_node(node, PACKING))

    async def sweep(self) -> list[int]:
        parts: Any = SimpleNamespace(metadata=self.metadata, ledger_client=self.client)
        candidates = await self.client.ledger_ids()
        deleted = await delete_orphan_ledgers(parts, candidates, pauses=())
        assert sorted({*candidates} - {*deleted}) == await self.client.ledger_ids()
        return sorted(deleted)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    metadata = MemoryMetadataStore()
    client = BookieLedgerClient(await open_bookies([tmp_path]), metadata)
    yield World(client, metadata)
    await client.close()


OF_TOPIC = LedgerOptions(custom_metadata={TOPIC_PATH_KEY: TOPIC.encode()})
OF_JOURNAL = LedgerOptions(custom_metadata={JOURNAL_PATH_KEY: JOURNAL.encode()})
OF_SNAPSHOT = LedgerOptions(custom_metadata={DELAYED_CURSOR_KEY: CURSOR.encode()})


def of_cursor(*, epoch: int = 7) -> LedgerOptions:
    return ledger_options(CURSOR, PersistenceSettings(), owner_epoch=epoch)


async def test_messages_are_kept_whatever_the_topics_node_says(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata may be from before the ledger was named, or the topic was made."""
    forgotten, empty = await world.ledger(OF_TOPIC), await world.ledger(OF_TOPIC, entries=0)
    assert await world.sweep() == [empty]
    assert f"ledgers {forgotten} hold entries and are named by nothing" in caplog.text
    named = await world.ledger(OF_TOPIC)
    await world.topic(named)
    assert await world.sweep() == []
    await world.client.announce_deletion([forgotten, named])
    assert await world.sweep() == [forgotten]
    await world.topic()
    assert await world.sweep() == [named]


async def test_a_cursors_ledger_goes_when_the_cursor_went_on_without_it(world: World) -> None:
    named = await world.ledger(of_cursor())
    begun = await world.ledger(of_cursor())
    await world.cursor(named)
    assert await world.sweep() == []  # its maker was about to name it
    await world.cursor(named, epoch=8)
    assert await world.sweep() == [begun]
    later = await world.ledger(of_cursor(epoch=9))
    await world.cursor(later)
    assert await world.sweep() == [named]
    await world.metadata.delete(CURSOR)
    assert await world.sweep() == [later]


async def test_a_journals_ledger_goes_when_a_later_one_is_named(world: World) -> None:
    first = await world.ledger(OF_JOURNAL)
    await world.put(JOURNAL, encode_journal_node(DeliveryJournalNode()))
    assert await world.sweep() == []
    later = await world.ledger(OF_JOURNAL)
    node = DeliveryJournalNode((JournalLedgerRecord(later, 0),))
    await world.put(JOURNAL, encode_journal_node(node))
    assert await world.sweep() == [first]
    await world.metadata.delete(JOURNAL)
    assert await world.sweep() == [later]


async def test_a_snapshot_can_be_made_anew(world: World) -> None:
    snapshot = await world.ledger(OF_SNAPSHOT)
    assert await world.sweep() == [snapshot]


async def test_what_was_adopted_goes_only_when_its_own_node_says_so(world: World) -> None:
    options = of_cursor(epoch=1)
    custom = {**options.custom_metadata, ADOPTED_KEY: b"1"}
    adopted = await world.ledger(replace(options, custom_metadata=custom))
    assert await world.sweep() == []
    await world.client.announce_deletion([adopted])
    assert await world.sweep() == [adopted]


async def test_a_deletion_that_was_begun_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = await world.ledger(OF_TOPIC)
    await world.topic(ledger_id)

    async def killed(_: int) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.client, "_remove_files", killed)
        with pytest.raises(KeyboardInterrupt):
            await world.client.delete(ledger_id)
    assert await world.client.ledger_ids() == [ledger_id]
    assert await world.sweep() == [ledger_id]
    assert await world.client.bookies[0].ledger_ids() == set()
