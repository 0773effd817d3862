"""The whole store against its promises, while ledgers and metadata fail, lie, hang and crash.

The model is a diary: the state of the cursor at every version it has had. Whatever happens,

- a receipt that was answered with success is covered by what a crash now would leave;
- what a crash now would leave is exactly a state of the diary (its lower part where a cap cuts);
- every receipt is answered once, and never two writes are under way;
- of the entries that are held back it leaves what was held back at some time, the newest image that
  counts as durable or a later one, less what was acked since;
- once everything works again, everything becomes durable by itself, and no ledger is left over.

"Now" is after every turn of the event loop: what is stored is read as a tool would read it offline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ackgate.cursor import CursorSnapshot, ManagedCursor, PendingNacks, Position
from ackgate.errors import LedgerWriteError, NotEnoughBookiesError, StorageError
from ackgate.persistence import CursorStore, MemoryMetadataStore, read_cursor
from tests.property.persistence.states import (
    NackModel,
    changes,
    content,
    keys_of,
    message_ledgers,
    nacked,
)
from tests.support.virtual_time import VirtualTimeLoop
from tests.unit.persistence.scripted_ledgers import ScriptedLedgers
from tests.unit.persistence.store_world import PATH, Heard, World, metadata_down


class StoreMachine(RuleBasedStateMachine):
    """One cursor, its owners one after the other."""

    caps: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.run(self._start())

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(main)

    async def _start(self) -> None:
        self.world = World(
            ack_persist_linger_ms=1,
            managed_ledger_cursor_max_entries_per_ledger=5,
            cursor_deltas_per_snapshot_max=3,
            fallback_rate_limit=5.0,
            **self.caps,
        )
        self.world.messages = message_ledgers()
        self.spectator = MemoryMetadataStore(self.world.tree)

    @initialize()
    def open_first(self) -> None:
        self._take_over(self.run(self.world.open()), {})

    def _take_over(self, store: CursorStore, diary: dict[int, Any]) -> None:
        self.store = store
        self.receipts: list[tuple[int, Heard]] = []
        version = store.cursor.version
        self.promised = version
        self.stored_before: Any = None
        self.diary = {v: state for v, state in diary.items() if v < version}
        self.diary[version] = content(store.cursor.snapshot())
        self.nacks = NackModel()
        self.nacks.keys = keys_of(store.recovered_nacks)
        store.keep_nacks(self.nacks)
        self.nack_diary = {0: dict(self.nacks.keys)}
        self.acked_since: set[Position] = set()

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.mend_everything_and_wait()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks))
            self.loop.close()

    # ------------------------------------------------------------------ what clients do

    @rule(given_back=nacked, seconds=st.sampled_from([0.0, 0.0015, 0.01]))
    def nack(self, given_back: dict[Position, int], seconds: float) -> None:
        async def nack() -> None:
            self.nacks.add(given_back, self.store.cursor)
            self.nack_diary[self.nacks.version] = dict(self.nacks.keys)
            self.store.notify()
            await self._let_pass(seconds)

        self.run(nack())

    @rule(
        made=st.lists(changes, min_size=1, max_size=3),
        seconds=st.sampled_from([0.0, 0.0, 0.0015, 0.01]),
    )
    def change(self, made: list[Callable[[ManagedCursor], object]], seconds: float) -> None:
        self.run(self._change(made, seconds))

    async def _change(self, made: list[Callable[[ManagedCursor], object]], seconds: float) -> None:
        cursor = self.store.cursor
        for each in made:
            each(cursor)
            self.diary[cursor.version] = content(cursor.snapshot())
            self.acked_since |= {p for p in self.nacks.keys if cursor.is_acked(p)}
            self.nacks.forget_acked(cursor)
            self.store.notify()
        heard = Heard()
        self.receipts.append((cursor.version, heard))
        self.store.when_durable(cursor.version, heard)
        await self._let_pass(seconds)

    @rule(first=changes, second=changes)
    def change_during_a_write(
        self,
        first: Callable[[ManagedCursor], object],
        second: Callable[[ManagedCursor], object],
    ) -> None:
        async def race() -> None:
            faults = self.world.ledgers.faults
            was_holding, faults.is_holding = faults.is_holding, True
            await self._change([first], 0.002)
            await self._change([second], 0)
            faults.is_holding = was_holding
            self.world.ledgers.release()
            await self._let_pass(0)

        self.run(race())

    @rule(made=st.lists(changes, min_size=6, max_size=6))
    def change_often(self, made: list[Callable[[ManagedCursor], object]]) -> None:
        """Enough writes to fill a ledger."""

        async def change_often() -> None:
            for each in made:
                await self._change([each], 0.002)

        self.run(change_often())

    @rule(seconds=st.sampled_from([0.0, 0.003, 0.3, 12.0]))
    def wait(self, seconds: float) -> None:
        self.run(self._let_pass(seconds))

    @rule()
    @precondition(lambda self: not self.world.ledgers.faults.is_holding)
    def flush(self) -> None:
        self.run(self.store.flush())
        assert not self.store.is_dirty or self.store.failing_since_ms is not None

    @rule(text=st.text(max_size=3))
    def set_cursor_properties(self, text: str) -> None:
        async def set_them() -> None:
            with contextlib.suppress(StorageError):
                await self.store.set_cursor_properties({"k": text})

        self.run(set_them())

    # ------------------------------------------------------------------ what goes wrong

    @rule(what=st.sampled_from(["create", "append", "delete", "metadata"]), lands=st.booleans())
    def break_something(self, what: str, lands: bool) -> None:
        """`lands`: the work is done all the same, only the answer is a failure."""
        faults = self.world.ledgers.faults
        if what == "create":
            faults.create = NotEnoughBookiesError("none")
        elif what == "append":
            faults.append = LedgerWriteError("no")
            faults.append_lands = lands
        elif what == "delete":
            faults.delete = StorageError("not now")
        else:
            self.world.metadata.failure = metadata_down()
            self.world.metadata.put_lands = lands

    @rule()
    def mend(self) -> None:
        faults = self.world.ledgers.faults
        faults.create = faults.append = faults.delete = None
        self.world.metadata.failure = None

    @rule()
    def hold_appends(self) -> None:
        self.world.ledgers.faults.is_holding = True

    @rule()
    def release_appends(self) -> None:
        async def release() -> None:
            self.world.ledgers.faults.is_holding = False
            self.world.ledgers.release()
            await self._let_pass(0)

        self.run(release())

    @rule()
    def crash(self) -> None:
        """The process dies, with whatever was on its way."""
        before, promised = self.store, self.promised
        store = self.run(self.world.crash_and_reopen(before))
        assert promised <= store.cursor.version <= before.cursor.version
        self._check_recovered(store)

    @rule()
    @precondition(lambda self: not self.world.ledgers.faults.is_holding)
    def close_and_open(self) -> None:
        before = self.store

        async def close_and_open() -> tuple[bool, CursorStore]:
            try:
                await before.close()
            except StorageError:
                is_whole = False
            else:
                is_whole = True
            self.world.connect()
            return is_whole, await self.world.open(create=False)

        is_whole, store = self.run(close_and_open())
        self._collect()
        assert store.cursor.version >= (before.cursor.version if is_whole else self.promised)
        self._check_recovered(store)

    def _check_recovered(self, store: CursorStore) -> None:
        store.cursor.check()
        assert store.report.lost is None
        assert store.report.dropped is not None
        assert store.report.dropped.is_clean
        self._check_content(store.cursor.snapshot())
        self._check_nacks(store.recovered_nacks, self._durable_nacks)
        self._take_over(store, self.diary)

    # ------------------------------------------------------------------------ promises

    @rule()
    def mend_everything_and_wait(self) -> None:
        self.mend()
        self.release_appends()
        self.run(asyncio.sleep(61))
        self.run(self.store.flush())
        self.run(asyncio.sleep(1))
        assert not self.store.is_dirty
        assert not self.store.statistics().is_on_fallback
        assert self.store.failing_since_ms is None
        assert self.store.is_idle
        self.run(self._check_now())
        assert keys_of(self.newest_nacks) == self.nacks.keys
        assert all(len(heard.errors) == 1 for _, heard in self.receipts)
        self._collect()
        self.receipts = []

    @invariant()
    def a_crash_now_would_break_no_promise(self) -> None:
        if hasattr(self, "store"):
            self.run(self._check_now())

    async def _let_pass(self, seconds: float) -> None:
        """Let time pass, and imagine a crash at every turn of the loop on the way."""
        end = self.loop.time() + seconds
        while True:
            for _ in range(6):
                await self._check_now()
                await asyncio.sleep(0)
            if self.loop.time() >= end:
                return
            await asyncio.sleep(min(max(0.0005, seconds / 20), end - self.loop.time()))

    async def _check_now(self) -> None:
        self._collect()
        assert len(self.world.ledgers.held) <= 1, "two writes at once"
        statistics = self.store.statistics()
        nacks_since = self._durable_nacks
        assert statistics.persisted_version <= self.store.cursor.version
        stored = self._stored()
        if stored != self.stored_before:
            self.view = await read_cursor(
                PATH,
                ledger_client=ScriptedLedgers(self.world.stored),
                metadata=self.spectator,
            )
            assert self.view.lost is None, self.view.lost
            self._check_content(self.view.snapshot)
            self.stored_before = stored
        else:
            await asyncio.sleep(0)
        view = self.view
        assert view.snapshot.version >= self.promised, "a receipt was untrue"
        assert view.snapshot.version >= statistics.persisted_version
        self.newest_nacks = view.nacks
        self._check_nacks(view.nacks, nacks_since)

    def _stored(self) -> Any:
        """All that a crash now would leave. As long as it is the same, it reads the same."""
        node = self.world.tree.find(PATH)
        ledgers = {
            ledger_id: (ledger.state, tuple(ledger.entries), frozenset(ledger.bad))
            for ledger_id, ledger in self.world.stored.items()
        }
        return node and (node.version, node.value), ledgers

    def _check_content(self, snapshot: CursorSnapshot) -> None:
        assert content(snapshot) == self.diary[snapshot.version]

    @property
    def _durable_nacks(self) -> int:
        return self.store.nacks_durable_version

    def _check_nacks(self, nacks: PendingNacks, since: int) -> None:
        found = keys_of(nacks)
        assert any(
            found.items() <= keys.items() and keys.keys() - self.acked_since <= found.keys()
            for version, keys in self.nack_diary.items()
            if version >= since
        ), (found, self.nack_diary)

    def _collect(self) -> None:
        for version, heard in self.receipts:
            if heard.is_durable:
                self.promised = max(self.promised, version)


class CappedStoreMachine(StoreMachine):
    """The same where the caps cut: what is recovered is the lower part."""

    caps: ClassVar[dict[str, int]] = {
        "managed_ledger_max_unacked_ranges_to_persist": 6,
        "managed_ledger_max_unacked_ranges_to_persist_in_metadata_store": 3,
        "managed_ledger_max_batch_deleted_index_to_persist": 2,
    }

    def _check_content(self, snapshot: CursorSnapshot) -> None:
        _, mark_delete, acked, ranges, batches, properties = self.diary[snapshot.version]
        assert (snapshot.mark_delete, snapshot.properties) == (mark_delete, properties)
        recovered = [(key, e) for key in sorted(snapshot.acked) for e in snapshot.acked[key]]
        whole = [(key, e) for key in sorted(acked) for e in acked[key]]
        assert recovered == whole[: len(recovered)], "the lowest are kept"
        assert snapshot.range_count in {min(ranges, 6), min(ranges, 3)}
        assert sorted(snapshot.unacked_indexes.items()) == sorted(batches.items())[:2]


pytestmark = pytest.mark.slow

TestStore = StoreMachine.TestCase
TestCappedStore = CappedStoreMachine.TestCase
TestStore.settings = TestCappedStore.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
)
