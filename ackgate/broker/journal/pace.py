"""How much of the broker's time its delivery journals may take, all topics together.

Edge: the event loop's clock. Blocks are made in turns; one that took its maker `t` is followed by a
pause, so that no more than a share of the time goes into journals::

    block  . . .  block  . . .  block         a share of a quarter: three times `t` of pause
    t      3 t    t      3 t

What cannot be written in this time waits in the topics' queues, and beyond those it is dropped.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHARE_MAX: Final = 0.25
"""Of the event loop's time."""

OPENINGS_AT_ONCE_MAX: Final = 20
"""Journals that are opened at the same time: nobody waits for them."""


class JournalPace:
    """Whose turn it is."""

    def __init__(self) -> None:
        self.openings = asyncio.Semaphore(OPENINGS_AT_ONCE_MAX)
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Make a block inside, without awaiting anything."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            wait = self._free_at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            began = loop.time()
            try:
                yield
            finally:
                self.took(loop.time() - began)

    def took(self, seconds: float) -> None:
        """A journal has had the loop for so long."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + seconds * (1 / SHARE_MAX - 1)
