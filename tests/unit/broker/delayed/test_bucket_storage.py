"""A bucket tracker's plans carried out: each is answered once, whatever the stores do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from ackgate.cursor import StoredSnapshot
from ackgate.dispatcher.buckets import (
    Done,
    Failed,
    MetadataLoaded,
    Outcome,
    SegmentsLoaded,
    Unreadable,
)
from ackgate.embedded.bucket_storage import StorageLanes
from ackgate.errors import OwnershipError
from ackgate.persistence import BucketSnapshots
from tests.support.faults import Fault, Rule
from tests.unit.broker.delayed.bucket_world import (
    Carried,
    StorageWorld,
    carried,
    create,
    delete,
    load,
    load_metadata,
    register,
    virtual,
)
from tests.unit.persistence.bucket_content import bucket, rows_of, summary_of


async def stored(here: Carried, entries: int = 200) -> int:
    outcome = await here.do(create(entries))
    assert isinstance(outcome, StoredSnapshot), outcome
    return outcome.snapshot_id


@virtual
async def test_from_sealing_to_deleting() -> None:
    world = StorageWorld()
    here = await carried(world)
    outcome = await here.do(create())
    assert isinstance(outcome, StoredSnapshot)
    snapshot_id = outcome.snapshot_id
    assert await here.do(register(snapshot_id)) == Done()
    assert await world.registered() == [snapshot_id]

    _, _, segments = bucket(200)
    metadata = await here.do(load_metadata(snapshot_id))
    assert isinstance(metadata, MetadataLoaded)
    assert metadata.bytes_stored == outcome.bytes_stored
    assert [tuple(s) for s in metadata.segments] == [tuple(summary_of(s)) for s in segments]
    loaded = await here.do(load(snapshot_id, 1, 3))
    assert isinstance(loaded, SegmentsLoaded)
    assert [rows_of(s) for s in loaded.segments] == [rows_of(s) for s in segments[1:3]]

    assert await here.do(register(remove=(snapshot_id,))) == Done()
    assert await here.do(delete(snapshot_id)) == Done()
    assert await here.do(delete(snapshot_id)) == Done()  # gone already
    assert world.snapshot_ledgers == []
    assert here.rounds == len(here.tracker.answers)
    assert here.storage.is_idle


@virtual
async def test_what_will_never_be_there_is_missing_and_what_fails_now_has_failed() -> None:
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    assert isinstance(await here.do(load_metadata(999)), Unreadable)
    assert isinstance(await here.do(load(999, 0, 1)), Unreadable)
    assert await here.do(load(snapshot_id, 3, 5)) == Unreadable(
        f"snapshot {snapshot_id} has no segment 4"
    )
    for fault, expected in ((Fault.FAIL, Failed), (Fault.CORRUPT, Unreadable)):
        world.plan.rules = [Rule(fault, "ledger.read")]
        outcome = await here.do(load(snapshot_id, 0, 1))
        assert isinstance(outcome, expected)
        assert "injected" in outcome.why


@virtual
async def test_every_operation_that_fails_is_answered_as_failed() -> None:
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    for operation, plan in (
        ("ledger.create", create()),
        ("ledger.append", create()),
        ("ledger.close", create()),
        ("metadata.put", register(snapshot_id)),
        ("metadata.get", register(snapshot_id)),
        ("ledger.open", load_metadata(snapshot_id)),
        ("ledger.open", load(snapshot_id, 0, 1)),
        ("ledger.delete", delete(snapshot_id)),
    ):
        world.plan.rules = [Rule(Fault.FAIL, operation)]
        outcome = await here.do(plan)
        assert isinstance(outcome, Failed), operation
        assert "injected" in outcome.why
    assert world.snapshot_ledgers == [snapshot_id]
    assert await world.registered() == []


@virtual
async def test_what_hangs_is_given_up_and_the_ledger_goes_when_it_can() -> None:
    world = StorageWorld(Rule(Fault.DELAY, "ledger.close", seconds=1000.0))
    here = await carried(world)
    assert await here.do(create()) == Failed("no answer within 60 s")
    assert len(world.snapshot_ledgers) == 1
    await here.storage.close()
    assert world.snapshot_ledgers == []


@virtual
async def test_what_hung_is_deleted_with_the_next_snapshot_that_goes() -> None:
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    world.plan.rules = [Rule(Fault.DELAY, "ledger.close", seconds=1000.0)]
    assert isinstance(await here.do(create()), Failed)
    assert len(world.snapshot_ledgers) == 2
    assert await here.do(delete(snapshot_id)) == Done()
    assert world.snapshot_ledgers == []


@virtual
async def test_a_registry_that_is_full_says_so() -> None:
    world = StorageWorld(
        metadata_store_max_node_bytes=5_000, managed_cursor_info_compression_type="NONE"
    )
    here = await carried(world)
    outcome: Outcome = Done()
    ids = list(range(10**15, 10**15 + 400))
    while isinstance(outcome, Done):
        outcome = await here.do(register(ids.pop()))
    assert isinstance(outcome, Failed)
    assert "may take 2500" in outcome.why


@pytest.mark.slow
@virtual
async def test_loads_do_not_wait_for_what_hangs_behind() -> None:
    world = StorageWorld()
    here = await carried(world, StorageLanes(loads_max=2, others_max=2))
    snapshot_id = await stored(here)
    world.plan.rules = [Rule(Fault.DELAY, "ledger.create", times=None, seconds=1000.0)]
    creates = [here.ask(create()) for _ in range(5)]
    before = asyncio.get_running_loop().time()
    assert isinstance(await here.do(load(snapshot_id, 0, 1)), SegmentsLoaded)
    assert asyncio.get_running_loop().time() - before < 1
    # Two at a time, a minute each.
    assert all(isinstance(outcome, Failed) for outcome in await here.done(*creates))
    assert 170 < asyncio.get_running_loop().time() - before < 190


@virtual
async def test_no_more_at_once_than_the_lanes_allow() -> None:
    world = StorageWorld()
    lanes = StorageLanes(loads_max=3, others_max=2)
    here = await carried(world, lanes)
    snapshot_id = await stored(here)
    world.plan.rules = [Rule(Fault.DELAY, "ledger.open", times=None, seconds=1.0)]
    before = asyncio.get_running_loop().time()
    await here.done(*[here.ask(load(snapshot_id, 0, 1)) for _ in range(9)])
    assert 2.9 < asyncio.get_running_loop().time() - before < 3.2


@virtual
async def test_a_snapshot_that_the_registry_names_after_all_leaves_it_before_it_is_deleted() -> (
    None
):
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    world.plan.rules = [Rule(Fault.DROP_ANSWER, "metadata.put", times=5)]
    assert isinstance(await here.do(register(snapshot_id)), Failed)
    world.plan.rules = []
    assert await world.registered() == [snapshot_id]
    # The tracker took it for unregistered.
    assert await here.do(delete(snapshot_id)) == Done()
    assert await world.registered() == []
    assert world.snapshot_ledgers == []


@virtual
async def test_something_else_is_never_deleted() -> None:
    world = StorageWorld()
    here = await carried(world)
    foreign = (await world.client.create(_plain())).ledger_id
    assert await here.do(delete(foreign)) == Done()
    assert foreign in world.storage.ledgers


def _plain():
    from ackgate.persistence import LedgerOptions

    return LedgerOptions()


@virtual
async def test_a_bug_is_answered_too(caplog: pytest.LogCaptureFixture) -> None:
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    here.storage._snapshots = cast("BucketSnapshots", SimpleNamespace(path="p", segments=None))
    outcome = await here.do(load(snapshot_id, 0, 1))
    assert isinstance(outcome, Failed)
    assert "TypeError" in outcome.why
    assert "LoadSegments failed" in caplog.text


# ------------------------------------------------------------------------------ the end


@virtual
async def test_closing_ends_what_was_begun() -> None:
    """A snapshot that is being written is still registered."""
    world = StorageWorld(Rule(Fault.LATE_ANSWER, "ledger.append", seconds=2.0))
    here = await carried(world)

    def on_answer(_plan: int, outcome: Outcome) -> None:
        if isinstance(outcome, StoredSnapshot):
            here.tracker.plans += [register(outcome.snapshot_id)(90), create()(91)]

    here.tracker.on_answer = on_answer
    here.ask(create())
    await asyncio.sleep(0.1)
    await here.storage.close()
    assert here.tracker.answers[90] == Done()
    assert 91 not in here.tracker.answers
    assert await world.registered() == world.snapshot_ledgers != []
    assert here.storage.is_idle


@virtual
async def test_closing_deletes_what_nobody_registers() -> None:
    world = StorageWorld()
    here = await carried(world)
    await stored(here)
    assert len(world.snapshot_ledgers) == 1
    await here.storage.close()
    assert world.snapshot_ledgers == []


@virtual
async def test_closing_keeps_what_the_registry_may_name() -> None:
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    world.plan.rules = [Rule(Fault.DROP_ANSWER, "metadata.put", times=5)]
    assert isinstance(await here.do(register(snapshot_id)), Failed)
    await here.storage.close()
    assert world.snapshot_ledgers == await world.registered() == [snapshot_id]


@virtual
async def test_closing_waits_only_so_long() -> None:
    world = StorageWorld()
    here = await carried(world)
    snapshot_id = await stored(here)
    world.plan.rules = [Rule(Fault.DELAY, "*", times=None, seconds=1000.0)]
    here.ask(register(snapshot_id))
    here.ask(create())
    here.ask(load(snapshot_id, 0, 1))
    before = asyncio.get_running_loop().time()
    await here.storage.close()
    assert 9 < asyncio.get_running_loop().time() - before < 11
    assert here.storage.is_idle
    assert list(here.tracker.answers) == [1]
    here.ask(load_metadata(snapshot_id))
    assert here.storage.is_idle


@virtual
async def test_abandoned_it_writes_nothing_any_more() -> None:
    world = StorageWorld(Rule(Fault.LATE_ANSWER, "ledger.append", nth=2, seconds=5.0))
    here = await carried(world)
    snapshot_id = await stored(here)
    here.ask(create())
    here.ask(register(snapshot_id))
    here.storage.abandon()
    calls = world.plan.calls
    await asyncio.sleep(100)
    assert world.plan.calls <= calls + 1
    assert await world.registered() == []
    assert list(here.tracker.answers) == [1]


@virtual
async def test_a_deposed_owner_is_told_and_changes_nothing() -> None:
    world = StorageWorld()
    deposed = await carried(world)
    owner = await carried(world)
    mine = await stored(owner)
    assert await owner.do(register(mine)) == Done()
    its = await stored(deposed)
    outcome = await deposed.do(register(its, remove=(mine,)))
    assert isinstance(outcome, Failed)
    assert "epoch" in outcome.why
    assert isinstance(deposed.storage._store.why_stopped, OwnershipError)
    assert await world.registered() == [mine]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["creating", "stored", "registered"])
@virtual
async def test_a_deleted_subscription_leaves_no_ledger(moment: str) -> None:
    world = StorageWorld()
    here = await carried(world)
    store = here.storage._store
    if moment == "creating":
        world.plan.rules = [Rule(Fault.LATE_ANSWER, "ledger.append", seconds=2.0)]
        here.ask(create())
        await asyncio.sleep(0.1)
    else:
        snapshot_id = await stored(here)
        if moment == "registered":
            assert await here.do(register(snapshot_id)) == Done()
    assert len(world.snapshot_ledgers) == 1
    await here.storage.close()
    await store.delete()
    await here.storage.delete_all()
    assert world.storage.ledgers == {}
    assert await world.registered() == []
