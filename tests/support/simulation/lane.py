"""A lane of blocking work in virtual time: it takes a while to begin, and a while to be told.

The work itself happens at one moment, on the loop. A process killed before it has never asked for
it; one killed after it has done it and does not know.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ackgate.persistence.system.futures import fail, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.simulation.loop import Process

T = TypeVar("T")


class SimulatedLane:
    """Implements `IoLane`."""

    __slots__ = ("_delay", "_free_at", "_is_closed", "_process", "name")

    def __init__(self, name: str, process: Process, delay: Callable[[], float]) -> None:
        """`delay` draws the seconds of one half of a piece of work."""
        self.name = name
        self._process = process
        self._delay = delay
        self._free_at = 0.0
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work when what was handed over before is done."""
        if self._is_closed:
            raise RuntimeError(f"lane {self.name} is closed")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        begins_at = max(self._free_at, loop.time()) + self._delay()
        ends_at = self._free_at = begins_at + self._delay()

        def do() -> None:
            error: BaseException | None = None
            try:
                result = work()
            except Exception as raised:
                error = raised
            if not self._process.is_alive:
                return
            if error is not None:
                loop.call_at(ends_at, fail, done, error)
            else:
                loop.call_at(ends_at, resolve, done, result)

        loop.call_at(begins_at, do)
        return await done

    def close(self) -> None:
        """Take no more."""
        self._is_closed = True
