"""One subscription with a bucket tracker over stores that fail, crashed again and again.

The cursor with its store, the tracker's home, its storage and registry are the real ones; topic and
dispatcher are the few lines below. Time is virtual; one seed decides everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from pyroaring import BitMap

from ackgate.broker.delayed.trackers import TrackerHome
from ackgate.broker.topic.services import SharedServices
from ackgate.broker.topic.waits import Waits
from ackgate.config.delayed import BUCKET_FACTORY, DelayedSettings
from ackgate.cursor import Position
from ackgate.dispatcher.buckets import BucketTracker
from ackgate.dispatcher.delayed import DelaySettings
from ackgate.embedded.bucket_storage import StorageLanes
from ackgate.errors import AckGateError, OwnershipError
from ackgate.persistence import CursorStore, MemoryMetadataStore, find_orphan_snapshots
from ackgate.testing import MemoryLedgerClient
from tests.support.faults import Fault, FaultPlan
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.unit.broker.delayed.bucket_world import PATH, StorageWorld, now_ms

LEDGERS = 6
LEDGER_ENTRIES = 150
DELAY_MS_MAX = 200_000
TICK_MS = 100

DELAYS = DelaySettings(tick_ms=TICK_MS, is_strict=True)
SETTINGS = DelayedSettings(
    delayed_delivery_tracker_factory_class_name=BUCKET_FACTORY,
    delayed_delivery_tick_time_millis=TICK_MS,
    is_delayed_delivery_deliver_at_time_strict=True,
    delayed_delivery_min_index_count_per_bucket=20,
    delayed_delivery_max_index_count_per_bucket=40,
    delayed_delivery_max_indexes_per_bucket_snapshot_segment=10,
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=10,
    delayed_delivery_max_num_buckets=2,
)

MILD = {Fault.FAIL: 0.03, Fault.DELAY: 0.1, Fault.DROP_ANSWER: 0.03, Fault.LANDS_LATE: 0.02}
WILD = {
    Fault.FAIL: 0.08,
    Fault.DELAY: 0.1,
    Fault.LATE_ANSWER: 0.08,
    Fault.DROP_ANSWER: 0.08,
    Fault.REPEAT: 0.03,
    Fault.CORRUPT: 0.03,
}


class DelayedWorld:
    """Everything that a seed decides, and what must hold of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.stores_plan = FaultPlan(seed=seed, rates=MILD, seconds_max=3.0)
        self.snapshots_plan = FaultPlan(seed=seed + 1, rates=WILD, seconds_max=20.0)
        self.world = StorageWorld(
            plan=self.stores_plan, ledgers=LEDGERS, ledger_entries=LEDGER_ENTRIES
        )
        self.due_ms = {
            Position(ledger_id, entry_id): self.random.randrange(DELAY_MS_MAX)
            for ledger_id in range(7, 7 + LEDGERS)
            for entry_id in range(LEDGER_ENTRIES)
        }
        self.positions = sorted(self.due_ms)
        self.given: set[Position] = set()
        self.offered_after_crash = 0
        self.recovered = 0
        self.lives = 0
        self.life: Life | None = None

    async def start(self) -> Life:
        """A broker that starts: it tries until it has the cursor."""
        self.lives += 1
        self.world.connect(self.stores_plan)
        while True:
            try:
                store = await self.world.open()
            except AckGateError:
                await asyncio.sleep(0.5)
            else:
                break
        self.life = Life(self, store)
        return self.life

    async def sweep(self) -> None:
        """What a broker does about orphans at its start: the maker of all of them is gone."""
        client = MemoryLedgerClient(self.world.storage)
        metadata = MemoryMetadataStore(self.world.tree)
        for orphan in await find_orphan_snapshots(client, metadata, self.world.snapshot_ledgers):
            await client.delete(orphan)

    def story(self) -> str:
        """Of a run that went wrong."""
        return f"{self.stores_plan.story()}\n{self.snapshots_plan.story()}"


class Life:
    """One broker, from its start to its crash."""

    def __init__(self, world: DelayedWorld, store: CursorStore) -> None:
        self.world = world
        self.store = store
        self.cursor = store.cursor
        self.read = 0
        """Index of the next position to read."""
        self.ahead: set[Position] = set()
        self.in_flight: set[Position] = set()
        self.given: set[Position] = set()
        services = SimpleNamespace(
            settings=SimpleNamespace(delayed=SETTINGS, persistence=world.world.settings),
            clock_ms=now_ms,
            ledger_client=FaultyLedgerClient(
                MemoryLedgerClient(world.world.storage), world.snapshots_plan
            ),
            delayed_lanes=StorageLanes(),
            waits=Waits(),
        )
        self.home = TrackerHome(
            cast("SharedServices", cast("Any", services)),
            PATH,
            self.cursor,
            store,
            on_change=lambda: None,
            on_lost=self._read_again,
        )
        tracker = self.home.make(DELAYS)
        assert isinstance(tracker, BucketTracker)
        self.tracker = tracker

    # ------------------------------------------------------------------ what a broker does

    def step(self) -> None:
        """Some of everything."""
        random = self.world.random
        self._read_some(random.randint(0, 40))
        for position in self.tracker.pop_due(now_ms(), random.randint(0, 30)):
            if self._index(position) >= self.read:
                self.ahead.add(position)
            self._give(position)
        self.home.pump()
        for position in sorted(self.in_flight):
            if random.random() < 0.3:
                self._ack(position)
        if random.random() < 0.05:
            self._cancel_one()
        if random.random() < 0.02:
            self._rewind()
        self.home.pump()
        self.check()

    def _read_some(self, count: int) -> None:
        positions = self.world.positions
        while count and self.read < len(positions):
            position = positions[self.read]
            self.read += 1
            if not (self._is_elsewhere(position)):
                count -= 1
                self._offer(position)

    def _is_elsewhere(self, position: Position) -> bool:
        return (
            self.cursor.is_acked(position)
            or position in self.tracker
            or position in self.ahead
            or position in self.in_flight
        )

    def _offer(self, position: Position) -> None:
        if not self.tracker.add(position, self.world.due_ms[position], now_ms()):
            self._give(position)

    def _read_again(self, lost: Mapping[int, BitMap]) -> None:
        for ledger_id, entries in lost.items():
            for entry_id in entries:
                position = Position(ledger_id, entry_id)
                if self._index(position) < self.read and not self._is_elsewhere(position):
                    self._offer(position)

    def _give(self, position: Position) -> None:
        assert now_ms() >= self.world.due_ms[position], f"{position} comes early"
        if self.cursor.is_acked(position) or position in self.in_flight:
            return  # as the dispatcher and the replay read do
        assert position not in self.given, f"{position} comes twice"
        self.given.add(position)
        self.world.given.add(position)
        self.in_flight.add(position)

    def _ack(self, position: Position) -> None:
        self.cursor.ack_individual([position])
        self.tracker.discard(position)
        self.tracker.forget_through(self.cursor.mark_delete)
        self.in_flight.discard(position)
        self.ahead.discard(position)
        self.store.notify()

    def _cancel_one(self) -> None:
        position = self.world.random.choice(self.world.positions)
        if not self.cursor.is_acked(position):
            self.world.given.add(position)
            self._ack(position)

    def _rewind(self) -> None:
        """The last consumer has left: what was in flight comes again."""
        self.given -= self.in_flight
        self.in_flight.clear()
        self.ahead.clear()
        self.read = 0

    def _index(self, position: Position) -> int:
        return (position.ledger_id - 7) * LEDGER_ENTRIES + position.entry_id

    # --------------------------------------------------------------------- what must hold

    def check(self) -> None:
        """Behind the read position every unacked entry is somewhere."""
        self.tracker.check()
        lost = self.tracker._holdings.lost
        for position in self.world.positions[: self.read]:
            if not self._is_elsewhere(position) and lost.bitmap(position.ledger_id) is None:
                raise AssertionError(f"nobody has {position}")

    @property
    def is_done(self) -> bool:
        """Whether all is acked and nothing is left in storage."""
        return (
            self.cursor.backlog_entries == 0
            and not self.store.internal_properties
            and self.tracker.entry_count == 0
        )

    # ---------------------------------------------------------------------------- its end

    def crash(self) -> None:
        """Whatever was under way ends where it stands."""
        self.home.abandon()
        self.store.abandon(OwnershipError("crashed"))
