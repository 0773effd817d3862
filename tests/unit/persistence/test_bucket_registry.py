"""The registry of buckets in a cursor's node: one atomic change, beside the properties of users."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.cursor import BucketRecord, Position
from ackgate.errors import (
    CallerError,
    CorruptRecordError,
    NodeTooLargeError,
    OutcomeUnknownError,
    OwnershipError,
)
from ackgate.persistence import MemoryMetadataStore, read_cursor
from ackgate.persistence.buckets.registry import (
    changed_properties,
    registered_buckets,
    snapshot_ids,
)
from tests.unit.persistence.store_world import PATH, World, metadata_down

KEY = "#pulsar.internal.delayed.bucket_3:0_3:99"


def bucket(snapshot_id: int, first: int = 0, last: int = 99) -> BucketRecord:
    return BucketRecord(Position(3, first), Position(3, last), snapshot_id)


def add(*buckets: BucketRecord):
    return lambda held: changed_properties(held, buckets, ())


def remove(*ids: int):
    return lambda held: changed_properties(held, (), ids)


def test_buckets_are_named_as_pulsar_names_them() -> None:
    assert changed_properties({}, [bucket(12)], ()) == {KEY: "12"}
    assert registered_buckets({KEY: "12", "#pulsar.internal.other": "x"}) == [bucket(12)]


def test_a_merge_is_one_change() -> None:
    held = changed_properties({"else": "1"}, [bucket(5, 0, 9), bucket(6, 10, 19)], ())
    merged = changed_properties(held, [bucket(7, 0, 19)], [5, 6])
    assert registered_buckets(merged) == [bucket(7, 0, 19)]
    assert merged["else"] == "1"
    # Carried out twice it is the same.
    assert changed_properties(merged, [bucket(7, 0, 19)], [5, 6]) == merged


def test_two_buckets_over_the_same_positions() -> None:
    held = changed_properties({}, [bucket(5), bucket(6)], ())
    assert registered_buckets(held) == [bucket(5), bucket(6)]
    assert snapshot_ids(held) == [5, 6]
    assert registered_buckets(changed_properties(held, (), [5])) == [bucket(6)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("#pulsar.internal.delayed.bucket", "1"),
        ("#pulsar.internal.delayed.bucket_3_5", "1"),
        ("#pulsar.internal.delayed.bucket_3:0_3:99_4", "1"),
        ("#pulsar.internal.delayed.bucket_3:9_3:0", "1"),
        ("#pulsar.internal.delayed.bucket_-3:0_3:0", "1"),
        (KEY, ""),
        (KEY, "one"),
        (KEY, "-1"),
        (KEY, "5,"),
        (KEY, str(2**63)),
    ],
)
def test_what_names_no_bucket_is_an_error_and_stays(key: str, value: str) -> None:
    held = {key: value, f"{KEY}9": "8"}
    with pytest.raises(CorruptRecordError, match=r"#pulsar\.internal\.delayed\.bucket"):
        registered_buckets(held)
    assert 8 in snapshot_ids(held)
    assert changed_properties(held, (), [8]) == {key: value}


# --------------------------------------------------------------- in the cursor's node


async def test_users_properties_and_internal_ones_never_touch_each_other() -> None:
    world = World()
    store = await world.open()
    await store.change_internal_properties(add(bucket(12)))
    await store.set_cursor_properties({"team": "money"})
    await store.change_internal_properties(add(bucket(13)))
    assert store.cursor_properties == {"team": "money"}
    assert store.internal_properties == {KEY: "12,13"}
    await store.set_cursor_properties({})
    assert store.internal_properties == {KEY: "12,13"}

    # The cursor's own writes keep them, and so does its next owner.
    store.cursor.ack_cumulative(Position(3, 500))
    store.notify()
    await store.flush()
    again = await world.crash_and_reopen(store)
    assert again.cursor_properties == {}
    assert registered_buckets(again.internal_properties) == [bucket(12), bucket(13)]
    await again.change_internal_properties(remove(12, 13))
    assert (await world.node()).cursor_properties == {}


async def test_a_user_may_not_use_the_brokers_names() -> None:
    world = World()
    store = await world.open()
    await store.change_internal_properties(add(bucket(12)))
    with pytest.raises(CallerError, match=r"#pulsar\.internal\."):
        await store.set_cursor_properties({KEY: "13"})
    assert store.internal_properties == {KEY: "12"}
    assert store.cursor_properties == {"made": "by a test"}


async def test_changes_at_the_same_time_are_all_done() -> None:
    world = World()
    store = await world.open()
    await asyncio.gather(
        *(store.change_internal_properties(add(bucket(n, n, n))) for n in range(1, 6)),
        *(store.set_cursor_properties({"n": str(n)}) for n in range(3)),
    )
    assert [b.snapshot_id for b in registered_buckets(store.internal_properties)] == [1, 2, 3, 4, 5]
    assert store.cursor_properties == {"n": "2"}
    node = await world.node()
    assert node.cursor_properties == {**store.internal_properties, "n": "2"}


async def test_many_buckets_fit_and_too_many_are_refused_before_the_state_is_squeezed() -> None:
    world = World(metadata_store_max_node_bytes=20_000, managed_cursor_info_compression_type="NONE")
    store = await world.open()
    count = 0
    with pytest.raises(NodeTooLargeError, match="may take 10000"):
        while True:
            await store.change_internal_properties(add(bucket(count, count * 1000, count * 1000)))
            count += 1
    assert 100 < count < 250
    assert len(registered_buckets(store.internal_properties)) == count
    await store.change_internal_properties(
        lambda held: changed_properties(held, [bucket(999)], range(count))
    )
    assert (await world.node()).cursor_properties == {KEY: "999", "made": "by a test"}


async def test_a_change_that_fails_is_not_done_and_the_next_one_is() -> None:
    world = World()
    store = await world.open()
    await store.change_internal_properties(add(bucket(12)))
    world.metadata.failure = metadata_down()
    with pytest.raises(type(world.metadata.failure)):
        await store.change_internal_properties(add(bucket(13)))
    world.metadata.failure = None
    await store.change_internal_properties(add(bucket(14)))
    assert snapshot_ids((await world.node()).cursor_properties) == [12, 14]


class _PutLandsUnanswered(MemoryMetadataStore):
    """The next `lost` puts are done, and nobody hears of it."""

    lost = 0

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        version = await super().put(path, value, expected_version=expected_version)
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknownError("the connection broke")
        return version


async def test_a_change_whose_answer_is_lost_is_settled() -> None:
    world = World()
    world.metadata = metadata = _PutLandsUnanswered(world.tree)
    store = await world.open()
    metadata.lost = 1
    await store.change_internal_properties(add(bucket(12)))
    assert store.internal_properties == {KEY: "12"}
    # Never answered in time: what the node has by now is not written over by the next write.
    metadata.lost = 10
    with pytest.raises(Exception, match="does not answer"):
        await store.change_internal_properties(add(bucket(13)))
    metadata.lost = 0
    store.cursor.ack_cumulative(Position(3, 500))
    store.notify()
    await store.flush()
    assert store.internal_properties == {KEY: "12,13"}
    node = await world.node()
    assert node.cursor_properties == {KEY: "12,13", "made": "by a test"}


async def test_a_deposed_owner_cannot_change_the_registry() -> None:
    world = World()
    deposed = await world.open()
    owner = await world.open()
    await owner.change_internal_properties(add(bucket(12)))
    with pytest.raises(OwnershipError):
        await deposed.change_internal_properties(add(bucket(13)))
    assert isinstance(deposed.why_stopped, OwnershipError)
    assert snapshot_ids((await world.node()).cursor_properties) == [12]


async def test_tools_see_both_kinds_apart() -> None:
    world = World()
    store = await world.open()
    await store.change_internal_properties(add(bucket(12)))
    view = await read_cursor(PATH, ledger_client=world.ledgers, metadata=world.metadata)
    assert view.cursor_properties == {"made": "by a test"}
    assert view.internal_properties == {KEY: "12"}
