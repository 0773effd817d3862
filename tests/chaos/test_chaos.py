"""A few cycles of chaos, and the proof that a broken promise would be noticed."""

from __future__ import annotations

import pytest

from tests.chaos.journals import FINISHED
from tests.chaos.run import BROKEN, ChaosFailedError, ChaosRun

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

CYCLES = 5
SEEDS = (4, 5)  # of one bookie, and of three


@pytest.mark.parametrize("seed", SEEDS)
async def test_promises_hold_whenever_the_broker_is_killed(tmp_path, seed, pytestconfig):
    run = ChaosRun(tmp_path, seed, report=print)
    await run.run(CYCLES)
    pytestconfig.stash.setdefault(FINISHED, []).append(run.kept())


async def test_receipts_that_promise_nothing_are_noticed(tmp_path):
    run = ChaosRun(tmp_path, SEEDS[0], settings=BROKEN, report=print)
    with pytest.raises(ChaosFailedError, match=r"acked messages came again|durable acks are gone"):
        await run.run(6)
