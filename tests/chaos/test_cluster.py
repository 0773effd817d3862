"""A few cycles of chaos among two brokers, and the proof that a broken promise would be noticed."""

from __future__ import annotations

import pytest

from tests.chaos.cluster_run import ClusterRun
from tests.chaos.cluster_schedule import Role, Trouble, plan_cluster_cycle, plan_storage
from tests.chaos.journals import FINISHED
from tests.chaos.run import BROKEN, ChaosFailedError
from tests.support.bookkeeper import missing

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

CYCLES = 3
SEED = 1


async def test_promises_hold_whatever_happens_to_the_cluster(tmp_path, pytestconfig):
    run = ClusterRun(tmp_path, SEED, report=print)
    await run.run(CYCLES)
    pytestconfig.stash.setdefault(FINISHED, []).append(run.kept())


async def test_promises_hold_on_real_bookies_that_are_met_too(tmp_path, pytestconfig):
    if why := missing():
        pytest.skip(why)
    run = ClusterRun(tmp_path, SEED, report=print, is_on_real_bookies=True)
    await run.run(CYCLES)
    pytestconfig.stash.setdefault(FINISHED, []).append(run.kept())


async def test_receipts_that_promise_nothing_are_noticed(tmp_path):
    run = ClusterRun(
        tmp_path, SEED, settings=BROKEN, report=print, only=[Trouble.KILL], zookeepers=1
    )
    with pytest.raises(ChaosFailedError, match=r"acked messages came again|durable acks are gone"):
        await run.run(6)


UNFENCED = """
from ackgate.persistence.bookies.register import Fences

Fences.poll = lambda self: set()
"""


async def test_an_owner_that_wakes_up_and_is_not_fenced_off_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(UNFENCED)  # Python runs it before the broker
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = ClusterRun(tmp_path / "run", SEED, report=print, only=[Trouble.ZOMBIE], zookeepers=1)
    with pytest.raises(ChaosFailedError, match=r"ViolationError"):
        await run.run(6)


def test_a_seed_is_a_plan():
    plan = [str(plan_cluster_cycle(7, number, {})) for number in range(20)]
    assert plan == [str(plan_cluster_cycle(7, number, {})) for number in range(20)]
    assert plan != [str(plan_cluster_cycle(8, number, {})) for number in range(20)]


def test_every_trouble_has_its_turn_and_no_bookie_goes_that_holds_the_only_copy():
    seen = set()
    for seed in range(30):
        is_safe = plan_storage(seed)["managedLedgerDefaultAckQuorum"] >= 2
        for number in range(30):
            faults = plan_cluster_cycle(seed, number, {}).faults
            seen |= {fault.trouble for fault in faults}
            assert is_safe or all(fault.role is not Role.BOOKIE for fault in faults)
            real = plan_cluster_cycle(seed, number, {}, is_on_real_bookies=True)
            seen |= {fault.trouble for fault in real.faults}
            assert real.settings["managedLedgerDefaultAckQuorum"] == 2
    assert seen == set(Trouble)
