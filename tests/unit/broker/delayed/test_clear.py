"""Clearing the indexes of all subscriptions of a topic, each with its own or all with one."""

from __future__ import annotations

import pytest

from ackgate.broker.topic.topic import clear_delayed
from ackgate.config.delayed import BUCKET_FACTORY
from tests.unit.broker.delayed.bucket_world import virtual
from tests.unit.broker.delayed.delivery_world import DelayedWorld, at, settle

KEYS = {
    "delayedDeliveryTrackerFactoryClassName": BUCKET_FACTORY,
    "delayedDeliveryMinIndexCountPerBucket": "10",
    "delayedDeliveryMaxIndexCountPerBucket": "20",
}
NAMES = [f"m{number}" for number in range(50)]


def snapshots(world: DelayedWorld) -> set[int]:
    return {
        ledger_id
        for ledger_id, ledger in world.ledgers.ledgers.items()
        if "ackgate/delayed-cursor" in ledger.metadata.custom_metadata
    }


@pytest.mark.parametrize("is_shared", ["true", "false"])
@virtual
async def test_all_snapshots_go_and_no_message_does(is_shared: str) -> None:
    world = DelayedWorld(**KEYS, delayedDeliverySharedIndexEnabled=is_shared)
    await world.start()
    subscriptions = ("a", "b", "c")
    for name in subscriptions:
        await world.consumer(subscription=name)
    for number, name in enumerate(NAMES):
        await world.publish(name, delay_ms=10_000 + 100 * number)
    await settle()
    before = snapshots(world)
    assert len(before) == (2 if is_shared == "true" else 6)
    await clear_delayed(world.topic)
    assert not snapshots(world)
    clients = [await world.consumer(subscription=name) for name in subscriptions]
    for name in subscriptions:
        assert world.subscription(name).core.statistics().held.delayed_entries == len(NAMES)
    await at(16_000)
    for client in clients:
        assert sorted(client.names) == sorted(NAMES)
    world.check()
