"""What consumers give back, under a policy: held back, out of everybody's way, over restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from ackgate.broker.cluster.policies import namespace_policy_path, topic_policy_path
from ackgate.broker.stats.take import delayed_state
from ackgate.broker.wire.requests import SubscriptionType
from tests.support.bare_broker import loop_clock_ms
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed.delivery_world import NAME, Client, DelayedWorld, at, settle

SHARED = SubscriptionType.SHARED
KEY_SHARED = SubscriptionType.KEY_SHARED
HOLDING = pytest.mark.parametrize("type_", [SHARED, KEY_SHARED])

TOPIC = topic_policy_path(NAME)
NAMESPACE = namespace_policy_path(NAME.namespace_name)
ONE_SECOND = {"minDelayMs": 1_000, "maxDelayMs": 3_000, "multiplier": 2}
EARLY_MS = 62


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**given: object) -> None:
        async def main() -> None:
            await test(**given)

        run_in_virtual_time(main())

    return run


class World(DelayedWorld):
    """With a policy."""

    async def set_policy(self, policy: dict[str, Any] | None, path: str = TOPIC) -> None:
        await self.topic.services.policies.change(path, {"redeliveryBackoff": policy})
        self.topic.configure()

    def nack(self, client: Client, *names: str) -> None:
        client.port.redeliver([self.positions[name] for name in names], None)

    async def killed_and_started(self) -> None:
        """Storage is as it was when the broker was killed."""
        await self.start()


async def started(policy: dict[str, Any] | None = ONE_SECOND, **keys: str) -> World:
    world = World(**keys)
    await world.start()
    if policy is not None:
        await world.set_policy(policy)
    return world


@HOLDING
@in_virtual_time
async def test_each_time_it_comes_later(type_: SubscriptionType) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish("a", "b")
    client.ack("b")
    sent_ms = 0
    for count, delay_ms in enumerate((1_000, 2_000, 3_000, 3_000)):
        await at(sent_ms)
        [(came_ms, name)] = [got for got in client.got if got[1] == "a"]
        assert name == "a"
        assert sent_ms - EARLY_MS <= came_ms <= sent_ms
        assert client.redeliveries["a"] == count
        client.got.clear()
        await at(sent_ms + 100)
        world.nack(client, "a")
        sent_ms += 100 + delay_ms
        assert delayed_state(world.subscription()).nacks.pending == 1
        world.check()


@HOLDING
@in_virtual_time
async def test_without_a_policy_it_comes_at_once(type_: SubscriptionType) -> None:
    world = await started(policy=None)
    client = await world.consumer(type=type_)
    await world.publish("a")
    world.nack(client, "a")
    await settle()
    assert client.names == ["a", "a"]
    assert world.subscription().core.held_nacks is None


@pytest.mark.parametrize("type_", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
@in_virtual_time
async def test_who_is_promised_an_order_is_not_held_up(type_: SubscriptionType) -> None:
    world = await started(activeConsumerFailoverDelayTimeMillis="0")
    client = await world.consumer(type=type_)
    await world.publish("a", "b")
    assert client.names == ["a", "b"]
    world.nack(client, "a")
    await settle()
    assert client.names == ["a", "b"]


@HOLDING
@in_virtual_time
async def test_others_do_not_get_it_early_and_get_the_rest_meanwhile(
    type_: SubscriptionType,
) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish("a", "b")
    world.nack(client, "a")
    other = await world.consumer(type=type_, name="d")
    await world.publish("c")
    await client.port.close()
    await settle()
    assert set(other.names) == {"b", "c"}, "in flight with who left, and new; not what is held"
    await at(900)
    assert other.names == []
    await at(1_000)
    assert other.names == ["a"]
    world.check()


@HOLDING
@in_virtual_time
async def test_all_that_is_in_flight_with_one_consumer(type_: SubscriptionType) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish(*"abc")
    client.ack("b")
    assert client.names == ["a", "b", "c"]
    client.port.redeliver(None, None)
    await at(900)
    assert client.names == []
    await at(1_000)
    assert client.names == ["a", "c"]


@in_virtual_time
async def test_what_another_has_in_flight_is_not_held_back() -> None:
    world = await started()
    client = await world.consumer(permits=1)
    other = await world.consumer(permits=0, name="d")
    await world.publish("a", "b")
    assert client.names == ["a"]
    world.nack(other, "a")
    world.nack(client, "b")
    assert delayed_state(world.subscription()).nacks.pending == 0
    world.check()


@HOLDING
@in_virtual_time
async def test_it_stays_held_when_all_consumers_leave(type_: SubscriptionType) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish("a", "b")
    world.nack(client, "a")
    await client.port.close()
    client = await world.consumer(type=type_)
    assert client.names == ["b"]
    await at(1_000)
    assert client.names == ["a"]
    assert client.redeliveries["a"] == 0, "counts go with the last consumer, as with Pulsar"
    world.check()


@HOLDING
@in_virtual_time
async def test_it_stays_held_over_a_crash_until_its_time(type_: SubscriptionType) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish("a", "b")
    world.nack(client, "a")
    await at(50)
    await world.killed_and_started()
    assert delayed_state(world.subscription()).nacks.persisted == 1
    client = await world.consumer(type=type_)
    assert client.names == ["b"]
    await at(900)
    assert client.names == []
    await at(1_000)
    assert client.names == ["a"]
    client.ack("a", "b")
    assert world.subscription().cursor.backlog_entries == 0
    world.check()


@in_virtual_time
async def test_what_fell_due_while_nobody_was_there_comes_at_once() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("a", "b")
    world.nack(client, "a")
    await at(50)
    await world.killed_and_started()
    await at(5_000)
    client = await world.consumer()
    assert sorted(client.names) == ["a", "b"]
    world.check()


@in_virtual_time
async def test_it_stays_held_over_a_crash_after_the_policy_was_removed() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("a")
    world.nack(client, "a")
    await world.set_policy(None)
    await at(50)
    await world.killed_and_started()
    client = await world.consumer()
    await at(900)
    assert client.names == []
    await at(1_000)
    assert client.names == ["a"]
    world.nack(client, "a")
    await settle()
    assert client.names == ["a"], "what is given back now comes at once"


@HOLDING
@in_virtual_time
async def test_an_ack_takes_it_out(type_: SubscriptionType) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish(*"abcd")
    world.nack(client, *"acd")
    client.ack("c")
    assert delayed_state(world.subscription()).nacks.pending == 2
    await world.subscription().expire_through(world.positions["a"])
    assert delayed_state(world.subscription()).nacks.pending == 1
    client.got.clear()
    await at(2_000)
    assert client.names == ["d"]
    world.check()


@in_virtual_time
async def test_what_is_acked_is_not_held_after_a_crash() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish(*"abc")
    world.nack(client, *"bc")
    await at(50)
    client.ack("b")
    await at(100)
    await world.killed_and_started()
    assert delayed_state(world.subscription()).nacks.pending == 1
    client = await world.consumer()
    assert client.names == ["a"]
    await at(1_100)
    assert client.names == ["c"]


@in_virtual_time
async def test_clearing_the_backlog_takes_everything_out() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish(*"abc")
    world.nack(client, *"abc")
    await world.subscription().clear_backlog()
    assert delayed_state(world.subscription()).nacks.pending == 0
    client.got.clear()
    await at(5_000)
    assert client.names == []


@in_virtual_time
async def test_a_seek_back_leaves_held_what_has_not_come() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish(*"abc")
    client.ack("a")
    world.nack(client, "b")
    await world.subscription().seek(world.positions["a"])
    client = await world.consumer()
    assert client.names == ["a", "c"]
    await at(1_000)
    assert client.names == ["b"]
    world.check()


@in_virtual_time
async def test_it_counts_as_unacked_by_nobody_and_blocks_nobody() -> None:
    world = await started(maxUnackedMessagesPerConsumer="2")
    client = await world.consumer()
    await world.publish(*"abcdef")
    assert client.names == ["a", "b"]
    world.nack(client, "a", "b")
    await settle()
    assert client.names == ["c", "d"]


@in_virtual_time
async def test_the_topics_policy_wins_over_the_namespaces() -> None:
    world = await started(policy=None)
    await world.set_policy({"minDelayMs": 5_000}, NAMESPACE)
    client = await world.consumer()
    await world.publish("a", "b")
    world.nack(client, "a")
    await world.set_policy(ONE_SECOND)
    world.nack(client, "b")
    client.got.clear()
    await at(1_000)
    assert client.names == ["b"]
    await at(4_600)
    assert client.names == [], "what was given back before keeps its time"
    await at(5_000)
    assert client.names == ["a"]


@in_virtual_time
async def test_part_of_a_batch_that_is_acked_stays_acked_and_the_rest_held() -> None:
    world = await started(acknowledgmentAtBatchIndexLevelEnabled="true")
    client = await world.consumer()
    await world.publish("a")
    world.nack(client, "a")
    world.subscription().core.ack(
        None, [], parts=[(world.positions["a"], 0b10)], now_ms=loop_clock_ms()
    )
    client.got.clear()
    await at(900)
    assert client.names == []
    assert delayed_state(world.subscription()).nacks.pending == 1
    await at(1_000)
    assert client.names == ["a"]


@in_virtual_time
async def test_a_delayed_message_that_is_given_back_waits_its_backoff() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("a", delay_ms=500)
    await at(500)
    assert client.names == ["a"]
    world.nack(client, "a")
    await at(1_400)
    assert client.names == []
    await at(1_500)
    assert client.names == ["a"]
    world.check()


@in_virtual_time
async def test_many_are_held_back_and_come_in_order() -> None:
    world = await started()
    client = await world.consumer(permits=10_000)
    names = [f"{number:04}" for number in range(1_500)]
    await world.publish(*names)
    assert client.names == names
    client.port.redeliver(None, None)
    await at(900)
    assert client.names == []
    await at(1_100)
    assert client.names == names
    world.check()


@in_virtual_time
async def test_a_receipt_does_not_wait_for_nacks() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("a", "b")
    world.nack(client, "a")
    subscription = world.subscription()
    assert subscription.store is not None
    heard: list[BaseException | None] = []
    subscription.ack_elsewhere([world.positions["b"]])
    subscription.store.when_durable(subscription.cursor.version, heard.append)
    await at(10)
    assert heard == [None]
    await at(20)
    assert not subscription.store.is_dirty


@HOLDING
@in_virtual_time
async def test_it_stays_held_when_the_topic_goes_to_another_owner(type_: SubscriptionType) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish("a", "b")
    world.nack(client, "a")
    await world.registry.unload(NAME)
    world.topic = await world.registry.topic(NAME, create=False)
    assert delayed_state(world.subscription()).nacks.pending == 1
    client = await world.consumer(type=type_)
    assert client.names == ["b"]
    await at(1_000)
    assert client.names == ["a"]


@in_virtual_time
async def test_what_the_cap_leaves_out_comes_at_once_after_a_crash() -> None:
    world = await started(pendingNacksMaxBytesToPersist="200")
    client = await world.consumer(permits=10_000)
    names = [f"{number:04}" for number in range(200)]
    await world.publish(*names)
    client.port.redeliver([world.positions[name] for name in names[::2]], None)
    await at(1_000)
    told = delayed_state(world.subscription()).nacks
    assert told.pending == 0, "all of them are due"
    client.port.redeliver([world.positions[name] for name in names[::2]], None)
    await at(2_500)
    told = delayed_state(world.subscription()).nacks
    assert told.persisted + told.dropped == told.pending == 100
    assert 50 < told.persisted < 100
    await world.killed_and_started()
    client = await world.consumer(permits=10_000)
    kept = names[: 2 * told.persisted : 2]
    assert client.names == [name for name in names if name not in kept]
    await at(3_000)
    assert client.names == kept
