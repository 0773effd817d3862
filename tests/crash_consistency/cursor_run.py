"""A seeded run of one cursor and its owners, and what must be left of it after any crash.

The model is a diary: the cursor's state at every version it has had. What is recovered is one of
these states, word for word, and not older than the newest version whose receipt was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import AckGateError
from ackgate.persistence import BookieLedgerClient, CursorStore, PersistenceSettings
from tests.crash_consistency.machine import CREATED_MS, Machine, Moment
from tests.support.simulation.disk import SimulatedDisk

PATH = "/managed-ledgers/public/default/persistent/topic/sub"
ENTRIES = 400
LEDGERS = (3, 5)


def _topic() -> MessageLedgers:
    messages = MessageLedgers()
    for ledger_id in LEDGERS:
        messages.open_ledger(ledger_id)
        messages.add_entries(ledger_id, ENTRIES)
    return messages


def _settings(bookie_count: int) -> PersistenceSettings:
    return PersistenceSettings(
        ack_persist_linger_ms=1,
        managed_ledger_cursor_max_entries_per_ledger=6,
        cursor_deltas_per_snapshot_max=3,
        fallback_rate_limit=1000.0,
        managed_ledger_default_ensemble_size=bookie_count,
        managed_ledger_default_write_quorum=min(bookie_count, 2),
        managed_ledger_default_ack_quorum=min(bookie_count, 2),
    )


class Facts(NamedTuple):
    """What is known at some moment."""

    epoch: int
    promised: int
    """The newest version whose receipt was given."""
    version: int
    """The newest version there is. When a recovery has found it, the promised one."""


@dataclass
class Receipt:
    """A receipt asked for."""

    version: int
    answers: list[BaseException | None] = field(default_factory=list)

    def __call__(self, error: BaseException | None) -> None:
        self.answers.append(error)


class CursorRun:
    """Owner after owner of one cursor; a former one may still believe that it is the owner."""

    def __init__(self, seed: int, bookie_count: int) -> None:
        self.rng = random.Random(f"cursor {seed}")
        self.machine = Machine(bookie_count, seed=f"cursor run {seed}")
        self.settings = _settings(bookie_count)
        self.seen: Counter[str] = Counter()
        self.diary: dict[int, Any] = {}
        self.epoch = 0
        self.promised = -1
        self.store: CursorStore | None = None
        self.client: BookieLedgerClient | None = None
        self.former: list[tuple[CursorStore, BookieLedgerClient]] = []
        self.receipts: list[Receipt] = []

    def facts(self) -> Facts:
        """What holds at this very moment."""
        waiting: list[Receipt] = []
        for receipt in self.receipts:
            if not receipt.answers:
                waiting.append(receipt)
            elif receipt.answers == [None]:
                self.promised = max(self.promised, receipt.version)
                self.seen["receipts"] += 1
        self.receipts = waiting
        return Facts(self.epoch, self.promised, max(self.diary, default=-1))

    # ------------------------------------------------------------------------------------ its steps

    async def step(self) -> None:
        """Do something."""
        steps: list[tuple[int, Callable[[CursorStore], Awaitable[None]]]] = [
            (14, self._ack),
            (6, self._wait),
            (2, self._flush),
            (2, self._checkpoint),
            (2, self._fail_ledgers),
            (1, self._reset),
            (1, self._kill),
            (1, self._restart),
            (1, self._take_over),
        ]
        if self.store is None:
            await self._open()
        assert self.store is not None
        chosen = self.rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        await chosen(self.store)
        self.seen[chosen.__name__.strip("_")] += 1

    async def _open(self) -> None:
        self.epoch += 1
        client = self.client = await self.machine.open(f"p{self.epoch}")
        store = await self._open_cursor(self.machine, client, self.epoch)
        self.facts()
        version = store.cursor.version
        assert version >= self.promised
        if self.diary:
            assert _state(store) == self.diary[version]
        self.diary = {v: state for v, state in self.diary.items() if v < version}
        self.diary[version] = _state(store)
        self.promised = version
        self.receipts.clear()
        self.store = store

    async def _open_cursor(
        self, machine: Machine, client: BookieLedgerClient, epoch: int
    ) -> CursorStore:
        return await CursorStore.open(
            path=PATH,
            ledgers=_topic(),
            ledger_client=client,
            metadata=machine.metadata(),
            settings=self.settings,
            batch_index_acks=True,
            owner_epoch=epoch,
            clock_ms=lambda: CREATED_MS,
            create_at=Position(3, -1),
        )

    async def _ack(self, store: CursorStore) -> None:
        cursor, rng = store.cursor, self.rng
        for _ in range(rng.randint(1, 3)):
            ledger_id, entry_id = rng.choice(LEDGERS), rng.randrange(ENTRIES)
            roll = rng.random()
            if roll < 0.5:
                cursor.ack(Position(ledger_id, entry_id))
            elif roll < 0.7:
                cursor.ack_many(ledger_id, rng.sample(range(ENTRIES), rng.randint(1, 60)))
            elif roll < 0.9:
                cursor.ack_mixed([(Position(ledger_id, entry_id), rng.randint(1, 255))])
            elif Position(3, entry_id // 4) > cursor.mark_delete:
                cursor.ack_cumulative(Position(3, entry_id // 4))
            self._changed(store)
        for _ in range(rng.randint(0, 6)):
            await asyncio.sleep(0)

    def _changed(self, store: CursorStore) -> None:
        self.diary[store.cursor.version] = _state(store)
        receipt = Receipt(store.cursor.version)
        self.receipts.append(receipt)
        store.notify()
        store.when_durable(receipt.version, receipt)

    async def _reset(self, store: CursorStore) -> None:
        store.cursor.reset(Position(3, self.rng.randrange(ENTRIES)))
        self._changed(store)

    async def _wait(self, store: CursorStore) -> None:
        await asyncio.sleep(self.rng.choice((0.0005, 0.002, 0.1)))

    async def _flush(self, store: CursorStore) -> None:
        with contextlib.suppress(AckGateError):
            await store.flush()

    async def _checkpoint(self, store: CursorStore) -> None:
        assert self.client is not None
        with contextlib.suppress(AckGateError):
            await self.rng.choice(self.client.bookies).checkpoint()
            await self.client.delete_orphans()

    async def _fail_ledgers(self, store: CursorStore) -> None:
        """No bookie can be written for a while: the state goes to the metadata store."""
        self.machine.files.fail("/data", errno.EIO, {"append", "create"})
        await self._ack(store)
        await asyncio.sleep(0.05)
        self.machine.files.fail("/data", None)
        await self._ack(store)
        await asyncio.sleep(self.rng.choice((0.001, 5.0)))
        self.seen["fallback"] += store.statistics().metadata_writes > 0

    async def _kill(self, store: CursorStore) -> None:
        """The owner is killed; the page cache stays."""
        assert self.client is not None
        self.facts()
        disk = self.client.bookies[0]._opened.disk
        assert isinstance(disk, SimulatedDisk)
        self.machine.files.kill(disk.process)
        await _abandon(store)
        await self.client.close()
        self.store = None

    async def _restart(self, store: CursorStore) -> None:
        assert self.client is not None
        with contextlib.suppress(AckGateError):
            await store.close()
        await self.client.close()
        self.store = None

    async def _take_over(self, store: CursorStore) -> None:
        """A new owner, while the old one has something under way."""
        assert self.client is not None
        await self._ack(store)
        old, client, receipts = store, self.client, list(self.receipts)
        await self._open()
        assert self.store is not None
        await asyncio.sleep(0.05)
        for receipt in receipts:
            kept = receipt.version <= max(self.store.report.version, 0)
            assert kept or receipt.answers != [None], "promised by an owner of yesterday"
        await _abandon(old)
        self.former.append((old, client))

    async def finish(self) -> None:
        """End all that runs; nothing is recorded any more."""
        self.machine.stop_recording()
        if self.store is not None:
            await self._restart(self.store)
        for _, client in self.former:
            await client.close()

    # ------------------------------------------------------------------------------ after a crash

    async def verify(self, state: Machine, facts: Facts, moments: list[Moment] | None) -> None:
        """Recover from a state; `moments`: where to note one of the recovery's.

        Raises `AssertionError`, or whatever the recovery did not bear.
        """
        known = facts
        if moments is not None:
            state.record(moments, lambda: known, state.rng)
        client = await state.open("first")
        store = await self._open_cursor(state, client, facts.epoch + 10)
        self._check(store, known)
        version = store.cursor.version
        known = Facts(facts.epoch + 10, version, version)
        await client.delete_orphans()
        state.stop_recording()
        store.cursor.clear_backlog()
        store.notify()
        await store.flush()
        assert not store.is_dirty
        cleared = _state(store)
        await store.close()
        await client.close()
        client = await state.open("second")
        store = await self._open_cursor(state, client, facts.epoch + 20)
        assert _state(store) == cleared
        await store.close()
        await client.close()

    def _check(self, store: CursorStore, facts: Facts) -> None:
        version = store.cursor.version
        where = f"version {version} recovered, {facts}, {store.report}"
        if facts.version < 0:
            assert _state(store) == (Position(3, -1), {}, {}), where
            return
        assert facts.promised <= version <= facts.version, where
        assert _state(store) == self.diary[version], where
        assert store.report.lost is None, where


async def _abandon(store: CursorStore) -> None:
    """Nothing comes from this owner any more."""
    tasks = [task for task in (store._task, store._sweep) if task is not None]
    store._give_up()
    if tasks:
        await asyncio.wait(tasks)


def _state(store: CursorStore) -> tuple[Any, ...]:
    snapshot = store.cursor.snapshot()
    return (
        snapshot.mark_delete,
        {ledger_id: tuple(bitmap) for ledger_id, bitmap in snapshot.acked.items()},
        dict(snapshot.unacked_indexes),
    )
