"""The faulty wrappers: every fault does what it says, once, and can be read about afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any

import pytest

from ackgate.errors import (
    DigestMismatchError,
    LedgerFencedError,
    LedgerWriteError,
    MetadataConflictError,
    MetadataStoreError,
    NodeExistsError,
    NoSuchLedgerError,
    NoSuchNodeError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SessionLostError,
    StorageError,
    StoreSuspendedError,
)
from ackgate.persistence import LedgerOptions, MemoryMetadataStore, SessionState, WatchEvent
from ackgate.testing import MemoryLedgerClient
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def metadata(*rules: Rule) -> FaultyMetadataStore:
    return FaultyMetadataStore(MemoryMetadataStore(), FaultPlan(rules))


async def ledgers(*rules: Rule) -> FaultyLedgerClient:
    return FaultyLedgerClient(MemoryLedgerClient(), FaultPlan(rules))


# ------------------------------------------------------------------------------- the plan


@virtual
async def test_a_rule_hits_the_calls_it_names_and_no_others() -> None:
    store = metadata(Rule(Fault.FAIL, "metadata.put", "/a/*", nth=2, times=2))
    outcomes = []
    for path in ["/a/1", "/b", "/a/2", "/a/3", "/a/4"]:
        try:
            await store.put(path, b"", expected_version=None)
        except MetadataStoreError:
            outcomes.append("failed")
        else:
            outcomes.append("done")
    assert outcomes == ["done", "done", "failed", "failed", "done"]
    assert store.plan.story().splitlines() == [
        "seed None, 5 calls, 2 faults",
        "3: metadata.put /a/2 fails",
        "4: metadata.put /a/3 fails",
    ]


@virtual
async def test_calls_of_several_wrappers_are_counted_together() -> None:
    plan = FaultPlan([Rule(Fault.FAIL, nth=3)])
    store = FaultyMetadataStore(MemoryMetadataStore(), plan)
    client = FaultyLedgerClient(MemoryLedgerClient(), plan)
    await store.get("/a")
    writer = await client.create(LedgerOptions())
    with pytest.raises(LedgerWriteError):
        await writer.append([b"x"]).durable
    await store.get("/a")
    assert [str(i) for i in plan.injected] == ["3: ledger.append 1 fails"]


def test_a_seed_repeats_itself_and_a_quiet_plan_does_nothing() -> None:
    async def faults_of(seed: int) -> list[str]:
        rates = dict.fromkeys(Fault, 0.1)
        plan = FaultPlan(seed=seed, rates=rates)
        for i in range(200):
            plan.next_fault("metadata.put", f"/{i}", frozenset(Fault))
        plan.is_quiet = True
        for i in range(50):
            assert plan.next_fault("metadata.put", f"/{i}", frozenset(Fault)) is None
        return list(map(str, plan.injected))

    first, again, other = (run_in_virtual_time(faults_of(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert 100 < len(first) < 200


# ------------------------------------------------------------------------------- metadata


@virtual
async def test_a_failed_call_did_nothing_and_a_dropped_answer_did() -> None:
    store = metadata(
        Rule(Fault.FAIL, "metadata.put"),
        Rule(Fault.DROP_ANSWER, "metadata.put", seconds=5),
        Rule(Fault.DROP_ANSWER, "metadata.get"),
    )
    with pytest.raises(MetadataStoreError):
        await store.put("/a", b"1", expected_version=-1)
    with pytest.raises(OutcomeUnknownError):
        await store.put("/a", b"2", expected_version=-1)
    assert now() == 5
    with pytest.raises(MetadataStoreError):
        await store.get("/a")
    node = await store.get("/a")
    assert node is not None
    assert (node.value, node.version) == (b"2", 0)


@virtual
async def test_a_write_may_land_after_it_was_given_up_but_not_after_the_next_one() -> None:
    store = metadata(Rule(Fault.LANDS_LATE, "metadata.put", times=None, seconds=2))
    with pytest.raises(OutcomeUnknownError):
        await store.put("/a", b"late", expected_version=-1)
    assert await store.get("/a") is None
    await asyncio.sleep(3)
    assert await store.get("/a") is not None
    with pytest.raises(OutcomeUnknownError):
        await store.put("/b", b"first", expected_version=-1)
    assert await store.get("/b") is None
    store.plan.is_quiet = True
    with pytest.raises(MetadataConflictError):
        await store.put("/b", b"second", expected_version=-1)


@virtual
async def test_done_twice() -> None:
    twice = Rule(Fault.REPEAT, times=None)
    store = metadata(twice)
    assert await store.put("/a", b"1", expected_version=-1) == 0
    with pytest.raises(MetadataConflictError):
        await store.put("/a", b"2", expected_version=0)
    with pytest.raises(NodeExistsError):
        await store.create("/b", b"")
    with pytest.raises(NoSuchNodeError):
        await store.delete("/a")
    assert await store.get("/a") is None
    assert await store.get("/b") is not None


@virtual
async def test_late_work_is_overtaken_and_late_answers_come_in_another_order() -> None:
    store = metadata(
        Rule(Fault.DELAY, "metadata.put", "/late-work", seconds=2),
        Rule(Fault.LATE_ANSWER, "metadata.put", "/late-answer", seconds=1),
    )
    done: list[str] = []

    async def put(path: str) -> None:
        await store.put(path, b"", expected_version=None)
        done.append(path)

    tasks = [asyncio.create_task(put(p)) for p in ("/late-work", "/late-answer", "/prompt")]
    await asyncio.sleep(0.5)
    assert await store.get("/late-work") is None
    assert await store.get("/late-answer") is not None
    await asyncio.wait(tasks)
    assert done == ["/prompt", "/late-answer", "/late-work"]


@virtual
async def test_a_corrupt_value_is_another_one_and_the_stored_one_is_not_touched() -> None:
    store = metadata(Rule(Fault.CORRUPT))
    await store.put("/a", b"hello", expected_version=None)
    bad, good = await store.get("/a"), await store.get("/a")
    assert bad is not None
    assert good is not None
    assert bad.value != good.value == b"hello"
    assert await store.get("/none") is None


@virtual
async def test_a_suspended_session_is_waited_for_within_bounds() -> None:
    store = FaultyMetadataStore(
        MemoryMetadataStore(),
        FaultPlan([Rule(Fault.SUSPEND, seconds=5), Rule(Fault.SUSPEND, seconds=50)]),
    )
    heard: list[SessionState] = []
    store.on_session_change(heard.append)
    await store.put("/a", b"", expected_version=None)
    assert now() == 5
    with pytest.raises(StoreSuspendedError):
        await store.put("/b", b"", expected_version=None)
    assert now() == 35
    assert store.session_state is SessionState.SUSPENDED
    await asyncio.sleep(21)
    assert await store.get("/b") is None
    suspended, connected = SessionState.SUSPENDED, SessionState.CONNECTED
    assert heard == [suspended, connected, suspended, connected]


@virtual
async def test_no_change_is_left_untold_over_a_suspension() -> None:
    memory = MemoryMetadataStore()
    store = FaultyMetadataStore(memory)
    heard: list[WatchEvent] = []
    store.watch("/a", heard.append)
    store.suspend()
    await memory.put("/a", b"", expected_version=None)
    await asyncio.sleep(1)
    assert heard == []
    store.resume()
    assert [event.path for event in heard] == ["/a"]


@virtual
async def test_a_lost_session_takes_what_it_owned_until_it_is_renewed() -> None:
    memory = MemoryMetadataStore()
    store = FaultyMetadataStore(memory, FaultPlan([Rule(Fault.LOSE_SESSION, "metadata.put")]))
    heard: list[object] = []
    store.on_session_change(heard.append)
    await store.create("/owner", b"", ephemeral=True)
    await store.create("/kept", b"")
    store.watch("/kept", heard.append)
    with pytest.raises(SessionLostError):
        await store.put("/kept", b"1", expected_version=0)
    with pytest.raises(SessionLostError):
        await store.get("/kept")
    assert (store.session_state, store.lease_until) == (SessionState.LOST, now())
    await store.renew()
    assert store.lease_until == memory.lease_until
    assert await store.get("/owner") is None
    assert await store.put("/kept", b"1", expected_version=0) == 1
    await asyncio.sleep(1)
    assert heard == [SessionState.LOST, SessionState.CONNECTED]


# -------------------------------------------------------------------------------- ledgers


@virtual
async def test_an_append_that_fails_is_not_there_and_ends_the_handle() -> None:
    client = await ledgers(Rule(Fault.FAIL, "ledger.append", nth=2))
    writer = await client.create(LedgerOptions())
    await writer.append([b"a"]).durable
    ticket = writer.append([b"b"])
    assert ticket.first_entry_id == 1
    with pytest.raises(LedgerWriteError):
        await ticket.durable
    with pytest.raises(LedgerWriteError):
        writer.append([b"c"])
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == 0


@virtual
async def test_an_append_whose_answer_is_lost_is_there() -> None:
    client = await ledgers(Rule(Fault.DROP_ANSWER, "ledger.append", seconds=1))
    writer = await client.create(LedgerOptions())
    first, second = writer.append([b"a"]), writer.append([b"b"])
    with pytest.raises(LedgerWriteError):
        await first.durable
    with pytest.raises(LedgerWriteError):
        await second.durable
    assert now() == 1
    reader = await client.open(writer.ledger_id)
    assert [entry.payload for entry in await reader.read(0, 1)] == [b"a", b"b"]


@virtual
async def test_tickets_of_one_ledger_are_answered_in_order_and_ledgers_pass_each_other() -> None:
    client = await ledgers(Rule(Fault.LATE_ANSWER, "ledger.append", "1", seconds=1))
    slow, fast = await client.create(LedgerOptions()), await client.create(LedgerOptions())
    answered: list[str] = []
    tickets = {"slow 1": slow.append([b"a"]), "slow 2": slow.append([b"b"])}
    tickets["fast"] = fast.append([b"c"])
    for name, ticket in tickets.items():
        ticket.durable.add_done_callback(partial(lambda name, _: answered.append(name), name))
    await asyncio.sleep(2)
    assert answered == ["fast", "slow 1", "slow 2"]


@virtual
async def test_an_error_of_ones_choice() -> None:
    client = await ledgers(Rule(Fault.FAIL, "ledger.append", error=LedgerFencedError))
    writer = await client.create(LedgerOptions())
    with pytest.raises(LedgerFencedError, match=r"1: ledger\.append 1 fails|2: ledger\.append"):
        await writer.append([b"a"]).durable


@virtual
async def test_ledgers_made_deleted_and_opened_without_an_answer() -> None:
    client = await ledgers(
        Rule(Fault.FAIL, "ledger.create", "/topics/*"),
        Rule(Fault.DROP_ANSWER, "ledger.create"),
        Rule(Fault.REPEAT, "ledger.create"),
        Rule(Fault.DROP_ANSWER, "ledger.open"),
        Rule(Fault.DROP_ANSWER, "ledger.delete"),
    )
    options = LedgerOptions(custom_metadata={"for": b"/topics/1"})
    with pytest.raises(NotEnoughBookiesError):
        await client.create(options)
    assert await client.ledger_ids() == []
    with pytest.raises(NotEnoughBookiesError):
        await client.create(options)
    assert await client.ledger_ids() == [1]
    writer = await client.create(options)
    assert (writer.ledger_id, await client.ledger_ids()) == (2, [1, 2, 3])
    with pytest.raises(StorageError):
        await client.open(2)
    with pytest.raises(LedgerFencedError):
        writer.append([b"a"])
    with pytest.raises(StorageError):
        await client.delete(2)
    with pytest.raises(NoSuchLedgerError):
        await client.delete(2)


@virtual
async def test_a_corrupt_entry_stays_corrupt_and_its_neighbours_do_not() -> None:
    client = await ledgers(Rule(Fault.CORRUPT))
    writer = await client.create(LedgerOptions())
    await writer.append([b"a", b"b", b"c"]).durable
    await writer.close()
    reader = await client.open(writer.ledger_id)
    with pytest.raises(DigestMismatchError):
        await reader.read(1, 1)
    with pytest.raises(DigestMismatchError):
        await (await client.open(writer.ledger_id)).read(0, 2)
    assert (await reader.read(0, 0) + await reader.read(2, 2))[1].payload == b"c"
