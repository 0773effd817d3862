"""A lane that runs its work at once, on the loop: I/O without threads, the same every time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class InlineLane:
    """Implements `IoLane`. Everything else gets a turn before the work and after it."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work when what was handed over before is done."""
        if self._is_closed:
            raise RuntimeError(f"lane {self.name} is closed")
        async with self._turn:
            await asyncio.sleep(0)
            try:
                return work()
            finally:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Take no more."""
        self._is_closed = True
