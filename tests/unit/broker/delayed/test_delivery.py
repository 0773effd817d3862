"""Delayed entries through a subscription: held, left out of reads, given in time, and once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from ackgate.broker.wire.requests import SubscriptionType
from ackgate.subscription.reading import CursorReads
from tests.support.bare_broker import loop_clock_ms
from tests.support.faults import Fault, Rule
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed.delivery_world import DelayedWorld, at

KEY_SHARED = SubscriptionType.KEY_SHARED
EXCLUSIVE = SubscriptionType.EXCLUSIVE
FAILOVER = SubscriptionType.FAILOVER


def in_virtual_time(
    test: Callable[..., Awaitable[None]],
) -> Callable[..., None]:
    @wraps(test)
    def run(**given: object) -> None:
        async def main() -> None:
            await test(**given)

        run_in_virtual_time(main())

    return run


async def started(**keys: str) -> DelayedWorld:
    world = DelayedWorld(**keys)
    await world.start()
    return world


@pytest.mark.parametrize("type_", [SubscriptionType.SHARED, KEY_SHARED])
@in_virtual_time
async def test_a_delayed_entry_comes_at_its_time_and_others_at_once(
    type_: SubscriptionType,
) -> None:
    world = await started()
    client = await world.consumer(type=type_)
    await world.publish("late", delay_ms=500)
    await world.publish("now")
    assert client.names == ["now"]
    assert world.subscription().core.statistics().held.delayed_entries == 1
    await at(499)
    assert client.got == []
    await at(600)
    assert client.got == [(500, "late")]
    world.check()
    client.ack("now", "late")
    assert world.subscription().cursor.backlog_entries == 0
    assert world.subscription().core.statistics().held.delayed_entries == 0


@pytest.mark.parametrize("type_", [EXCLUSIVE, FAILOVER])
@in_virtual_time
async def test_exclusive_and_failover_give_everything_at_once_in_order(
    type_: SubscriptionType,
) -> None:
    world = await started(activeConsumerFailoverDelayTimeMillis="0")
    client = await world.consumer(type=type_)
    await world.publish("a", delay_ms=500)
    await world.publish("b")
    await world.publish("c", delay_ms=200)
    assert client.names == ["a", "b", "c"]
    assert world.subscription().core._held.tracker is None


@in_virtual_time
async def test_times_fall_due_in_their_order_and_equal_ones_by_position() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("c1", "c2", delay_ms=300)
    await world.publish("a1", delay_ms=100)
    await world.publish("b1", "b2", delay_ms=200)
    await at(400)
    assert client.got == [(100, "a1"), (200, "b1"), (200, "b2"), (300, "c1"), (300, "c2")]


@in_virtual_time
async def test_what_is_published_in_time_and_read_too_late_comes_at_once() -> None:
    world = await started()
    await world.publish("a", delay_ms=100)
    await world.publish("b", delay_ms=1000)
    await at(200)
    client = await world.consumer()
    assert client.got == [(200, "a")]
    await at(1100)
    assert client.got == [(200, "a"), (1000, "b")]


@in_virtual_time
async def test_without_strictness_an_entry_is_early_only_in_company() -> None:
    world = await started(
        isDelayedDeliveryDeliverAtTimeStrict="false", delayedDeliveryTickTimeMillis="100"
    )
    client = await world.consumer()
    await world.publish("within", delay_ms=90)
    assert client.names == ["within"]
    await world.publish("alone", delay_ms=300)
    await world.publish("later", delay_ms=500)
    await world.publish("with it", delay_ms=550)
    await at(299)
    assert client.got == []
    await at(600)
    (alone, _), (later, _), (with_it, _) = client.got
    assert client.names == ["alone", "later", "with it"]
    assert 300 <= alone < 364
    assert later == with_it
    assert 500 <= later < 550


@in_virtual_time
async def test_where_it_is_switched_off_everything_comes_at_once() -> None:
    world = await started(delayedDeliveryEnabled="false")
    client = await world.consumer()
    await world.publish("a", delay_ms=500)
    assert client.names == ["a"]


@in_virtual_time
async def test_consumers_that_come_and_go_find_it_held_once() -> None:
    world = await started()
    await world.publish("now")
    await world.publish("late", delay_ms=5000)
    for turn in range(10):
        client = await world.consumer()
        assert client.names == ["now"]
        assert world.subscription().core._held.entry_count == 1, turn
        await client.port.close()
    await at(6000)
    client = await world.consumer()
    assert sorted(client.names) == ["late", "now"]
    world.check()


@in_virtual_time
async def test_what_was_in_flight_comes_again_at_once_and_what_is_held_stays_so() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("soon", delay_ms=100)
    await world.publish("late", delay_ms=1000)
    await at(200)
    assert client.names == ["soon"]
    await client.port.close()
    client = await world.consumer()
    assert client.names == ["soon"]
    await at(1200)
    assert client.got == [(1000, "late")]
    world.check()


@in_virtual_time
async def test_what_falls_due_before_the_read_position_comes_to_it_is_given_once() -> None:
    world = await started(delayedDeliveryFixedDelayDetectionLookahead="0")
    client = await world.consumer()
    await world.publish("a", "b", "c")
    await world.publish("late", delay_ms=100)
    await world.publish("d", "e")
    assert client.names == ["a", "b", "c", "d", "e"]
    await client.port.close()
    client = await world.consumer(permits=1)  # the read position is behind "a"
    assert client.names == ["a"]
    await at(150)
    assert client.names == []
    client.flow(1)
    await at(160)
    assert client.names == ["late"], "what is due goes first"
    client.flow(10)
    await at(170)
    assert client.names == ["b", "c", "d", "e"]
    assert world.subscription().core._dispatcher is not None
    client.ack("late")
    world.check()


@in_virtual_time
async def test_permits_hold() -> None:
    world = await started()
    client = await world.consumer(permits=1)
    await world.publish(*"abcde", delay_ms=100)
    await at(200)
    assert client.names == ["a"]
    for name in "bcde":
        client.flow(1)
        await at(210)
        assert client.names == [name]


@in_virtual_time
async def test_a_key_keeps_its_order_among_what_falls_due() -> None:
    world = await started()
    one = await world.consumer(type=KEY_SHARED, name="one")
    two = await world.consumer(type=KEY_SHARED, name="two")
    for number in range(40):
        await world.publish(f"{number:02}", delay_ms=100, key=f"k{number % 4}")
    await at(200)
    got = [one.names, two.names]
    assert sorted(got[0] + got[1]) == [f"{number:02}" for number in range(40)]
    for names in got:
        for key in range(4):
            of_key = [name for name in names if int(name) % 4 == key]
            assert of_key == sorted(of_key)
            assert len(of_key) in {0, 10}


@pytest.mark.slow
@in_virtual_time
async def test_a_read_of_nothing_but_delayed_entries_does_not_stall() -> None:
    world = await started(delayedDeliveryFixedDelayDetectionLookahead="0")
    await world.publish(*(f"d{number}" for number in range(3000)), delay_ms=1000)
    await world.publish("now")
    client = await world.consumer()
    await at(1)
    assert client.names == ["now"]
    assert world.subscription().core._held.entry_count == 3000
    client.flow(5000)
    await at(1100)
    assert len(client.got) == 3000
    assert len(set(client.names)) == 3000
    world.check()


@in_virtual_time
async def test_with_one_delay_for_all_reading_stops_where_it_must_be_useless() -> None:
    world = await started(delayedDeliveryFixedDelayDetectionLookahead="200")
    client = await world.consumer()
    names = [f"{number:04}" for number in range(1000)]
    await world.publish(*names, delay_ms=1000)
    assert 200 <= world.subscription().core._held.entry_count <= 400
    await at(2000)
    assert sorted(client.names) == names
    world.check()


@in_virtual_time
async def test_where_reading_stops_what_was_in_flight_is_read_again_all_the_same() -> None:
    world = await started(delayedDeliveryFixedDelayDetectionLookahead="5")
    client = await world.consumer()
    await world.publish("a", "b", delay_ms=100)
    await world.publish(*"cdefgh", delay_ms=1000)
    await at(200)
    assert client.names == ["a", "b"]
    await client.port.close()
    client = await world.consumer()
    assert client.names == ["a", "b"]
    world.check()


@in_virtual_time
async def test_acks_of_others_skips_and_seeks_take_what_is_held_with_them() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish(*"abcdef", delay_ms=500)
    subscription = world.subscription()
    assert subscription.core._held.entry_count == 6
    client.ack("c")
    assert subscription.core._held.entry_count == 5
    assert subscription.ack_elsewhere([world.positions["b"]]) == 1
    assert subscription.core._held.entry_count == 4
    world.check()
    await subscription.skip(2)  # a, d
    assert subscription.core._held.entry_count == 2
    await subscription.seek(world.positions["f"])
    assert subscription.core._held.entry_count == 1
    client = await world.consumer()
    await at(100)
    await subscription.seek(world.positions["a"])
    client = await world.consumer()
    await at(400)
    assert subscription.core._held.entry_count == 6
    assert client.got == []
    await at(600)
    assert client.names == [*"abcdef"]
    world.check()
    await world.publish("g", delay_ms=500)
    await subscription.clear_backlog()
    assert subscription.core._held.entry_count == 0
    await at(1500)
    assert client.names == []


@in_virtual_time
async def test_another_type_reads_what_is_held_and_the_first_finds_it_again() -> None:
    world = await started()
    shared = await world.consumer()
    await world.publish("a", "b", delay_ms=500)
    await world.publish("c")
    assert shared.names == ["c"]
    await shared.port.close()
    exclusive = await world.consumer(type=EXCLUSIVE)
    assert exclusive.names == ["a", "b", "c"]
    exclusive.ack("b")
    await exclusive.port.close()
    shared = await world.consumer()
    assert shared.names == ["c"]
    await at(600)
    assert shared.got == [(500, "a")]
    world.check()


@in_virtual_time
async def test_after_a_crash_the_index_is_made_again_by_reading() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish(*"abc", delay_ms=500)
    await world.publish("now")
    client.ack("now")
    await world.subscription().flush()
    await world.start()
    client = await world.consumer()
    assert client.got == []
    assert world.subscription().core._held.entry_count == 3
    await at(600)
    assert client.got == [(500, name) for name in "abc"]


@in_virtual_time
async def test_what_falls_due_passes_the_shut_gate_and_nothing_else_does() -> None:
    world = await started(
        dispatcherPauseOnAckStatePersistentEnabled="true",
        managedLedgerMaxUnackedRangesToPersist="2",
    )
    client = await world.consumer()
    await world.publish("late", delay_ms=500)
    await world.publish(*"abcdef")
    assert client.names == [*"abcdef"]
    client.ack("a", "c", "e")
    await at(100)
    assert not world.subscription().core.gate.is_open
    await world.publish("g")
    await at(400)
    assert client.got == [], "the gate is shut"
    await at(600)
    assert client.names == ["late"]
    client.ack("late", "b", "d")
    await at(700)
    assert client.names == ["g"]
    world.check()


@in_virtual_time
async def test_two_subscriptions_have_an_index_each() -> None:
    world = await started()
    one = await world.consumer(subscription="one")
    two = await world.consumer(subscription="two")
    await world.publish("a", delay_ms=100)
    one.ack("a")
    await at(200)
    assert one.got == []
    assert two.got == [(100, "a")]


@in_virtual_time
async def test_the_tick_may_change_at_run_time() -> None:
    world = await started(
        isDelayedDeliveryDeliverAtTimeStrict="false", delayedDeliveryTickTimeMillis="10"
    )
    client = await world.consumer()
    await world.publish("a", delay_ms=1000)
    assert client.got == []
    await world.topic.services.policies.change(
        "/admin/topic-policies/public/default/t",
        {"delayedDelivery": {"active": True, "tickTime": 60_000}},
    )
    await world.publish("b", delay_ms=5000)
    assert sorted(client.names) == ["a", "b"], "both are due within a tick"


@in_virtual_time
async def test_a_policy_that_ends_it_lets_new_entries_through_and_keeps_the_held() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("a", delay_ms=500)
    await world.topic.services.policies.change(
        "/admin/topic-policies/public/default/t", {"delayedDelivery": {"active": False}}
    )
    await world.publish("b", delay_ms=500)
    assert client.names == ["b"]
    await at(600)
    assert client.got == [(500, "a")]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@in_virtual_time
async def test_held_and_acked_entries_are_passed_over_whether_read_through_or_not(
    cache_bytes: int,
) -> None:
    """Short gaps between wanted entries are read, and what is in them is dropped."""
    world = DelayedWorld()
    world.cache_bytes = cache_bytes
    await world.start()
    client = await world.consumer()
    for number in range(120):
        is_late = number % 3 == 1 or 40 <= number < 80
        await world.publish(f"{number:03}", delay_ms=5000 if is_late else 0)
    prompt = client.names
    assert len(prompt) == 54
    client.ack(*prompt[::2])
    await client.port.close()
    again = await world.consumer()
    assert again.names == prompt[1::2]
    assert world.subscription().core._held.entry_count == 66
    await world.subscription().flush()
    await world.start()
    third = await world.consumer()
    await at(1000)
    assert third.names == prompt[1::2]
    await at(6000)
    assert len(third.names) == 66
    world.check()


@in_virtual_time
async def test_a_cleared_index_is_built_again_by_reading() -> None:
    world = await started()
    client = await world.consumer()
    await world.publish("late", delay_ms=500)
    await world.publish("now")
    await world.publish("later", delay_ms=900)
    assert client.names == ["now"]
    client.ack("now")
    subscription = world.subscription()
    assert subscription.core.statistics().held.delayed_entries == 2
    await subscription.clear_delayed()
    assert not subscription.consumers
    assert subscription.core.statistics().held.delayed_entries == 0
    again = await world.consumer()
    assert subscription.core.statistics().held.delayed_entries == 2
    await at(2_000)
    assert again.got == [(500, "late"), (900, "later")]
    world.check()


@pytest.mark.parametrize("times", [1, 2, 3])
@in_virtual_time
async def test_a_read_that_fails_loses_nothing(times: int) -> None:
    world = await started()
    await world.publish("now")
    await world.publish(*"abcdefghij", delay_ms=500)
    world.plan.rules = [Rule(Fault.FAIL, "ledger.read", times=times)]
    client = await world.consumer()
    await at(5000)
    assert sorted(client.names) == sorted(["now", *"abcdefghij"])
    assert len(world.plan.injected) == times
    world.check()


@in_virtual_time
async def test_what_falls_due_while_a_slow_read_is_under_way_comes_after_it_and_once() -> None:
    world = await started()
    await world.publish("a", "b")
    await world.publish("late", delay_ms=300)
    await world.publish("c", "d")
    client = await world.consumer()
    await client.port.close()
    world.plan.rules = [Rule(Fault.DELAY, "ledger.read", times=None, seconds=0.5)]
    client = await world.consumer()
    await at(2000)
    assert sorted(client.names) == ["a", "b", "c", "d", "late"]
    world.check()


@in_virtual_time
async def test_who_has_room_for_one_does_not_have_delayed_entries_read_one_by_one() -> None:
    world = await started(delayedDeliveryFixedDelayDetectionLookahead="0")
    prompt = [f"p{number}" for number in range(6)]
    for name in prompt:
        await world.publish(*(f"{name}-{number}" for number in range(500)), delay_ms=60_000)
        await world.publish(name)
    await world.publish("last")
    begun: list[int] = []
    begin = CursorReads._begin

    def counted(self: CursorReads, *given: Any, **how: Any) -> Any:
        begun.append(1)
        return begin(self, *given, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CursorReads, "_begin", counted)
        client = await world.consumer(permits=1)
        for name in [*prompt, "last"]:
            await at(loop_clock_ms() + 10)
            assert client.names == [name]
            client.flow(1)
    assert world.subscription().core._held.entry_count == 3000
    assert len(begun) < 60
    world.check()
