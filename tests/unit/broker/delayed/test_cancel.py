"""Cancelling delayed messages: for whom it holds, what it survives, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from ackgate.broker.delayed import cancel
from ackgate.broker.delayed.cancel import (
    POSITIONS_MAX,
    CancelledMessages,
    CancelOutcome,
    PositionOutcome,
    SubscriptionOutcome,
)
from ackgate.broker.wire.errors import NotAllowedError, PersistenceFailedError
from ackgate.broker.wire.requests import InitialPosition, SubscriptionType
from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError, PersistTimeoutError
from ackgate.persistence import MemoryMetadataStore
from ackgate.testing import MemoryLedgerClient
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed import delivery_world
from tests.unit.broker.delayed.delivery_world import NAME, DelayedWorld, at, settle

HOUR = 3_600_000


def run(main: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(main)


async def cancelled(world: DelayedWorld, *names: str) -> list[PositionOutcome]:
    told = await world.topic.cancelled.cancel([world.positions[name] for name in names])
    await settle()
    world.check()
    return told


def outcomes(told: list[PositionOutcome]) -> list[str]:
    return [each.outcome.value for each in told]


def test_a_cancelled_message_is_given_to_nobody_and_the_others_are() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", "b", "c", delay_ms=1_000)
        shared = await world.consumer()
        keyed = await world.consumer(type=SubscriptionType.KEY_SHARED, subscription="k")
        told = await cancelled(world, "b")
        assert told == [
            PositionOutcome(
                world.positions["b"],
                CancelOutcome.CANCELLED,
                told[0].deliver_at,
                {
                    "s": SubscriptionOutcome(CancelOutcome.CANCELLED),
                    "k": SubscriptionOutcome(CancelOutcome.CANCELLED),
                },
            )
        ]
        assert world.topic.cancelled.count == 1
        await at(5_000)
        assert shared.names == keyed.names == ["a", "c"]
        later = await world.consumer(subscription="later")
        await world.topic.subscription("admin", EARLIEST, by_client=False)
        assert later.names == ["a", "c"]
        assert world.subscription("admin").cursor.is_acked(world.positions["b"])
        assert sorted(world.topic.subscriptions) == ["admin", "k", "later", "s"]

    run(main())


def test_it_holds_after_a_crash_and_for_who_subscribes_then() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", "b", "c", "d", delay_ms=1_000)
        await world.consumer()
        await cancelled(world, "a", "c")
        await world.start()  # as if killed: what subscriptions acked since is not written
        assert world.topic.cancelled.count == 2
        old, new = await world.consumer(), await world.consumer(subscription="new")
        assert outcomes(await cancelled(world, "a")) == ["alreadyCancelled"]
        await at(5_000)
        assert old.names == new.names == ["b", "d"]
        await world.registry.close()

    run(main())


def test_a_crash_between_the_two_steps_is_made_good_at_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", "b", delay_ms=1_000)
        await world.consumer()
        with monkeypatch.context() as crash:

            def gone(*_: object) -> dict:
                raise asyncio.CancelledError

            crash.setattr(CancelledMessages, "_ack_in_all", gone)
            with pytest.raises(asyncio.CancelledError):
                await cancelled(world, "a")
        assert not world.subscription().cursor.is_acked(world.positions["a"])
        await world.start()
        assert world.subscription().cursor.is_acked(world.positions["a"])
        consumer = await world.consumer()
        await at(5_000)
        assert consumer.names == ["b"]

    run(main())


def test_a_subscription_that_is_moved_back_does_not_get_it() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", "b", "c", delay_ms=1_000)
        await world.topic.subscription("s", InitialPosition.EARLIEST)
        await cancelled(world, "b")
        await world.subscription().clear_backlog()
        await world.subscription().seek(EARLIEST)
        consumer = await world.consumer()
        await at(5_000)
        assert consumer.names == ["a", "c"]

    run(main())


def test_a_reader_does_not_get_it() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", "b", delay_ms=1_000)
        await cancelled(world, "a")
        reader = await world.consumer(type=SubscriptionType.EXCLUSIVE, subscription="r")
        assert reader.names == ["b"]

    run(main())


def test_what_cannot_be_cancelled_is_told_each_by_itself() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("now")
        await world.publish("soon", delay_ms=1_000)
        await world.publish("late", delay_ms=HOUR)
        exclusive = await world.consumer(type=SubscriptionType.EXCLUSIVE, subscription="x")
        assert exclusive.names == ["now", "soon", "late"]
        await at(2_000)
        ledger_id = world.positions["now"].ledger_id
        unknown = [Position(ledger_id, 9), Position(ledger_id, -1), Position(ledger_id + 99, 0)]
        told = await world.topic.cancelled.cancel(
            [world.positions["now"], *unknown, world.positions["soon"], world.positions["late"]]
        )
        assert outcomes(told) == ["notDelayed", *3 * ["unknownPosition"], *2 * ["delivered"]]
        assert told[-1].subscriptions == {"x": SubscriptionOutcome(CancelOutcome.DELIVERED, "c")}
        assert world.topic.cancelled.count == 0
        shared = await world.consumer(permits=0)
        told = await world.topic.cancelled.cancel(
            [world.positions["soon"], world.positions["late"]]
        )
        assert outcomes(told) == ["due", "cancelled"]
        assert told[0].subscriptions["s"] == SubscriptionOutcome(CancelOutcome.DUE)
        assert told[1].subscriptions["x"] == SubscriptionOutcome(CancelOutcome.DELIVERED, "c")
        shared.flow(10)
        await settle()
        assert shared.names == ["now", "soon"]
        told = await world.topic.cancelled.cancel([world.positions["soon"]])
        assert outcomes(told) == ["delivered"]
        shared.ack("soon")
        told = await world.topic.cancelled.cancel([world.positions["soon"]])
        assert told[0].subscriptions["s"] == SubscriptionOutcome(CancelOutcome.ACKED)

    run(main())


def test_an_invalid_cancel_leaves_no_trace() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("now")
        await cancelled(world, "now")
        with pytest.raises(CallerError, match="at most 2000"):
            await world.topic.cancelled.cancel([world.positions["now"]] * (POSITIONS_MAX + 1))
        assert await world.topic.services.metadata.children(world.topic.path) == []

    run(main())


def test_a_position_twice_in_one_call_is_one_cancel() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", delay_ms=1_000)
        assert outcomes(await cancelled(world, "a", "a")) == ["cancelled", "cancelled"]
        assert world.topic.cancelled.count == 1

    run(main())


def test_cancels_at_the_same_time() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        names = [str(number) for number in range(100)]
        await world.publish(*names, delay_ms=1_000)
        consumer = await world.consumer()
        told = await asyncio.gather(*(cancelled(world, name, names[0]) for name in names[::2]))
        assert sum(outcomes(each)[0] == "cancelled" for each in told) == 50
        await at(5_000)
        assert consumer.names == names[1::2]

    run(main())


def test_trimmed_ledgers_are_forgotten() -> None:
    async def main() -> None:
        world = DelayedWorld(
            managedLedgerMaxEntriesPerLedger="2", managedLedgerMinLedgerRolloverTimeMinutes="0"
        )
        await world.start()
        await world.publish("a", "b", delay_ms=1_000)
        await world.publish("c", "d", delay_ms=HOUR)
        await world.publish("e")
        consumer = await world.consumer()
        await cancelled(world, "a", "c")
        assert world.topic.cancelled.count == 2
        await at(2_000)
        assert consumer.names == ["e", "b"]
        consumer.ack("b")
        await world.subscription().flush()
        world.topic.trim_soon()
        await asyncio.sleep(1)
        assert not world.topic.ledger.ledgers.exists(world.positions["a"])
        assert world.topic.cancelled.count == 1
        told = await world.topic.cancelled.cancel([world.positions[name] for name in "abc"])
        assert outcomes(told) == ["unknownPosition", "unknownPosition", "alreadyCancelled"]
        await world.registry.unload(NAME)
        await world.start()
        assert world.topic.cancelled.count == 1

    run(main())


def test_the_name_is_reserved_and_goes_with_the_topic() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish("a", delay_ms=HOUR)
        await cancelled(world, "a")
        with pytest.raises(NotAllowedError, match="reserved"):
            await world.topic.subscription("pulsar.delayed-cancelled", InitialPosition.EARLIEST)
        await world.registry.delete(NAME, force=True)
        await asyncio.sleep(60)
        assert not await world.topic.services.metadata.children(world.topic.path)
        assert not world.ledgers.ledgers

    run(main())


def test_more_than_is_kept_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancel, "RANGES_MAX", 2)

    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish(*"abcdefg", delay_ms=1_000)
        consumer = await world.consumer()
        await cancelled(world, "b", "d")
        with pytest.raises(NotAllowedError, match=r"2 ranges .* more than the 2 that are kept"):
            await cancelled(world, "f")
        assert world.topic.cancelled.count == 2
        await at(5_000)
        assert consumer.names == list("acefg")

    run(main())


def test_what_is_not_durable_is_not_told_as_cancelled_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = FaultPlan([Rule(Fault.FAIL, way, times=None) for way in ("*.append", "metadata.put")])
    plan.is_quiet = True
    for module, wrapper, wrapped in (
        ("MemoryLedgerClient", FaultyLedgerClient, MemoryLedgerClient),
        ("MemoryMetadataStore", FaultyMetadataStore, MemoryMetadataStore),
    ):
        monkeypatch.setattr(delivery_world, module, partial(_wrapped, wrapper, wrapped, plan))

    async def main() -> None:
        world = DelayedWorld(ackReceiptTimeoutSeconds="5")
        await world.start()
        await world.publish("a", "b", "c", delay_ms=HOUR)
        await world.consumer()
        await cancelled(world, "a")
        plan.is_quiet = False
        with pytest.raises(PersistTimeoutError):
            await cancelled(world, "b")
        assert not world.subscription().cursor.is_acked(world.positions["b"])
        with pytest.raises(PersistTimeoutError):
            await cancelled(world, "b")
        plan.is_quiet = True
        assert outcomes(await cancelled(world, "b")) == ["alreadyCancelled"]
        assert world.subscription().cursor.is_acked(world.positions["b"])
        await world.start()
        assert world.topic.cancelled.count == 2

    run(main())


def test_dropped_cancels_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ackgate.broker.topic.topic.settings_of_cancelled",
        lambda settings: settings.model_copy(
            update={"managed_ledger_max_unacked_ranges_to_persist": 1}
        ),
    )

    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        await world.publish(*"abcde", delay_ms=1_000)
        with pytest.raises(PersistenceFailedError, match="1 cancelled messages did not fit"):
            await cancelled(world, "b", "d")

    run(main())


def _wrapped(wrapper: Any, wrapped: Any, plan: FaultPlan, storage: Any) -> Any:
    return wrapper(wrapped(storage), plan)
