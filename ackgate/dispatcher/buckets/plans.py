"""Plans of a bucket tracker (create, load, register, delete), their outcomes, and the retries.

Pure. The tracker does no I/O. Its owner carries out the plans of `take_plans` in order and answers
each exactly once (a second answer, or one from before a `clear`, is ignored)::

    seal     CreateSnapshot --stored--> ChangeRegistry(add one) --done--> the bucket is sealed
    merge    LoadSegments x k --> CreateSnapshot --stored--> ChangeRegistry(add one, remove k)
                                                              --done--> DeleteSnapshot x k
    due      LoadSegments(the next one, ahead of its time)
    emptied  ChangeRegistry(remove one) --done--> DeleteSnapshot
    start    LoadMetadata of every registered bucket, in the background

The registry is one small map, bucket -> snapshot, that is changed in one atomic step. A snapshot
that it does not name was left by a crash, and is deleted at the start.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ackgate.cursor import StoredSnapshot
from ackgate.dispatcher.buckets.statistics import OperationCounter, OperationType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackgate.cursor import BucketRecord, Position, SegmentMetadata, SnapshotSegment
    from ackgate.dispatcher.buckets.settings import BucketSettings


class CreateSnapshot(NamedTuple):
    """Write a snapshot into a new ledger, all of it or nothing. Answer: `StoredSnapshot` or `Failed`."""

    plan: int
    first: Position
    last: Position
    segments: tuple[SnapshotSegment, ...]
    metadata: tuple[SegmentMetadata, ...]


class ChangeRegistry(NamedTuple):
    """Change the registry in one atomic, durable step. Answer: `Done` or `Failed`.

    Never two at a time. After a `Failed`, which may have been made nevertheless, the next one may
    add what is there and remove what is not: that is no error.
    """

    plan: int
    add: tuple[BucketRecord, ...]
    remove: tuple[int, ...]
    """Snapshot ids to remove."""


class LoadMetadata(NamedTuple):
    """Read a snapshot's metadata. Answer: `MetadataLoaded`, `Unreadable` or `Failed`."""

    plan: int
    snapshot_id: int


class LoadSegments(NamedTuple):
    """Read segments ``first <= number < stop``, counted from 0.

    Answer: `SegmentsLoaded`, `Unreadable` or `Failed`.
    """

    plan: int
    snapshot_id: int
    first: int
    stop: int


class DeleteSnapshot(NamedTuple):
    """Delete a snapshot that the registry names no more. Answer: `Done` or `Failed`.

    One that is gone already is `Done`.
    """

    plan: int
    snapshot_id: int


Plan: TypeAlias = CreateSnapshot | ChangeRegistry | LoadMetadata | LoadSegments | DeleteSnapshot


class MetadataLoaded(NamedTuple):
    """`LoadMetadata` succeeded: the metadata of all segments of the snapshot."""

    segments: tuple[SegmentMetadata, ...]
    bytes_stored: int


class SegmentsLoaded(NamedTuple):
    """`LoadSegments` succeeded: the segments asked for, in order."""

    segments: tuple[SnapshotSegment, ...]


class Done(NamedTuple):
    """`ChangeRegistry` or `DeleteSnapshot` succeeded; neither has a result."""


class Unreadable(NamedTuple):
    """The snapshot, or what was asked of it, does not exist or cannot be read, now or later."""

    why: str


class Failed(NamedTuple):
    """The plan did not succeed now; it may later. Nothing is known to be done."""

    why: str


Outcome: TypeAlias = StoredSnapshot | MetadataLoaded | SegmentsLoaded | Done | Unreadable | Failed


# ------------------------------------------------------------------------------ asked, not answered


class _Asked(NamedTuple):
    operation: OperationType | None
    asked_ms: int
    on_outcome: Callable[[Outcome, int], None]


class PlanBook:
    """Numbers plans, knows who waits for their outcomes, counts how they went.

    An outcome of a number without a waiting step (answered already, or of a plan from before the last
    start) changes nothing; the caller decides whether to delete what it stored.
    """

    __slots__ = ("_asked", "_last_number", "_plans", "counters", "retries", "settings")

    def __init__(self, settings: BucketSettings, seed: int) -> None:
        self.settings = settings
        self.retries = RetryClock(settings, seed)
        self.counters = {operation: OperationCounter() for operation in OperationType}
        self._plans: list[Plan] = []
        self._asked: dict[int, _Asked] = {}
        self._last_number = 0

    def ask(
        self,
        plan: Callable[[int], Plan],
        on_outcome: Callable[[Outcome, int], None],
        now_ms: int,
        operation: OperationType | None = None,
    ) -> None:
        """Ask for this plan (made with its number); `on_outcome` gets the outcome and its time."""
        self._last_number += 1
        self._plans.append(plan(self._last_number))
        self._asked[self._last_number] = _Asked(operation, now_ms, on_outcome)

    def take(self) -> list[Plan]:
        """Plans since the last call, to be carried out in this order."""
        plans, self._plans = self._plans, []
        return plans

    def answer(self, number: int, outcome: Outcome, now_ms: int) -> bool:
        """Pass the outcome to the step that waits for it. False: none does."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return False
        if asked.operation is not None:
            succeeded = not isinstance(outcome, (Failed, Unreadable))
            latency_ms = max(now_ms - asked.asked_ms, 0)
            self.counters[asked.operation].count(latency_ms, succeeded=succeeded)
        asked.on_outcome(outcome, now_ms)
        return True


# ------------------------------------------------------------------------------ trying again


JITTER: Final = 0.25
"""Share of a wait that chance may take off."""

_MASK: Final = 2**64 - 1


class RetryClock:
    """When to try again what failed, and when to go on with work done in pieces: one ordered list.

    Waits grow with each failure, and chance spreads them; the seed decides all chances.
    """

    __slots__ = ("_heap", "_seed", "_serial", "_settings")

    def __init__(self, settings: BucketSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._serial = 0
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first one is to be tried. None: nothing waits."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, attempts: int, now_ms: int, retry: Callable[[int], None]) -> None:
        """`attempts` in a row have failed: call this with the time, when it has come."""
        settings = self._settings
        wait_ms = settings.retry_ms_max
        if attempts < settings.attempts_max:
            wait_ms = min(settings.retry_ms << max(attempts - 1, 0), wait_ms)
        wait_ms -= int(wait_ms * JITTER * self._chance())
        heappush(self._heap, (now_ms + max(wait_ms, 1), self._serial, retry))

    def soon(self, now_ms: int, go_on: Callable[[int], None]) -> None:
        """Work that is done in pieces: call this with the time, in the next millisecond."""
        self._serial += 1
        heappush(self._heap, (now_ms + 1, self._serial, go_on))

    def due(self, now_ms: int) -> Iterator[Callable[[int], None]]:
        """Take out what is to be tried now."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heappop(self._heap)[2]

    def _chance(self) -> float:
        """Splitmix64: a number from 0 to 1, another one each time."""
        self._serial += 1
        mixed = (self._seed + self._serial * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
