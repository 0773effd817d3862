"""A hierarchical timing wheel for timers that are scheduled and cancelled one by one.

Pure: time is an argument, due timers are return values. `levels.py` explains how timers wait, and why
scheduling and cancelling are O(1) at any number of them; `BatchWheel` is the same for arrays of
timers. ::

    timer = wheel.schedule(item, deadline_ms)      wheel.cancel(timer)
    loop: sleep until wheel.next_deadline_ms
          for item in wheel.advance(now_ms):       # one by one
              carry out item                       # may schedule and cancel, due ones too

* **Never early**, for any tick and any phase; late by less than a tick (`levels.py`).
* **Exact**: `size` is the number of live timers at any moment. A cancelled timer is never
  returned, even if it was due already; its item is released at once.
* **In order**: by the tick of the deadline, then as scheduled. A timer for a past time is due at
  once, after those that are due already.
* **Bounded**: an advance returns at most so many timers, and moves little more than that.

A timer is an integer: a place in a table, and how often that place was used before, so that a timer
that is gone never means another one. Integers and tables instead of an object for every timer,
because Python's cyclic collector walks all objects again and again: with a million of them that
costs more than everything else here.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, NewType, TypeVar, cast

import numpy as np

from ackgate.dispatcher.timing.levels import (
    ARRAY_MIN,
    CASCADE_MAX,
    SLOTS_PER_LEVEL_MAX,
    TICK_MS_MAX,
    Levels,
    between,
    clipped,
    now_tick,
    whole,
)
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.dispatcher.timing.levels import Entries

T = TypeVar("T")

Timer = NewType("Timer", int)
"""A scheduled timer, for `cancel`. Belongs to the wheel that made it."""

TIMERS_MAX_PER_ADVANCE: Final = 10_000
"""Default bound of one advance: some milliseconds of the owner's work."""

SLOTS_PER_LEVEL: Final = 1_024
"""A second at a tick of 1 ms; 17 minutes on two levels, 12 days on three."""

_PLACE_BITS: Final = 32
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1
_USE: Final = 1 << _PLACE_BITS

_GROWTH_MIN: Final = 64
_GROWTH_MAX: Final = 16_384
"""Places added at a time."""

_CANCELLED_MIN: Final = 4_096
"""So few cancelled timers are not worth a sweep; they leave when the clock comes to them."""

_UNBOUNDED: Final = 1 << 62

_NOTHING: Final[Any] = object()


class TimingWheel(Generic[T]):
    """Timers with an item each, scheduled and cancelled one by one in O(1)."""

    __slots__ = (
        "_arrived",
        "_cancelled_count",
        "_due",
        "_free",
        "_items",
        "_levels",
        "_target_tick",
        "_tick_ms",
        "_ticks",
        "_timers",
    )

    def __init__(
        self, *, tick_ms: int = 1, slots_per_level: int = SLOTS_PER_LEVEL, start_ms: int = 0
    ) -> None:
        """An empty wheel whose clock is at `start_ms`. Raises `CallerError`."""
        self._tick_ms = between(tick_ms, 1, TICK_MS_MAX, "tick_ms")
        self._target_tick = now_tick(start_ms, self._tick_ms)
        self._levels = Levels(
            slots_per_level=between(slots_per_level, 2, SLOTS_PER_LEVEL_MAX, "slots_per_level"),
            start_tick=self._target_tick,
        )
        # By place: the timer that uses it or used it last, its item, its tick.
        self._timers: list[Timer] = []
        self._items: list[T] = []
        self._ticks = self._levels.ticks
        self._free: list[int] = []
        self._arrived: list[int] = []  # scheduled, not in the levels yet
        self._due: deque[int] = deque()  # to be handed out
        self._cancelled_count = 0  # places of cancelled timers, not free yet

    def __len__(self) -> int:
        return len(self._timers) - len(self._free) - self._cancelled_count

    @property
    def size(self) -> int:
        """Live timers: scheduled, neither handed out nor cancelled. O(1)."""
        return len(self._timers) - len(self._free) - self._cancelled_count

    @property
    def level_count(self) -> int:
        """Levels made so far; overflow levels come on demand."""
        return self._levels.level_count

    @property
    def next_deadline_ms(self) -> int | None:
        """When to advance next: when the first slot that is not empty comes due. None: never.

        Exactly a timer's deadline tick if it is on the lowest level; the begin of its slot if that
        is a coarse one, which has to cascade then. In the past if something is due already.
        """
        self._place_arrived()
        if self._cancelled_count > max(_CANCELLED_MIN, 3 * self.size):
            self._sweep()
        self._strip_due()
        if self._due:
            return self._levels.clock * self._tick_ms
        tick = self._levels.next_tick(self._strip)
        return None if tick is None or not self.size else tick * self._tick_ms

    # -- scheduling -----------------------------------------------------------------------------

    def schedule(self, item: T, deadline_ms: int) -> Timer:
        """Hand the item out once `now_ms` has come to the deadline. In the past: at once.

        Raises `CallerError` if the deadline is no whole number.
        """
        if deadline_ms.__class__ is not int:
            deadline_ms = whole(deadline_ms, "deadline_ms")
        try:
            place = self._free.pop()
        except IndexError:
            self._make_room()
            place = self._free.pop()
        try:
            self._ticks[place] = (
                deadline_ms if self._tick_ms == 1 else -(-deadline_ms // self._tick_ms)
            )
        except OverflowError:
            self._ticks[place] = clipped(deadline_ms)
        self._items[place] = item
        self._arrived.append(place)
        timer = self._timers[place] = cast("Timer", self._timers[place] + _USE)
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Never hand it out; let go of its item. Was it live?"""
        place = timer & _PLACE_MASK
        try:
            if self._timers[place] != timer or self._items[place] is _NOTHING:
                return False
        except IndexError:
            return False
        self._items[place] = _NOTHING
        self._cancelled_count += 1
        return True

    def rearm(self, timer: Timer, deadline_ms: int) -> Timer:
        """Move a live timer to another deadline. The old handle is void, the new one returned.

        Raises `CallerError` if it is not live (or the deadline no whole number).
        """
        deadline_ms = whole(deadline_ms, "deadline_ms")
        if not self.is_live(timer):
            raise CallerError(f"timer {timer} is not live: it was handed out or cancelled")
        item = self._items[timer & _PLACE_MASK]
        self.cancel(timer)
        return self.schedule(item, deadline_ms)

    def is_live(self, timer: Timer) -> bool:
        """Scheduled, neither handed out nor cancelled."""
        place = timer & _PLACE_MASK
        return (
            place < len(self._timers)
            and self._timers[place] == timer
            and self._items[place] is not _NOTHING
        )

    def item(self, timer: Timer) -> T | None:
        """Its item, if it is live."""
        return self._items[timer & _PLACE_MASK] if self.is_live(timer) else None

    def live(self, timers: list[Timer]) -> list[Timer]:
        own, items = self._timers, self._items
        return [
            timer
            for timer in timers
            if own[timer & _PLACE_MASK] == timer and items[timer & _PLACE_MASK] is not _NOTHING
        ]

    # -- advancing ------------------------------------------------------------------------------

    def advance(self, now_ms: int, timers_max: int = TIMERS_MAX_PER_ADVANCE) -> Iterator[T]:
        """Move the time forward; yield the items of due timers one by one, at most so many.

        A timer is live until it is yielded, so the caller may cancel later ones and schedule others in
        between. What it does not fetch stays due. Fewer than `timers_max` means that nothing is due any
        more, or that the rest is left to the next call, since many timers had to be moved down:
        `next_deadline_ms` says which. With `timers_max` at least `size`, all are yielded.

        Time never goes back: an earlier `now_ms` counts as the latest. Raises `CallerError`.
        """
        self._target_tick = max(self._target_tick, now_tick(now_ms, self._tick_ms))
        return self._hand_out(between(timers_max, 0, _UNBOUNDED, "timers_max"))

    def _hand_out(self, timers_max: int) -> Iterator[T]:
        levels, due, items, free = self._levels, self._due, self._items, self._free
        left = timers_max
        # Timers moved down count against `timers_max`, unless that covers all.
        moves = _UNBOUNDED if timers_max >= self.size else CASCADE_MAX + 2 * timers_max
        while left > 0 and moves > 0:
            while due:
                place = due.popleft()
                item = items[place]
                free.append(place)
                if item is _NOTHING:
                    self._cancelled_count -= 1
                    continue
                items[place] = _NOTHING
                yield item
                left -= 1
                if not left:
                    return
            if self._arrived:
                self._place_arrived()
                if due:
                    continue
            before = levels.moved_count
            opened = levels.open_next(self._target_tick)
            if opened is None:
                return
            due.extend(opened)
            moves -= levels.moved_count - before

    # -- places ---------------------------------------------------------------------------------

    def _place_arrived(self) -> None:
        """Put what was scheduled since the last time into the levels."""
        arrived = self._arrived
        if len(arrived) < ARRAY_MIN:
            for place in arrived:
                if not self._levels.place(place):
                    self._due.append(place)
        else:
            for begin in range(0, len(arrived), CASCADE_MAX):
                some = np.array(arrived[begin : begin + CASCADE_MAX], dtype=np.int64)
                self._due.extend(self._levels.place_many(some).tolist())
        arrived.clear()

    def _make_room(self) -> None:
        """Free the places of cancelled timers if that gives much; else add some.

        So no more than half of all places ever belong to cancelled timers for long.
        """
        self._place_arrived()
        capacity = len(self._timers)
        if self._cancelled_count > capacity // 2:
            self._sweep()
            return
        more = min(max(capacity, _GROWTH_MIN), _GROWTH_MAX)
        places = range(capacity, capacity + more)
        self._timers.extend(map(Timer, places))
        self._items.extend([_NOTHING] * more)
        self._ticks.frombytes(bytes(8 * more))
        self._free.extend(reversed(places))

    def _sweep(self) -> None:
        self._levels.sweep(self._keep)
        due = self._keep(array("q", self._due))
        self._due.clear()
        self._due.extend(due)

    def _keep(self, places: Entries) -> Entries:
        """The places of live timers; the others are free from now on."""
        items = self._items
        kept = array("q", [place for place in places if items[place] is not _NOTHING])
        if len(kept) < len(places):
            self._free.extend([place for place in places if items[place] is _NOTHING])
            self._cancelled_count -= len(places) - len(kept)
        return kept

    def _strip(self, places: Entries) -> None:
        items = self._items
        while places and items[places[-1]] is _NOTHING:
            self._free.append(places.pop())
            self._cancelled_count -= 1

    def _strip_due(self) -> None:
        due, items = self._due, self._items
        while due and items[due[0]] is _NOTHING:
            self._free.append(due.popleft())
            self._cancelled_count -= 1

    def check(self) -> None:
        self._levels.check()
        waiting = [*self._levels.everything(), *self._arrived, *self._due]
        assert len(waiting) == len(set(waiting)), "a place is used twice"
        assert len(self._free) == len(set(self._free)), "a place is free twice"
        assert sorted([*waiting, *self._free]) == list(range(len(self._timers)))
        live = [place for place in waiting if self._items[place] is not _NOTHING]
        assert len(live) == self.size
        assert len(waiting) - len(live) == self._cancelled_count
        assert all(self._items[place] is _NOTHING for place in self._free)
        assert len(self._timers) == len(self._items) == len(self._ticks)
        for place, timer in enumerate(self._timers):
            assert timer & _PLACE_MASK == place
        assert self._levels.clock <= self._target_tick
