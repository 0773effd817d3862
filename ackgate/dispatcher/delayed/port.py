"""The port of a delayed-delivery tracker: which entries must not be delivered yet.

Pure. One index says what is tracked: a position is in it from the `add` that accepts it until it is
popped, discarded or forgotten. Reads leave tracked entries out, so a position that is in the index
and in no bucket would never be delivered; `check` asserts that there is none.

::

    entry read --> add(position, deliver_at) --- False: deliver it now
                          | True
                          v
              index bit + time bucket  ----- next_deadline_ms: call again then
                          |
            pop_due(now) -+-> positions for the dispatcher's replay queue; their bits are cleared

Times are milliseconds since the epoch. A deliver-at time is kept as a **key**, a multiple of
``2**bits`` ms, ``bits = floor(log2(tick))``, so a bucket is at most as wide as the tick that it was made
for, and wider than half of it:

===========  =============  ===============================  ==============================  ================
mode         key            rejected by `add`: deliver now   in the buckets due, once        deadline
===========  =============  ===============================  ==============================  ================
strict       rounded up     deliver_at <= now                key <= now                      key
not strict   rounded down   deliver_at <= now + tick         key + width - 1 <= now + tick   key + width - 1
===========  =============  ===============================  ==============================  ================

All three use the latest time of the key's bucket. So in strict mode nothing is early; otherwise nothing is
more than a tick early, and only if the dispatcher reads for another reason: an ack, permits, a publication, a
deadline. Nobody is woken early, so that an application that waits for its delay alone does not meet the
message before it. Both as in Pulsar.
In both modes everything is late by less than the width. An entry of a due bucket is rejected if it is offered
again: no popped entry comes back while its key is due.

A tick that is configured later moves the bounds, not the width.

Rules: PIP-195, apache/pulsar#23611 (time buckets), #26012 (rounding), #26230 (a due entry is never
accepted, tracked or not).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import numpy as np

from ackgate.config import defaults
from ackgate.cursor import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    check_position,
    checked_integers,
    entry_ids_below,
)
from ackgate.dispatcher.held import TIME_MS_MAX
from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from pyroaring import BitMap


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySettings:
    """How exact a tracker is. Each is a setting, with its default."""

    tick_ms: int = defaults.DELAY_TICK_MS
    """``delayedDeliveryTickTimeMillis``. The width of a bucket is fixed when a tracker is made; a
    later tick changes the cutoff only."""

    is_strict: bool = False
    """``isDelayedDeliveryDeliverAtTimeStrict``: never early."""

    fixed_delay_lookahead: int = defaults.FIXED_DELAY_LOOKAHEAD
    """``delayedDeliveryFixedDelayDetectionLookahead``: with so many entries tracked whose times
    only ever grew, reading on cannot find anything due sooner. 0: read on always."""


class HeldSource(Protocol):
    """Holds entries: a `DelayedTracker`, or the held nacks.

    One owner calls it; it never calls back.
    """

    # -- asking ---------------------------------------------------------------------------------

    def __contains__(self, position: Position) -> bool: ...

    def tracked(self, ledger_id: int) -> BitMap | None:
        """Held entry ids of one ledger, to be read only, and only until the next call."""
        ...

    @property
    def entry_count(self) -> int:
        """Held entries (a batch is one). O(1)."""
        ...

    @property
    def byte_estimate(self) -> int:
        """Bytes of memory of everything, to within a fifth. O(1)."""
        ...

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask `pop_due` next: when something must be taken, or work of the source's own falls due.

        Some of it may be due before. In the past if it has waited. None: nothing is waited for.
        """
        ...

    def has_due(self, now_ms: int) -> bool:
        """Whether `pop_due` would give anything."""
        ...

    # -- taking out -----------------------------------------------------------------------------

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        """Take out what is due: by key, then by position. The caller owns it from here on."""
        ...

    def discard(self, position: Position) -> bool:
        """It was acked or cancelled: forget it. Was it held?"""
        ...

    def forget_through(self, mark_delete: Position) -> int:
        """Forget everything up to this position. Returns how many entries were held."""
        ...

    def clear(self) -> None:
        """Forget everything; the outcome of work that is under way is ignored."""
        ...

    def check(self) -> None:
        """Assert every invariant. For tests; O(everything)."""
        ...


class DelayedTracker(HeldSource, Protocol):
    """One subscription's (or topic's) delayed entries."""

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        """Offer an entry that was read. True: it is tracked (or was already). False: deliver now.

        What is due is refused, and leaves the index if it was in it. A tracked position keeps the
        time that it was accepted with. A negative time means "not delayed".
        """
        ...

    def add_many(
        self, ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, now_ms: int
    ) -> NDArray[np.bool_]:
        """As `add` for entries of one ledger (ids and times of one length): what is tracked now.

        Raises `PositionError` or `CallerError` (lengths that differ, times that are no whole
        numbers), and has changed nothing then.
        """
        ...

    @property
    def is_recovering(self) -> bool:
        """Whether entries that an earlier owner stored are still to come.

        Until then the owner has to `discard` what it delivers: it would be tracked besides.
        """
        ...

    def pauses_reads(self, now_ms: int) -> bool:
        """Whether reading on is useless now: see `DelaySettings.fixed_delay_lookahead`."""
        ...

    def configure(self, settings: DelaySettings) -> None:
        """Use new settings from now on. Keys that are there stay as they are."""
        ...


# ------------------------------------------------------------------------------ times and keys


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
        """When a key falls due: from then on its entries go with whatever else goes."""
        return key_ms - self.lead_ms

    def deadline_ms(self, key_ms: int) -> int:
        """When a key is taken for its own sake: all of its entries' times have come."""
        return key_ms if self.is_strict else min(key_ms + self._low_bits, TIME_MS_MAX)


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


def refuse_position(position: Position) -> NoReturn:
    """Raise `PositionError`: no entry can lie there."""
    check_position(Position(*position))
    raise PositionError(f"no entry can lie at {Position(*position)}")


def offered_columns(
    ledger_id: int, entry_ids: ArrayLike, deliver_at_ms: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entry ids and times as `DelayedTracker.add_many` takes them. Raises as that does."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        refuse_position(Position(ledger_id, 0))
    times = times_ms(deliver_at_ms)
    ids = entry_ids_below(entry_ids, ENTRY_ID_MAX + 1, ledger_id).astype(np.int64, copy=False)
    if ids.size != times.size:
        raise CallerError(f"{ids.size} entry ids do not pair with {times.size} times")
    return ids, times
