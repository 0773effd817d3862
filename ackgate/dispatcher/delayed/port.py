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
``2**bits`` ms, ``bits = floor(log2(tick))``. In strict mode it is rounded up and due at the key's
time: never early, late by less than a tick. Otherwise it is rounded down and due one tick before the
latest time of the key's bucket: early by at most a tick. No popped entry is accepted again while its
key is due (`delay_keys`).

Rules: PIP-195, apache/pulsar#23611 (time buckets), #26012 (rounding), #26230 (a due entry is never
accepted, tracked or not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ackgate.config import defaults

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from pyroaring import BitMap

    from ackgate.cursor import Position


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
        """When to ask `pop_due` next: when something falls due, or work of the source's own does.

        In the past if something is due now. None: nothing is waited for.
        """
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

    def has_due(self, now_ms: int) -> bool:
        """Whether `pop_due` would give anything."""
        ...

    def pauses_reads(self, now_ms: int) -> bool:
        """Whether reading on is useless now: see `DelaySettings.fixed_delay_lookahead`."""
        ...

    def configure(self, settings: DelaySettings) -> None:
        """Use new settings from now on. Keys that are there stay as they are."""
        ...
