"""A bucket tracker with its storage: no entry is lost, early or (without a crash) twice.

Each seed runs a subscription with 900 delayed entries over stores that fail, hang, answer late,
answer that they failed though they did it, and lose what they stored; and crashes it every few
seconds. In the end everything was given, and nothing is left in storage but orphans, which the
search at the next start finds.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.property.broker.delayed_world import DelayedWorld
from tests.support.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.slow

SEEDS = 10
LIFE_SECONDS_MAX = 60.0
LAST_LIFE_SECONDS = 600.0


async def run(seed: int) -> None:
    world = DelayedWorld(seed)
    try:
        await live(world)
    except BaseException as error:
        error.add_note(world.story())
        raise


async def live(world: DelayedWorld) -> None:
    loop = asyncio.get_running_loop()
    while len(world.given) < len(world.positions):
        life = await world.start()
        ends = loop.time() + world.random.uniform(0.0, LIFE_SECONDS_MAX)
        while loop.time() < ends:
            life.step()
            await asyncio.sleep(world.random.uniform(0.0, 1.0))
        life.crash()
        # What was cancelled ends, or is done late, as requests that were on their way.
        await asyncio.sleep(world.random.choice([0.0, 0.0, 2.0]))
        assert world.lives < 100, "it does not get on"

    world.stores_plan.is_quiet = world.snapshots_plan.is_quiet = True
    life = await world.start()
    ends = loop.time() + LAST_LIFE_SECONDS
    while not life.is_done:
        assert loop.time() < ends, life.tracker.statistics()
        life.step()
        await asyncio.sleep(world.random.uniform(0.0, 1.0))
    await life.home.close()
    await life.store.close()
    await world.sweep()
    assert world.world.snapshot_ledgers == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_early_or_twice(seed: int) -> None:
    run_in_virtual_time(run(seed))
