"""Deliver-at times and their keys: the rounding, and when a key is due.

Pure. A key is a multiple of ``2**bits`` ms, ``bits = floor(log2(tick))``, so a bucket is at most
as wide as the tick that it was made for, and wider than half of it.

===========  =============  ===============================  ==================================
mode         key            rejected by `add`: deliver now   in the buckets due, once
===========  =============  ===============================  ==================================
strict       rounded up     deliver_at <= now                key <= now
not strict   rounded down   deliver_at <= now + tick         key + width - 1 <= now + tick
===========  =============  ===============================  ==================================

Both columns use the latest time of the key's bucket. So in strict mode nothing is early and
everything is late by less than a tick; otherwise nothing is more than a tick early. An entry of a due
bucket is rejected if it is offered again: no popped entry comes back while its key is due.

A tick that is configured later moves the bounds, not the width. If it is smaller than the width,
delivery outside strict mode is at most that tick early, and late by less than the width.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor import checked_integers
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def key_bits(tick_ms: int) -> int:
    """``floor(log2(tick))``; 0 for a tick of 0."""
    return max(tick_ms, 1).bit_length() - 1


class DelayKeys:
    """Rounds and compares for one tracker. Mode and width are fixed; the tick may be changed."""

    __slots__ = ("_low_bits", "ahead_ms", "bits", "is_strict", "lead_ms")

    bits: Final[int]
    """Keys are multiples of ``2**bits`` ms (but for `TIME_MS_MAX`)."""

    is_strict: Final[bool]
    """Whether nothing is delivered early."""

    ahead_ms: int
    """Times that are no further ahead than this are not tracked."""

    lead_ms: int
    """A key is due so long before it has come (in not strict mode; may be below 0)."""

    def __init__(self, tick_ms: int, *, is_strict: bool) -> None:
        """Raises `CallerError` for a tick below 1 ms."""
        self.bits = key_bits(tick_ms)
        self.is_strict = is_strict
        self._low_bits = (1 << self.bits) - 1
        self.set_tick(tick_ms)

    def set_tick(self, tick_ms: int) -> None:
        """Set another tick; the width stays. Raises `CallerError` below 1 ms."""
        if tick_ms < 1:
            raise CallerError(f"a tick of {tick_ms} ms is below 1 ms")
        self.ahead_ms = 0 if self.is_strict else tick_ms
        self.lead_ms = 0 if self.is_strict else tick_ms - self._low_bits

    @property
    def width_ms(self) -> int:
        """How many times share a key."""
        return self._low_bits + 1

    # -- times

    def refused_through(self, now_ms: int) -> int:
        """Times up to this one are not tracked: "deliver now"."""
        return now_ms + self.ahead_ms

    def key(self, deliver_at_ms: int) -> int:
        """The key of a time in 0..`TIME_MS_MAX`."""
        if self.is_strict:
            return min((deliver_at_ms + self._low_bits) & ~self._low_bits, TIME_MS_MAX)
        return deliver_at_ms & ~self._low_bits

    def keys(self, deliver_at_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        low_bits = np.int64(self._low_bits)
        if not self.is_strict:
            return deliver_at_ms & ~low_bits
        above = np.int64(TIME_MS_MAX) - low_bits
        rounded = (np.minimum(deliver_at_ms, above) + low_bits) & ~low_bits
        rounded[deliver_at_ms > (TIME_MS_MAX & ~self._low_bits)] = TIME_MS_MAX
        return rounded

    # -- keys

    def cutoff(self, now_ms: int) -> int:
        """Keys up to this one are due. Not above `TIME_MS_MAX`."""
        return min(now_ms + self.lead_ms, TIME_MS_MAX)

    def due_ms(self, key_ms: int) -> int:
        """When a key falls due."""
        return key_ms - self.lead_ms


def time_ms(value: int) -> int:
    """A time from outside: any whole number up to `TIME_MS_MAX`, else `CallerError`."""
    try:
        time = index(value)
    except TypeError:
        raise CallerError(f"a time must be a whole number of ms, not {value!r}") from None
    if time > TIME_MS_MAX:
        raise CallerError(f"time {time} is above 2^63 - 1 ms")
    return time


def times_ms(values: ArrayLike) -> NDArray[np.int64]:
    """`time_ms` for an array. Raises `CallerError` for floats, which hide NaN and rounding."""
    array = checked_integers(values, "times, in ms,")
    if array.dtype == np.uint64 and int(array.max()) > TIME_MS_MAX:
        raise CallerError(f"time {int(array.max())} is above 2^63 - 1 ms")
    return array.astype(np.int64, copy=False)
