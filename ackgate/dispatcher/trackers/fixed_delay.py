"""Do all entries wait equally long? Then nothing that is read later can be due sooner.

Pure. Upstream's rule (apache/pulsar#16609): the times of tracked entries only ever grew, give or take
a tick, and no entry came that does not wait. One that breaks this settles it until the tracker is
empty again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FixedDelay:
    """Watches the times that are offered to one tracker."""

    __slots__ = ("highest_ms", "is_fixed")

    is_fixed: bool
    """Every entry so far was tracked, and none has a time before that of an earlier one."""

    highest_ms: int
    """The latest time seen."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """The tracker is empty."""
        self.is_fixed = True
        self.highest_ms = 0

    def tracked(self, deliver_at_ms: int, tick_ms: int) -> None:
        """An entry was taken."""
        if deliver_at_ms > self.highest_ms:
            self.highest_ms = deliver_at_ms
        elif deliver_at_ms < self.highest_ms - tick_ms:
            self.is_fixed = False

    def tracked_many(self, deliver_at_ms: NDArray[np.int64], tick_ms: int) -> None:
        """Entries were taken, in this order."""
        if not deliver_at_ms.size:
            return
        if self.is_fixed:
            highest = deliver_at_ms.copy()
            highest[0] = max(self.highest_ms, int(highest[0]))
            np.maximum.accumulate(highest, out=highest)
            self.is_fixed = not bool((highest - deliver_at_ms > tick_ms).any())
            self.highest_ms = int(highest[-1])
        else:
            self.highest_ms = max(self.highest_ms, int(deliver_at_ms.max()))

    def refused(self) -> None:
        """An entry came that does not wait."""
        self.is_fixed = False
