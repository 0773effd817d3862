"""A cursor with its store and its bucket storage over faulty, virtual stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from ackgate.cursor import BucketRecord, MessageLedgers, Position, SegmentMetadata, SnapshotSegment
from ackgate.dispatcher.buckets import (
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    LoadMetadata,
    LoadSegments,
    Outcome,
    Plan,
)
from ackgate.embedded.bucket_storage import BucketStorage, PlanningTracker, StorageLanes
from ackgate.persistence import (
    BucketSnapshots,
    CursorStore,
    MemoryMetadataStore,
    PersistenceSettings,
)
from ackgate.persistence.buckets.registry import snapshot_ids
from ackgate.persistence.cursors.node import decode_cursor_node
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.faults import FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.persistence.bucket_content import bucket, summary_of

PATH = "/managed-ledgers/public/default/persistent/topic/sub"


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a loop whose time jumps."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class StorageWorld:
    """What outlives a broker, and one broker's clients of it."""

    def __init__(
        self,
        *rules: Rule,
        plan: FaultPlan | None = None,
        ledgers: int = 20,
        ledger_entries: int = 1_000,
        **settings: Any,
    ) -> None:
        self.settings = PersistenceSettings(**settings)
        self.storage = MemoryLedgers()
        self.tree = MemoryTree()
        self.messages = MessageLedgers()
        for ledger_id in range(7, 7 + ledgers):
            self.messages.open_ledger(ledger_id)
            self.messages.close_ledger(ledger_id, ledger_entries)
        self.messages.open_ledger(7 + ledgers)
        self.epoch = 0
        self.connect(plan or FaultPlan(rules))

    def connect(self, plan: FaultPlan) -> None:
        """As a new process has it."""
        self.plan = plan
        self.client = FaultyLedgerClient(MemoryLedgerClient(self.storage), plan)
        self.metadata = FaultyMetadataStore(MemoryMetadataStore(self.tree), plan)

    async def open(self) -> CursorStore:
        self.epoch += 1
        return await CursorStore.open(
            path=PATH,
            ledgers=self.messages,
            ledger_client=self.client,
            metadata=self.metadata,
            settings=self.settings,
            batch_index_acks=True,
            owner_epoch=self.epoch,
            clock_ms=now_ms,
            create_at=Position(7, -1),
            cursor_properties={"made": "by a test"} if self.epoch == 1 else None,
        )

    def snapshots(self) -> BucketSnapshots:
        return BucketSnapshots(self.client, PATH, self.settings)

    async def registered(self) -> list[int]:
        """What the node names, under any owner."""
        spectator = MemoryMetadataStore(self.tree)
        found = await spectator.get(PATH)
        await spectator.close()
        if found is None:
            return []
        return snapshot_ids(decode_cursor_node(found.value, path=PATH).cursor_properties)

    @property
    def snapshot_ledgers(self) -> list[int]:
        return sorted(
            ledger_id
            for ledger_id, ledger in self.storage.ledgers.items()
            if "ackgate/delayed-cursor" in ledger.metadata.custom_metadata
        )


class ScriptedTracker:
    """Asks for what a test says, and remembers what it was told."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.answers: dict[int, Outcome] = {}
        self.order: list[int] = []
        self.on_answer: Callable[[int, Outcome], None] = lambda _plan, _outcome: None

    def take_plans(self) -> list[Plan]:
        plans, self.plans = self.plans, []
        return plans

    def answer(self, plan: int, outcome: Outcome, now_ms: int) -> None:
        assert plan not in self.answers, "answered twice"
        self.answers[plan] = outcome
        self.order.append(plan)
        self.on_answer(plan, outcome)


class Carried:
    """A scripted tracker and its storage."""

    def __init__(self, world: StorageWorld, store: CursorStore, lanes: StorageLanes) -> None:
        self.tracker = ScriptedTracker()
        self.rounds = 0
        self.storage = storage_of(world, store, self.tracker, lanes, self._round)
        self._number = 0

    def _round(self) -> None:
        self.rounds += 1

    def ask(self, make: Callable[[int], Plan]) -> int:
        self._number += 1
        self.tracker.plans.append(make(self._number))
        self.storage.pump()
        return self._number

    async def done(self, *numbers: int) -> list[Outcome]:
        while any(number not in self.tracker.answers for number in numbers):
            await asyncio.sleep(0.01)
        return [self.tracker.answers[number] for number in numbers]

    async def do(self, make: Callable[[int], Plan]) -> Outcome:
        (outcome,) = await self.done(self.ask(make))
        return outcome


def storage_of(
    world: StorageWorld,
    store: CursorStore,
    tracker: PlanningTracker,
    lanes: StorageLanes | None = None,
    on_answer: Callable[[], None] = lambda: None,
) -> BucketStorage:
    return BucketStorage(
        tracker,
        world.snapshots(),
        store,
        lanes or StorageLanes(),
        clock_ms=now_ms,
        on_answer=on_answer,
    )


async def carried(world: StorageWorld, lanes: StorageLanes | None = None) -> Carried:
    return Carried(world, await world.open(), lanes or StorageLanes())


# -------------------------------------------------------------------------------- plans


def create(entries: int = 200) -> Callable[[int], Plan]:
    first, last, segments = bucket(entries)
    return lambda number: CreateSnapshot(
        number,
        first,
        last,
        tuple(SnapshotSegment(*columns) for columns in segments),
        tuple(SegmentMetadata(*summary_of(columns)) for columns in segments),
    )


def record(snapshot_id: int, first: int = 0, last: int = 199) -> BucketRecord:
    return BucketRecord(Position(7, first), Position(7, last), snapshot_id)


def register(*ids: int, remove: tuple[int, ...] = ()) -> Callable[[int], Plan]:
    return lambda number: ChangeRegistry(number, tuple(map(record, ids)), remove)


def load_metadata(snapshot_id: int) -> Callable[[int], Plan]:
    return lambda number: LoadMetadata(number, snapshot_id)


def load(snapshot_id: int, first: int, stop: int) -> Callable[[int], Plan]:
    return lambda number: LoadSegments(number, snapshot_id, first, stop)


def delete(snapshot_id: int) -> Callable[[int], Plan]:
    return lambda number: DeleteSnapshot(number, snapshot_id)
