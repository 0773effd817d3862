"""How much of all trackers' storage work is under way at the same time.

Edge. Two lanes, first come first served in each: what a due message waits for is never behind what
nobody waits for, whatever hangs there.
"""

from __future__ import annotations

import asyncio
from typing import Final

LOADS_MAX: Final = 32
"""Loads of segments that will be due."""

OTHERS_MAX: Final = 32
"""Snapshots that are written, registered, deleted, or read again after a start."""


class StorageLanes:
    """One for each broker."""

    __slots__ = ("loads", "others")

    def __init__(self, *, loads_max: int = LOADS_MAX, others_max: int = OTHERS_MAX) -> None:
        self.loads = asyncio.Semaphore(loads_max)
        self.others = asyncio.Semaphore(others_max)
