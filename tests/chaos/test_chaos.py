"""A few cycles of chaos, and the proof that a broken promise would be noticed."""

from __future__ import annotations

import pytest

from tests.chaos.journals import FINISHED
from tests.chaos.run import BROKEN, ChaosFailedError, ChaosRun
from tests.chaos.small_file_system import SMALL_BYTES, NotMountableError, SmallFileSystem

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

CYCLES = 5
SEEDS = (4, 5)  # of one bookie, and of three
FULL_DISK_SEED = 4
DAMAGED_SEED = 9  # two copies of everything, and damage in each cycle


@pytest.mark.parametrize("seed", SEEDS)
async def test_promises_hold_whenever_the_broker_is_killed(tmp_path, seed, pytestconfig):
    run = ChaosRun(tmp_path, seed, report=print)
    await run.run(CYCLES)
    pytestconfig.stash.setdefault(FINISHED, []).append(run.kept())


async def test_promises_hold_on_a_disk_that_is_full_now_and_then(tmp_path):
    (tmp_path / "disk").mkdir()
    try:
        files = SmallFileSystem.open(tmp_path / "disk", SMALL_BYTES)
    except NotMountableError as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    with files:
        await ChaosRun(tmp_path, FULL_DISK_SEED, report=print, files=files).run(CYCLES)


async def test_promises_hold_when_bits_of_one_copy_flip(tmp_path):
    await ChaosRun(tmp_path, DAMAGED_SEED, report=print, is_damaging=True).run(CYCLES)


async def test_receipts_that_promise_nothing_are_noticed(tmp_path):
    run = ChaosRun(tmp_path, SEEDS[0], settings=BROKEN, report=print)
    with pytest.raises(ChaosFailedError, match=r"acked messages came again|durable acks are gone"):
        await run.run(6)
