"""Carries out a bucket tracker's plans, and reports their outcomes.

Edge. The tracker decides and does no I/O; this does the I/O and decides nothing::

    tracker.take_plans() --> a task each --> persistence: snapshots, registry
            ^                                     |
            |  answer(plan, outcome, now)         |  Stored, Loaded, Done
            +-------------------------------------+  Missing    it will never be there
            |                                     |  Failed     the world's fault, or no answer in time
            '--> more plans at once, and a round of the dispatcher

Every plan is answered once, unless the storage is closed before. Whatever is answered, a ledger that
was begun here and is not registered in the end is deleted: by the tracker's own plan, by `close`, or
by the search for orphans when the broker has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.dispatcher.buckets import (
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    Done,
    Failed,
    LoadMetadata,
    LoadSegments,
    MetadataLoaded,
    SegmentsLoaded,
    Unreadable,
)
from ackgate.errors import AckGateError, CorruptRecordError
from ackgate.persistence.buckets.registry import changed_properties, snapshot_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.cursor import BucketRecord
    from ackgate.dispatcher.buckets import Outcome, Plan
    from ackgate.persistence.buckets.snapshots import BucketSnapshots
    from ackgate.persistence.cursors.store import CursorStore

# ---- How much of all trackers' storage work is under way at the same time
#
# Two lanes, first come first served in each: what a due message waits for never queues after what
# nobody waits for, whatever hangs there.

LOADS_MAX: Final = 32
"""Loads of segments that will be due."""

OTHERS_MAX: Final = 32
"""Snapshots that are written, registered, deleted, or read again after a start."""


class StorageLanes:
    """Bounds the storage work of all trackers of a broker."""

    __slots__ = ("loads", "others")

    def __init__(self, *, loads_max: int = LOADS_MAX, others_max: int = OTHERS_MAX) -> None:
        self.loads = asyncio.Semaphore(loads_max)
        self.others = asyncio.Semaphore(others_max)


log = logging.getLogger(__name__)

SECONDS_MAX: Final[dict[type[Plan], float]] = {
    CreateSnapshot: 60.0,
    ChangeRegistry: 30.0,
    LoadMetadata: 30.0,
    LoadSegments: 30.0,
    DeleteSnapshot: 30.0,
}
"""How long a plan may take, from when its turn has come."""

CLOSE_SECONDS_MAX: Final = 10.0
"""How long closing waits for what is under way."""

RELEASE_SECONDS_MAX: Final = 1.0
"""How long it then waits for calls to be let go of."""

_LOADS: Final = (LoadMetadata, LoadSegments)
_GOES_ON: Final = (ChangeRegistry, DeleteSnapshot)
"""What is still begun while closing: it ends what was begun before."""


class PlanningTracker(Protocol):
    """A tracker that keeps buckets in storage."""

    def take_plans(self) -> Iterable[Plan]:
        """The plans to carry out now, in order; each is returned once."""

    def answer(self, plan: int, outcome: Outcome, now_ms: int) -> None:
        """Report the outcome of a plan."""


class BucketStorage:
    """The storage side of one bucket tracker."""

    __slots__ = (
        "_clock_ms",
        "_doubtful",
        "_is_closing",
        "_is_over",
        "_lanes",
        "_on_answer",
        "_snapshots",
        "_store",
        "_tasks",
        "_tracker",
        "_unregistered",
    )

    def __init__(
        self,
        tracker: PlanningTracker,
        snapshots: BucketSnapshots,
        store: CursorStore,
        lanes: StorageLanes,
        *,
        clock_ms: Callable[[], int],
        on_answer: Callable[[], None],
    ) -> None:
        """`on_answer` is called after each outcome: there may be more due."""
        self._tracker = tracker
        self._snapshots = snapshots
        self._store = store
        self._lanes = lanes
        self._clock_ms = clock_ms
        self._on_answer = on_answer
        self._tasks: dict[asyncio.Task[None], Plan] = {}
        self._unregistered: set[int] = set()
        """Stored here, and not in the registry yet, or any more."""
        self._doubtful: set[int] = set()
        """Of these, the ones that the registry may name: a change that failed may be made yet."""
        self._is_closing = False
        self._is_over = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tasks

    def pump(self) -> None:
        """Start the plans that the tracker has now. Cheap; call it after every call to the tracker."""
        if self._is_over:
            return
        for plan in self._tracker.take_plans():
            if not self._is_closing or isinstance(plan, _GOES_ON):
                task = asyncio.get_running_loop().create_task(self._carry_out(plan))
                self._tasks[task] = plan
                task.add_done_callback(self._ended)

    # ----------------------------------------------------------------------- the end

    async def close(self) -> None:
        """Begin nothing new, and wait for what is under way, as long as that makes sense."""
        self._is_closing = True
        for task, plan in list(self._tasks.items()):
            if isinstance(plan, _LOADS):
                task.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                    await asyncio.sleep(0)  # tasks that are done are forgotten one turn later
                await self._tidy()
        except TimeoutError:
            log.warning("delayed buckets of %s: not closed cleanly", self._snapshots.path)
        finally:
            self.abandon()
            if self._tasks:  # what was cancelled just now
                await asyncio.wait(self._tasks, timeout=RELEASE_SECONDS_MAX)

    def abandon(self) -> None:
        """Drop everything, and write no more: the cursor may have another owner."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def delete_all(self) -> None:
        """Delete every snapshot of the cursor: its node is gone. After `close`."""
        ids = {*snapshot_ids(self._store.internal_properties), *self._unregistered}
        await delete_snapshots(self._snapshots, ids)
        await self._snapshots.sweep()

    async def _tidy(self) -> None:
        """Delete stored snapshots, and those that certainly nothing names."""
        await delete_snapshots(self._snapshots, self._unregistered - self._doubtful)
        await self._snapshots.sweep()

    # ---------------------------------------------------------------------- one plan

    async def _carry_out(self, plan: Plan) -> None:
        lane = self._lanes.loads if isinstance(plan, LoadSegments) else self._lanes.others
        seconds = SECONDS_MAX[type(plan)]
        async with lane:
            try:
                async with asyncio.timeout(seconds):
                    outcome = await self._outcome(plan)
            except TimeoutError:
                outcome = Failed(f"no answer within {seconds:g} s")
            except AckGateError as error:
                is_lost = isinstance(error, CorruptRecordError) and isinstance(plan, _LOADS)
                outcome = Unreadable(str(error)) if is_lost else Failed(str(error))
        self._answer(plan, outcome)

    def _answer(self, plan: Plan, outcome: Outcome) -> None:
        if not self._is_over:
            self._tracker.answer(plan.plan, outcome, self._clock_ms())
            self.pump()
            if not self._is_closing:
                self._on_answer()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Answer the plan of a task that ended.

        A bug is an outcome, too: the tracker waits for one.
        """
        plan = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            name = type(plan).__name__
            path = self._snapshots.path
            log.error("delayed buckets of %s: %s failed", path, name, exc_info=error)
            self._answer(plan, Failed(repr(error)))

    async def _outcome(self, plan: Plan) -> Outcome:
        match plan:
            case CreateSnapshot():
                return await self._create(plan)
            case ChangeRegistry():
                return await self._change_registry(plan)
            case LoadMetadata():
                metadata, bytes_stored = await self._snapshots.metadata(plan.snapshot_id)
                return MetadataLoaded(metadata.segments, bytes_stored)
            case LoadSegments():
                return await self._load(plan)
            case DeleteSnapshot():
                return await self._delete(plan)

    async def _create(self, plan: CreateSnapshot) -> Outcome:
        stored = await self._snapshots.create(plan.first, plan.last, plan.segments, plan.metadata)
        self._unregistered.add(stored.snapshot_id)
        return stored

    async def _load(self, plan: LoadSegments) -> Outcome:
        found = await self._snapshots.segments(plan.snapshot_id, plan.first, plan.stop)
        if len(found) < plan.stop - plan.first:
            return Unreadable(f"snapshot {plan.snapshot_id} has no segment {plan.stop - 1}")
        return SegmentsLoaded(tuple(found))

    async def _change_registry(self, plan: ChangeRegistry) -> Outcome:
        added = {record.snapshot_id for record in plan.add}
        self._doubtful |= added
        await self._change(plan.add, plan.remove)
        self._doubtful -= {*added, *plan.remove}
        self._unregistered -= added
        return Done()

    async def _change(self, add: Iterable[BucketRecord], remove: Iterable[int]) -> None:
        removed = frozenset(remove)
        await self._store.change_internal_properties(
            lambda held: changed_properties(held, add, removed)
        )

    async def _delete(self, plan: DeleteSnapshot) -> Outcome:
        """What the registry still names (a change that seemed to fail was made) leaves it first."""
        snapshot_id = plan.snapshot_id
        if snapshot_id in snapshot_ids(self._store.internal_properties):
            await self._change((), (snapshot_id,))
        try:
            await self._snapshots.delete(snapshot_id)
        except CorruptRecordError as error:  # something else is stored there; keep it
            log.warning("delayed buckets of %s: %s", self._snapshots.path, error)
        self._unregistered.discard(snapshot_id)
        self._doubtful.discard(snapshot_id)
        if self._snapshots.has_abandoned:  # of a create that hung
            await self._snapshots.sweep()
        return Done()


async def delete_snapshots(snapshots: BucketSnapshots, ids: Iterable[int]) -> None:
    """Delete these; what cannot be deleted now is logged, and left to the search for orphans."""
    for snapshot_id in sorted(ids):
        try:
            await snapshots.delete(snapshot_id)
        except AckGateError as error:
            log.warning("snapshot ledger %d could not be deleted yet: %s", snapshot_id, error)
