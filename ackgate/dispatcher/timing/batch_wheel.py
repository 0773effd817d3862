"""A hierarchical timing wheel for arrays of timers: ids and deadlines in, due ids out.

Pure. The same levels as `TimingWheel` (`levels.py`), so the same promises: never early, exact
counts, by deadline tick and then as added, nothing overflows. Made for those who have millions: a
timer costs some tens of nanoseconds and bytes, a call some tens of microseconds whatever its size.

An **id** is a small whole number that the owner gives, such as an index into a table of its own: the
tables here have a line for every id up to the highest one used. An id has one timer: adding it again
moves the timer, and within one array the last one counts.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import checked_integers
from ackgate.dispatcher.timing.levels import (
    SLOTS_PER_LEVEL_MAX,
    TICK_MS_MAX,
    Levels,
    between,
    deadline_ticks,
    now_tick,
)
from ackgate.dispatcher.timing.wheel import SLOTS_PER_LEVEL
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from ackgate.dispatcher.timing.levels import Entries

    Numbers = NDArray[np.int64]

IDS_MAX: Final = 1 << 27
"""Default bound of ids: an id just below it needs tables of 3 GB."""

_CHUNK: Final = 65536
"""Timers added at a time: what is passed on stays in the processor's cache."""

_CANCEL_CHUNK: Final = 16_384
"""Timers cancelled at a time: less, for there is no work by slots."""

_STRIP: Final = 256
"""Entries looked at together when dead ones are taken off the end of a slot."""

_NONE: Final = -1


class BatchWheel:
    """A timing wheel whose timers are ids of the caller, added and cancelled as arrays."""

    __slots__ = (
        "_cancelled_count",
        "_due",
        "_free",
        "_free_count",
        "_ids",
        "_ids_max",
        "_levels",
        "_places",
        "_size",
        "_target_tick",
        "_tick_ms",
    )

    def __init__(
        self,
        *,
        tick_ms: int = 1,
        slots_per_level: int = SLOTS_PER_LEVEL,
        start_ms: int = 0,
        ids_max: int = IDS_MAX,
    ) -> None:
        """An empty wheel whose clock is at `start_ms`. Raises `CallerError`."""
        self._tick_ms = between(tick_ms, 1, TICK_MS_MAX, "tick_ms")
        self._ids_max = between(ids_max, 1, 1 << 40, "ids_max")
        self._target_tick = now_tick(start_ms, self._tick_ms)
        self._levels = Levels(
            slots_per_level=between(slots_per_level, 2, SLOTS_PER_LEVEL_MAX, "slots_per_level"),
            start_tick=self._target_tick,
        )
        # A timer's place is its entry number in the levels. By id: the place that it had last.
        self._places: Numbers = np.empty(0, dtype=np.int64)
        # By place: its id; negative if it is free or its timer was cancelled. An id is live if the
        # place that it had last is still its own.
        self._ids: Numbers = np.empty(0, dtype=np.int64)
        self._free: Numbers = np.empty(0, dtype=np.int64)
        self._free_count = 0
        self._size = 0
        self._cancelled_count = 0
        self._due: deque[Numbers] = deque()

    def __len__(self) -> int:
        return self._size

    @property
    def size(self) -> int:
        return self._size

    @property
    def level_count(self) -> int:
        return self._levels.level_count

    @property
    def byte_size(self) -> int:
        """Bytes of the tables and of what waits in the levels, to within a tenth."""
        waiting = self._size + self._cancelled_count
        tables = self._places.nbytes + self._ids.nbytes + self._free.nbytes
        return tables + 8 * (len(self._levels.ticks) + waiting)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to advance next; see `TimingWheel.next_deadline_ms`."""
        self._sweep_if_many()
        while self._due:
            due = self._live(self._due[0])
            if due.size:
                self._due[0] = due
                return self._levels.clock * self._tick_ms
            self._due.popleft()
        tick = self._levels.next_tick(self._strip)
        return None if tick is None or not self._size else tick * self._tick_ms

    # -- adding and cancelling ------------------------------------------------------------------

    def add(self, ids: ArrayLike, deadlines_ms: ArrayLike) -> None:
        """Give each id its deadline. Those that are live already are moved.

        Raises `CallerError` for ids out of range, lengths that differ, and what is no array of
        integers; nothing was changed then.
        """
        checked = self._checked(ids)
        ticks = deadline_ticks(deadlines_ms, self._tick_ms)
        if ticks.size != checked.size:
            raise CallerError(f"{checked.size} ids do not pair with {ticks.size} deadlines")
        if checked.size:
            self._widen(int(checked.max()) + 1)
        for begin in range(0, checked.size, _CHUNK):
            self._add(checked[begin : begin + _CHUNK], ticks[begin : begin + _CHUNK])

    def _add(self, ids: Numbers, ticks: Numbers) -> None:
        places = self._take_places(ids.size)
        before = self._places[ids]
        self._places[ids] = places
        if not bool((ids[1:] > ids[:-1]).all()):
            is_last = self._places[ids] == places
            if not is_last.all():  # an id twice: the last one counts
                self._give_back(places[~is_last])
                ids, ticks = ids[is_last], ticks[is_last]
                before, places = before[is_last], places[is_last]
        moved = before[before != _NONE]
        if moved.size:
            moved = before[self._is_own(before, ids)]
        self._ids[moved] = _NONE
        self._cancelled_count += moved.size
        self._size += ids.size - moved.size
        self._ids[places] = ids
        np.frombuffer(self._levels.ticks, dtype=np.int64)[places] = ticks
        due = self._levels.place_many(places)
        if due.size:
            self._due.append(due)

    def cancel(self, ids: ArrayLike) -> int:
        """Never hand these out. Returns how many were live; others do not matter.

        Raises `CallerError` for ids out of range and what is no array of integers.
        """
        checked = self._checked(ids)
        return sum(
            self._cancel(checked[begin : begin + _CANCEL_CHUNK])
            for begin in range(0, checked.size, _CANCEL_CHUNK)
        )

    def _cancel(self, ids: Numbers) -> int:
        if int(ids.max()) >= self._places.size:
            ids = ids[ids < self._places.size]
        places = self._places[ids]
        is_live = self._is_own(places, ids)
        if not is_live.all():
            ids, places = ids[is_live], places[is_live]
        # Any negative number will do. They differ, so that a place named twice is counted once.
        marks = np.arange(-1, -1 - ids.size, -1, dtype=np.int64)
        self._ids[places] = marks
        count = int(np.count_nonzero(self._ids[places] == marks))
        self._size -= count
        self._cancelled_count += count
        return count

    def is_live(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Which of the ids have a timer."""
        checked = self._checked(ids)
        live = np.zeros(checked.size, dtype=np.bool_)
        known = checked < self._places.size
        live[known] = self._is_own(self._places[checked[known]], checked[known])
        return live

    def _is_own(self, places: Numbers, ids: Numbers) -> NDArray[np.bool_]:
        if not self._ids.size:
            return np.zeros(ids.size, dtype=np.bool_)
        # Where there was no place yet it is the last one that is looked at: not its own either.
        is_own: NDArray[np.bool_] = self._ids[places] == ids
        return is_own

    # -- advancing ------------------------------------------------------------------------------

    def advance(self, now_ms: int, timers_max: int) -> Numbers:
        """Move the time forward; take out ids that are due, at most so many.

        Fewer than `timers_max` means that nothing more is due. Work is bounded by what is taken
        out and the coarse slots on the way. Time never goes back. Raises `CallerError`.
        """
        self._target_tick = max(self._target_tick, now_tick(now_ms, self._tick_ms))
        left = between(timers_max, 0, 1 << 62, "timers_max")
        taken: list[Numbers] = []
        while left > 0:
            if not self._due:
                opened = self._levels.open_next(self._target_tick)
                if opened is None:
                    break
                if opened:
                    self._due.append(np.frombuffer(opened, dtype=np.int64))
                continue
            due = self._due.popleft()
            if due.size > left:
                self._due.appendleft(due[left:])
                due = due[:left]
            ids = self._release(due)
            taken.append(ids)
            left -= ids.size
        return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)

    def _release(self, places: Numbers) -> Numbers:
        """The ids of live timers. All places are free from now on."""
        ids = self._ids[places]
        self._give_back(places)
        is_live = ids >= 0
        if not is_live.all():
            ids = ids[is_live]
            self._cancelled_count -= places.size - ids.size
        self._size -= ids.size
        return ids

    # -- places ---------------------------------------------------------------------------------

    def _checked(self, ids: ArrayLike) -> Numbers:
        array_of_ids = checked_integers(ids, "ids")
        if array_of_ids.size:
            lowest, highest = int(array_of_ids.min()), int(array_of_ids.max())
            if lowest < 0 or highest >= self._ids_max:
                wrong = lowest if lowest < 0 else highest
                raise CallerError(f"id {wrong} is not in 0..{self._ids_max - 1}")
        return array_of_ids.astype(np.int64, copy=False)

    def _widen(self, id_count: int) -> None:
        have = self._places.size
        if id_count > have:
            wide = np.full(min(max(id_count, 2 * have), self._ids_max), _NONE, dtype=np.int64)
            wide[:have] = self._places
            self._places = wide

    def _take_places(self, count: int) -> Numbers:
        if self._free_count < count:
            self._sweep_if_many()
        if self._free_count < count:
            self._make_room(max(count, self._ids.size))
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count].copy()

    def _make_room(self, more: int) -> None:
        have = self._ids.size
        self._ids = np.concatenate((self._ids, np.full(more, _NONE, dtype=np.int64)))
        self._levels.ticks.frombytes(bytes(8 * more))
        free = np.empty(have + more, dtype=np.int64)
        free[: self._free_count] = self._free[: self._free_count]
        self._free = free
        self._push_free(np.arange(have + more - 1, have - 1, -1, dtype=np.int64))

    def _push_free(self, places: Numbers) -> None:
        self._free[self._free_count : self._free_count + places.size] = places
        self._free_count += places.size

    def _give_back(self, places: Numbers) -> None:
        self._ids[places] = _NONE
        self._push_free(places)

    def _live(self, places: Numbers) -> Numbers:
        """The places of live timers; the others are free from now on."""
        is_live = self._ids[places] >= 0
        if is_live.all():
            return places
        dead = places[~is_live]
        self._push_free(dead)
        self._cancelled_count -= dead.size
        return places[is_live]

    def _sweep_if_many(self) -> None:
        if self._cancelled_count > max(_CHUNK, self._size):
            self._levels.sweep(self._keep)
            self._due = deque(due for due in map(self._live, self._due) if due.size)

    def _keep(self, places: Entries) -> Entries:
        return array("q", self._live(np.array(places, dtype=np.int64)).tobytes())

    def _strip(self, places: Entries) -> None:
        """Take dead ones off the end, until a live one is last."""
        while places:
            last = np.array(places[-_STRIP:], dtype=np.int64)
            live = np.flatnonzero(self._ids[last] >= 0)
            dead = last[live[-1] + 1 :] if live.size else last
            self._push_free(dead)
            self._cancelled_count -= dead.size
            if dead.size:
                del places[-dead.size :]
            if live.size:
                return

    def check(self) -> None:
        self._levels.check()
        waiting = list(self._everything())
        free = self._free[: self._free_count].tolist()
        assert sorted([*waiting, *free]) == list(range(self._ids.size))
        assert len(self._free) == len(self._levels.ticks) == self._ids.size
        assert bool((self._ids[free] < 0).all())
        live = [place for place in waiting if self._ids[place] >= 0]
        assert len(live) == self._size
        assert len(waiting) - len(live) == self._cancelled_count
        assert int(np.count_nonzero(self.is_live(np.arange(self._places.size)))) == self._size
        for place in live:
            assert self._places[self._ids[place]] == place

    def _everything(self) -> Iterator[int]:
        yield from self._levels.everything()
        for due in self._due:
            yield from due.tolist()
