"""The cursor store where answers are lost, late or never come: each upstream defect by its number.

Over the ports' faulty wrappers, in virtual time. What is random about it is in
`tests/property/persistence`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ackgate.errors import (
    NodeTooLargeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    SessionLostError,
    StorageError,
    StoreSuspendedError,
)
from ackgate.persistence import (
    CursorStore,
    MemoryMetadataStore,
    PersistenceSettings,
    PersistWhere,
    RecoverySource,
)
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.property.persistence.states import message_ledgers
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.unit.persistence.store_world import PATH, START, Heard, state_of
from tests.unit.persistence.test_cursor_store import ack, virtual

ALWAYS = None
LEDGER_FAILS = Rule(Fault.FAIL, "ledger.append", times=ALWAYS)
NO_LEDGER = Rule(Fault.FAIL, "ledger.create", times=ALWAYS)
NODE_FAILS = Rule(Fault.FAIL, "metadata.*", times=ALWAYS)


class Stores:
    """The stores of one cursor, and owners of it, each with faults of its own."""

    def __init__(self, **settings: Any) -> None:
        self.settings = PersistenceSettings(**{"ack_persist_linger_ms": 1, **settings})
        self.tree = MemoryTree()
        self.storage = MemoryLedgers()
        self.epoch = 0

    async def open(self, *rules: Rule, epoch: int | None = None) -> CursorStore:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.plan = FaultPlan(rules)
        self.metadata = FaultyMetadataStore(MemoryMetadataStore(self.tree), self.plan)
        return await CursorStore.open(
            path=PATH,
            ledgers=message_ledgers(),
            ledger_client=FaultyLedgerClient(MemoryLedgerClient(self.storage), self.plan),
            metadata=self.metadata,
            settings=self.settings,
            batch_index_acks=True,
            owner_epoch=self.epoch,
            clock_ms=lambda: int(now() * 1000),
            create_at=START,
        )

    def goes_wrong(self, *rules: Rule) -> None:
        """From now on; nothing else does."""
        self.plan.rules = [replace(rule) for rule in rules]

    async def node(self) -> CursorNode:
        found = await MemoryMetadataStore(self.tree).get(PATH)
        assert found is not None
        return decode_cursor_node(found.value, path=PATH)


def now() -> float:
    return asyncio.get_running_loop().time()


async def durable(store: CursorStore, *entries: int, within: float = 1.0) -> None:
    receipt = Heard()
    store.when_durable(ack(store, *entries), receipt)
    await asyncio.sleep(within)
    assert receipt.is_durable, store.last_failure


def where(store: CursorStore) -> PersistWhere:
    assert store.outcome is not None
    return store.outcome.where


# --------------------------------------------------------- which of the two counts (semantics 3)


@virtual
async def test_a_fallback_given_up_that_lands_late_does_not_win_over_the_ledger() -> None:
    """The node's put is not answered, the ledger works again, and then the put lands."""
    stores = Stores()
    store = await stores.open()
    await durable(store, 1)
    stores.goes_wrong(
        Rule(Fault.FAIL, "ledger.append"),
        Rule(Fault.LANDS_LATE, "metadata.put", seconds=0.5),
        Rule(Fault.FAIL, "metadata.get", times=2),
    )
    await durable(store, 3, within=5)
    await durable(store, 5)
    assert where(store) is PersistWhere.LEDGER
    expected = state_of(store)
    assert state_of(await stores.open()) == expected


@virtual
async def test_a_new_ledger_that_the_node_may_name_is_not_left_for_the_old_one() -> None:
    """A roll-over's put is on its way; a reader believes that it was not done."""
    stores = Stores(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await stores.open()
    await durable(store, 1)
    stores.goes_wrong(
        Rule(Fault.LANDS_LATE, "metadata.put", seconds=2),
        Rule(Fault.FAIL, "metadata.get"),
        Rule(Fault.FAIL, "metadata.put", error=StoreSuspendedError),
        Rule(Fault.FAIL, "ledger.create", nth=2, times=ALWAYS),
    )
    await durable(store, 3, within=1)
    await asyncio.sleep(5)
    assert list(stores.storage.ledgers) == [(await stores.node()).cursor_ledger_id]
    expected = state_of(store)
    assert state_of(await stores.open()) == expected


@virtual
async def test_a_ledger_that_a_lost_answer_left_unnamed_is_deleted() -> None:
    """The fallback's put was done without an answer: the ledger named before is garbage."""
    stores = Stores()
    store = await stores.open()
    await durable(store, 1)
    (old,) = stores.storage.ledgers
    stores.goes_wrong(
        Rule(Fault.FAIL, "ledger.append"),
        Rule(Fault.DROP_ANSWER, "metadata.put"),
        Rule(Fault.FAIL, "metadata.get"),
    )
    await durable(store, 3, within=60)
    assert old not in stores.storage.ledgers
    assert list(stores.storage.ledgers) == [(await stores.node()).cursor_ledger_id]


@virtual
async def test_on_fallback_an_ack_waits_for_the_node_s_rate_and_not_for_the_ledger() -> None:
    """The writer sleeps until the ledger may be tried again, up to 30 s: an ack wakes it."""
    stores = Stores(fallback_rate_limit=10)
    store = await stores.open(NO_LEDGER)
    await durable(store, 1, within=70)
    for entry in range(3, 41, 2):
        await asyncio.sleep(0.7)
        await durable(store, entry, within=0.01)
    writes = store.statistics().metadata_writes
    for entry in range(41, 59):
        ack(store, entry)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.11)
    assert not store.is_dirty
    assert store.statistics().metadata_writes - writes <= 3
    stores.goes_wrong()
    await asyncio.sleep(31)
    assert where(store) is PersistWhere.LEDGER
    assert store.is_idle


@virtual
async def test_doubt_that_is_settled_at_once_is_no_failure() -> None:
    stores = Stores()
    store = await stores.open()
    for fault in (Fault.DROP_ANSWER, Fault.LANDS_LATE, Fault.REPEAT):
        stores.goes_wrong(NO_LEDGER, Rule(fault, "metadata.put", seconds=0.1))
        receipt = Heard()
        store.when_durable(ack(store, store.cursor.acked_count * 2 + 1), receipt)
        await asyncio.sleep(2)
        assert receipt.is_durable
        assert store.statistics().metadata_errors == 0
        assert where(store) is PersistWhere.METADATA_STORE


@virtual
async def test_properties_whose_answer_is_lost_are_set() -> None:
    stores = Stores()
    store = await stores.open()
    for fault in (Fault.DROP_ANSWER, Fault.LANDS_LATE):
        stores.goes_wrong(Rule(fault, "metadata.put", seconds=0.1))
        await store.set_cursor_properties({"set by": fault.name})
        await durable(store, store.cursor.acked_count * 2 + 1)
        assert (await stores.node()).cursor_properties == {"set by": fault.name}


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE, Fault.REPEAT])
@virtual
async def test_an_opening_whose_claim_is_not_answered_claims_again(fault: Fault) -> None:
    stores = Stores()
    first = await stores.open(Rule(fault, "metadata.put", seconds=0.1))
    await durable(first, 1)
    second = await stores.open(Rule(fault, "metadata.put", seconds=0.1))
    await asyncio.sleep(1)
    await durable(second, 3)
    assert (await stores.node()).owner_epoch == 2
    late = Heard()
    first.when_durable(ack(first, 5), late)
    await asyncio.sleep(1)
    assert not late.is_durable
    assert second.cursor.acked_count == 2


@virtual
async def test_a_deletion_without_an_answer_is_one() -> None:
    stores = Stores()
    store = await stores.open()
    await durable(store, 1)
    stores.goes_wrong(Rule(Fault.DROP_ANSWER, "metadata.delete", times=2))
    await store.delete()
    assert await MemoryMetadataStore(stores.tree).get(PATH) is None
    assert not stores.storage.ledgers


# ---------------------------------------------------------- a store that hangs (semantics 6)


@virtual
async def test_a_suspended_metadata_store_does_not_stop_a_ledger_that_works() -> None:
    """T54: no roll-over without a session; and what is to be deleted waits beside the writes."""
    stores = Stores(managed_ledger_cursor_max_entries_per_ledger=2)
    store = await stores.open()
    await durable(store, 1)
    stores.metadata.suspend()
    for entry in range(3, 21, 2):
        await durable(store, entry, within=0.1)
    assert len(stores.storage.ledgers) == 1
    stores.metadata.resume()
    await durable(store, 21)
    stores.goes_wrong(Rule(Fault.FAIL, "ledger.delete", seconds=500))
    await durable(store, 23)
    await durable(store, 25)
    assert len(stores.storage.ledgers) > 1
    assert not store.statistics().is_on_fallback


@virtual
async def test_what_hangs_counts_as_failing_and_blocks_neither_flush_nor_close() -> None:
    stores = Stores()
    store = await stores.open()
    await asyncio.sleep(1)
    told: list[int | None] = []
    store.on_outcome(lambda: told.append(store.failing_since_ms))
    stores.goes_wrong(Rule(Fault.FAIL, "*", times=ALWAYS, seconds=1000))
    receipt = Heard()
    store.when_durable(ack(store, 1), receipt)
    await asyncio.sleep(6)
    assert told == [store.failing_since_ms]
    assert store.failing_since_ms in {1000, 1001}, "since the write began"
    assert "under way" in str(store.last_failure)
    began = now()
    await store.flush()
    assert now() - began <= 10.1
    with pytest.raises(StorageError, match="not closed cleanly within 30 s"):
        await store.close()
    assert now() - began <= 50.2
    assert len(receipt.errors) == 1
    assert not receipt.is_durable


@virtual
async def test_a_hung_put_does_not_keep_the_cursor_from_its_ledger() -> None:
    """The store is suspended during a fallback; it comes back, and the ledger works again."""
    stores = Stores()
    store = await stores.open()
    await durable(store, 1)
    stores.goes_wrong(Rule(Fault.FAIL, "ledger.append"))
    stores.metadata.suspend()
    receipt = Heard()
    store.when_durable(ack(store, 3), receipt)
    await asyncio.sleep(20)
    assert receipt.errors == []
    assert store.failing_since_ms is not None
    stores.metadata.resume()
    await asyncio.sleep(31)
    assert receipt.is_durable
    assert where(store) is PersistWhere.LEDGER
    assert store.failing_since_ms is None


@virtual
async def test_a_lost_session_ends_ownership_and_says_so() -> None:
    """Semantics 6. The ledger would still take writes; an owner that has lost the session does not ask."""
    stores = Stores(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await stores.open()
    await durable(store, 1)
    stores.metadata.lose_session()
    await durable(store, 3)  # the ledger is ours until it is fenced
    stores.goes_wrong(LEDGER_FAILS)
    receipt = Heard()
    store.when_durable(ack(store, 5), receipt)
    await asyncio.sleep(1)
    (error,) = receipt.errors
    assert isinstance(error, SessionLostError)
    with pytest.raises(SessionLostError):
        await store.flush()
    await store.close()


# ------------------------------------------------------------------- upstream's, by number


@virtual
async def test_26485_a_lagging_cursor_falls_back_when_no_ledger_can_be_made() -> None:
    stores = Stores()
    store = await stores.open(NO_LEDGER)
    await durable(store, 7, 9, 30)
    assert where(store) is PersistWhere.METADATA_STORE
    expected = state_of(store)
    other = await stores.open()
    assert other.report.source is RecoverySource.METADATA_STORE
    assert state_of(other) == expected


@virtual
async def test_5604_24580_a_version_that_moved_is_read_again_and_nothing_fails() -> None:
    stores = Stores()
    store = await stores.open(NO_LEDGER)
    await durable(store, 1)
    stranger = MemoryMetadataStore(stores.tree)
    found = await stranger.get(PATH)
    assert found is not None
    await stranger.put(PATH, found.value, expected_version=found.version)
    await durable(store, 3)
    assert store.statistics().metadata_errors == 0


@virtual
async def test_23652_what_is_too_large_for_a_node_is_never_sent() -> None:
    stores = Stores(metadata_store_max_node_bytes=4096)
    store = await stores.open()
    calls: list[str] = []
    put = stores.metadata.put

    async def watched(path: str, value: bytes, *, expected_version: int | None) -> int:
        calls.append(f"{len(value)} bytes")
        return await put(path, value, expected_version=expected_version)

    stores.metadata.put = watched  # type: ignore[method-assign]
    stores.goes_wrong(NO_LEDGER)
    # Not even the mark-delete and the properties fit: a clear failure, and acks stay in memory.
    store.cursor.set_properties({Random(i).randbytes(40).hex(): i for i in range(200)})
    receipt = Heard()
    store.when_durable(store.cursor.version, receipt)
    store.notify()
    await asyncio.sleep(1)
    assert calls == []
    assert receipt.errors == []
    assert store.failing_since_ms is not None
    assert "fit into 4096 bytes" in str(store.last_failure)
    with pytest.raises(NodeTooLargeError):
        await store.set_cursor_properties({"k": Random(0).randbytes(1_100_000).hex()})
    # The ledger takes it, and then nothing of it is in the node.
    stores.goes_wrong()
    await asyncio.sleep(31)
    assert receipt.is_durable
    assert where(store) is PersistWhere.LEDGER


@virtual
async def test_23615_a_ledger_that_fails_during_a_close_leaves_the_state_in_the_node() -> None:
    stores = Stores()
    store = await stores.open()
    await durable(store, 1)
    stores.goes_wrong(Rule(Fault.FAIL, "ledger.*", times=ALWAYS))
    ack(store, 3, 5)
    await store.close()
    await store.close()
    expected = state_of(store)
    assert state_of(await stores.open()) == expected


@virtual
async def test_t44_both_fail_and_what_was_acked_is_durable_when_they_are_back() -> None:
    stores = Stores()
    store = await stores.open()
    stores.goes_wrong(NO_LEDGER, NODE_FAILS)
    receipt = Heard()
    store.when_durable(ack(store, 0, 1, 2), receipt)
    await asyncio.sleep(5)
    assert store.cursor.mark_delete.entry_id == 2
    assert store.is_dirty
    assert receipt.errors == []
    stores.goes_wrong()
    await store.flush()
    assert receipt.is_durable


@virtual
async def test_t49_one_conflict_in_a_row_of_writes_fails_none_of_them() -> None:
    stores = Stores(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await stores.open()
    stores.goes_wrong(Rule(Fault.REPEAT, "metadata.put", nth=3))
    for entry in range(1, 21, 2):
        await durable(store, entry)
    assert store.statistics().ledger_errors == 0


@virtual
async def test_t50_a_switch_that_fails_leaves_no_ledger_behind() -> None:
    stores = Stores(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await stores.open()
    await durable(store, 1)
    for fault in (Fault.FAIL, Fault.DROP_ANSWER, Fault.LANDS_LATE):
        stores.goes_wrong(Rule(fault, "metadata.put", seconds=0.2))
        await durable(store, store.cursor.acked_count * 2 + 1, within=15)
    await durable(store, 51, within=15)
    assert list(stores.storage.ledgers) == [(await stores.node()).cursor_ledger_id]


@virtual
async def test_t54_a_lost_session_makes_no_roll_over() -> None:
    stores = Stores(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await stores.open()
    await durable(store, 1)
    stores.metadata.lose_session()
    before = list(stores.storage.ledgers)
    await durable(store, 3)
    assert list(stores.storage.ledgers) == before


@virtual
async def test_a_ledger_that_is_gone_and_a_newer_fallback() -> None:
    """What the node names is deleted by hand; the state in the node is what is left of it."""
    stores = Stores()
    store = await stores.open()
    await durable(store, 1)
    named = (await stores.node()).cursor_ledger_id
    assert named is not None
    del stores.storage.ledgers[named]
    with pytest.raises(NoSuchLedgerError):
        await MemoryLedgerClient(stores.storage).metadata(named)
    other = await stores.open()
    assert other.report.lost is not None
    assert state_of(other) == state_of(store)


@virtual
async def test_an_unanswering_node_is_given_up_after_some_tries() -> None:
    stores = Stores()
    store = await stores.open()
    unknown = Rule(Fault.FAIL, "metadata.put", times=ALWAYS, error=OutcomeUnknownError)
    stores.goes_wrong(NO_LEDGER, unknown)
    ack(store, 1)
    await asyncio.sleep(0.05)
    assert "does not answer" in str(store.last_failure)
    assert store.failing_since_ms is not None


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
@virtual
async def test_a_fallback_is_compressed_as_configured(compression: str) -> None:
    stores = Stores(
        managed_cursor_info_compression_type=compression,
        managed_cursor_info_compression_threshold_in_bytes=1,
    )
    store = await stores.open(NO_LEDGER)
    store.cursor.set_properties({f"a property with a long name, number {i}": i for i in range(50)})
    await durable(store, *range(1, 60, 2))
    found = await MemoryMetadataStore(stores.tree).get(PATH)
    assert found is not None
    assert (len(found.value) < 1000) == (compression != "NONE")
    assert state_of(await stores.open()) == state_of(store)
