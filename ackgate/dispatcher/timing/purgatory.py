"""A purgatory: operations that wait until they can be completed, or until their deadline.

Pure. After Kafka's `DelayedOperationPurgatory`. An operation is watched under keys, such as the
cursor whose acks it waits for. After a change of what a key names, `check_and_complete` returns the
operations that are complete now; `advance` returns those whose deadline has passed. The caller
carries out both: the only callback asks whether an operation is complete. ::

    try_complete_else_watch(operation, keys, deadline)
        |  try: complete -> done                  check_and_complete(key) -> completed ones
        |  watch under all keys                   complete(timer)         -> this one
        |  try again: complete -> done            advance(now)            -> expired ones
        v
    watched: one timer, and its handle in the list of every key

Every operation leaves in exactly one of these ways, once; its timer and the operation are released at
that moment. Only its handle stays in the lists of other keys, eight bytes each. A check of a key
shortens its list; a purge shortens the others. As in Kafka, an estimate decides when to purge: **E**
counts watched operations, and a purge sets it to the number of live timers. So E less that number is
how many were completed since and may still be in lists. A purge begins when that exceeds the purge
interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ackgate.dispatcher.timing.levels import between
from ackgate.dispatcher.timing.wheel import SLOTS_PER_LEVEL, TIMERS_MAX_PER_ADVANCE, TimingWheel
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from ackgate.dispatcher.timing.wheel import Timer

PURGE_INTERVAL: Final = 1_000
"""Completed operations that a purge waits for, as in Kafka."""


class DelayedOperation(Protocol):
    """Something that waits. It must not call the purgatory, nor change anything."""

    def try_complete(self) -> bool:
        """Whether what it waits for is there."""
        ...


O = TypeVar("O", bound=DelayedOperation)
K = TypeVar("K", bound="Hashable")


@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """Operations watched and completed, and purges, since the start."""

    size: int
    """Operations that wait."""

    watched: int
    """Places in lists: an operation has one under each of its keys, until the list is shortened."""

    estimated_total: int
    """Operations that may stand in lists: E."""

    completed: int
    """Completed so far, at the first try too."""

    expired: int
    """Handed out so far because their deadline came first."""

    purged: int
    """Places so far that were found to be of operations long gone."""


class Purgatory(Generic[K, O]):
    """Operations that wait, by key and by deadline."""

    __slots__ = (
        "_completed",
        "_estimated_total",
        "_expired",
        "_purge_interval",
        "_purged",
        "_watched",
        "_watchers",
        "_wheel",
    )

    def __init__(
        self,
        *,
        tick_ms: int = 1,
        slots_per_level: int = SLOTS_PER_LEVEL,
        start_ms: int = 0,
        purge_interval: int | None = None,
    ) -> None:
        """An empty one. Raises `CallerError`.

        A purge walks all lists, so it pays to wait for as many completed operations as there are
        live ones. That is the default interval, but at least `PURGE_INTERVAL`.
        """
        self._wheel: TimingWheel[O] = TimingWheel(
            tick_ms=tick_ms, slots_per_level=slots_per_level, start_ms=start_ms
        )
        self._purge_interval = (
            None
            if purge_interval is None
            else between(purge_interval, 0, 1 << 62, "purge_interval")
        )
        self._watchers: dict[K, list[Timer]] = {}
        self._watched = 0
        self._estimated_total = 0
        self._completed = self._expired = self._purged = 0

    def __len__(self) -> int:
        return self._wheel.size

    @property
    def stats(self) -> PurgatoryStatistics:
        """Counts at this moment, frozen. O(1)."""
        return PurgatoryStatistics(
            size=self._wheel.size,
            watched=self._watched,
            estimated_total=self._estimated_total,
            completed=self._completed,
            expired=self._expired,
            purged=self._purged,
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """When to advance next; see `TimingWheel.next_deadline_ms`."""
        return self._wheel.next_deadline_ms

    # -- coming in ------------------------------------------------------------------------------

    def try_complete_else_watch(
        self, operation: O, keys: Iterable[K], deadline_ms: int
    ) -> Timer | None:
        """Watch the operation under all keys. None: it is complete already, carry it out.

        It is tried once before and once after it is watched, so that a change in between is not missed.
        With a past deadline it expires at the next advance. Raises `CallerError`, and watches nothing,
        if there is no key or the deadline is no whole number.
        """
        if operation.try_complete():
            self._completed += 1
            return None
        keys = tuple(keys)
        if not keys:
            raise CallerError(f"{operation!r} is watched under no key: nothing would complete it")
        timer = self._wheel.schedule(operation, deadline_ms)
        watchers = self._watchers
        for key in keys:
            watching = watchers.get(key)
            if watching is None:
                watchers[key] = [timer]
            else:
                watching.append(timer)
        self._watched += len(keys)
        self._estimated_total += 1
        if operation.try_complete():
            self.complete(timer)
            return None
        self._purge_if_due()
        return timer

    # -- going out ------------------------------------------------------------------------------

    def check_and_complete(self, key: K) -> list[O]:
        """Remove the operations under the key that are complete now, after a change of what it names.

        If one of them raises, all stay.
        """
        watching = self._watchers.get(key)
        if watching is None:
            return []
        item = self._wheel.item
        live: list[Timer] = []
        ready: list[Timer] = []
        for timer in watching:
            operation = item(timer)
            if operation is not None:
                (ready if operation.try_complete() else live).append(timer)
        self._purged += len(watching) - len(live) - len(ready)
        self._replace(key, live)
        completed = map(self.complete, ready)  # under one key twice: completed once
        return [operation for operation in completed if operation is not None]

    def complete(self, timer: Timer) -> O | None:
        """Take this operation out, whatever it waits for. None if it is gone already."""
        operation = self._wheel.item(timer)
        if operation is not None:
            self._wheel.cancel(timer)
            self._completed += 1
        return operation

    def take_all(self, key: K) -> list[O]:
        """Take out all that are watched under the key: what they wait for will never come."""
        watching = self._watchers.get(key, [])
        taken = [each for each in map(self.complete, watching) if each is not None]
        self._purged += len(watching) - len(taken)
        self._replace(key, [])
        return taken

    def advance(self, now_ms: int, timers_max: int = TIMERS_MAX_PER_ADVANCE) -> Iterator[O]:
        """Hand out operations whose time is up, one by one; see `TimingWheel.advance`."""
        return self._expire(self._wheel.advance(now_ms, timers_max))

    def _expire(self, operations: Iterator[O]) -> Iterator[O]:
        for operation in operations:
            self._expired += 1
            yield operation

    # -- lists ----------------------------------------------------------------------------------

    def _replace(self, key: K, watching: list[Timer]) -> None:
        before = len(self._watchers.get(key, ()))
        self._watched += len(watching) - before
        if watching:
            self._watchers[key] = watching
        elif before:
            del self._watchers[key]

    def _purge_if_due(self) -> None:
        gone = self._estimated_total - self._wheel.size
        interval = self._purge_interval
        if interval is None:
            if gone <= PURGE_INTERVAL or gone <= self._wheel.size:
                return
        elif gone <= interval:
            return
        self.purge()

    def purge(self) -> int:
        """Shorten all lists. Returns how many places went. O(places)."""
        before = self._watched
        self._estimated_total = self._wheel.size
        for key, watching in list(self._watchers.items()):
            live = self._wheel.live(watching)
            if len(live) < len(watching):
                self._replace(key, live)
        self._purged += before - self._watched
        return before - self._watched

    def check(self) -> None:
        self._wheel.check()
        assert all(self._watchers.values()), "an empty list was kept"
        assert self._watched == sum(map(len, self._watchers.values()))
        distinct = {timer for watching in self._watchers.values() for timer in watching}
        live = [timer for timer in distinct if self._wheel.is_live(timer)]
        assert len(live) == self._wheel.size, "an operation is watched nowhere"
        assert self._estimated_total >= len(distinct)
