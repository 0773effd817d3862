r"""Levels of slots, in which timers wait until the clock reaches them. Both wheels use this.

Pure. After Varghese and Lauck (1987) and Kafka's `TimingWheel`. A timer is an **entry** here: a
small number, with its deadline tick in one table, `ticks`. Level *k* has `slots_per_level` slots of
``slots_per_level ** k`` ticks each; together they are the aligned window that the clock is in, and
the window of a level is one slot of the level above. ::

    level 2  |   0   |   1   |   2   |   3   |     an overflow level is made when the first
                     /        \                     timer needs it
    level 1          |0|1|2|3|      the clock is in slot 1 of level 2, in slot 2 of level 1,
                         /\         in slot 0 of level 0; slots that the clock has entered
    level 0             ^123        are empty, their timers lie further down

* A timer lies in the lowest level whose window has its tick. So every timer of a level is due
  before any timer of the level above, and the next slot to come due is the first one that is not
  empty in the lowest level that has one: nothing ticks, and years of emptiness cost O(levels).
* When the clock reaches a coarse slot, its timers **cascade**: they move to the levels below, at
  most `CASCADE_MAX` a step. Until all have moved, new timers there wait after them. A
  slot of level 1 of ordinary size is sorted into one `run` instead of being spread over slots.
* All timers of one tick are always in one place, in the order in which they were placed: nothing is
  ever sorted by anything but the tick, and sorting is stable.

A cancelled timer stays in its slot until the clock reaches it or its owner sweeps; the owner knows
which entries are live and passes a function that drops dead ones where it matters. An entry is in
one place only, and its tick does not change while it is there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise
from operator import index, neg
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np

from ackgate.cursor import checked_integers
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Entries = array[int]
    """Entry numbers, eight bytes each."""
    from numpy.typing import ArrayLike

CASCADE_MAX: Final = 16_384
"""Entries that one step moves down. About a millisecond."""

ARRAY_MIN: Final = 48
"""From so many on, array operations are faster than a loop."""

SLOTS_PER_LEVEL_MAX: Final = 65_536
"""Slot numbers fit 16 bits, which numpy sorts by radix."""

_NO_CASCADE: Final = -1


class Level:
    """One wheel: a window of slots."""

    __slots__ = ("end", "occupied", "slots", "start", "width")

    def __init__(self, slot_count: int, width: int, tick: int) -> None:
        """The window that the tick lies in."""
        self.width = width
        self.slots: list[Entries | None] = [None] * slot_count
        self.occupied = bytearray(slot_count)
        self.start = self.end = 0
        self.move_to(tick)

    def move_to(self, tick: int) -> None:
        """Turn the window to where the tick is. It must be empty."""
        span = self.width * len(self.slots)
        self.start = tick // span * span
        self.end = self.start + span

    def add(self, entry: int, tick: int) -> None:
        """Append one to its slot."""
        number = (tick - self.start) // self.width
        slot = self.slots[number]
        if slot is None:
            self.slots[number] = array("q", (entry,))
            self.occupied[number] = 1
        else:
            slot.append(entry)

    def add_many(self, entries: NDArray[np.int64], ticks: NDArray[np.int64]) -> None:
        numbers = ticks - self.start
        if self.width > 1:
            numbers //= self.width
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        counts = np.bincount(numbers)
        used = np.flatnonzero(counts)
        raw = entries[order].tobytes()
        begin = 0
        for number, end in zip(used.tolist(), (8 * counts[used].cumsum()).tolist(), strict=True):
            slot = self.slots[number]
            if slot is None:
                self.slots[number] = array("q", raw[begin:end])
                self.occupied[number] = 1
            else:
                slot.frombytes(raw[begin:end])
            begin = end

    def take(self, number: int) -> Entries:
        """Take a slot's entries out."""
        slot = self.slots[number]
        assert slot is not None, "an empty slot was marked as occupied"
        self.slots[number] = None
        self.occupied[number] = 0
        return slot


class Levels:
    """All levels, the clock, and the entries that are moving down."""

    __slots__ = (
        "_fallen",
        "_falling",
        "_falling_end",
        "_levels",
        "_run",
        "_run_ticks",
        "clock",
        "moved_count",
        "ticks",
    )

    def __init__(self, *, slots_per_level: int, start_tick: int) -> None:
        self.ticks: Entries = array("q")
        """Deadline tick of each entry. The owner makes it as long as it has entries."""
        self.clock = start_tick
        """Everything up to this tick has been taken out."""
        self.moved_count = 0
        """Entries taken out or moved down so far."""
        self._levels = [Level(slots_per_level, 1, start_tick)]
        # The slot that is cascading, and the end of its time.
        self._falling: Entries = array("q")
        self._fallen = 0
        self._falling_end = _NO_CASCADE
        # A slot of level 1, sorted, the last first.
        self._run: Entries = array("q")
        self._run_ticks: Entries = array("q")

    @property
    def level_count(self) -> int:
        return len(self._levels)

    # -- putting in -----------------------------------------------------------------------------

    def place(self, entry: int) -> bool:
        """Put it where its tick belongs. False: that tick is past, it is due and goes nowhere."""
        tick = self.ticks[entry]
        if tick <= self.clock:
            return False
        if tick < self._falling_end:
            self._falling.append(entry)
        else:
            self._put(entry, tick)
        return True

    def place_many(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `place`, in order. Returns those that are due."""
        ticks = np.frombuffer(self.ticks, dtype=np.int64)[entries]
        due = entries[:0]
        if int(ticks.min()) <= self.clock:
            is_due = ticks <= self.clock
            due, entries, ticks = entries[is_due], entries[~is_due], ticks[~is_due]
        if entries.size and int(ticks.min()) < self._falling_end:
            falls = ticks < self._falling_end
            self._falling.frombytes(entries[falls].tobytes())
            entries, ticks = entries[~falls], ticks[~falls]
        if entries.size:
            self._put_many(entries, ticks)
        return due

    def _put(self, entry: int, tick: int) -> None:
        for level in self._levels:
            if tick < level.end:
                level.add(entry, tick)
                return
        self._overflow(tick).add(entry, tick)

    def _put_many(self, entries: NDArray[np.int64], ticks: NDArray[np.int64]) -> None:
        highest = int(ticks.max())
        if highest >= self._levels[-1].end:
            self._overflow(highest)
        for level in self._levels:
            if highest < level.end:
                level.add_many(entries, ticks)
                return
            fits = ticks < level.end
            if fits.any():
                level.add_many(entries[fits], ticks[fits])
                entries, ticks = entries[~fits], ticks[~fits]

    def _overflow(self, tick: int) -> Level:
        """The level that the tick needs, made with those below it."""
        level = self._levels[-1]
        while tick >= level.end:
            level = Level(len(level.slots), level.width * len(level.slots), level.start)
            self._levels.append(level)
        return level

    # -- taking out -----------------------------------------------------------------------------

    def open_next(self, target_tick: int) -> Entries | None:
        """One step towards the target: what fell due by it, by tick, then as placed.

        Empty if timers only moved down. None: nothing more is due, the clock is at the target.
        """
        if self._falling_end != _NO_CASCADE:
            return self._fall()
        first = self._levels[0].occupied.find(1)
        first_tick = self._levels[0].start + first if first >= 0 else TICK_MAX
        if self._run:
            due = self._cut_run(min(first_tick, target_tick))
            if due:
                self.clock = min(self._last_cut_tick(due), first_tick - 1)
                return due
        if first_tick <= target_tick:
            return self._begin_fall(self._levels[0], first)
        if not self._run:
            for level in self._levels[1:]:
                number = level.occupied.find(1)
                if number >= 0:
                    if level.start + number * level.width <= target_tick:
                        return self._begin_fall(level, number)
                    break
        self.clock = max(self.clock, target_tick)
        self._move_windows(self.clock)
        return None

    def _cut_run(self, tick: int) -> Entries:
        cut = bisect_left(self._run_ticks, -tick, key=neg)
        if len(self._run) - cut < ARRAY_MIN:
            due = self._run[cut:]
            due.reverse()
        else:
            due = array("q", np.frombuffer(self._run, dtype=np.int64)[cut:][::-1].tobytes())
        del self._run[cut:], self._run_ticks[cut:]
        self.moved_count += len(due)
        return due

    def _last_cut_tick(self, due: Entries) -> int:
        return self.ticks[due[-1]]

    def _begin_fall(self, level: Level, number: int) -> Entries:
        start = level.start + number * level.width
        self._falling = level.take(number)
        self._fallen = 0
        self._falling_end = start + level.width
        self._move_windows(start)
        self.clock = start - 1
        return self._fall()

    def _fall(self) -> Entries:
        """Move some of the falling entries down. Returns those due, if it was a slot of level 0."""
        begin = self._fallen
        falling = self._falling
        self._fallen = min(begin + CASCADE_MAX, len(falling))
        some = falling[begin : self._fallen]
        self.moved_count += len(some)
        is_last = self._fallen == len(falling)
        width = self._falling_end - self.clock - 1
        if is_last:
            self._falling = array("q")
            self._fallen = 0
            self._falling_end = _NO_CASCADE
        if width == 1:
            if is_last:
                self.clock += 1
            return some
        finest = self._levels[0]
        if is_last and width == len(finest.slots) and finest.occupied.find(1) < 0:
            self._sort_run(some)
        elif len(some) < ARRAY_MIN:
            for entry in some:
                self._put(entry, self.ticks[entry])
        else:
            entries = np.frombuffer(some, dtype=np.int64)
            self._put_many(entries, np.frombuffer(self.ticks, dtype=np.int64)[entries])
        return array("q")

    def _sort_run(self, entries: Entries) -> None:
        if len(entries) < ARRAY_MIN:
            self._run = array("q", sorted(entries, key=self.ticks.__getitem__))
            self._run.reverse()
            self._run_ticks = array("q", [self.ticks[entry] for entry in self._run])
        else:
            unsorted = np.frombuffer(entries, dtype=np.int64)
            ticks = np.frombuffer(self.ticks, dtype=np.int64)[unsorted]
            offsets = (ticks - self._levels[0].start).astype(np.uint16)
            order = np.argsort(offsets, kind="stable")[::-1]
            self._run = array("q", unsorted[order].tobytes())
            self._run_ticks = array("q", ticks[order].tobytes())

    def _move_windows(self, tick: int) -> None:
        for level in self._levels:
            if tick < level.end:
                return
            level.move_to(tick)

    # -- asking ---------------------------------------------------------------------------------

    def next_tick(self, strip: Callable[[Entries], None]) -> int | None:
        """When the first slot that is not empty falls due. None if there is none.

        `strip` removes dead entries from the end of a list, until a live one is last.
        """
        if self._falling_end != _NO_CASCADE:
            return self.clock + 1
        run_tick = self._run_tick(strip)
        for level in self._levels:
            number = level.occupied.find(1)
            while number >= 0:
                slot = level.slots[number]
                assert slot is not None, "an empty slot was marked as occupied"
                strip(slot)
                if slot:
                    tick = level.start + number * level.width
                    return tick if run_tick is None else min(tick, run_tick)
                level.take(number)
                number = level.occupied.find(1, number)
            if run_tick is not None:
                return run_tick
        return None

    def _run_tick(self, strip: Callable[[Entries], None]) -> int | None:
        if not self._run:
            return None
        strip(self._run)
        del self._run_ticks[len(self._run) :]
        return self._run_ticks[-1] if self._run else None

    # -- the rest -------------------------------------------------------------------------------

    def sweep(self, keep: Callable[[Entries], Entries]) -> None:
        """Replace what waits anywhere by what `keep` leaves of it, in order. O(entries)."""
        for level in self._levels:
            for number, slot in enumerate(level.slots):
                if slot is not None:
                    kept = keep(slot)
                    level.slots[number] = kept or None
                    level.occupied[number] = bool(kept)
        self._falling = keep(self._falling[self._fallen :])
        self._fallen = 0
        self._run = keep(self._run)
        self._run_ticks = array("q", [self.ticks[entry] for entry in self._run])

    def everything(self) -> Iterator[int]:
        """Every entry that is waiting somewhere, dead ones too."""
        for level in self._levels:
            for slot in level.slots:
                yield from slot or ()
        yield from self._falling[self._fallen :]
        yield from self._run

    def check(self) -> None:
        entries = list(self.everything())
        assert len(entries) == len(set(entries)), "an entry is in two places"
        is_falling = self._falling_end != _NO_CASCADE
        lowest = self.clock + 1
        for level in self._levels:
            self._check_level(level, lowest)
            lowest = level.end
        for inner, level in pairwise(self._levels):
            assert level.width == inner.width * len(inner.slots)
            assert level.start <= inner.start < inner.end <= level.end
        assert self._levels[0].start - 1 <= self.clock < self._levels[0].end
        assert is_falling or not self._falling
        for entry in self._falling[self._fallen :]:
            assert self.clock < self.ticks[entry] < self._falling_end
        run_ticks: list[Any] = [self.ticks[entry] for entry in self._run]
        assert run_ticks == self._run_ticks.tolist()
        assert run_ticks == sorted(run_ticks, reverse=True)
        assert all(self.clock < tick < self._levels[0].end for tick in run_ticks)

    def _check_level(self, level: Level, lowest: int) -> None:
        span = level.width * len(level.slots)
        assert level.end == level.start + span
        assert level.start % span == 0
        for number, slot in enumerate(level.slots):
            assert level.occupied[number] == (slot is not None), "occupied is wrong"
            start = level.start + number * level.width
            assert slot is None or slot, "an empty slot was kept"
            for entry in slot or ():
                assert max(start, lowest) <= self.ticks[entry] < start + level.width


# ------------------------------------------------------------------------------ times and ticks
#
# Tick *t* covers the milliseconds ``[t * tick_ms, (t + 1) * tick_ms)`` since the epoch, so ticks
# do not depend on when the wheel was made. A deadline is rounded **up** to a tick and the time of an
# advance **down**: a timer is due at ``now_ms`` only if ``now_ms >= deadline_ms``, whatever the tick
# and the phase, and late by less than one tick.
#
# Times are whole numbers of any size. What lies beyond `TICK_MAX` (292 million years at one
# millisecond) is taken to be there, and the clock never gets there: such a timer is kept and counted,
# can be cancelled, and never falls due. What lies before the epoch is due at once.


TICK_MAX: Final = 2**63 - 1
"""The last tick. Deadlines beyond it are clipped to it; the clock stops one before it."""

TICK_MS_MAX: Final = 86_400_000


def whole(number: object, what: str) -> int:
    """The number, if it is a whole one. Raises `CallerError` for floats, booleans and the rest."""
    if type(number) is int:
        return number
    if isinstance(number, SupportsIndex) and not isinstance(number, bool | np.bool_):
        try:
            return index(number)
        except TypeError:  # an array of several numbers
            pass
    raise CallerError(f"{what} must be a whole number, got {number!r}")


def between(number: object, lowest: int, highest: int, what: str) -> int:
    """The whole number, if it lies in the range. Raises `CallerError`."""
    checked = whole(number, what)
    if not lowest <= checked <= highest:
        raise CallerError(f"{what} must lie in {lowest}..{highest}, got {checked}")
    return checked


def now_tick(now_ms: object, tick_ms: int) -> int:
    """The tick that the time lies in."""
    return min(max(whole(now_ms, "now_ms") // tick_ms, 0), TICK_MAX - 1)


def clipped(tick: int) -> int:
    """The tick, within what 64 bits hold."""
    return min(max(tick, 0), TICK_MAX)


def deadline_ticks(deadlines_ms: ArrayLike, tick_ms: int) -> NDArray[np.int64]:
    """The first tick that is not before each deadline. Raises `CallerError`."""
    deadlines = checked_integers(deadlines_ms, "deadlines_ms")
    if deadlines.dtype == np.uint64:
        deadlines = np.minimum(deadlines, np.uint64(TICK_MAX))
    ticks = deadlines.astype(np.int64, copy=False)
    return ticks if tick_ms == 1 else -(-np.maximum(ticks, 0) // tick_ms)
