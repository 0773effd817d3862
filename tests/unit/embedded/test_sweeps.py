"""What a crash left without a name is deleted at the next opening; everything else stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ackgate
from ackgate.cursor import Position, SegmentMetadata, SnapshotSegment, bitmap_of
from ackgate.errors import ConfigurationError, NoSuchLedgerError
from ackgate.persistence import BucketSnapshots, LedgerOptions
from ackgate.persistence.nodes.paths import cursor_path, embedded_topic_path
from ackgate.persistence.nodes.topic_node import TOPIC_PATH_KEY

PATH = cursor_path(embedded_topic_path("orders"), "billing")


async def ledgers_of(storage: ackgate.EmbeddedStorage) -> set[int]:
    return set(await storage.ledger_client.ledger_ids())


async def snapshot(storage: ackgate.EmbeddedStorage) -> int:
    """A bucket of delayed entries that no registry names, as after a crash before it was."""
    snapshots = BucketSnapshots(storage.ledger_client, PATH, storage.settings)
    segment = SnapshotSegment(*(np.array([number]) for number in (1_000, 7, 3)))
    summary = SegmentMetadata(1_000, 1_000, 1, {7: bitmap_of(np.array([3]))})
    stored = await snapshots.create(Position(7, 0), Position(7, 9), [segment], [summary])
    return stored.snapshot_id


async def test_ledgers_without_a_name_go_and_the_others_stay(tmp_path: Path) -> None:
    async with ackgate.open_embedded(tmp_path) as storage:
        topic = await storage.topic("orders")
        sub = await topic.subscribe("billing")
        await topic.publish([b"one"])
        await sub.attach("alice").ack(topic.last_position)
        orphans = {await snapshot(storage)}
        of_topic = LedgerOptions(
            custom_metadata={TOPIC_PATH_KEY: embedded_topic_path("orders").encode()}
        )
        orphans.add((await storage.ledger_client.create(of_topic)).ledger_id)
        hosts_own = (await storage.ledger_client.create(LedgerOptions())).ledger_id
        assert orphans < await ledgers_of(storage)
    async with ackgate.open_embedded(tmp_path) as storage:
        left = await ledgers_of(storage)
        assert not orphans & left
        assert hosts_own in left
        for orphan in orphans:
            with pytest.raises(NoSuchLedgerError):
                await storage.ledger_client.metadata(orphan)
        topic = await storage.topic("orders")
        assert topic.message_count == 1
        assert (await topic.subscribe("billing")).backlog == 0


def test_settings_that_cannot_be_are_refused_with_our_error() -> None:
    with pytest.raises(ConfigurationError, match="PersistenceSettings: ack_persist_linger_ms"):
        ackgate.PersistenceSettings(ack_persist_linger_ms=-1)
