"""What counts as the time of a publish, a delivery, a write and a receipt; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.broker.topic import BOUNDS_SECONDS, Latency
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed.delivery_world import DelayedWorld, at, settle


def by_bound(latency: Latency) -> dict[float, int]:
    """The buckets that hold something, by their bounds."""
    bounds = (*BOUNDS_SECONDS, float("inf"))
    return {bound: count for bound, count in zip(bounds, latency.counts, strict=True) if count > 0}


def test_a_bound_belongs_to_its_bucket_and_a_batch_counts_as_its_entries() -> None:
    latency = Latency()
    latency.observe(0.0)
    latency.observe(0.001, 3)
    latency.observe(0.0011)
    latency.observe(31.0, 2)
    assert by_bound(latency) == {0.0005: 1, 0.001: 3, 0.002: 1, float("inf"): 2}
    assert latency.sum_seconds == pytest.approx(0.003 + 0.0011 + 62)


class Clock:
    """The loop's time, and what a busy loop loses besides."""

    def __init__(self) -> None:
        self.lost_seconds = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.lost_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("broker.topic.topic", "broker.topic.subscription", "persistence.cursors.store"):
        monkeypatch.setattr(f"ackgate.{module}.perf_counter", clock)
    return clock


@pytest.mark.usefixtures("clock")
def test_publishes_and_receipts_are_counted_from_the_arrival_of_their_frames() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        client = await world.consumer()
        latencies = world.topic.services.latencies
        await at(10_000)
        world.received_at = 9.7
        await world.publish("a", "b")
        world.received_at = 10.0
        await world.publish("c")
        assert by_bound(latencies.publish) == {0.0005: 1, 0.5: 2}
        assert latencies.publish.sum_seconds == pytest.approx(0.6)

        client.received_at = 9.0
        ledger_id, entry_id = world.positions["a"]
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=7)
        ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        client.port.acks([ack])
        client.ack("b")  # asks for none
        await world.subscription().flush()
        await settle()
        assert sum(latencies.receipt.counts) == 1
        assert latencies.receipt.sum_seconds >= 1.0
        assert sum(latencies.persist.counts) >= 1

    run_in_virtual_time(main())


@pytest.mark.usefixtures("clock")
def test_waiting_for_permits_or_for_the_time_of_delivery_is_no_latency_of_dispatch() -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        client = await world.consumer(permits=0)
        dispatch = world.topic.services.latencies.dispatch
        await world.publish("a", "b")
        await at(5_000)
        assert by_bound(dispatch) == {}
        client.flow(1)
        await at(8_000)
        client.flow(10)
        await world.publish("late", delay_ms=2_000)
        await at(12_000)
        assert client.names == ["a", "b", "late"]
        assert by_bound(dispatch) == {0.0005: 3}

    run_in_virtual_time(main())


def test_what_keeps_a_turn_from_running_is_latency_of_dispatch(clock: Clock) -> None:
    async def main() -> None:
        world = DelayedWorld()
        await world.start()
        client = await world.consumer(permits=0)
        await world.publish("a")
        await at(1_000)
        client.flow(1)
        clock.lost_seconds = 1.5
        await settle()
        assert client.names == ["a"]
        assert by_bound(world.topic.services.latencies.dispatch) == {2.0: 1}

    run_in_virtual_time(main())
