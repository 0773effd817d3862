"""The parts of the simulation, each by itself: loop, lane, connections, metadata sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ackgate.errors import (
    NodeExistsError,
    OutcomeUnknownError,
    SessionLostError,
    StoreSuspendedError,
)
from ackgate.persistence import WatchEvent
from tests.support.simulation.lane import SimulatedLane
from tests.support.simulation.loop import Process, SimulationLoop, run
from tests.support.simulation.metadata import MetadataServer, SimulatedMetadataStore
from tests.support.simulation.network import Connection
from tests.support.virtual_time import DeadlockError

Main = Callable[[SimulationLoop], Coroutine[Any, Any, None]]


def simulated(main: Main, seed: int = 1) -> SimulationLoop:
    loop = SimulationLoop(random.Random(seed))
    run(loop, main(loop))
    return loop


async def ticking(said: list[str], name: str, times: int) -> None:
    try:
        for number in range(times):
            said.append(f"{name}{number}")
            await asyncio.sleep(1)
    finally:
        said.append(f"{name} ends")


def test_time_moves_only_when_nobody_has_anything_to_do() -> None:
    async def main(loop: SimulationLoop) -> None:
        for _ in range(1000):
            await asyncio.sleep(0)
        assert loop.time() == 0
        await asyncio.sleep(3600)
        assert loop.time() == 3600

    simulated(main)


@pytest.mark.slow
def test_the_same_seed_schedules_the_same_and_another_one_does_not() -> None:
    def order(seed: int) -> list[str]:
        said: list[str] = []

        async def main(loop: SimulationLoop) -> None:
            for name in "abc":
                Process(loop, name).spawn(ticking(said, name, 5))
            await asyncio.sleep(10)

        simulated(main, seed)
        return said

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_who_is_killed_does_nothing_any_more_not_even_finally() -> None:
    said: list[str] = []

    async def main(loop: SimulationLoop) -> None:
        process = Process(loop, "p")
        told: list[str] = []
        process.has_died.append(lambda: told.append("died"))
        process.spawn(ticking(said, "t", 5))
        await asyncio.sleep(1.5)
        process.kill()
        process.call_later(0, said.append, "late")
        assert told == ["died"]
        await asyncio.sleep(10)
        assert said == ["t0", "t1"]

    simulated(main)


def test_who_is_paused_goes_on_where_it_was_with_its_timers_overdue() -> None:
    said: list[str] = []

    async def main(loop: SimulationLoop) -> None:
        process = Process(loop, "p")
        process.spawn(ticking(said, "t", 3))
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(10)
        assert said == ["t0"]
        process.resume()
        await asyncio.sleep(0.1)
        assert said == ["t0", "t1"]
        await asyncio.sleep(5)
        assert said[-1] == "t ends"

    simulated(main)


def test_waiting_for_ever_is_an_error() -> None:
    async def main(loop: SimulationLoop) -> None:
        await loop.create_future()

    with pytest.raises(DeadlockError):
        simulated(main)


def test_a_lane_does_its_work_in_order_and_a_killed_process_has_done_it_or_not() -> None:
    done: list[int] = []

    async def main(loop: SimulationLoop) -> None:
        process = Process(loop, "p")

        async def work() -> None:
            lane = SimulatedLane("lane", process, lambda: 1.0)
            await asyncio.gather(*(lane.run(lambda n=n: done.append(n)) for n in range(3)))  # type: ignore[misc]

        process.spawn(work())
        await asyncio.sleep(3.5)
        assert done == [0, 1]
        process.kill()
        await asyncio.sleep(10)
        assert done == [0, 1]

    simulated(main)


class End:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def connection_lost(self) -> None:
        self.heard.append("lost")


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_connection_keeps_the_order_and_tells_both_ends_of_its_end(is_cut: bool) -> None:
    async def main(loop: SimulationLoop) -> None:
        delays = iter([5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        client, broker = Process(loop, "client"), Process(loop, "broker")
        connection = Connection(client, broker, lambda: next(delays))
        connection.client, connection.broker = End(), End()
        connection.to_client.send(connection.client.heard.append, "first")
        connection.to_client.send(connection.client.heard.append, "second")
        if is_cut:
            connection.cut()
        else:
            broker.kill()
        await asyncio.sleep(20)
        assert connection.client.heard == (["lost"] if is_cut else ["first", "second", "lost"])
        assert connection.broker.heard == (["lost"] if is_cut else [])

    simulated(main)


async def metadata(loop: SimulationLoop, name: str) -> tuple[Process, SimulatedMetadataStore]:
    server = getattr(loop, "server", None)
    if server is None:
        server = MetadataServer(loop.world, lambda: 0.01, lambda: 0)
        loop.server = server  # type: ignore[attr-defined]
    process = Process(loop, name)
    store = process.context.run(
        lambda: SimulatedMetadataStore(
            server, process, timeout_seconds=2.0, operation_timeout_seconds=1.0
        )
    )
    return process, store


def state(store: SimulatedMetadataStore) -> str:
    return store.session_state.value


def test_a_write_whose_answer_is_lost_may_have_been_done() -> None:
    async def main(loop: SimulationLoop) -> None:
        process, store = await metadata(loop, "p")
        writing = process.spawn(store.create("/a", b""))
        await asyncio.sleep(0.015)
        store.cut(0.5)
        with pytest.raises(OutcomeUnknownError):
            await writing
        await asyncio.sleep(0.1)
        assert state(store) == "suspended"
        with pytest.raises(NodeExistsError):  # waits until it is connected again
            await process.spawn(store.create("/a", b""))
        writing = process.spawn(store.create("/b", b""))
        await asyncio.sleep(0.005)
        store.cut(5.0)
        with pytest.raises(OutcomeUnknownError):
            await writing
        with pytest.raises(StoreSuspendedError):
            await process.spawn(store.get("/b"))
        await asyncio.sleep(5)
        assert state(store) == "lost"
        await process.spawn(store.renew())
        assert await process.spawn(store.get("/b")) is None

    simulated(main)


@pytest.mark.parametrize("is_killed", [False, True])
def test_who_is_silent_for_its_timeout_has_lost_its_session(is_killed: bool) -> None:
    async def main(loop: SimulationLoop) -> None:
        process, store = await metadata(loop, "p")
        other_process, other = await metadata(loop, "q")
        events: list[WatchEvent] = []
        other_process.context.run(other.watch, "/", events.append)
        await process.spawn(store.create("/mine", b"", ephemeral=True))
        await asyncio.sleep(10)
        assert await other_process.spawn(other.get("/mine")) is not None
        assert store.lease_until > loop.time()
        if is_killed:
            process.kill()
        else:
            process.pause()
        await asyncio.sleep(3)
        assert await other_process.spawn(other.get("/mine")) is None
        assert [event.kind.value for event in events] == ["created", "deleted"]
        if not is_killed:
            assert store.lease_until < loop.time()
            assert state(store) == "connected"
            process.resume()
            with pytest.raises(SessionLostError):
                await process.spawn(store.get("/mine"))
            assert state(store) == "lost"

    simulated(main)
