"""Times as they come from outside, and ticks as the wheel counts them.

Pure. Tick *t* covers the milliseconds ``[t * tick_ms, (t + 1) * tick_ms)`` since the epoch, so ticks
do not depend on when the wheel was made. A deadline is rounded **up** to a tick and the time of an
advance **down**: a timer is due at ``now_ms`` only if ``now_ms >= deadline_ms``, whatever the tick
and the phase, and late by less than one tick.

Times are whole numbers of any size. What lies beyond `TICK_MAX` (292 million years at one
millisecond) is taken to be there, and the clock never gets there: such a timer is kept and counted,
can be cancelled, and never falls due. What lies before the epoch is due at once.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Final, SupportsIndex

import numpy as np

from ackgate.cursor.whole_numbers import whole_numbers
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

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
    deadlines = whole_numbers(deadlines_ms, "deadlines_ms")
    if deadlines.dtype == np.uint64:
        deadlines = np.minimum(deadlines, np.uint64(TICK_MAX))
    ticks = deadlines.astype(np.int64, copy=False)
    return ticks if tick_ms == 1 else -(-np.maximum(ticks, 0) // tick_ms)
