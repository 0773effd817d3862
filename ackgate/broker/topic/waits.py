"""What waits in this broker, under one clock: a timing wheel, a purgatory, and one loop timer.

Edge. The timer is set to the next slot of the two that is not empty, so that a broker in which
nothing falls due does not wake, however many subscriptions it has.

* **Deadlines** (`wake_in`): a subscription's next turn, which is due with its gate, its dispatcher, its
  oldest receipt, the next delayed message or the next nack that was held back.
* **Reads** (`park`): a subscription that has nothing to read waits for entries, or for its gate, as an
  operation in the purgatory, watched under the topic's ledger, or under the gate. The code that adds entries
  or opens a gate calls `came`. Its deadline is that of its next turn.

Time is the event loop's, which does not jump when the clock of the machine is set.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.timing import Purgatory, TimingWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ackgate.dispatcher.timing import PurgatoryStatistics, Timer

WAKES_MAX: Final = 1_000
"""Deadlines handled before other tasks get their turn."""

WAIT_MS_MAX: Final = 24 * 3_600_000
"""Longest wait of a read that has no deadline. A look once a day costs nothing."""

_ROUNDING_MS: Final = 0.001
"""A time in seconds, times a thousand, may miss the whole millisecond by less."""


class Waits:
    """Deadlines and waiting reads of one broker."""

    __slots__ = (
        "_armed_ms",
        "_loop_timer",
        "_reads",
        "_wheel",
        "receipts_overdue",
        "receipts_sent",
        "wakes",
    )

    def __init__(self) -> None:
        self._wheel: TimingWheel[Callable[[], None]] = TimingWheel()
        self._reads: Purgatory[Hashable, _ParkedRead] = Purgatory()
        self._loop_timer: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        """When the loop timer is due, if there is one."""
        self.wakes = 0
        """How often the loop timer was due so far."""
        self.receipts_sent = 0
        """Acks reported as durable so far."""
        self.receipts_overdue = 0
        """Acks that did not become durable in time."""

    @property
    def deadline_count(self) -> int:
        """Calls of `wake_in` that are neither made nor cancelled. O(1)."""
        return self._wheel.size

    @property
    def read_stats(self) -> PurgatoryStatistics:
        """Statistics of reads that wait for entries or for a gate. O(1)."""
        return self._reads.stats

    # -- deadlines ------------------------------------------------------------------------------

    def wake_in(self, delay_ms: int, wake: Callable[[], None]) -> Timer:
        """Call `wake` after `delay_ms`, not sooner."""
        deadline_ms = self._deadline_ms(delay_ms)
        timer = self._wheel.schedule(wake, deadline_ms)
        self._arm(deadline_ms)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Drop a call that was not made yet."""
        if self._wheel.cancel(timer):
            self._disarm_if_idle()

    # -- reads ----------------------------------------------------------------------------------

    def park(
        self,
        key: Hashable,
        has_come: Callable[[], bool],
        wake: Callable[[], None],
        *,
        delay_ms: int | None = None,
        expire: Callable[[], None],
    ) -> Timer | None:
        """Call `wake` once `has_come` is true for the key, or `expire` after the delay.

        Returns None, and calls nothing, if it is true already. Without a delay, expires after a
        day.
        """
        deadline_ms = self._deadline_ms(WAIT_MS_MAX if delay_ms is None else delay_ms)
        parked = _ParkedRead(has_come, wake, expire)
        timer = self._reads.try_complete_else_watch(parked, (key,), deadline_ms)
        if timer is not None:
            self._arm(deadline_ms)
        return timer

    def came(self, key: Hashable) -> None:
        """Wake the waiters of a key whose condition may be true now."""
        for parked in self._reads.check_and_complete(key):
            parked.wake()

    def unpark(self, timer: Timer) -> None:
        """Drop a parked read that was not called yet."""
        if self._reads.complete(timer) is not None:
            self._disarm_if_idle()

    # -- the clock ------------------------------------------------------------------------------

    def _deadline_ms(self, delay_ms: int) -> int:
        now_ms = asyncio.get_running_loop().time() * 1000
        return ceil(now_ms - _ROUNDING_MS) + max(delay_ms, 0)

    def _arm(self, deadline_ms: int) -> None:
        """Make sure that the loop timer is due by then."""
        if self._loop_timer is None or deadline_ms < self._armed_ms:
            self._disarm()
            self._armed_ms = deadline_ms
            self._loop_timer = asyncio.get_running_loop().call_at(deadline_ms / 1000, self._advance)

    def _disarm_if_idle(self) -> None:
        if not self._wheel.size and not len(self._reads):
            self._disarm()

    def _disarm(self) -> None:
        if self._loop_timer is not None:
            self._loop_timer.cancel()
            self._loop_timer = None

    def _advance(self) -> None:
        self._loop_timer = None
        self.wakes += 1
        loop = asyncio.get_running_loop()
        now_ms = int(loop.time() * 1000 + _ROUNDING_MS)
        expired = (parked.expire for parked in self._reads.advance(now_ms, WAKES_MAX))
        for wake in chain(self._wheel.advance(now_ms, WAKES_MAX), expired):
            try:
                wake()
            except Exception as error:  # noqa: BLE001  # one's fault is not the others'
                loop.call_exception_handler({"message": "a deadline failed", "exception": error})
        for waiting in (self._wheel, self._reads):
            if waiting.next_deadline_ms is not None:
                self._arm(waiting.next_deadline_ms)


class _ParkedRead:
    """A subscription with nothing to read, as an operation of the purgatory."""

    __slots__ = ("expire", "try_complete", "wake")

    def __init__(
        self, has_come: Callable[[], bool], wake: Callable[[], None], expire: Callable[[], None]
    ) -> None:
        self.try_complete = has_come
        self.wake = wake
        self.expire = expire
