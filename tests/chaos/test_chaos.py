"""A few cycles of chaos, and the proof that a broken promise would be noticed."""

from __future__ import annotations

import pytest

from tests.chaos.run import BROKEN, ChaosFailedError, ChaosRun
from tests.chaos.wire_load import Style

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

CYCLES = 8
SEED = 3


async def test_promises_hold_whenever_the_broker_is_killed(tmp_path):
    await ChaosRun(tmp_path, SEED, report=print).run(CYCLES)


async def test_three_bookies_with_quorums_hold_them_too(tmp_path):
    settings = {
        "managedLedgerDefaultEnsembleSize": 3,
        "managedLedgerDefaultWriteQuorum": 2,
        "managedLedgerDefaultAckQuorum": 2,
    }
    run = ChaosRun(tmp_path, SEED, styles=[Style.SHARED], settings=settings, report=print)
    await run.run(3)


async def test_receipts_that_promise_nothing_are_noticed(tmp_path):
    run = ChaosRun(tmp_path, SEED, settings=BROKEN, report=print)
    with pytest.raises(ChaosFailedError, match=r"acked messages came again|durable acks are gone"):
        await run.run(6)
