"""When what failed is tried again, or what was begun goes on: one ordered list. Pure.

Waits grow with each failure, and are spread by chance.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from ackgate.dispatcher.trackers.backoff import MultiplierRedeliveryBackoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackgate.dispatcher.trackers.bucket_settings import BucketSettings

JITTER: Final = 0.25
"""Share of a wait that chance may take off."""

_MASK: Final = 2**64 - 1


class RetryClock:
    """What is to be tried again, and when. The seed decides all chances."""

    __slots__ = ("_backoff", "_heap", "_seed", "_serial", "_settings")

    def __init__(self, settings: BucketSettings, seed: int) -> None:
        self._settings = settings
        self._backoff = MultiplierRedeliveryBackoff(
            settings.retry_ms, settings.retry_ms_max, 2.0, JITTER
        )
        self._seed = seed
        self._serial = 0
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first one is to be tried. None: nothing waits."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, attempts: int, now_ms: int, retry: Callable[[int], None]) -> None:
        """`attempts` in a row have failed: call this with the time, when it has come."""
        if attempts >= self._settings.attempts_max:
            wait_ms = self._backoff.max_delay_ms - int(
                self._backoff.max_delay_ms * JITTER * self._chance()
            )
        else:
            wait_ms = self._backoff.next(attempts - 1, self._chance())
        heappush(self._heap, (now_ms + max(wait_ms, 1), self._serial, retry))

    def soon(self, now_ms: int, go_on: Callable[[int], None]) -> None:
        """Work that is done in pieces: call this with the time, in the next millisecond."""
        self._serial += 1
        heappush(self._heap, (now_ms + 1, self._serial, go_on))

    def due(self, now_ms: int) -> Iterator[Callable[[int], None]]:
        """Take out what is to be tried now."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heappop(self._heap)[2]

    def _chance(self) -> float:
        """Splitmix64: a number from 0 to 1, another one each time."""
        self._serial += 1
        mixed = (self._seed + self._serial * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
