"""Delayed entries through a subscription whose index is kept in buckets."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ackgate.broker.delayed.tracker_status import TrackerStep
from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.broker.wire.errors import PersistenceFailedError
from ackgate.config.delayed import BUCKET_FACTORY, IN_MEMORY_FACTORY
from ackgate.errors import OwnershipError
from ackgate.persistence.buckets.registry import BUCKET_PREFIX, snapshot_ids
from tests.support.faults import Fault, Rule
from tests.unit.broker.delayed.bucket_world import virtual
from tests.unit.broker.delayed.delivery_world import Client, DelayedWorld, at, settle

KEYS = {
    "delayedDeliveryTrackerFactoryClassName": BUCKET_FACTORY,
    "delayedDeliveryMinIndexCountPerBucket": "10",
    "delayedDeliveryMaxIndexCountPerBucket": "20",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "5",
}
NAMES = [f"m{number}" for number in range(50)]


async def started(**keys: str) -> DelayedWorld:
    world = DelayedWorld(**{**KEYS, **keys})
    await world.start()
    return world


async def filled(world: DelayedWorld, *, delay_ms: int = 10_000) -> Client:
    """50 entries, due 100 ms after one another; two buckets of 20 are stored."""
    client = await world.consumer()
    began = asyncio.get_running_loop().time()
    for number, name in enumerate(NAMES):
        await world.publish(name, delay_ms=delay_ms + 100 * number)
    assert asyncio.get_running_loop().time() == began
    await settle()
    await settle()
    return client


async def crash(world: DelayedWorld) -> None:
    world.topic.abandon(OwnershipError("killed"))
    await settle()


def snapshots(world: DelayedWorld) -> list[int]:
    return sorted(
        ledger_id
        for ledger_id, ledger in world.ledgers.ledgers.items()
        if "ackgate/delayed-cursor" in ledger.metadata.custom_metadata
    )


def registered(world: DelayedWorld) -> list[int]:
    store = world.subscription().store
    assert store is not None
    return snapshot_ids(store.internal_properties)


def lateness(client: Client) -> list[int]:
    """Of each, in ms; none is early."""
    late = [ms - 10_000 - 100 * int(name[1:]) for ms, name in client.got]
    assert min(late) >= 0
    return late


def offered(world: DelayedWorld) -> int:
    return world.subscription().core.statistics().held.entries_offered


@virtual
async def test_they_come_in_their_time_and_the_buckets_go_with_them() -> None:
    world = await started()
    client = await filled(world)
    assert world.subscription().tracking.status.step is TrackerStep.BUCKETS
    assert snapshots(world) == registered(world)
    assert len(snapshots(world)) == 2
    told = world.subscription().tracking.statistics()
    assert told is not None
    assert (told.entries, told.loaded_entries, told.buckets) == (50, 10, 3)
    await at(15_000)
    assert [name for _, name in client.got] == NAMES
    assert max(lateness(client)) < 20
    world.check()
    client.ack(*client.names)
    await at(16_000)
    assert snapshots(world) == registered(world) == []
    assert world.subscription().core._held.entry_count == 0


@pytest.mark.parametrize("is_killed", [True, False])
@virtual
async def test_after_a_restart_the_index_is_recovered_and_not_read_again(is_killed: bool) -> None:
    world = await started()
    await filled(world)
    if is_killed:
        await crash(world)
    else:
        await world.topic.close()
    await world.start()
    await settle()
    # What was in memory only is read again; who leaves in good order stores that, too.
    in_memory = 10 if is_killed else 0
    assert world.subscription().core._held.entry_count == 50 - in_memory
    client = await world.consumer()
    assert (world.subscription().core._held.entry_count, offered(world)) == (50, in_memory)
    await at(15_000)
    assert [name for _, name in client.got] == NAMES
    world.check()
    client.ack(*NAMES)
    await at(20_000)
    assert snapshots(world) == registered(world) == []


@virtual
async def test_a_consumer_that_comes_before_the_index_is_there_gets_everything_once() -> None:
    world = await started()
    await filled(world)
    await crash(world)
    world.plan.rules = [
        Rule(Fault.DELAY, "ledger.open", str(snapshot_id), seconds=20.0)
        for snapshot_id in snapshots(world)
    ]
    await world.start()
    client = await world.consumer()
    assert (world.subscription().core._held.entry_count, offered(world)) == (50, 50)
    await at(15_000)
    assert [name for _, name in client.got] == NAMES
    client.ack(*NAMES)
    await at(200_000)
    assert snapshots(world) == registered(world) == []


@virtual
async def test_what_a_lost_snapshot_had_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    world = await started()
    client = await filled(world)
    first, second = snapshots(world)
    del world.ledgers.ledgers[first]
    world.plan.rules = [
        Rule(Fault.CORRUPT, "ledger.read", str(second)),
        Rule(Fault.FAIL, "ledger.read", nth=2, times=3),
    ]
    await at(15_000)
    assert [name for _, name in client.got] == NAMES
    assert max(lateness(client)) < 20
    told = world.subscription().tracking.statistics()
    assert told is not None
    assert told.entries_lost > 0
    assert "are read again: their snapshot is lost" in caplog.text
    world.check()


@virtual
async def test_storage_that_takes_nothing_means_memory_and_says_so() -> None:
    world = await started()
    # Made for a cursor and its topic: a snapshot.
    world.plan.rules = [Rule(Fault.FAIL, "ledger.create", "/* /*", times=None)]
    client = await filled(world)
    await at(8_000)
    told = world.subscription().tracking.statistics()
    assert told is not None
    assert told.buckets_failing > 0
    assert any("stay in memory" in sentence for sentence in told.degraded)
    await at(15_000)
    assert sorted(name for _, name in client.got) == sorted(NAMES)


@virtual
async def test_a_registry_that_cannot_be_read_means_time_buckets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await started()
    await filled(world)
    store = world.subscription().store
    assert store is not None
    await store.change_internal_properties(lambda held: {**held, f"{BUCKET_PREFIX}_7_9": "12"})
    await world.topic.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await world.start()
    status = world.subscription().tracking.status
    assert status.step is TrackerStep.TIME_BUCKETS
    assert status.wanted is TrackerStep.BUCKETS
    assert "bucket_7_9' names no bucket" in status.why
    assert caplog.text.count("tracked in memory only") == 1
    client = await world.consumer()
    assert offered(world) == 50
    await at(15_000)
    assert [name for _, name in client.got] == NAMES
    # What can be read of the registry goes with the subscription.
    assert len(snapshots(world)) == 3
    world.topic.begin_deleting(force=True)
    await world.topic.delete()
    assert snapshots(world) == []


@virtual
async def test_another_setting_deletes_what_is_left_over() -> None:
    world = await started()
    await filled(world)
    store = world.subscription().store
    assert store is not None
    await store.set_cursor_properties({"team": "money"})
    await world.topic.close()
    world.keys["delayedDeliveryTrackerFactoryClassName"] = IN_MEMORY_FACTORY
    await world.start()
    await settle()
    assert snapshots(world) == registered(world) == []
    subscription = world.subscription()
    assert subscription.tracking.status.step is TrackerStep.TIME_BUCKETS
    assert not subscription.tracking.status.why
    assert subscription.store is not None
    assert subscription.store.cursor_properties == {"team": "money"}
    client = await world.consumer()
    await at(15_000)
    assert [name for _, name in client.got] == NAMES


# ----------------------------------------------------------------------------- deleting


@pytest.mark.parametrize("what", ["subscription", "topic"])
@pytest.mark.parametrize("moment", ["stored", "being written", "not looked at"])
@virtual
async def test_what_is_deleted_leaves_nothing(what: str, moment: str) -> None:
    world = await started()
    if moment == "being written":
        world.plan.rules = [Rule(Fault.LATE_ANSWER, "ledger.close", times=None, seconds=3.0)]
    await filled(world)
    if moment == "not looked at":
        await world.topic.close()
        world.keys["delayedDeliveryEnabled"] = "false"
        await world.start()
        assert world.subscription().tracking.statistics() is None
    assert len(snapshots(world)) == (3 if moment == "not looked at" else 2)
    if what == "topic":
        world.topic.begin_deleting(force=True)
        await world.topic.delete()
    else:
        await world.subscription().delete()
    assert snapshots(world) == []


@virtual
async def test_a_subscription_without_properties_is_deleted() -> None:
    world = await started()
    await world.consumer()
    await world.publish("now")
    await world.subscription().delete()
    assert world.topic.subscriptions == {}


@virtual
async def test_snapshots_of_a_crash_go_at_the_next_start_and_named_ones_stay() -> None:
    world = await started()
    world.plan.rules = [Rule(Fault.LATE_ANSWER, "ledger.close", nth=2, seconds=100.0)]
    await filled(world)
    assert len(snapshots(world)) == 2
    assert len(registered(world)) == 1
    await crash(world)
    world.plan.rules = []
    await world.start()
    orphans = await delete_orphan_ledgers(world.topic.services, snapshots(world))
    assert len(orphans) == 1
    assert snapshots(world) == registered(world)
    assert len(registered(world)) == 1


@virtual
async def test_a_broker_that_lost_the_topic_writes_no_more() -> None:
    world = await started()
    world.plan.rules = [Rule(Fault.LATE_ANSWER, "ledger.append", nth=55, times=None, seconds=3.0)]
    await filled(world)
    await crash(world)
    calls = world.plan.calls
    await at(300_000)
    assert world.plan.calls <= calls + 5  # handles that are let go of


@virtual
async def test_clearing_deletes_the_snapshots_and_reading_builds_new_ones() -> None:
    world = await started()
    await filled(world)
    before = snapshots(world)
    assert len(before) == 2
    await world.subscription().clear_delayed()
    assert snapshots(world) == registered(world) == []
    client = await world.consumer()
    await settle()
    await settle()
    assert len(snapshots(world)) == 2
    assert not set(snapshots(world)) & set(before)
    await at(16_000)
    assert sorted(client.names) == sorted(NAMES)
    world.check()


@virtual
async def test_clearing_deletes_what_an_earlier_setting_left() -> None:
    world = await started()
    await filled(world)
    await crash(world)
    world.keys["delayedDeliveryEnabled"] = "false"
    await world.start()
    assert len(snapshots(world)) == 2
    await world.subscription().clear_delayed()
    assert snapshots(world) == registered(world) == []


@virtual
async def test_what_cannot_be_deleted_in_time_is_told_and_deleted_later() -> None:
    world = await started()
    await filled(world)
    world.plan.rules = [Rule(Fault.DELAY, "ledger.delete", times=2, seconds=45.0)]
    with pytest.raises(PersistenceFailedError, match="the index is cleared"):
        await world.subscription().clear_delayed()
    await asyncio.sleep(600)
    assert snapshots(world) == registered(world) == []
