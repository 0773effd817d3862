"""The cursor store when all is well: what is written when, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from itertools import pairwise
from typing import Any

import pytest

from ackgate.cursor import Position
from ackgate.errors import (
    CorruptRecordError,
    CursorClosedError,
    NodeTooLargeError,
    NoSuchNodeError,
    NotEnoughBookiesError,
    OwnershipError,
    StorageError,
)
from ackgate.persistence import (
    CursorStore,
    LedgerState,
    PersistWhere,
    RecoverySource,
    find_orphan_cursor_ledgers,
    read_cursor,
)
from ackgate.persistence.cursors.ledger import CURSOR_PATH_KEY
from ackgate.persistence.cursors.node import decode_cursor_node, encode_cursor_node
from ackgate.persistence.ports import MetadataStore, NodeValue
from ackgate.persistence.records.limits import packing
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.persistence.store_world import (
    PATH,
    START,
    Heard,
    World,
    metadata_down,
    state_of,
)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a loop whose time jumps."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


def ack(store: CursorStore, *entries: int, ledger: int = 3) -> int:
    for entry in entries:
        store.cursor.ack(Position(ledger, entry))
    store.notify()
    return store.cursor.version


# ------------------------------------------------------------------ making and opening


@virtual
async def test_a_new_cursor_is_one_node_and_no_ledger() -> None:
    world = World()
    store = await world.open()
    assert store.report.source is RecoverySource.NEW
    assert (store.cursor.mark_delete, store.cursor.version) == (START, 0)
    assert store.cursor_properties == {"made": "by a test"}
    assert world.stored == {}
    node = await world.node()
    assert (node.owner_epoch, node.cursor_ledger_id) == (1, None)
    assert store.is_idle
    again = await world.open(create=False)
    assert again.report.source is RecoverySource.METADATA_STORE
    assert again.cursor.mark_delete == START


@virtual
async def test_a_cursor_that_is_not_there_is_not_made_unasked() -> None:
    world = World()
    with pytest.raises(NoSuchNodeError, match="sub"):
        await world.open(create=False)
    assert world.metadata.puts == 0


@virtual
async def test_an_existing_cursor_is_opened_and_create_at_ignored() -> None:
    world = World()
    store = await world.open()
    store.cursor.ack_cumulative(Position(3, 50))
    await store.close()
    assert (await world.open(create=True)).cursor.mark_delete == Position(3, 50)


# ----------------------------------------------------------------------- when it writes


@virtual
async def test_acks_of_one_linger_go_out_as_one_write() -> None:
    world = World(ack_persist_linger_ms=2)
    store = await world.open()
    loop = asyncio.get_running_loop()
    heard = []
    for entry in range(1, 100, 2):
        version = ack(store, entry)
        heard.append(Heard())
        store.when_durable(version, heard[-1])
    await asyncio.sleep(0.0019)
    assert world.ledgers.appends == 0
    await asyncio.sleep(0.001)
    assert world.ledgers.appends == 1
    assert all(receipt.is_durable for receipt in heard)
    assert store.outcome is not None
    assert store.outcome.at_ms == 2
    assert store.is_idle, "an idle store has no task"
    assert loop.time() < 1


@virtual
async def test_acks_during_a_write_gather_and_go_out_right_after_it() -> None:
    world = World(ack_persist_linger_ms=50)
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.ledgers.faults.is_holding = True
    ack(store, 3)
    await asyncio.sleep(0.06)
    assert len(world.ledgers.held) == 1
    receipts = [Heard() for _ in range(30)]
    for entry, receipt in zip(range(5, 65, 2), receipts, strict=True):
        store.when_durable(ack(store, entry), receipt)
        await asyncio.sleep(0)
    assert len(world.ledgers.held) == 1, "never two writes of one cursor at once"
    world.ledgers.release()
    await asyncio.sleep(0.001)
    assert len(world.ledgers.held) == 1, "no second linger"
    assert not any(receipt.errors for receipt in receipts)
    world.ledgers.release()
    await asyncio.sleep(0.001)
    assert all(receipt.is_durable for receipt in receipts)
    assert world.ledgers.appends == 3


@virtual
async def test_a_receipt_for_what_is_durable_is_answered_at_once() -> None:
    world = World()
    store = await world.open()
    version = ack(store, 1)
    await store.flush()
    receipt = Heard()
    store.when_durable(version, receipt)
    assert receipt.is_durable


@virtual
async def test_the_rate_limit_sets_the_pace_and_no_receipt_is_early() -> None:
    world = World(managed_ledger_default_mark_delete_rate_limit=2.0, ack_persist_linger_ms=0)
    store = await world.open()
    loop = asyncio.get_running_loop()
    answered: list[tuple[int, float]] = []

    def answer(version: int, _: BaseException | None) -> None:
        answered.append((version, loop.time()))

    for entry in range(1, 9):
        version = ack(store, entry * 2)
        store.when_durable(version, partial(answer, version))
        await asyncio.sleep(0.2)
    await asyncio.sleep(2)
    assert world.ledgers.appends <= 5
    times = sorted({when for _, when in answered})
    assert all(later - earlier > 0.49 for earlier, later in pairwise(times))
    assert [version for version, _ in answered] == list(range(1, 9))


@virtual
async def test_flush_waits_for_neither_linger_nor_rate() -> None:
    world = World(managed_ledger_default_mark_delete_rate_limit=0.01, ack_persist_linger_ms=9000)
    store = await world.open()
    for entry in (1, 3, 5):
        ack(store, entry)
        await store.flush()
        assert not store.is_dirty
    assert asyncio.get_running_loop().time() < 1
    await store.flush()
    assert world.ledgers.appends == 3


@virtual
async def test_every_kind_of_change_is_written_not_only_whole_acks() -> None:
    world = World()
    store = await world.open()
    changes: list[Callable[[], object]] = [
        lambda: store.cursor.ack_mixed([(Position(3, 9), 0b101)]),
        lambda: store.cursor.set_properties({"x": 1}),
        lambda: store.cursor.ack_cumulative(Position(3, 4), unacked_mask=0b1000),
        lambda: store.cursor.skip(5),
        lambda: store.cursor.reset(Position(3, 2)),
        lambda: store.cursor.ack_cumulative(Position(5, 99_999)),
    ]
    for change in changes:
        before = store.cursor.version
        change()
        assert store.cursor.version > before
        store.notify()
        await asyncio.sleep(0.01)
        assert not store.is_dirty
        expected = state_of(store)
        store = await world.crash_and_reopen(store)
        assert state_of(store) == expected


# ------------------------------------------------------------------- snapshots and deltas


@virtual
async def test_growth_is_written_as_deltas_and_anything_else_as_a_snapshot() -> None:
    world = World()
    store = await world.open()
    kinds = []
    for step in range(6):
        if step == 3:
            store.cursor.reset(Position(3, 100))
        ack(store, 200 + 2 * step)
        await store.flush()
        assert store.outcome is not None
        kinds.append(store.outcome.is_delta)
    assert kinds == [False, True, True, False, True, True]
    assert store.outcome is not None
    assert store.outcome.bytes_written < 100


@virtual
async def test_deltas_of_a_snapshot_are_bounded_by_count_and_by_bytes() -> None:
    world = World(cursor_deltas_per_snapshot_max=3)
    store = await world.open()
    kinds = ""
    for step in range(9):
        ack(store, 2 * step + 1)
        await store.flush()
        kinds += "d" if store.outcome and store.outcome.is_delta else "S"
    assert kinds == "SdddSdddS"
    store.configure(world.settings.model_copy(update={"cursor_delta_bytes_per_snapshot_max": 100}))
    kinds = ""
    for step in range(9, 15):
        ack(store, 2 * step + 1)
        await store.flush()
        kinds += "d" if store.outcome and store.outcome.is_delta else "S"
    assert kinds == "ddSddS"


@virtual
async def test_deltas_never_outrun_the_scan_of_recovery() -> None:
    world = World(
        cursor_recovery_scan_entries_max=4,
        managed_ledger_max_unacked_ranges_to_persist=100_000,
        cursor_record_chunk_bytes=4096,
        managed_cursor_info_compression_type="NONE",
    )
    store = await world.open()
    store.cursor.ack_many(3, range(1, 60_000, 2))
    store.notify()
    for step in range(12):
        ack(store, 70_000 + 2 * step)
        await store.flush()
        expected = state_of(store)
        reader = await read_cursor(
            PATH,
            ledger_client=world.ledgers,
            metadata=world.metadata,
            scan_entries_max=world.settings.cursor_recovery_scan_entries_max,
        )
        assert reader.lost is None
        assert dict(reader.snapshot.acked) == expected[1]


@virtual
async def test_a_record_larger_than_a_chunk_is_cut_and_comes_back() -> None:
    world = World(
        cursor_record_chunk_bytes=4096,
        managed_ledger_max_unacked_ranges_to_persist=10**6,
        managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=10,
    )
    store = await world.open()
    import random

    store.cursor.ack_many(3, random.Random(1).sample(range(1, 100_000), 40_000))
    await store.flush()
    expected = state_of(store)
    (ledger,) = world.stored.values()
    assert len(ledger.entries) > 2
    assert max(map(len, ledger.entries)) <= 4096
    assert state_of(await world.crash_and_reopen(store)) == expected


# ------------------------------------------------------------------------------- the cap


@virtual
async def test_past_the_cap_the_lowest_ranges_survive_and_the_outcome_says_what_does_not() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist=10)
    store = await world.open()
    for entry in range(1, 25, 2):
        ack(store, entry)
    await store.flush()
    outcome = store.outcome
    assert outcome is not None
    assert (outcome.ranges_in_memory, outcome.ranges_persisted) == (12, 10)
    assert (outcome.ranges_dropped, outcome.entries_dropped) == (2, 2)
    assert not outcome.is_complete
    store = await world.crash_and_reopen(store)
    assert list(store.cursor.snapshot().acked[3]) == list(range(1, 21, 2))


@virtual
async def test_no_delta_is_built_on_a_state_that_was_cut() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist=10)
    store = await world.open()
    ack(store, *range(1, 23, 2))
    await store.flush()
    ack(store, 0)
    await store.flush()
    assert store.outcome is not None
    assert store.outcome.is_complete, "back below the cap"
    assert not store.outcome.is_delta
    expected = state_of(store)
    assert state_of(await world.crash_and_reopen(store)) == expected


@virtual
async def test_a_cut_is_warned_of_once_per_crossing(caplog: pytest.LogCaptureFixture) -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist=2)
    store = await world.open()
    for entry in (1, 3, 5, 7, 9):
        ack(store, entry)
        await store.flush()
    assert caplog.text.count("in memory only") == 1
    store.cursor.ack_cumulative(Position(3, 9))
    await store.flush()
    ack(store, 11, 13, 15)
    await store.flush()
    assert caplog.text.count("in memory only") == 2


# -------------------------------------------------------------------------------- rollover


@virtual
async def test_a_full_ledger_is_replaced_and_deleted_only_after_the_node_names_the_new_one() -> (
    None
):
    world = World(managed_ledger_cursor_max_entries_per_ledger=3)
    store = await world.open()
    named = []
    for step in range(8):
        ack(store, 2 * step + 1)
        await store.flush()
        named.append((await world.node()).cursor_ledger_id)
        assert named[-1] in world.stored
    assert named == [100] * 3 + [101] * 3 + [102] * 2
    await asyncio.sleep(0.1)
    assert list(world.stored) == [102]
    expected = state_of(store)
    assert state_of(await world.crash_and_reopen(store)) == expected


@virtual
async def test_an_idle_old_ledger_is_replaced_at_a_flush() -> None:
    world = World(managed_ledger_cursor_rollover_time_in_seconds=100)
    store = await world.open()
    ack(store, 1)
    await store.flush()
    await asyncio.sleep(99)
    await store.flush()
    assert world.ledgers.created == [100]
    await asyncio.sleep(2)
    await store.flush()
    assert world.ledgers.created == [100, 101]
    await asyncio.sleep(1)
    assert list(world.stored) == [101]
    assert store.is_idle


@virtual
async def test_the_node_carries_the_state_inline_when_a_ledger_begins() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3, 5)
    await store.flush()
    expected = state_of(store)
    world.stored.clear()
    store = await world.crash_and_reopen(store)
    assert store.report.source is RecoverySource.METADATA_STORE
    assert store.report.lost == "cursor ledger 100 cannot be opened: no ledger 100"
    assert state_of(store) == expected


@virtual
async def test_ledgers_name_their_cursor_and_orphans_are_found() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    assert world.stored[100].options.custom_metadata[CURSOR_PATH_KEY] == PATH.encode()
    from ackgate.persistence import LedgerOptions
    from ackgate.persistence.cursors.ledger import ledger_options

    await world.ledgers.create(ledger_options(PATH, world.settings))
    await world.ledgers.create(ledger_options(PATH + "-deleted", world.settings))
    await world.ledgers.create(LedgerOptions())
    candidates = [*await world.ledgers.ledger_ids(), 999]
    orphans = await find_orphan_cursor_ledgers(world.ledgers, world.metadata, candidates)
    assert orphans == [101, 102]


# ----------------------------------------------------------------------- closing, deleting


@virtual
async def test_close_writes_what_is_dirty_into_the_node_and_needs_no_ledger_after() -> None:
    world = World(ack_persist_linger_ms=5000)
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    receipt = Heard()
    store.when_durable(ack(store, 7), receipt)
    await store.close()
    assert receipt.is_durable
    assert world.stored == {}
    assert (await world.node()).cursor_ledger_id is None
    await store.close()
    expected = state_of(store)
    again = await world.open(create=False)
    assert again.report.source is RecoverySource.METADATA_STORE
    assert state_of(again) == expected
    puts = world.metadata.puts
    await again.close()
    assert world.metadata.puts == puts, "a clean cursor without a ledger is closed for nothing"


@virtual
async def test_a_ledger_that_goes_with_the_close_is_not_closed_first() -> None:
    """Its metadata say that it was given up, which is one write; that it is closed would be another."""
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    ((ledger_id, ledger),) = world.stored.items()
    await store.close()
    assert ledger_id not in world.stored
    assert ledger.state is LedgerState.OPEN


@virtual
async def test_close_keeps_the_ledger_when_the_ranges_do_not_fit_the_node() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=2)
    store = await world.open()
    ack(store, 1, 3, 5)
    await store.close()
    assert store.outcome is not None
    assert store.outcome.where is PersistWhere.LEDGER
    assert (await world.node()).cursor_ledger_id == 100
    expected = state_of(store)
    again = await world.open(create=False)
    assert again.report.source is RecoverySource.LEDGER
    assert state_of(again) == expected


@virtual
async def test_close_waits_for_the_write_under_way() -> None:
    world = World()
    store = await world.open()
    world.ledgers.faults.is_holding = True
    ack(store, 1)
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(store.close())
    second = asyncio.ensure_future(store.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    world.ledgers.release()
    world.ledgers.faults.is_holding = False
    await closing
    await second
    assert not store.is_dirty


@virtual
async def test_what_is_acked_during_the_last_write_is_written_too() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    ack(store, 3)
    closing = asyncio.ensure_future(store.close())
    puts = world.metadata.puts
    while world.metadata.puts == puts:
        await asyncio.sleep(0)
    ack(store, 5)
    await closing
    store = await world.open(create=False)
    assert all(store.cursor.is_acked(Position(3, entry)) for entry in (1, 3, 5))


@virtual
async def test_who_loses_a_cursor_while_closing_it_closes_it_all_the_same() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    closing = asyncio.ensure_future(store.close())
    asyncio.get_running_loop().call_soon(store.abandon, OwnershipError("somebody else has it"))
    store._give_up()  # before its task has taken a step
    async with asyncio.timeout(60):
        await closing
    assert isinstance(store.why_stopped, OwnershipError)


@virtual
async def test_a_closed_store_refuses_and_answers() -> None:
    world = World()
    store = await world.open()
    await store.close()
    with pytest.raises(CursorClosedError):
        await store.flush()
    with pytest.raises(CursorClosedError):
        await store.set_cursor_properties({})
    with pytest.raises(CursorClosedError):
        store.cursor.ack(Position(3, 1))
    store.notify()
    assert store.is_idle
    receipt = Heard()
    store.when_durable(store.cursor.version + 1, receipt)
    assert isinstance(receipt.errors[0], CursorClosedError)


@virtual
async def test_what_comes_too_late_for_the_last_write_is_refused() -> None:
    """Someone acks at every turn of the loop while the store is being closed."""
    world = World()
    store = await world.open()
    ack(store, 1)
    closing = asyncio.ensure_future(store.close())
    acked = []
    for entry in range(3, 2000, 2):
        try:
            ack(store, entry)
        except CursorClosedError:
            break
        acked.append(entry)
        await asyncio.sleep(0)
    assert not closing.done(), "it still lets go of what it has"
    await closing
    assert acked
    store = await world.open(create=False)
    assert all(store.cursor.is_acked(Position(3, entry)) for entry in acked)
    assert not store.cursor.is_acked(Position(3, acked[-1] + 2))


@virtual
async def test_who_has_lost_the_cursor_takes_no_more_acks() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    await world.open(create=False)
    ack(store, 3)
    with pytest.raises(OwnershipError):
        await store.flush()
    with pytest.raises(
        CursorClosedError, match=r"takes no more changes: .* belongs to the owner of epoch 2"
    ):
        ack(store, 5)
    await store.close()
    with pytest.raises(CursorClosedError):
        store.cursor.clear_backlog()


@virtual
async def test_a_fence_of_nobodys_costs_a_ledger_and_nothing_else() -> None:
    """BookKeeper's AutoRecovery recovers an open ledger, though a broker owns the cursor."""
    world = World()
    store = await world.open()
    ack(store, 1)
    await store.flush()
    first = store.statistics().cursor_ledger_id
    assert first is not None
    await world.ledgers.open(first)
    ack(store, 3)
    await store.flush()
    assert not store.is_dirty
    assert store.durable_outcome.version == store.cursor.version
    await asyncio.sleep(60)
    ack(store, 5)
    await store.flush()
    assert store.statistics().cursor_ledger_id not in {None, first}
    await store.close()
    again = await world.open(create=False)
    assert again.cursor.acked_count == 3


@virtual
async def test_a_store_that_could_not_write_its_last_is_closed_all_the_same() -> None:
    world = World()
    store = await world.open()
    ack(store, 1)
    world.ledgers.faults.create = NotEnoughBookiesError("none")
    world.metadata.failure = metadata_down()
    with pytest.raises(StorageError, match="not durable"):
        await store.close()
    with pytest.raises(CursorClosedError):
        ack(store, 3)


@virtual
async def test_delete_removes_node_and_ledger_and_fails_what_waits() -> None:
    world = World(ack_persist_linger_ms=5000)
    store = await world.open()
    ack(store, 1)
    await store.flush()
    receipt = Heard()
    store.when_durable(ack(store, 3), receipt)
    await store.delete()
    assert isinstance(receipt.errors[0], CursorClosedError)
    assert world.stored == {}
    with pytest.raises(NoSuchNodeError):
        await world.open(create=False)
    await store.delete()


@virtual
async def test_a_closed_store_can_be_deleted() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist_in_metadata_store=0)
    store = await world.open()
    ack(store, 1)
    await store.close()
    assert world.stored
    await store.delete()
    assert world.stored == {}
    assert await world.metadata.get(PATH) is None


# ---------------------------------------------------------------------- cursor properties


@virtual
async def test_cursor_properties_are_replaced_durably_and_touch_nothing_else() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    before = await world.node()
    await store.set_cursor_properties({"b": "2"})
    after = await world.node()
    assert (after.state, after.cursor_ledger_id) == (before.state, before.cursor_ledger_id)
    assert store.cursor_properties == after.cursor_properties == {"b": "2"}
    ack(store, 5)
    await store.close()
    assert (await world.open(create=False)).cursor_properties == {"b": "2"}


@virtual
async def test_cursor_properties_that_do_not_fit_are_refused() -> None:
    world = World(managed_cursor_info_compression_type="NONE")
    store = await world.open()
    with pytest.raises(NodeTooLargeError):
        await store.set_cursor_properties({"x": "y" * 2_000_000})
    assert store.cursor_properties == {"made": "by a test"}
    ack(store, 1)
    await store.flush()
    assert not store.is_dirty


@virtual
async def test_properties_may_be_set_while_a_ledger_is_being_begun() -> None:
    world = World(ack_persist_linger_ms=0)
    store = await world.open()
    ack(store, 1)
    await asyncio.gather(*(store.set_cursor_properties({"n": str(n)}) for n in range(5)))
    await store.flush()
    node = await world.node()
    assert node.cursor_ledger_id == 100
    assert node.cursor_properties == {"n": "4"}


# -------------------------------------------------------------------------------- offline


@virtual
async def test_offline_reading_sees_everything_and_touches_nothing() -> None:
    world = World(managed_ledger_max_unacked_ranges_to_persist=2)
    store = await world.open()
    ack(store, 1, 3, 5)
    await store.flush()
    puts = world.metadata.puts
    view = await read_cursor(PATH, ledger_client=world.ledgers, metadata=world.metadata)
    assert list(view.snapshot.acked[3]) == [1, 3]
    assert (view.ranges_in_memory, view.entries_dropped) == (3, 1)
    assert (view.source, view.cursor_ledger_id, view.lost) == (RecoverySource.LEDGER, 100, None)
    assert view.cursor_properties == {"made": "by a test"}
    ack(store, 0)
    await store.flush()
    assert store.outcome is not None, "the writer was not fenced"
    assert world.metadata.puts == puts
    with pytest.raises(NoSuchNodeError):
        await read_cursor(PATH + "x", ledger_client=world.ledgers, metadata=world.metadata)


class BehindOnce:
    """A metadata store whose first answer is older than what is stored by then."""

    def __init__(self, store: MetadataStore, answer: NodeValue) -> None:
        self._store = store
        self._answers = [answer]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, path: str) -> NodeValue | None:
        return self._answers.pop() if self._answers else await self._store.get(path)


@virtual
async def test_offline_reading_beside_a_roll_over_finds_the_new_ledger() -> None:
    world = World(managed_ledger_cursor_max_entries_per_ledger=2)
    store = await world.open()
    ack(store, 1)
    await store.flush()
    before = await world.metadata.get(PATH)
    assert before is not None
    node = decode_cursor_node(before.value, path=PATH)
    for entry in (3, 5, 7, 9):
        ack(store, entry)
        await store.flush()
    assert node.cursor_ledger_id not in world.stored
    # A large state is in the ledger only.
    value = encode_cursor_node(node._replace(state=None), packing(world.settings))
    behind: Any = BehindOnce(world.metadata, before._replace(value=value))
    view = await read_cursor(PATH, ledger_client=world.ledgers, metadata=behind)
    assert (view.source, view.lost) == (RecoverySource.LEDGER, None)
    assert list(view.snapshot.acked[3]) == [1, 3, 5, 7, 9]


# -------------------------------------------------------------------- recovery, at the edge


@virtual
async def test_a_transient_error_fails_the_open_and_changes_nothing() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    await store.flush()
    expected = state_of(store)
    world.ledgers.crash()
    world.connect()
    world.ledgers.faults.open = StorageError("bookies cannot be reached")
    puts = world.metadata.puts
    with pytest.raises(StorageError, match="bookies"):
        await world.open(create=False)
    assert world.metadata.puts == puts
    world.ledgers.faults.open = None
    assert state_of(await world.open(create=False)) == expected


@virtual
async def test_bad_entries_at_the_tail_are_skipped_and_reported() -> None:
    world = World()
    store = await world.open()
    states = []
    for entry in (1, 3, 5):
        ack(store, entry)
        await store.flush()
        states.append(state_of(store))
    world.stored[100].bad.add(2)
    store = await world.crash_and_reopen(store)
    assert state_of(store) == states[1]
    assert store.report.torn_records == ("entry 2: entry 2 of ledger 100",)
    assert store.report.records_applied == 2


@virtual
async def test_a_wrong_password_falls_back_to_the_node_and_says_so() -> None:
    world = World(managed_ledger_password="right")
    store = await world.open()
    ack(store, 1)
    await store.flush()
    world.settings = world.settings.model_copy(
        update={"managed_ledger_password": type(world.settings.managed_ledger_password)("wrong")}
    )
    store = await world.crash_and_reopen(store)
    assert store.report.source is RecoverySource.METADATA_STORE
    assert store.report.lost is not None
    assert "wrong password" in store.report.lost


@virtual
async def test_a_damaged_node_fails_the_open_and_is_left_as_it_is() -> None:
    world = World()
    await world.open()
    await world.metadata.put(PATH, b"something else", expected_version=None)
    with pytest.raises(CorruptRecordError, match=PATH):
        await world.open(create=False)
    found = await world.metadata.get(PATH)
    assert found is not None
    assert found.value == b"something else"


@virtual
async def test_what_does_not_fit_the_message_ledgers_is_dropped_and_reported() -> None:
    world = World()
    store = await world.open()
    ack(store, 1, 3)
    ack(store, 9, ledger=5)
    await store.flush()
    from ackgate.cursor import MessageLedgers

    world.messages = MessageLedgers()
    world.messages.open_ledger(3)
    world.messages.add_entries(3, 3)
    store = await world.crash_and_reopen(store)
    dropped = store.report.dropped
    assert dropped is not None
    assert (dropped.entries_beyond_end, dropped.unknown_ledger_ids) == (1, (5,))
    assert store.cursor.acked_count == 1
    assert store.is_dirty


@virtual
async def test_recovery_counts_its_time_and_every_opening_claims_the_node() -> None:
    """For the same epoch too: a put of an opening that failed may still be on its way."""
    world = World()
    await world.open(epoch=3)
    puts = world.metadata.puts
    store = await world.open(create=False, epoch=3)
    assert world.metadata.puts == puts + 1
    await world.open(create=False, epoch=4)
    assert world.metadata.puts == puts + 2
    with pytest.raises(OwnershipError, match="epoch 4"):
        await world.open(create=False, epoch=3)
    assert store.report.duration_ms >= 0
