"""Which snapshots are registered, and the end of those that are not. Pure.

The registry is changed first, its snapshots are deleted after: whatever it may name exists. ::

    a bucket is stored            keep(record)            --+
    buckets are merged            keep(new), give_up(old) --+--> one ChangeRegistry --Done-->
    a bucket is emptied or lost   give_up(id)             --+
                                                                 DeleteSnapshot of what it named
    a snapshot that came too late give_up(id)   ---------------> DeleteSnapshot

What cannot be deleted after all attempts is left for the sweep of the next start.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ackgate.dispatcher.trackers.bucket_plans import ChangeRegistry, DeleteSnapshot, Done
from ackgate.dispatcher.trackers.bucket_statistics import OperationType
from ackgate.dispatcher.trackers.registry_mirror import RegistryMirror

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.dispatcher.trackers.bucket_plans import BucketRecord, Outcome
    from ackgate.dispatcher.trackers.plan_book import PlanBook


class SnapshotKeeper:
    """The registry's mirror, and the snapshots that are to be deleted."""

    __slots__ = (
        "_attempts",
        "_book",
        "_deleting",
        "_garbage",
        "_is_waiting",
        "_mirror",
        "given_up",
    )

    given_up: int
    """Snapshots that could not be deleted."""

    def __init__(self, book: PlanBook) -> None:
        self._book = book
        self._mirror = RegistryMirror()
        self._attempts = 0
        self._is_waiting = False
        self._garbage: set[int] = set()
        self._deleting: set[int] = set()
        self.given_up = 0

    @property
    def failures(self) -> int:
        """Changes of the registry in a row that failed."""
        return self._attempts

    @property
    def garbage_count(self) -> int:
        """Snapshots that are to be deleted."""
        return len(self._garbage) + len(self._deleting)

    def recover(self, records: Iterable[BucketRecord]) -> None:
        """This is what the registry names."""
        self._mirror = RegistryMirror(records)

    def keep(self, record: BucketRecord) -> None:
        """The registry shall name this one. See `names`."""
        self._mirror.desired[record.snapshot_id] = record

    def give_up(self, snapshot_id: int) -> None:
        """The registry shall not name it, and then it shall be deleted."""
        self._mirror.desired.pop(snapshot_id, None)
        if snapshot_id not in self._deleting:
            self._garbage.add(snapshot_id)

    def names(self, snapshot_id: int) -> bool:
        """Whether the registry names it, durably."""
        return self._mirror.names(snapshot_id)

    def knows(self, snapshot_id: int) -> bool:
        """Whether it is in use, or going."""
        return (
            self._mirror.may_name(snapshot_id)
            or snapshot_id in self._garbage
            or snapshot_id in self._deleting
        )

    def advance(self, now_ms: int) -> None:
        """Ask for what is to be done now."""
        if not self._is_waiting:
            change = self._mirror.next_change()
            if change is not None:
                self._book.ask(
                    lambda number: ChangeRegistry(number, change.add, change.remove),
                    self._on_changed,
                    now_ms,
                )
        for snapshot_id in sorted(self._garbage):
            if not self._mirror.may_name(snapshot_id):
                self._garbage.remove(snapshot_id)
                self._deleting.add(snapshot_id)
                self._delete(snapshot_id, 0, now_ms)

    def _on_changed(self, outcome: Outcome, now_ms: int) -> None:
        if isinstance(outcome, Done):
            self._attempts = 0
            self._mirror.done()
            return
        self._attempts += 1
        self._mirror.failed()
        self._is_waiting = True
        self._book.retries.schedule(self._attempts, now_ms, self._retry)

    def _retry(self, _now_ms: int) -> None:
        self._is_waiting = False

    def _delete(self, snapshot_id: int, attempts: int, now_ms: int) -> None:
        self._book.ask(
            lambda number: DeleteSnapshot(number, snapshot_id),
            partial(self._on_deleted, snapshot_id, attempts + 1),
            now_ms,
            OperationType.DELETE,
        )

    def _on_deleted(self, snapshot_id: int, attempts: int, outcome: Outcome, now_ms: int) -> None:
        if isinstance(outcome, Done):
            self._deleting.remove(snapshot_id)
        elif attempts >= self._book.settings.attempts_max:
            self._deleting.remove(snapshot_id)
            self.given_up += 1
        else:
            self._book.retries.schedule(
                attempts, now_ms, partial(self._delete, snapshot_id, attempts)
            )

    def check(self) -> None:
        """Assert every invariant."""
        self._mirror.check()
        assert not self._garbage & self._deleting
        assert not self._garbage & self._mirror.desired.keys()
        for snapshot_id in self._deleting:
            assert not self._mirror.may_name(snapshot_id), "deleting what the registry may name"
