"""Rebuilt buckets are in place as a whole, or nothing has changed; and never under an owner's feet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.cursor import BucketRecord, Position
from ackgate.dispatcher.buckets import BucketSettings
from ackgate.errors import (
    ConfigurationError,
    DataDirectoryBusyError,
    OutcomeUnknownError,
    OwnershipError,
)
from ackgate.persistence import (
    BucketSnapshots,
    MemoryMetadataStore,
    PersistenceSettings,
    cursor_path,
    find_orphan_snapshots,
    topic_path,
)
from ackgate.persistence.buckets.registry import snapshot_ids
from ackgate.persistence.cursors.node import decode_cursor_node, encode_cursor_node
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.nodes.owner_nodes import OwnerRecord, encode_owner, is_in_range
from ackgate.persistence.nodes.paths import DELAYED_INDEX_CURSOR
from ackgate.persistence.offline_storage import (
    OfflineStorage,
    StoragePlaces,
    opened_storage,
    storage_places,
)
from ackgate.persistence.records.limits import packing
from ackgate.persistence.system.data_directory import DataDirectory
from ackgate.pipeline.jobs.generate.plan import GeneratePlan
from ackgate.pipeline.jobs.generate.writing import write_data
from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import EntryRun
from ackgate.pipeline.jobs.rebuild_delayed_index.placing import BucketToStore, Placing
from ackgate.pipeline.jobs.rebuild_delayed_index.sealing import keep, kept, seal
from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Target

TOPIC = "persistent://public/default/generated-0"
PATH = topic_path("public", "default", "generated-0")


@pytest.fixture
def places(tmp_path: Path) -> StoragePlaces:
    directory = tmp_path / "data"
    directory.mkdir()
    asyncio.run(write_data(directory, GeneratePlan(100, seed=1, delayed_share=1.0), lambda _: None))
    return storage_places(data_directory=directory)


def target(cursor: str = "subscription-0") -> Target:
    return Target(
        number=0,
        topic=TOPIC,
        cursor=cursor,
        path=cursor_path(PATH, cursor),
        readers={"subscription-0": Position(-1, -1)},
        cancelled_through=None,
        tick_ms=1,
        is_strict=True,
    )


def bucket(snapshot_id: int, first: int) -> BucketToStore:
    run = EntryRun(0, np.arange(first, first + 10), np.arange(1_000, 1_010))
    sealed = seal([run], snapshot_id, BucketSettings(), PersistenceSettings())
    record = BucketRecord(sealed.first, sealed.last, snapshot_id)
    return BucketToStore(record, lambda: sealed.payloads)


def unreadable(snapshot_id: int) -> BucketToStore:
    def fail() -> list[bytes]:
        raise OSError("the disk is gone")

    return bucket(snapshot_id, 0)._replace(payloads=fail)


async def registered(places: StoragePlaces, cursor: str = "subscription-0") -> list[int]:
    async with opened_storage(places) as storage:
        path = cursor_path(PATH, cursor)
        found = await storage.metadata.get(path)
        assert found is not None
        return snapshot_ids(decode_cursor_node(found.value, path=path).cursor_properties)


async def snapshot_ledgers(places: StoragePlaces) -> list[int]:
    async with opened_storage(places) as storage:
        return [
            ledger_id
            for ledger_id in await storage.client.ledger_ids()
            if (await storage.client.metadata(ledger_id)).custom_metadata.get("component")
            == b"delayed-bucket"
        ]


def place(places: StoragePlaces, *firsts: int, cursor: str = "subscription-0") -> list[int]:
    with Placing.opened(places) as placing:
        placing.take_stock([target(cursor)])
        ids = placing.new_ledger_ids(len(firsts))
        buckets = [bucket(*each) for each in zip(ids, firsts, strict=True)]
        placing.check(target(cursor), [one.record for one in buckets])
        placing.place(target(cursor), buckets)
    return ids


def test_new_buckets_take_the_place_of_those_before(places):
    first = place(places, 0, 20)
    second = place(places, 0, 20, 40)

    assert asyncio.run(registered(places)) == second
    assert asyncio.run(snapshot_ledgers(places)) == second
    assert not set(first) & set(second)


def test_they_are_read_back_as_the_broker_reads_them(places):
    (snapshot_id,) = place(places, 30)

    async def read():
        async with opened_storage(places, is_writing=True) as storage:
            snapshots = BucketSnapshots(storage.client, target().path, places.settings)
            return await snapshots.segments(snapshot_id, 0, 9)

    segments = asyncio.run(read())
    assert [s.entry_ids.tolist() for s in segments] == [list(range(30, 40))]


def test_a_failure_in_the_middle_changes_nothing_and_leaves_nothing(places):
    before = place(places, 0)
    with Placing.opened(places) as placing:
        placing.take_stock([target()])
        ids = placing.new_ledger_ids(2)
        with pytest.raises(OSError, match="the disk is gone"):
            placing.place(target(), [bucket(ids[0], 0), unreadable(ids[1])])

    assert asyncio.run(registered(places)) == before
    assert asyncio.run(snapshot_ledgers(places)) == before


def test_what_a_kill_leaves_before_the_node_is_written_is_an_orphan(places):
    before = place(places, 0)
    with Placing.opened(places) as placing:
        placing.take_stock([target()])
        ids = placing.new_ledger_ids(1)
        placing._runner.run(placing._store(target(), bucket(ids[0], 20)))

    async def orphans():
        async with opened_storage(places) as storage:
            ledgers = await storage.client.ledger_ids()
            return await find_orphan_snapshots(storage.client, storage.metadata, ledgers)

    assert asyncio.run(orphans()) == ids
    assert asyncio.run(registered(places)) == before


def test_beside_brokers_its_ledgers_are_no_orphans_as_long_as_it_lives(places):
    """A broker that starts in between deletes what no node names and nobody who lives has made."""

    async def swept(storage: OfflineStorage) -> list[int]:
        parts = SimpleNamespace(metadata=storage.metadata, ledger_client=storage.client)
        return await delete_orphan_ledgers(parts, await storage.client.ledger_ids())

    with Placing.opened(places) as placing:
        shared = places._replace(metadata_url="zk:127.0.0.1:1/none")
        placing._storage = placing._storage._replace(places=shared)
        placing.take_stock([target()])
        (snapshot_id,) = placing.new_ledger_ids(1)
        placing._runner.run(placing._store(target(), bucket(snapshot_id, 0)))
        while_it_lives = placing._runner.run(swept(placing._storage))

    async def swept_later() -> list[int]:
        async with opened_storage(places, is_writing=True) as storage:
            return await swept(storage)

    assert while_it_lives == []
    assert asyncio.run(swept_later()) == [snapshot_id]


def test_a_node_that_was_written_meanwhile_is_left_alone(places):
    with Placing.opened(places) as placing:
        placing.take_stock([target()])
        metadata = placing._storage.metadata
        found = placing._runner.run(metadata.get(target().path))
        placing._runner.run(metadata.put(target().path, found.value, expected_version=None))
        ids = placing.new_ledger_ids(1)
        with pytest.raises(OwnershipError, match="left as it was"):
            placing.place(target(), [bucket(ids[0], 0)])

    assert asyncio.run(registered(places)) == []
    assert asyncio.run(snapshot_ledgers(places)) == []


class _Unanswered:
    """A metadata store whose puts are done after all, though none is answered; then `meanwhile` runs."""

    def __init__(self, metadata, meanwhile):
        self._metadata, self._meanwhile = metadata, meanwhile

    def __getattr__(self, name):
        return getattr(self._metadata, name)

    async def put(self, path, value, *, expected_version):
        await self._metadata.put(path, value, expected_version=expected_version)
        await self._meanwhile(path)
        raise OutcomeUnknownError(path)


@pytest.mark.parametrize("is_changed", [True, False])
def test_ledgers_that_the_node_names_stay_when_its_put_was_not_answered(places, is_changed):
    """Another process may have loaded the index meanwhile, and written the node again."""
    with Placing.opened(places) as placing:
        placing.take_stock([target()])
        metadata = placing._storage.metadata

        async def meanwhile(path):
            if not is_changed:
                raise asyncio.CancelledError
            found = await metadata.get(path)
            node = decode_cursor_node(found.value, path=path)
            properties = {**node.cursor_properties, "another": "property"}
            changed = encode_cursor_node(
                node._replace(cursor_properties=properties), packing(places.settings)
            )
            await metadata.put(path, changed, expected_version=None)

        placing._storage = placing._storage._replace(metadata=_Unanswered(metadata, meanwhile))
        ids = placing.new_ledger_ids(1)
        with pytest.raises((OwnershipError, asyncio.CancelledError)):
            placing.place(target(), [bucket(ids[0], 0)])
        placing._storage = placing._storage._replace(metadata=metadata)

    assert asyncio.run(registered(places)) == ids
    assert asyncio.run(snapshot_ledgers(places)) == ids


def test_the_cursor_of_a_shared_index_is_made_when_there_is_none(places):
    ids = place(places, 0, 20, cursor=DELAYED_INDEX_CURSOR)

    assert asyncio.run(registered(places, DELAYED_INDEX_CURSOR)) == ids
    assert asyncio.run(registered(places)) == []


@pytest.mark.parametrize("cursor", ["subscription-0", DELAYED_INDEX_CURSOR])
def test_more_buckets_than_the_node_has_room_for_are_refused_before_anything_is_written(
    places, cursor
):
    small = places.settings.model_copy(update={"metadata_store_max_node_bytes": 20_000})
    with Placing.opened(places._replace(settings=small)) as placing:
        placing.take_stock([target(cursor)])
        numbers = np.random.default_rng(1).integers(0, 2**60, 2_000).tolist()
        many = [BucketRecord(Position(n, 0), Position(n, 9), n) for n in numbers]
        with pytest.raises(
            ConfigurationError, match="larger delayedDeliveryMaxIndexCountPerBucket"
        ):
            placing.check(target(cursor), many)


def test_nobody_else_has_the_directory(places):
    with Placing.opened(places), pytest.raises(DataDirectoryBusyError):
        DataDirectory.acquire(places.data_directory)
    DataDirectory.acquire(places.data_directory).release()


@pytest.mark.parametrize("is_its_bundle", [True, False])
def test_a_topic_with_an_owner_is_refused_where_brokers_share_a_store(places, is_its_bundle):
    """Of the two halves of the namespace its topic lies in one."""
    owner = OwnerRecord("broker-1:8080", "pulsar://b", "http://b", "life", 3)
    halves = ["0x00000000_0x80000000", "0x80000000_0xffffffff"]
    its = next(half for half in halves if is_in_range(half, TOPIC))
    other = next(half for half in halves if half != its)

    async def made() -> MemoryMetadataStore:
        metadata = MemoryMetadataStore(MemoryTree())
        node = f"/namespace/public/default/{its if is_its_bundle else other}"
        await metadata.create(node, encode_owner(owner), ephemeral=True)
        async with opened_storage(places) as storage:
            found = await storage.metadata.get(target().path)
        await metadata.put(target().path, found.value, expected_version=None)
        return metadata

    with asyncio.Runner() as runner:
        metadata = runner.run(made())
        shared = places._replace(metadata_url="zk:127.0.0.1:1/none")
        placing = Placing(OfflineStorage(shared, metadata, None, {}), runner)
        if is_its_bundle:
            with pytest.raises(OwnershipError, match="owned by broker broker-1:8080"):
                placing.take_stock([target()])
        else:
            placing.take_stock([target()])


def test_sealed_entries_are_kept_once_and_taken_up_again(tmp_path):
    keep(tmp_path / "sealed", 5, [b"a", b"", b"ccc"])
    keep(tmp_path / "sealed", 5, [b"a", b"", b"ccc"])

    assert kept(tmp_path / "sealed", 5) == [b"a", b"", b"ccc"]
    assert [path.name for path in (tmp_path / "sealed").iterdir()] == ["5.arrow"]


def test_what_a_worker_has_left_elsewhere_is_missed_in_plain_words(tmp_path):
    with pytest.raises(Exception, match="a directory that the workers and this process share"):
        kept(tmp_path, 5)
