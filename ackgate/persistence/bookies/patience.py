"""Waiting for a disk, with a time limit.

Edge. Work that has begun on a lane cannot be cancelled: a late answer is dropped. So this is only for
reads, and for work that may be done twice.

A lane with a long queue is not silent: while it answers any call, all go on waiting. Only when there
was no answer at all for the whole time do all calls fail, together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

LATE_SECONDS: Final = 1.0
"""A timer this late means that we were held up (a stopped process, a busy loop), and that answers
may be queued: the time starts again."""

_SILENT_FOR: Final = 6
"""A disk that did not answer counts as silent for so many time-outs: it is asked last, and waited
for less long."""

_PATIENCE_IF_SILENT: Final = 0.1
"""Share of the time-out that a silent disk gets."""

_LONG_WORK: Final = 6
"""How many time-outs work may take that is known to be long."""


class NoAnswerError(Exception):
    """No answer in time.

    A class of its own, since a file system may raise `TimeoutError` itself.
    """


async def within(seconds: float | None, answer: Awaitable[T]) -> T:
    """Wait for the answer. Raises `NoAnswerError` after `seconds`; None: wait forever."""
    if seconds is None:
        return await answer
    patience = asyncio.timeout(seconds)
    try:
        async with patience:
            return await answer
    except TimeoutError:
        if patience.expired():
            raise NoAnswerError from None
        raise


class LanePatience:
    """Waits for the answers of one lane, and knows how long it has been silent."""

    __slots__ = ("_long_works", "_quiet_since", "_seconds", "_silent_until", "_waiting", "_watch")

    def __init__(self, seconds: float | None) -> None:
        """`seconds`: how long nothing may come. None: forever."""
        self._seconds = seconds
        self._waiting: set[asyncio.Timeout] = set()
        self._quiet_since = 0.0
        self._silent_until: float | None = None
        self._long_works = 0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer lately."""
        return (
            self._silent_until is not None
            and asyncio.get_running_loop().time() < self._silent_until
        )

    def answered(self) -> None:
        self._quiet_since = asyncio.get_running_loop().time()
        self._silent_until = None

    async def within(self, answer: Awaitable[T], *, is_long: bool = False) -> T:
        """Wait for an answer of the lane. Raises `NoAnswerError`.

        `is_long`: it may well take longer than most.
        """
        if self._seconds is None:
            return await answer
        if not self._waiting:
            self._quiet_since = asyncio.get_running_loop().time()
        self._long_works += is_long
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._waiting.add(patience)
                self._arm()
                return await answer
        except TimeoutError:
            if patience.expired():
                raise NoAnswerError from None
            raise
        finally:
            self._waiting.discard(patience)
            self._long_works -= is_long

    @property
    def seconds(self) -> float:
        """How long the lane may be silent, as of now."""
        seconds = self._seconds or 0.0
        if self.is_silent:
            return seconds * _PATIENCE_IF_SILENT
        return seconds * _LONG_WORK if self._long_works else seconds

    def _arm(self) -> None:
        due = self._quiet_since + self.seconds
        if self._watch is not None:
            if self._watch.when() <= due:
                return
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        """One timer, however many wait."""
        watch, self._watch = self._watch, None
        if not self._waiting or self._seconds is None or watch is None:
            return
        now = asyncio.get_running_loop().time()
        if now - watch.when() > LATE_SECONDS:
            self._quiet_since = now
        if now < self._quiet_since + self.seconds:
            self._arm()
            return
        self._silent_until = now + self._seconds * _SILENT_FOR
        for patience in self._waiting:
            patience.reschedule(now)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
