"""Decides when Python collects garbage in the broker's whole heap: in idle moments, not under load.

Edge: the process's garbage collector; one task. By default Python visits every object (0.1 to 0.4 s
with a full entry cache) whenever their number has grown by a quarter. At 10,000 messages a second
that is every few seconds, and nothing is delivered meanwhile. Nearly everything is freed without
it: only cycles need the collector, and most of those die young, where it still runs by itself. So
the whole heap is collected

* when the process was idle for a second, once after each busy time;
* under load when its memory has grown by `GROWTH_BYTES_MAX`, since that much may be garbage;
* and at the latest after `SECONDS_MAX`.

Objects that the imports made stay forever, and are excluded from collection (`gc.freeze`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0

IDLE_SHARE: Final = 0.05
"""Share of a processor. A process that takes less is idle, and a pause does no harm."""

IDLE_SECONDS_MIN: Final = 10.0
"""Shortest time between two collections in idle moments: traffic may come and go every second."""

GROWTH_BYTES_MAX: Final = 128 * 1024 * 1024
"""Garbage may hold that much memory under load; some 1,000 closed connections with their buffers."""

SECONDS_MAX: Final = 1_800.0
"""A pause of 0.3 s every half an hour is a fiftieth of what the tail may have (p99.9)."""

_NEVER: Final = 2**31 - 1
_STATM: Final = Path("/proc/self/statm")


class Moment(NamedTuple):
    """The process at one look: what `is_due` decides by."""

    busy_share: float
    """Share of a processor that the process used since the last look."""
    seconds: float
    """Time since the last collection."""
    growth_bytes: int
    """How much the process's memory has grown since the last collection."""
    has_survivors: bool
    """Whether any object has reached the oldest generation since the last collection."""


def is_due(moment: Moment) -> bool:
    """Whether to collect the whole heap now."""
    if not moment.has_survivors:
        return False
    if moment.busy_share < IDLE_SHARE:
        return moment.seconds >= IDLE_SECONDS_MIN
    return moment.growth_bytes >= GROWTH_BYTES_MAX or moment.seconds >= SECONDS_MAX


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Collector:
    """Decides when this process collects its whole heap, after `begin`."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._collected_at = self._looked_at = time.monotonic()
        self._busy_seconds = time.process_time()
        self._base_bytes = resident_bytes()

    def begin(self) -> asyncio.Task[None]:
        """Start deciding. Cancel the task to restore Python's own thresholds."""
        gc.collect()
        gc.freeze()
        young, middle, _ = self._thresholds
        gc.set_threshold(young, middle, _NEVER)
        return asyncio.get_running_loop().create_task(self._go_on())

    async def _go_on(self) -> None:
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self.look()
        finally:
            gc.set_threshold(*self._thresholds)

    def look(self) -> None:
        """Collect the whole heap if it is time."""
        now, busy_seconds = time.monotonic(), time.process_time()
        moment = Moment(
            busy_share=(busy_seconds - self._busy_seconds) / max(now - self._looked_at, 1e-9),
            seconds=now - self._collected_at,
            growth_bytes=resident_bytes() - self._base_bytes,
            has_survivors=gc.get_count()[2] > 0,
        )
        self._looked_at, self._busy_seconds = now, busy_seconds
        if not is_due(moment):
            return
        found = gc.collect()
        self._collected_at = time.monotonic()
        self._base_bytes = resident_bytes()
        log.debug(
            "%d objects of garbage found in %.0f ms (%.0f s and %d MiB after the last time)",
            found,
            (self._collected_at - now) * 1000,
            moment.seconds,
            moment.growth_bytes >> 20,
        )
