"""The cursor store when things break: fallback, return, both down, time-outs, lost ownership."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.cursor import Position
from ackgate.errors import (
    CursorClosedError,
    InternalError,
    LedgerWriteError,
    NotEnoughBookiesError,
    OwnershipError,
    PersistTimeoutError,
    SessionLostError,
    StorageError,
)
from ackgate.persistence import (
    CursorStore,
    MemoryMetadataStore,
    PersistWhere,
    RecoverySource,
    read_cursor,
)
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node, encode_cursor_node
from ackgate.persistence.records.envelope import Packing
from tests.unit.persistence.store_world import PATH, Heard, World, metadata_down, state_of
from tests.unit.persistence.test_cursor_store import ack, virtual


def where_of(store: CursorStore) -> PersistWhere:
    assert store.outcome is not None
    return store.outcome.where


NO_BOOKIES = NotEnoughBookiesError("no bookie can be written")
WRITE_FAILS = LedgerWriteError("the disk is full")


# ---------------------------------------------------------------------------- fallback


@virtual
async def test_a_ledger_that_cannot_be_made_falls_back_to_the_node_and_comes_back() -> None:
    world = World()
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    receipt = Heard()
    store.when_durable(ack(store, 1, 3), receipt)
    await asyncio.sleep(0.01)
    assert receipt.is_durable
    assert where_of(store) is PersistWhere.METADATA_STORE
    assert store.failing_since_ms is None
    assert store.last_failure == "ledger: no bookie can be written"
    statistics = store.statistics()
    assert (statistics.ledger_errors, statistics.metadata_writes) == (1, 1)
    # Nothing else happens, and yet it returns by itself.
    await asyncio.sleep(3)
    assert store.statistics().is_on_fallback
    world.ledgers.faults.create = None
    await asyncio.sleep(31)
    assert not store.statistics().is_on_fallback
    assert where_of(store) is PersistWhere.LEDGER
    assert store.statistics().last_failure is None
    assert store.is_idle
    expected = state_of(store)
    assert state_of(await world.crash_and_reopen(store)) == expected


@virtual
async def test_a_failing_append_falls_back_even_when_the_cursor_is_not_caught_up() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.ledgers.faults.append = WRITE_FAILS
    receipt = Heard()
    store.when_durable(ack(store, 3), receipt)
    await asyncio.sleep(0.01)
    assert receipt.is_durable
    assert (await world.node()).cursor_ledger_id is None
    expected = state_of(store)
    other = await world.crash_and_reopen(store)
    assert other.report.source is RecoverySource.METADATA_STORE
    assert state_of(other) == expected
    await asyncio.sleep(31)
    ack(other, 5)
    await other.flush()
    await asyncio.sleep(31)
    assert list(world.stored) == [(await world.node()).cursor_ledger_id]


@virtual
async def test_a_ledger_left_by_a_fallback_is_deleted() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.ledgers.faults.append = WRITE_FAILS
    ack(store, 3)
    await store.flush()
    world.ledgers.faults.append = None
    await asyncio.sleep(60)
    assert world.ledgers.created[0] not in world.stored
    assert list(world.stored) == [(await world.node()).cursor_ledger_id]


@virtual
async def test_the_fallback_is_cut_to_its_cap_and_says_so() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=5)
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    ack(store, *range(1, 21, 2))
    await store.flush()
    outcome = store.outcome
    assert outcome is not None
    assert (outcome.ranges_persisted, outcome.ranges_dropped) == (5, 5)
    assert not outcome.size_guard_hit
    # The cut state is durable as far as it goes, and the ledger makes it whole again.
    world.ledgers.faults.create = None
    await asyncio.sleep(31)
    assert store.outcome is not None
    assert store.outcome.is_complete


@virtual
async def test_the_fallback_never_exceeds_the_size_guard() -> None:
    import random

    world = World(
        managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=100_000,
        managed_ledger_max_unacked_ranges_to_persist=100_000,
        metadata_store_max_node_bytes=4096,
    )
    sizes: list[int] = []
    put = world.metadata.put

    async def watched(path: str, value: bytes, *, expected_version: int | None) -> int:
        sizes.append(len(value))
        return await put(path, value, expected_version=expected_version)

    world.metadata.put = watched  # type: ignore[method-assign]
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    store.cursor.ack_many(3, random.Random(5).sample(range(100_000), 30_000))
    store.notify()
    await store.flush()
    outcome = store.outcome
    assert outcome is not None
    assert outcome.size_guard_hit
    assert 0 < outcome.ranges_persisted < outcome.ranges_in_memory
    assert 3000 < max(sizes) <= 4096
    kept = outcome.ranges_persisted
    whole = store.cursor.snapshot().acked[3]
    store = await world.crash_and_reopen(store)
    assert store.cursor.range_count == kept
    recovered = store.cursor.snapshot().acked[3]
    assert recovered == whole & type(whole)(range(recovered.max() + 1)), "the lowest are kept"


@virtual
async def test_fallback_writes_are_rate_limited_and_group() -> None:
    world = World(fallback_rate_limit=0.5, ack_persist_linger_ms=0)
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    puts = world.metadata.puts
    for entry in range(1, 81, 2):
        ack(store, entry)
        await asyncio.sleep(0.25)
    assert 5 <= world.metadata.puts - puts <= 6
    await asyncio.sleep(2.1)
    assert not store.is_dirty


@virtual
async def test_a_full_ledger_that_cannot_be_replaced_goes_on_being_written() -> None:
    world = World(managed_ledger_cursor_max_entries_per_ledger=2)
    store = await world.open()
    world.ledgers.faults.create = None
    ack(store, 1)
    await store.flush()
    ack(store, 3)
    await store.flush()
    world.ledgers.faults.create = NO_BOOKIES
    for entry in (5, 7, 9):
        ack(store, entry)
        await store.flush()
        assert store.outcome is not None
        assert store.outcome.where is PersistWhere.LEDGER
    assert not store.statistics().is_on_fallback
    expected = state_of(store)
    assert len(world.stored[100].entries) == 5
    view = await read_cursor(PATH, ledger_client=world.ledgers, metadata=world.metadata)
    assert dict(view.snapshot.acked) == expected[1]
    world.ledgers.faults.create = None
    await asyncio.sleep(11)
    ack(store, 11)
    await store.flush()
    assert (await world.node()).cursor_ledger_id == 101
    assert expected != state_of(store)


# -------------------------------------------------------------------------- both are down


@virtual
async def test_both_down_keeps_acks_in_memory_and_everything_recovers_by_itself() -> None:
    world = World()
    store = await world.open()
    outcomes: list[int | None] = []
    store.on_outcome(lambda: outcomes.append(store.failing_since_ms))
    await asyncio.sleep(1)
    world.ledgers.faults.create = NO_BOOKIES
    world.metadata.failure = metadata_down()
    receipt = Heard()
    store.when_durable(ack(store, 1, 3), receipt)
    await asyncio.sleep(5)
    assert store.is_dirty
    assert store.statistics().failing_since_ms == 1002
    assert str(store.last_failure).endswith("metadata store: metadata is down")
    assert set(outcomes) == {1002}
    assert 3 < len(outcomes) < 30
    assert receipt.errors == []
    world.ledgers.faults.create = None
    world.metadata.failure = None
    await asyncio.sleep(31)
    assert receipt.is_durable
    assert store.statistics().dirty_versions == 0
    assert outcomes[-1] is None
    assert store.statistics().last_failure is None


@virtual
async def test_retries_back_off() -> None:
    world = World()
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    world.metadata.failure = metadata_down()
    ack(store, 1)
    await asyncio.sleep(600)
    assert 20 < store.statistics().ledger_errors < 60
    await store.flush()
    errors = store.statistics().ledger_errors
    assert store.failing_since_ms is not None
    await store.flush()
    assert store.statistics().ledger_errors == errors + 1, "a flush tries at once"


@virtual
async def test_receipts_time_out_with_the_cause_and_the_acks_stay() -> None:
    world = World(ack_receipt_timeout_seconds=30)
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    world.metadata.failure = metadata_down()
    early, late = Heard(), Heard()
    store.when_durable(ack(store, 1), early)
    await asyncio.sleep(10)
    store.when_durable(ack(store, 3), late)
    await asyncio.sleep(20.1)
    (error,) = early.errors
    assert isinstance(error, PersistTimeoutError)
    assert "30 s" in str(error)
    assert "metadata is down" in str(error)
    assert late.errors == []
    world.ledgers.faults.create = None
    world.metadata.failure = None
    await store.flush()
    assert late.is_durable
    assert store.cursor.is_acked(Position(3, 1))
    await asyncio.sleep(60)
    assert len(early.errors) == len(late.errors) == 1


@virtual
async def test_a_failed_write_fails_no_receipt_that_the_next_write_can_still_keep() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.ledgers.faults.append = WRITE_FAILS
    world.metadata.failure = metadata_down()
    receipt = Heard()
    store.when_durable(ack(store, 3), receipt)
    await asyncio.sleep(0.02)
    assert store.failing_since_ms is not None
    assert receipt.errors == []
    world.ledgers.faults.append = None
    world.metadata.failure = None
    await asyncio.sleep(1)
    assert receipt.is_durable


@virtual
async def test_closing_with_both_down_says_what_is_lost_and_closes() -> None:
    world = World(ack_persist_linger_ms=9000)
    store = await world.open()
    ack(store, 1)
    receipt = Heard()
    store.when_durable(store.cursor.version, receipt)
    world.ledgers.faults.create = NO_BOOKIES
    world.metadata.failure = metadata_down()
    with pytest.raises(StorageError, match=r"not durable: metadata is down; "):
        await store.close()
    assert isinstance(receipt.errors[0], CursorClosedError)
    await store.close()


@virtual
async def test_closing_makes_a_cut_fallback_whole_again_if_the_ledger_works_by_then() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=2)
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    ack(store, 1, 3, 5, 7)
    await store.flush()
    assert not store.is_dirty
    world.ledgers.faults.create = None
    await store.close()
    assert where_of(store) is PersistWhere.LEDGER
    expected = state_of(store)
    assert state_of(await world.open(create=False)) == expected


@virtual
async def test_closing_a_clean_cursor_while_the_metadata_store_is_down_is_no_failure() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.metadata.failure = metadata_down()
    await store.close()
    world.connect()
    assert (await world.open(create=False)).cursor.acked_count == 1


# -------------------------------------------------------------- answers that are ambiguous


@virtual
async def test_a_node_put_that_landed_without_an_answer_is_found_out() -> None:
    """The node names the new ledger, but we do not know. Nothing may go to the old one then."""
    world = World(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.metadata.failure = metadata_down()
    world.metadata.put_lands = True
    receipt = Heard()
    store.when_durable(ack(store, 3), receipt)
    await asyncio.sleep(0.05)
    assert receipt.errors == [], "not durable as long as nobody knows what the node names"
    assert len(world.stored[100].entries) == 1
    world.metadata.failure = None
    await asyncio.sleep(1)
    assert receipt.is_durable
    node = await world.node()
    assert node.cursor_ledger_id in world.stored
    expected = state_of(store)
    assert state_of(await world.crash_and_reopen(store)) == expected


@virtual
async def test_an_append_that_landed_without_an_answer_is_never_taken_back() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.ledgers.faults.append = WRITE_FAILS
    world.ledgers.faults.append_lands = True
    world.metadata.failure = metadata_down()
    ack(store, 3)
    await asyncio.sleep(0.02)
    assert store.is_dirty
    world.metadata.failure = None
    expected = state_of(store)
    assert state_of(await world.crash_and_reopen(store)) == expected


@virtual
async def test_ledgers_that_could_not_be_deleted_are_deleted_later() -> None:
    world = World(managed_ledger_cursor_max_entries_per_ledger=1)
    store = await world.open()
    world.ledgers.faults.delete = StorageError("bookie is away")
    for entry in (1, 3, 5):
        ack(store, entry)
        await store.flush()
        await asyncio.sleep(0.1)
    assert list(world.stored) == [100, 101, 102]
    world.ledgers.faults.delete = None
    await asyncio.sleep(11)
    ack(store, 7)
    await store.flush()
    await asyncio.sleep(0.1)
    assert list(world.stored) == [103]


@virtual
async def test_a_ledger_begun_in_vain_is_deleted() -> None:
    world = World()
    store = await world.open()
    world.ledgers.faults.append = WRITE_FAILS
    ack(store, 1)
    await asyncio.sleep(0.05)
    world.ledgers.faults.append = None
    await asyncio.sleep(40)
    assert not store.is_dirty
    assert not store.statistics().is_on_fallback
    ack(store, 3)
    await store.flush()
    await asyncio.sleep(15)
    ack(store, 5)
    await store.flush()
    await asyncio.sleep(0.1)
    assert list(world.stored) == [(await world.node()).cursor_ledger_id]


# -------------------------------------------------------------------------- ownership lost


@virtual
async def test_a_fenced_owner_stops_for_good_and_writes_nothing_more() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    new_owner = await world.open(create=False)
    heard: list[int] = []
    store.on_outcome(lambda: heard.append(1))
    receipt = Heard()
    puts = world.metadata.puts
    store.when_durable(ack(store, 3), receipt)
    await asyncio.sleep(1)
    assert "belongs to the owner of epoch 2" in str(receipt.errors[0])
    assert world.metadata.puts == puts
    assert heard == [1]
    with pytest.raises(OwnershipError):
        await store.flush()
    with pytest.raises(OwnershipError):
        await store.set_cursor_properties({})
    with pytest.raises(CursorClosedError, match="belongs to the owner of epoch 2"):
        ack(store, 5)
    assert store.is_idle
    outcome = await store.close()
    assert outcome.version < store.cursor.version, "what came after it was never durable"
    assert world.metadata.puts == puts
    assert new_owner.cursor.acked_count == 1


@virtual
async def test_an_owner_on_fallback_is_shut_out_by_the_claim_of_the_next() -> None:
    world = World(fallback_rate_limit=1000)
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    ack(store, 1)
    await store.flush()
    other = World()
    other.tree, other.stored, other.messages, other.epoch = (
        world.tree,
        world.stored,
        world.messages,
        1,
    )
    other.connect()
    new_owner = await other.open(create=False)
    receipt = Heard()
    store.when_durable(ack(store, 3), receipt)
    await asyncio.sleep(1)
    assert isinstance(receipt.errors[0], OwnershipError)
    assert "epoch 2" in str(receipt.errors[0])
    assert new_owner.cursor.acked_count == 1


@virtual
async def test_what_an_old_owner_put_before_the_claim_is_recovered() -> None:
    """The next owner has read the node, then the old one falls back: the claim must fail."""
    world = World()
    store = await world.open()
    world.ledgers.faults.create = NO_BOOKIES
    ack(store, 1)
    await store.flush()
    other = World()
    other.tree, other.stored, other.messages, other.epoch = (
        world.tree,
        world.stored,
        world.messages,
        1,
    )
    other.connect()
    put = other.metadata.put
    receipt = Heard()

    async def late(path: str, value: bytes, *, expected_version: int | None) -> int:
        other.metadata.put = put  # type: ignore[method-assign]
        store.when_durable(ack(store, 3), receipt)
        await store.flush()
        return await put(path, value, expected_version=expected_version)

    other.metadata.put = late  # type: ignore[method-assign]
    new_owner = await other.open(create=False)
    assert receipt.is_durable
    assert new_owner.cursor.acked_count == 2, "no receipt is untrue"


@virtual
async def test_a_conflict_with_a_stale_writer_is_written_over() -> None:
    world = World()
    store = await world.open()
    stranger = MemoryMetadataStore(world.tree)
    stale = CursorNode(0, None, (await world.node()).state, {"stale": "yes"})
    await stranger.put(PATH, encode_cursor_node(stale, Packing()), expected_version=None)
    ack(store, 1)
    await store.flush()
    node = await world.node()
    assert (node.owner_epoch, node.cursor_properties) == (1, {"made": "by a test"})
    assert not store.is_dirty


@virtual
async def test_a_node_deleted_by_somebody_else_ends_ownership() -> None:
    world = World()
    store = await world.open()
    await MemoryMetadataStore(world.tree).delete(PATH)
    receipt = Heard()
    store.when_durable(ack(store, 1), receipt)
    await asyncio.sleep(1)
    assert isinstance(receipt.errors[0], OwnershipError)
    assert "deleted by another process" in str(receipt.errors[0])
    await store.close()


@virtual
async def test_an_expired_session_ends_ownership() -> None:
    world = World()
    store = await world.open()
    world.metadata.expire()
    receipt = Heard()
    store.when_durable(ack(store, 1), receipt)
    await asyncio.sleep(1)
    assert isinstance(receipt.errors[0], SessionLostError)


@virtual
async def test_a_suspended_session_is_waited_for() -> None:
    world = World()
    store = await world.open()
    world.metadata.suspend()
    receipt = Heard()
    store.when_durable(ack(store, 1), receipt)
    await asyncio.sleep(5)
    assert receipt.errors == []
    world.metadata.resume()
    await asyncio.sleep(10)
    assert receipt.is_durable


# ------------------------------------------------------------------------- faults of others


@virtual
async def test_a_failing_listener_disturbs_no_other_receipt() -> None:
    world = World()
    store = await world.open()
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def broken(_: BaseException | None) -> None:
        raise RuntimeError("broken")

    version = ack(store, 1)
    receipt = Heard()
    store.when_durable(version, broken)
    store.when_durable(version, receipt)
    await store.flush()
    assert receipt.is_durable
    assert len(problems) == 1


@virtual
async def test_a_bug_in_a_write_stops_the_store_loudly(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    store = await world.open()
    world.ledgers.faults.create = ZeroDivisionError("a bug")
    receipt = Heard()
    store.when_durable(ack(store, 1), receipt)
    await asyncio.sleep(1)
    assert isinstance(receipt.errors[0], InternalError)
    assert "a bug" in caplog.text


def test_the_node_of_a_test_can_be_decoded() -> None:
    node = CursorNode(1, None, None, {})
    assert decode_cursor_node(encode_cursor_node(node, Packing()), path=PATH) == node
