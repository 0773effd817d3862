"""What the registry shall name, what it names, and the one change that leads there.

Pure. The registry is changed by one put at a time, so what came up meanwhile goes out together with
the next one. A put that failed may have been made nevertheless; until one succeeds, what it would
have added or removed is *in doubt*: not relied upon, and no snapshot of it is deleted. ::

    desired   3 4 7        change: add 7, remove 1 2    --Done-->   certain = 3 4 7
    certain   1 2 3 4                                   --Failed->  certain = 3 4, in doubt 1 2 7

"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.dispatcher.trackers.bucket_plans import BucketRecord


class RegistryChange(NamedTuple):
    """One atomic step."""

    add: tuple[BucketRecord, ...]
    remove: tuple[int, ...]


class RegistryMirror:
    """Snapshot ids and their records, wanted and real."""

    __slots__ = ("_certain", "_doubtful", "_sent", "desired")

    desired: dict[int, BucketRecord]
    """What it shall name. Change it, then ask for `next_change`."""

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
        """The change was made."""
        assert self._sent is not None
        self._certain = self._sent[1]
        self._doubtful = set()
        self._sent = None

    def failed(self) -> None:
        """It was not, or perhaps it was."""
        assert self._sent is not None
        change, _ = self._sent
        self._doubtful.update(change.remove)
        self._doubtful.update(record.snapshot_id for record in change.add)
        for snapshot_id in change.remove:
            self._certain.pop(snapshot_id, None)
        self._sent = None

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._doubtful & self._certain.keys()
