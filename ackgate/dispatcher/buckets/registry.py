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
from typing import TYPE_CHECKING, NamedTuple

from ackgate.dispatcher.buckets.plans import ChangeRegistry, DeleteSnapshot, Done
from ackgate.dispatcher.buckets.statistics import OperationType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.cursor import BucketRecord
    from ackgate.dispatcher.buckets.plans import Outcome, PlanBook


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
        """Take over what the registry names at the start."""
        self._mirror = RegistryMirror(records)

    def keep(self, record: BucketRecord) -> None:
        """Add a bucket with the next change of the registry; see `names`."""
        self._mirror.desired[record.snapshot_id] = record

    def give_up(self, snapshot_id: int) -> None:
        """Remove it with the next change of the registry, and then delete its snapshot."""
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
        self._mirror.check()
        assert not self._garbage & self._deleting
        assert not self._garbage & self._mirror.desired.keys()
        for snapshot_id in self._deleting:
            assert not self._mirror.may_name(snapshot_id), "deleting what the registry may name"


# ------------------------------------------------------------------------------ the registry


class RegistryChange(NamedTuple):
    """Buckets to add and to remove in one atomic change."""

    add: tuple[BucketRecord, ...]
    remove: tuple[int, ...]


class RegistryMirror:
    """The desired registry, the stored one, and the one change that leads from it.

    One put at a time changes the registry, so later requests are combined into the next one. A put
    that failed may still have been made. Until one succeeds, what it adds and removes is *in doubt*:
    not relied upon, and no snapshot of it is deleted. ::

        desired   3 4 7        change: add 7, remove 1 2    --Done-->   certain = 3 4 7
        certain   1 2 3 4                                   --Failed->  certain = 3 4, in doubt 1 2 7
    """

    __slots__ = ("_certain", "_doubtful", "_sent", "desired")

    desired: dict[int, BucketRecord]
    """The desired records. Change them, then call `next_change`."""

    def __init__(self, records: Iterable[BucketRecord] = ()) -> None:
        self.desired = {record.snapshot_id: record for record in records}
        self._certain = dict(self.desired)
        self._doubtful: set[int] = set()
        self._sent: tuple[RegistryChange, dict[int, BucketRecord]] | None = None

    def names(self, snapshot_id: int) -> bool:
        """Whether the registry named it when the last change succeeded, and nothing since."""
        return snapshot_id in self._certain

    def may_name(self, snapshot_id: int) -> bool:
        """Whether it is, was, or will be in, for all that is known."""
        return (
            snapshot_id in self.desired
            or snapshot_id in self._certain
            or snapshot_id in self._doubtful
            or (self._sent is not None and snapshot_id in self._sent[1])
        )

    def next_change(self) -> RegistryChange | None:
        """What is to be sent now; it counts as sent. None: nothing, or one is under way."""
        if self._sent is not None:
            return None
        add = tuple(
            record
            for snapshot_id, record in self.desired.items()
            if snapshot_id not in self._certain
        )
        named = {*self._certain, *self._doubtful}
        remove = tuple(sorted(named.difference(self.desired)))
        if not add and not remove:
            return None
        change = RegistryChange(add, remove)
        self._sent = change, dict(self.desired)
        return change

    def done(self) -> None:
        assert self._sent is not None
        self._certain = self._sent[1]
        self._doubtful = set()
        self._sent = None

    def failed(self) -> None:
        """Note that the change failed; it may have been made all the same."""
        assert self._sent is not None
        change, _ = self._sent
        self._doubtful.update(change.remove)
        self._doubtful.update(record.snapshot_id for record in change.add)
        for snapshot_id in change.remove:
            self._certain.pop(snapshot_id, None)
        self._sent = None

    def check(self) -> None:
        assert not self._doubtful & self._certain.keys()
